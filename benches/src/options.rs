//! What the ratio tables have in common: options on the command line, and operands.

use headrow_kernels::{Cpu, Isa};
use std::time::Duration;

/// Options of every table.
#[derive(clap::Args)]
pub struct Common {
    /// Threads of each contender.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Instruction set: scalar, neon, avx2, avx512.
    #[arg(long)]
    isa: Option<Isa>,
    /// Turns of each contender.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Milliseconds of a turn.
    #[arg(long, default_value_t = 3)]
    slice: u64,
}

impl Common {
    /// The instruction set asked for, or the best here.
    ///
    /// # Panics
    /// When this machine lacks it.
    pub fn cpu(&self) -> Cpu {
        self.isa.map_or_else(Cpu::detect, |isa| {
            Cpu::with_isa(isa).unwrap_or_else(|| panic!("no {isa} here"))
        })
    }

    /// The time of a turn.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(self.slice)
    }
}

/// Two numbers with an x between them, as `384x1536`.
pub fn pair(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.ok_or_else(|| "expected two numbers with an x between them".to_owned())
}

/// `len` seeded values in [−1, 1).
pub fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
