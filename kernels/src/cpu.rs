//! What this processor can do: detected once, passed by value, forced down at will.
//!
//! ```
//! use headrow_kernels::{Cpu, Isa};
//! let cpu = Cpu::detect();
//! println!("{cpu}");
//! // The same bits on every instruction set, so a lower one is only slower.
//! let plain = Cpu::with_isa(Isa::Scalar).unwrap();
//! assert_eq!(plain.isa(), Isa::Scalar);
//! ```

use crate::table::{self, Table};
use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are written for, from the lowest up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Portable Rust: runs everywhere and defines the bits of every other path.
    Scalar,
    /// 64-bit Arm with 128-bit vectors.
    Neon,
    /// x86-64-v3: 256-bit vectors, fused multiply-add.
    Avx2,
    /// x86-64-v4: 512-bit vectors with masks.
    Avx512,
}

impl Isa {
    /// Every instruction set, from the lowest up, whether or not this machine has it.
    pub const ALL: &'static [Isa] = &[Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The name as written on a command line: `scalar`, `neon`, `avx2`, `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Whether this machine, and this build, can run it.
    pub fn is_available(self) -> bool {
        table::for_isa(self).is_some()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no [`Isa`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa(String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction set {:?}: expected scalar, neon, avx2 or avx512", self.0)
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        let known = Isa::ALL.iter().copied().find(|isa| isa.name() == name);
        known.ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// Sizes of one core's data caches in bytes; common values where the processor does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caches {
    /// First level, data.
    pub l1d: usize,
    /// Second level.
    pub l2: usize,
    /// Last level, as reported; often shared between cores.
    pub l3: usize,
}

impl Default for Caches {
    fn default() -> Caches {
        Caches { l1d: 32 << 10, l2: 512 << 10, l3: 4 << 20 }
    }
}

/// A handle to the kernels of one instruction set, and the caches they are blocked for.
///
/// Having one proves that the machine runs that instruction set. Copy it freely.
#[derive(Clone, Copy)]
pub struct Cpu {
    pub(crate) table: &'static Table,
    pub(crate) caches: Caches,
}

impl Cpu {
    /// The best instruction set of this machine.
    pub fn detect() -> Cpu {
        Cpu { table: table::best(), caches: detect_caches() }
    }

    /// A given instruction set, or `None` when this machine or build lacks it.
    pub fn with_isa(isa: Isa) -> Option<Cpu> {
        Some(Cpu { table: table::for_isa(isa)?, caches: detect_caches() })
    }

    /// One handle per instruction set that runs here, from the lowest up: what tests walk through.
    pub fn all() -> impl Iterator<Item = Cpu> {
        Isa::ALL.iter().copied().filter_map(Cpu::with_isa)
    }

    /// The instruction set of this handle.
    pub fn isa(self) -> Isa {
        self.table.isa
    }

    /// The cache sizes that blocking is chosen by.
    pub fn caches(self) -> Caches {
        self.caches
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("isa", &self.isa()).field("caches", &self.caches).finish()
    }
}

/// A one-line report: processor, instruction set in use, those available, caches.
impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Caches { l1d, l2, l3 } = self.caches;
        write!(f, "{}: {} (of", brand(), self.isa())?;
        for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
            write!(f, " {isa}")?;
        }
        write!(f, "), L1d {} KiB, L2 {} KiB, L3 {} MiB", l1d >> 10, l2 >> 10, l3 >> 20)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Caches;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// The vendor's name of the processor, from the extended leaves.
    pub(super) fn brand() -> Option<String> {
        if __cpuid(0x8000_0000).eax < 0x8000_0004 {
            return None;
        }
        let mut name = Vec::with_capacity(48);
        for leaf in 0x8000_0002u32..=0x8000_0004 {
            let r = __cpuid(leaf);
            for register in [r.eax, r.ebx, r.ecx, r.edx] {
                name.extend(register.to_le_bytes());
            }
        }
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        let name = String::from_utf8_lossy(&name[..end]).trim().to_owned();
        (!name.is_empty()).then_some(name)
    }

    /// Deterministic cache parameters: leaf 4 (Intel), 0x8000001D (AMD, when topology extensions are there).
    pub(super) fn caches() -> Caches {
        let mut caches = Caches::default();
        let amd =
            __cpuid(0x8000_0000).eax >= 0x8000_001d && __cpuid(0x8000_0001).ecx & (1 << 22) != 0;
        let leaf = if amd { 0x8000_001d } else { 4 };
        if !amd && __cpuid(0).eax < 4 {
            return caches;
        }
        for index in 0..16 {
            let r = __cpuid_count(leaf, index);
            let (kind, level) = (r.eax & 0x1f, r.eax >> 5 & 7);
            if kind == 0 {
                break;
            }
            let ways = (r.ebx >> 22) as usize + 1;
            let partitions = (r.ebx >> 12 & 0x3ff) as usize + 1;
            let line = (r.ebx & 0xfff) as usize + 1;
            let size = ways * partitions * line * (r.ecx as usize + 1);
            match (level, kind) {
                (1, 1) => caches.l1d = size,
                (2, 1 | 3) => caches.l2 = size,
                (3, 1 | 3) => caches.l3 = size,
                _ => {}
            }
        }
        caches
    }
}

fn brand() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(brand) = x86::brand() {
        return brand;
    }
    std::env::consts::ARCH.to_owned()
}

fn detect_caches() -> Caches {
    static CACHES: std::sync::OnceLock<Caches> = std::sync::OnceLock::new();
    *CACHES.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        return x86::caches();
        #[cfg(not(target_arch = "x86_64"))]
        return Caches::default();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_instruction_set_is_the_last_available_one() {
        let last = Cpu::all().last().unwrap();
        assert_eq!(Cpu::detect().isa(), last.isa());
    }

    #[test]
    fn names_are_read_back() {
        for &isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert!("avx3".parse::<Isa>().is_err());
    }

    #[test]
    fn the_report_is_one_line_with_the_instruction_set() {
        let report = Cpu::detect().to_string();
        assert!(report.contains(Cpu::detect().isa().name()));
        assert!(!report.contains('\n'));
    }

    #[test]
    fn caches_are_plausible() {
        let Caches { l1d, l2, .. } = Cpu::detect().caches();
        assert!((8 << 10..=1 << 20).contains(&l1d), "{l1d}");
        assert!((64 << 10..=64 << 20).contains(&l2), "{l2}");
    }
}
