//! GEMM against the multiply-add peak of the same run, with `matrixmultiply` and `gemm` in turns; built with
//! `--features gemm-peers`, with `faer` and `rten-gemm` too.
//!
//!     gemm-ratio [--threads 1] [--isa avx2] [--m 1,4,16,128] [--shapes 384x1536,768x768]
//!                [--rounds 15] [--slice 3] [--mc 84] [--kc 1024] [--peers 0]
//!                [--epilogue bias|gelu|residual]
//!
//! Shapes are K×N. B is prepacked for us and for `rten-gemm`, row-major for the others. Each cell is the median (and, after
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
    // Read once by `matrixmultiply`, before its first product.
    // SAFETY: the pool's threads read no environment.
    unsafe { std::env::set_var("MATMUL_NUM_THREADS", threads.to_string()) };
    for (i, (k, n)) in shapes.into_iter().enumerate() {
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
            let mut contenders = vec![
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
            #[cfg(feature = "gemm-peers")]
            contenders.extend(more::contenders(threads, &pool, (m, k, n), &a, &b, &c));
            contenders.truncate(if peers { contenders.len() } else { 2 });
            let told = &contenders[1..];
            if (i, m) == (0, rows[0]) {
                let names: String = told.iter().map(|c| format!(" {:>14}", c.name)).collect();
                println!("{:>5} {:>11} {names}  GFLOP/s of one core", "M", "K×N");
            }
            let times = race(&mut contenders, rounds, slice);
            let burst = peak::burst(cpu.isa());
            let core = Times { median: burst / times[0].median, min: burst / times[0].min };
            let flops = 2.0 * (m * n * k) as f64;
            let share = |t: &Times| {
                let peak = core.min * threads as f64 / 100.0;
                format!("{:5.1} /{:5.1}", flops / t.median / peak, flops / t.min / peak)
            };
            let shares: String =
                times[1..].iter().map(|time| format!(" {:>14}", share(time))).collect();
            println!(
                "{m:>5} {:>11} {shares}  {:.1} /{:.1}",
                format!("{k}×{n}"),
                core.median / 1e9,
                core.min / 1e9
            );
        }
    }
}

#[cfg(feature = "gemm-peers")]
mod more {
    use faer::linalg::matmul::matmul;
    use faer::{Accum, MatMut, MatRef, Par};
    use headrow_benches::Contender;
    use rayon::ThreadPool;
    use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
    use rten_tensor::Matrix;
    use std::cell::RefCell;

    /// C = A·B by `faer` and by `rten-gemm`, which take their threads from the current pool.
    pub(super) fn contenders<'a>(
        threads: usize,
        pool: &'a ThreadPool,
        (m, k, n): (usize, usize, usize),
        a: &'a [f32],
        b: &'a [f32],
        c: &'a RefCell<Vec<f32>>,
    ) -> [Contender<'a>; 2] {
        let par = if threads == 1 { Par::Seq } else { Par::rayon(threads) };
        let executor = GemmExecutor::<f32>::default();
        let packed = executor.prepack_b(Matrix::from_data([k, n], b));
        let faer = move || {
            let c = &mut *c.borrow_mut();
            let (a, b) =
                (MatRef::from_row_major_slice(a, m, k), MatRef::from_row_major_slice(b, k, n));
            let c = MatMut::from_row_major_slice_mut(c, m, n);
            let product = || matmul(c, Accum::Replace, a, b, 1.0, par);
            if threads == 1 { product() } else { pool.install(product) }
        };
        let rten = move || {
            let c = &mut *c.borrow_mut();
            let a = GemmInputA::Unpacked(Matrix::from_data([m, k], a));
            let product =
                || executor.gemm(c, a, GemmInputB::Packed(&packed), GemmOptions::default());
            pool.install(product).expect("shapes that fit");
        };
        [Contender::new("faer", faer), Contender::new("rten-gemm", rten)]
    }
}
