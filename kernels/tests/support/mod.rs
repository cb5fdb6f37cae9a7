//! What the kernel tests share: seeded data, guarded buffers, distances.
#![allow(dead_code, unreachable_pub)]

pub mod attention;
pub mod gemm;

use headrow_kernels::{Mat, MatMut};
use std::cell::Cell;
use std::ops::Range;

thread_local! {
    /// The largest error of the test that runs on this thread, in parts of its bound.
    static LARGEST: Cell<f64> = const { Cell::new(0.0) };
}

/// Whether an error is within its bound; [`report`] tells how near the largest one came.
pub fn within(error: f64, bound: f64) -> bool {
    if bound > 0.0 {
        LARGEST.set(LARGEST.get().max(error / bound));
    }
    error <= bound
}

/// Prints the largest error since the last report.
pub fn report(what: &str) {
    println!("{what}: largest error {:.2} of its bound", LARGEST.take());
}

/// Whether this run is in an emulator, a hundred times slower than a processor: `HEADROW_EMULATED` is set.
/// Tests then try fewer and smaller cases, chosen so that every kernel and every tail still runs.
pub fn emulated() -> bool {
    std::env::var_os("HEADROW_EMULATED").is_some()
}

/// For `step_by` over cases: 1, and `n` in an emulator.
pub fn every(n: usize) -> usize {
    if emulated() { n } else { 1 }
}

/// The first of two sizes, and the second in an emulator.
pub fn unless_emulated(full: usize, emulated_size: usize) -> usize {
    if emulated() { emulated_size } else { full }
}

/// A seeded generator whose values are the same on every machine and in every version (SplitMix64):
/// recorded hashes depend on them.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [−1, 1), with 24 significant bits.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// A matrix in the middle of a larger buffer whose other words, also those between its rows, are watched.
pub struct Guarded {
    buffer: Vec<f32>,
    start: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A signalling pattern that no kernel produces; reading it as a number gives NaN.
const GUARD: u32 = 0x7fa5_5aa5;
const MARGIN: usize = 80;

impl Guarded {
    /// `offset` shifts the first element against any alignment. The matrix itself starts as `fill`.
    pub fn filled(rows: usize, cols: usize, stride: usize, offset: usize, fill: f32) -> Guarded {
        let span = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * stride + cols };
        let start = MARGIN + offset;
        let buffer = vec![f32::from_bits(GUARD); start + span + MARGIN];
        let mut guarded = Guarded { buffer, start, rows, cols, stride };
        guarded.view_mut().fill(fill);
        guarded
    }

    pub fn from_fn(
        rows: usize,
        cols: usize,
        stride: usize,
        offset: usize,
        mut value: impl FnMut(usize, usize) -> f32,
    ) -> Guarded {
        let mut guarded = Guarded::filled(rows, cols, stride, offset, 0.0);
        for i in 0..rows {
            let row = guarded.row_span(i);
            for (j, x) in guarded.buffer[row].iter_mut().enumerate() {
                *x = value(i, j);
            }
        }
        guarded
    }

    pub fn random(
        rows: usize,
        cols: usize,
        stride: usize,
        offset: usize,
        rng: &mut Random,
    ) -> Guarded {
        Guarded::from_fn(rows, cols, stride, offset, |_, _| rng.unit())
    }

    fn row_span(&self, i: usize) -> Range<usize> {
        let first = self.start + i * self.stride;
        if self.cols == 0 { 0..0 } else { first..first + self.cols }
    }

    pub fn view(&self) -> Mat<'_> {
        let end = self.buffer.len() - MARGIN;
        Mat::with_stride(&self.buffer[self.start..end], self.rows, self.cols, self.stride)
    }

    pub fn view_mut(&mut self) -> MatMut<'_> {
        let end = self.buffer.len() - MARGIN;
        MatMut::with_stride(&mut self.buffer[self.start..end], self.rows, self.cols, self.stride)
    }

    /// The matrix without its gaps.
    pub fn values(&self) -> Vec<f32> {
        (0..self.rows).flat_map(|i| self.buffer[self.row_span(i)].to_vec()).collect()
    }

    pub fn bits(&self) -> Vec<u32> {
        self.values().into_iter().map(f32::to_bits).collect()
    }

    pub fn set(&mut self, i: usize, j: usize, value: f32) {
        let row = self.row_span(i);
        self.buffer[row][j] = value;
    }

    /// Every word outside the matrix is as it was.
    #[track_caller]
    pub fn assert_intact(&self, what: &str) {
        let mut inside = vec![false; self.buffer.len()];
        for i in 0..self.rows {
            inside[self.row_span(i)].fill(true);
        }
        for (at, (x, inside)) in self.buffer.iter().zip(inside).enumerate() {
            assert!(
                inside || x.to_bits() == GUARD,
                "{what}: word {} relative to the first element was overwritten with {x}",
                at as isize - self.start as isize
            );
        }
    }
}

/// Distance in units in the last place; 0 for two NaNs, `u32::MAX` when only one is.
pub fn ulps(a: f32, b: f32) -> u32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => return 0,
        (false, false) => {}
        _ => return u32::MAX,
    }
    let order = |x: f32| {
        let bits = x.to_bits() as i32;
        i64::from(if bits < 0 { i32::MIN - bits } else { bits })
    };
    u32::try_from((order(a) - order(b)).abs()).unwrap_or(u32::MAX)
}

/// FNV-1a over the bits, every NaN counted as one and the same.
pub fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, x| {
        let bits = if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
        bits.to_le_bytes()
            .iter()
            .fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    })
}
