//! What follows a product: the same bits as the separate operations, in every storage of the operands.

mod support;

use headrow_kernels::gemm::Blocking;
use headrow_kernels::{Activation, Cpu, Epilogue, Mat, MatMut, Par, Team, activate};
use support::gemm::{Run, bits, chain};
use support::{Guarded, Random, every, unless_emulated};

/// The epilogue step by step, on a result with n columns.
fn with_epilogue(cpu: Cpu, mut c: Vec<f32>, n: usize, epilogue: &Epilogue<'_>) -> Vec<f32> {
    if let Some(alpha) = epilogue.alpha {
        c.iter_mut().for_each(|x| *x *= alpha);
    }
    if let Some(bias) = epilogue.bias {
        c.iter_mut().enumerate().for_each(|(at, x)| *x += bias[at % n]);
    }
    let rows = c.len() / n;
    activate(cpu, Par::SERIAL, epilogue.activation, MatMut::new(&mut c, rows, n));
    if let Some(residual) = epilogue.residual {
        c.iter_mut().enumerate().for_each(|(at, x)| *x += residual.row(at / n)[at % n]);
    }
    c
}

#[test]
fn the_epilogue_equals_the_separate_operations() {
    let mut rng = Random::new(9);
    for (m, n, k) in [(1, 5, 3), (3, 70, 11), (20, 33, 8), (5, 20, 0)] {
        let (a, b, c) = (rng.vec(m * k), rng.vec(k * n), rng.vec(m * n));
        let (a, b, c) = (Mat::new(&a, m, k), Mat::new(&b, k, n), Mat::new(&c, m, n));
        let bias = rng.vec(n);
        let residual = Guarded::random(m, n, n + 7, 3, &mut rng);
        for cpu in Cpu::all() {
            for which in (0..8).step_by(every(3)) {
                for &activation in Activation::ALL {
                    let epilogue = Epilogue {
                        alpha: (which & 1 != 0).then_some(0.37),
                        bias: (which & 2 != 0).then_some(&bias),
                        activation,
                        residual: (which & 4 != 0).then_some(residual.view()),
                    };
                    for old in [None, Some(c)] {
                        let expected = with_epilogue(cpu, chain(a, b, old), n, &epilogue);
                        let tiny = Blocking {
                            mc: 2,
                            kc: 3,
                            nc: 1,
                            chunk_rows: 3,
                            chunk_cols: 1,
                            direct_rows: 1,
                            pack_left: false,
                        };
                        let packed = Blocking { pack_left: true, ..tiny };
                        for blocking in [None, Some(tiny), Some(packed)] {
                            let run = Run { blocking, gap: 1, ..Run::plain(cpu) };
                            for run in run.layouts() {
                                let name = format!("{} {epilogue:?}", run.name(m, n, k));
                                let c = run.product(a, b, old, &epilogue);
                                assert!(c.bits() == bits(&expected), "{name}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_the_size_of_a_layer_are_the_same_chains() {
    // Weights beyond the second-level cache are asked for ahead of their use, few rows go down the panels of still
    // larger ones in turns, and an epilogue comes back to its block strip by strip: nothing of it happens in small
    // products.
    let mut rng = Random::new(31);
    let mut team = Team::new(3);
    let shapes = [
        (7, 700, 300),
        (97, 600, 300),
        (130, 330, 40),
        (3, 1100, 520),
        (6, 1111, 512),
        (4, 21, 70000),
    ];
    for &(m, n, k) in &shapes[..unless_emulated(6, 1)] {
        let (a, b, bias) = (rng.vec(m * k), rng.vec(k * n), rng.vec(n));
        let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
        let residual = Guarded::random(m, n, n + 1, 1, &mut rng);
        let epilogue = Epilogue {
            alpha: Some(1.5),
            bias: Some(&bias),
            activation: Activation::GeluErf,
            residual: Some(residual.view()),
        };
        let chains = chain(a, b, None);
        for cpu in Cpu::all() {
            let expected = bits(&with_epilogue(cpu, chains.clone(), n, &epilogue));
            for run in (Run { gap: 1, ..Run::plain(cpu) }).layouts() {
                let c = run.product(a, b, None, &epilogue);
                assert!(c.bits() == expected, "{}", run.name(m, n, k));
            }
            team.open(|par| {
                let run = Run { par, ..Run::plain(cpu) };
                let c = run.product(a, b, None, &epilogue);
                assert!(c.bits() == expected, "{}, 3 threads", run.name(m, n, k));
            });
        }
    }
}

#[test]
fn relu_in_the_epilogue_prefers_plus_zero_and_keeps_nan() {
    for cpu in Cpu::all() {
        let epilogue = Epilogue { activation: Activation::Relu, ..Epilogue::default() };
        let (a, b) = ([1.0, f32::NAN, -1e-30], [1e-30, -1e-30, -2.0]);
        let (a, b) = (Mat::new(&a, 3, 1), Mat::new(&b, 1, 3));
        let c = Run::plain(cpu).product(a, b, None, &epilogue).values();
        assert_eq!(bits(&c[..3]), bits(&[1e-30, 0.0, 0.0]));
        assert!(c[3..6].iter().all(|x| x.is_nan()));
        assert_eq!(bits(&c[6..]), bits(&[0.0, 0.0, 2e-30]));
    }
}

#[test]
fn an_empty_depth_gives_zeros_or_the_old_values_and_then_the_epilogue() {
    for cpu in Cpu::all() {
        let old = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0];
        let (a, b) = (Mat::new(&[], 2, 0), Mat::new(&[], 0, 3));
        let old = Mat::new(&old, 2, 3);
        let bias = [0.5, 0.25, -0.0];
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        for run in Run::plain(cpu).layouts() {
            let none = Epilogue::default();
            assert_eq!(run.product(a, b, None, &none).bits(), [0; 6]);
            assert_eq!(
                run.product(a, b, Some(old), &none).bits(),
                bits(&[1., -2., 3., -4., 5., -6.])
            );
            assert_eq!(run.product(a, b, None, &epilogue).values(), [0.5, 0.25, 0., 0.5, 0.25, 0.]);
        }
    }
}
