//! GEMM against the multiply-add peak of the same run, with `matrixmultiply` and `gemm` in turns.
//!
//!     gemm-ratio [--threads 1] [--isa avx2] [--m 1,4,16,128] [--shapes 384x1536,768x768]
//!                [--rounds 15] [--slice 3] [--mc 84] [--kc 1024] [--peers 0]
//!                [--epilogue bias|gelu|residual]
//!
//! Shapes are K×N. B is prepacked for us, row-major for the others. Each cell is the median (and, after
//! the stroke, the best) percentage of the peak of that many threads.

use gemm::Parallelism;
use headrow_benches::{Contender, Times, peak, race};
use headrow_kernels::gemm::{Blocking, gemm_blocked};
use headrow_kernels::{
    Activation, Cpu, Epilogue, Isa, Mat, MatMut, Need, PackedB, Par, Scratch, Team, Write,
};
use std::cell::RefCell;
use std::time::Duration;

struct Options {
    threads: usize,
    cpu: Cpu,
    rows: Vec<usize>,
    shapes: Vec<(usize, usize)>,
    rounds: usize,
    slice: Duration,
    mc: Option<usize>,
    kc: Option<usize>,
    peers: bool,
    epilogue: String,
}

fn options() -> Options {
    let mut options = Options {
        threads: 1,
        cpu: Cpu::detect(),
        rows: vec![1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128, 256, 512],
        shapes: vec![(384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768)],
        rounds: 15,
        slice: Duration::from_millis(3),
        mc: None,
        kc: None,
        peers: true,
        epilogue: String::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        let number = || value.parse::<usize>().unwrap_or_else(|_| panic!("{name} {value}"));
        match name.as_str() {
            "--threads" => options.threads = number(),
            "--mc" => options.mc = Some(number()),
            "--kc" => options.kc = Some(number()),
            "--peers" => options.peers = number() != 0,
            "--epilogue" => options.epilogue = value,
            "--rounds" => options.rounds = number(),
            "--slice" => options.slice = Duration::from_millis(number() as u64),
            "--isa" => {
                let isa: Isa = value.parse().unwrap_or_else(|error| panic!("{error}"));
                options.cpu = Cpu::with_isa(isa).unwrap_or_else(|| panic!("no {isa} here"));
            }
            "--m" => options.rows = value.split(',').map(|m| m.parse().unwrap()).collect(),
            "--shapes" => {
                let shape = |s: &str| {
                    let (k, n) = s.split_once('x').expect("KxN");
                    (k.parse().unwrap(), n.parse().unwrap())
                };
                options.shapes = value.split(',').map(shape).collect();
            }
            _ => panic!("unknown option {name}"),
        }
    }
    options
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn main() {
    let Options { threads, cpu, rows, shapes, rounds, slice, mc, kc, peers, epilogue: after } =
        options();
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
            let mut scratch = Scratch::new(Need::of::<f32>(1 << 20));
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
