//! Instruction sets: the kernels and the few machine registers that have no safe face.

mod args;
pub(crate) mod marked;
pub(crate) mod scalar;
// Of these the scalar path takes `row_tiles` only.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(crate) mod tiles;
pub(crate) mod vector;

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use args::{Distance, PackArgs, PackRows, Tile, TileArgs};

/// Asks for a cache line to be brought into the first-level cache, where such a hint is known. Any address may be
/// named.
#[inline(always)]
pub(crate) fn prefetch_near(_line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    x86_64::prefetch_near(_line);
}

/// The floating-point mode of this thread, put back when it goes out of scope.
///
/// Kernels run with rounding to nearest, gradual underflow and no traps, whatever the caller had set.
pub(crate) struct FloatMode {
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    callers: u64,
}

impl FloatMode {
    /// Switches to the default mode until the returned guard is dropped.
    #[inline]
    pub(crate) fn default_scope() -> FloatMode {
        let callers = control::get();
        if !control::is_default(callers) {
            control::set(control::DEFAULT);
        }
        FloatMode { callers }
    }
}

impl Drop for FloatMode {
    #[inline]
    fn drop(&mut self) {
        if !control::is_default(self.callers) {
            control::set(self.callers);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    /// All exceptions masked, round to nearest, no flush to zero: the processor's reset value.
    pub(super) const DEFAULT: u64 = 0x1f80;

    /// The low six bits record past exceptions; they change no result.
    pub(super) fn is_default(mode: u64) -> bool {
        mode & !0x3f == DEFAULT
    }

    #[inline]
    pub(super) fn get() -> u64 {
        let mut mxcsr = 0u32;
        // SAFETY: stores the 32-bit control register to a local variable; SSE is part of x86-64.
        unsafe {
            core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
        }
        u64::from(mxcsr)
    }

    #[inline]
    pub(super) fn set(mode: u64) {
        let mxcsr = mode as u32;
        // SAFETY: `mode` is `DEFAULT` or was read from this register, so no reserved bit is set.
        // Compiled code assumes the default mode, and the guard restores what it found.
        unsafe {
            core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, readonly, preserves_flags));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    /// Round to nearest, no flush to zero, no traps, NaN operands propagate.
    pub(super) const DEFAULT: u64 = 0;

    pub(super) fn is_default(mode: u64) -> bool {
        mode == DEFAULT
    }

    #[inline]
    pub(super) fn get() -> u64 {
        let mode: u64;
        // SAFETY: reads the floating-point control register, which user code may read.
        unsafe {
            core::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack, preserves_flags));
        }
        mode
    }

    #[inline]
    pub(super) fn set(mode: u64) {
        // SAFETY: `mode` is `DEFAULT` or was read from this register. Compiled code assumes the default
        // mode, and the guard restores what it found.
        unsafe {
            core::arch::asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) const DEFAULT: u64 = 0;
    pub(super) fn is_default(_: u64) -> bool {
        true
    }
    pub(super) fn get() -> u64 {
        0
    }
    pub(super) fn set(_: u64) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_callers_mode_is_set_aside_and_given_back() {
        let flush_to_zero = control::DEFAULT | 0x8040;
        let before = control::get();
        control::set(flush_to_zero);
        let tiny = std::hint::black_box(f32::MIN_POSITIVE);
        let kept = {
            let _mode = FloatMode::default_scope();
            std::hint::black_box(std::hint::black_box(tiny) * 0.5)
        };
        let after = control::get();
        control::set(before);
        assert!(kept > 0.0, "underflow was not gradual inside the scope");
        assert_eq!(after & !0x3f, flush_to_zero);
    }
}
