//! GEMM against the multiply-add peak of the same run, with `matrixmultiply` and `gemm` in turns.
//!
//!     gemm-ratio [--threads 1] [--isa avx2] [--m 1,4,16,128] [--shapes 384x1536,768x768]
//!                [--rounds 15] [--slice 3] [--mc 84] [--kc 1024] [--peers 0]
//!                [--epilogue bias|gelu|residual]
//!
//! Shapes are K×N. B is prepacked for us, row-major for the others. Each cell is the median (and, after
//! the stroke, the best) percentage of the peak of that many threads.

use clap::Parser;
use gemm::Parallelism;
use headrow_benches::options::{Common, pair, values};
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::gemm::{Blocking, gemm_blocked, gemm_blocked_scratch};
use headrow_kernels::{
    Activation, Epilogue, LeftKind, Mat, MatMut, PackedB, Par, RightKind, Scratch, Team, Write,
};
use std::cell::RefCell;

#[derive(clap::Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Rows of A.
    #[arg(
        long = "m",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6,7,8,12,16,32,64,128,256,512"
    )]
    rows: Vec<usize>,
    /// K×N.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = pair,
        default_value = "384x384,384x1536,1536x384,768x768,768x3072,3072x768"
    )]
    shapes: Vec<(usize, usize)>,
    #[arg(long)]
    mc: Option<usize>,
    #[arg(long)]
    kc: Option<usize>,
    /// 0 leaves the other crates out.
    #[arg(long, default_value_t = 1)]
    peers: usize,
    /// bias, gelu or residual.
    #[arg(long, default_value = "")]
    epilogue: String,
}

fn main() {
    let Options { common, rows, shapes, mc, kc, peers, epilogue: after } = Options::parse();
    let (cpu, slice, peers) = (common.cpu(), common.slice(), peers != 0);
    let Common { threads, rounds, .. } = common;
    println!("{cpu}, {threads} thread(s); % of peak, median/best");
    // The `gemm` crate takes its threads from the current rayon pool.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    if threads > 1 {
        // Read once by `matrixmultiply`, before its first product.
        // SAFETY: the pool's threads read no environment.
        unsafe { std::env::set_var("MATMUL_NUM_THREADS", threads.to_string()) };
    } else {
        // SAFETY: as above.
        unsafe { std::env::set_var("MATMUL_NUM_THREADS", "1") };
    }
    println!(
        "{:>5} {:>11}  {:>13} {:>13} {:>13}  GFLOP/s of one core",
        "M", "K×N", "headrow", "matrixmult.", "gemm"
    );
    for (k, n) in shapes {
        let b = values(k * n, 2);
        let packed = PackedB::new(cpu, Mat::new(&b, k, n));
        for &m in &rows {
            let a = values(m * k, 1);
            let c = RefCell::new(vec![0.0f32; m * n]);
            let team = RefCell::new(Team::new(threads));
            let mut blocking = Blocking::new(cpu, threads, m, n, k);
            blocking.mc = mc.unwrap_or(blocking.mc);
            blocking.kc = kc.unwrap_or(blocking.kc);
            let (left, right) = (LeftKind::Plain, RightKind::Packed);
            let need = gemm_blocked_scratch(cpu, &blocking, threads, m, n, k, left, right);
            let mut scratch = Scratch::new(need);
            let (bias, residual) = (values(n, 3), values(m * n, 4));
            let none = Epilogue::default();
            let with_bias = Epilogue { bias: Some(&bias), ..none };
            let epilogue = match after.as_str() {
                "" => none,
                "bias" => with_bias,
                "gelu" => Epilogue { activation: Activation::GeluErf, ..with_bias },
                "residual" => Epilogue { residual: Some(Mat::new(&residual, m, n)), ..with_bias },
                other => panic!("unknown epilogue {other}"),
            };
            let mut contenders = [
                Contender::new("peak", || {
                    peak::burst(cpu.isa());
                }),
                Contender::new("headrow", || {
                    let c = &mut *c.borrow_mut();
                    let (a, c) = (Mat::new(&a, m, k), MatMut::new(c, m, n));
                    let mut stack = scratch.stack();
                    let mut product = |par: Par<'_>, c| {
                        let write = Write::Replace;
                        gemm_blocked(
                            cpu, par, &blocking, a, &packed, write, &epilogue, c, &mut stack,
                        );
                    };
                    if threads == 1 {
                        product(Par::SERIAL, c);
                    } else {
                        team.borrow_mut().open(|par| product(par, c));
                    }
                }),
                Contender::new("matrixmultiply", || {
                    let c = &mut *c.borrow_mut();
                    let (k_, n_) = (k as isize, n as isize);
                    // SAFETY: the strides are those of contiguous m × k, k × n and m × n matrices.
                    unsafe {
                        matrixmultiply::sgemm(
                            m,
                            k,
                            n,
                            1.0,
                            a.as_ptr(),
                            k_,
                            1,
                            b.as_ptr(),
                            n_,
                            1,
                            0.0,
                            c.as_mut_ptr(),
                            n_,
                            1,
                        );
                    }
                }),
                Contender::new("gemm", || {
                    let c = &mut *c.borrow_mut();
                    let (k_, n_) = (k as isize, n as isize);
                    let parallelism =
                        if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) };
                    let mut product = || {
                        // SAFETY: the strides are those of contiguous m × k, k × n and m × n matrices.
                        unsafe {
                            gemm::gemm(
                                m,
                                n,
                                k,
                                c.as_mut_ptr(),
                                1,
                                n_,
                                false,
                                a.as_ptr(),
                                1,
                                k_,
                                b.as_ptr(),
                                1,
                                n_,
                                0.0,
                                1.0,
                                false,
                                false,
                                false,
                                parallelism,
                            );
                        }
                    };
                    if threads == 1 { product() } else { pool.install(product) }
                }),
            ];
            let racing = if peers { &mut contenders[..] } else { &mut contenders[..2] };
            let mut times = race(racing, rounds, slice);
            times.resize(4, Times { median: f64::INFINITY, min: f64::INFINITY });
            let burst = peak::burst(cpu.isa());
            let core = Times { median: burst / times[0].median, min: burst / times[0].min };
            let flops = 2.0 * (m * n * k) as f64;
            let share = |t: &Times| {
                let peak = core.min * threads as f64 / 100.0;
                format!("{:5.1} /{:5.1}", flops / t.median / peak, flops / t.min / peak)
            };
            println!(
                "{m:>5} {:>11}  {:>13} {:>13} {:>13}  {:.1} /{:.1}",
                format!("{k}×{n}"),
                share(&times[1]),
                share(&times[2]),
                share(&times[3]),
                core.median / 1e9,
                core.min / 1e9
            );
        }
    }
}
