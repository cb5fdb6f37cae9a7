//! GEMM against its definition, and its bits against one chain of fused multiply-adds per element.

mod support;

use headrow_kernels::gemm::{Blocking, gemm_blocked_scratch};
use headrow_kernels::{
    Activation, Cancel, Cpu, Epilogue, LeftKind, Mat, MatMut, Need, PackedB, Par, Right, RightKind,
    Scratch, Team, Write, gemm, gemm_scratch, reference,
};
use support::gemm::{Run, bits, chain, tile};
use support::{Guarded, Random, every, hash, report, unless_emulated, within};

#[test]
fn every_small_shape_is_one_chain_per_element_in_every_layout() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        let (mr, nr) = tile(cpu);
        for m in (0..=2 * mr + 1).step_by(every(3)) {
            for n in (0..=2 * nr + 1).filter(|n| (n + m) % every(4) == 0) {
                // Wide tiles have many shapes: around the ends of vectors and tiles all, between them some.
                let inside = n % 16 > 1 && n % 16 < 15 || m % mr > 1 && m % mr < mr - 1;
                if nr > 16 && inside && (n + m) % 5 != 0 {
                    continue;
                }
                for k in [0, 1, 2, 7, 19] {
                    let (a, b, c) = (rng.vec(m * k), rng.vec(k * n), rng.vec(m * n));
                    let (a, b, c) = (Mat::new(&a, m, k), Mat::new(&b, k, n), Mat::new(&c, m, n));
                    let gap = (m + n + k) % 3;
                    let run = Run { gap, offset: (m + k) % 4, ..Run::plain(cpu) };
                    let (replaced, added) = (bits(&chain(a, b, None)), bits(&chain(a, b, Some(c))));
                    // So few rows are not packed by themselves; a transposed A always is.
                    let usual = Blocking::new(cpu, 1, m, n, k);
                    let packed = Blocking { pack_left: true, ..usual };
                    let packed = Run { blocking: Some(packed), ..run };
                    let packed = packed.layouts().filter(|run| run.left == LeftKind::Plain);
                    for run in run.layouts().chain(packed) {
                        let none = Epilogue::default();
                        let name = run.name(m, n, k);
                        assert!(run.product(a, b, None, &none).bits() == replaced, "{name}");
                        assert!(run.product(a, b, Some(c), &none).bits() == added, "{name}, added");
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_within_the_error_bound_and_agree_with_another_crate() {
    let mut rng = Random::new(2);
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (13, 33, 2), (7, 70, 31), (40, 130, 65), (5, 65, 1500)]
    {
        let (a, b) = (rng.vec(m * k), rng.vec(k * n));
        let mut other = vec![f32::NAN; m * n];
        let (rs_a, rs_b) = (k as isize, n as isize);
        // SAFETY: the strides are those of contiguous m × k, k × n and m × n matrices.
        unsafe {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), other.as_mut_ptr());
            matrixmultiply::sgemm(m, k, n, 1.0, a, rs_a, 1, b, rs_b, 1, 0.0, c, rs_b, 1);
        }
        let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
        let (exact, magnitude) = reference::gemm::product(a, b);
        for cpu in Cpu::all() {
            let c = Run::plain(cpu).product(a, b, None, &Epilogue::default()).values();
            for at in 0..m * n {
                let bound = reference::gemm::error_bound(k, magnitude[at]);
                let error = (f64::from(c[at]) - exact[at]).abs();
                assert!(within(error, bound), "{} {m}×{n}×{k} at {at}: {error:e}", cpu.isa());
                assert!(f64::from((c[at] - other[at]).abs()) <= 2.0 * bound, "{m}×{n}×{k} at {at}");
            }
        }
    }
    report("matrix product");
}

#[test]
fn block_sizes_do_not_show_in_the_bits() {
    let mut rng = Random::new(3);
    for cpu in Cpu::all() {
        let (mr, nr) = tile(cpu);
        let (m, n, k) = (2 * mr + 3, 3 * nr + 5, 37);
        let (a, b, c) = (rng.vec(m * k), rng.vec(k * n), rng.vec(m * n));
        let (a, b, c) = (Mat::new(&a, m, k), Mat::new(&b, k, n), Mat::new(&c, m, n));
        let (replaced, added) = (bits(&chain(a, b, None)), bits(&chain(a, b, Some(c))));
        let usual = Blocking::new(cpu, 1, m, n, k);
        for size in [1, 2, 5, mr, mr + 1, 36, 37, usize::MAX].into_iter().step_by(every(3)) {
            let blockings = [
                Blocking { mc: size, ..usual },
                Blocking { kc: size, ..usual },
                Blocking { mc: size, pack_left: true, ..usual },
                Blocking { mc: size, kc: size, pack_left: false, ..usual },
                Blocking { nc: size, direct_rows: 0, ..usual },
                Blocking { chunk_rows: size, ..usual },
                Blocking { chunk_cols: size, ..usual },
                Blocking { direct_rows: usize::MAX, kc: size, mc: size, ..usual },
                Blocking {
                    mc: size,
                    kc: size,
                    nc: size,
                    chunk_rows: size,
                    chunk_cols: size,
                    direct_rows: 0,
                    pack_left: true,
                },
            ];
            for blocking in blockings {
                let run = Run { blocking: Some(blocking), ..Run::plain(cpu) };
                for run in run.layouts() {
                    let none = Epilogue::default();
                    let name = format!("{} {blocking:?}", run.name(m, n, k));
                    assert!(run.product(a, b, None, &none).bits() == replaced, "{name}");
                    assert!(run.product(a, b, Some(c), &none).bits() == added, "{name}, added");
                }
            }
        }
    }
}

#[test]
fn threads_do_not_show_in_the_bits() {
    let mut rng = Random::new(4);
    for (m, n, k) in [(1, 700, 300), (5, 300, 200), (16, 200, 170), (130, 50, 60), (40, 40, 200)] {
        let (a, b) = (rng.vec(m * k), rng.vec(k * n));
        let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
        let bias = rng.vec(n);
        let epilogue = Epilogue { bias: Some(&bias), alpha: Some(0.3), ..Epilogue::default() };
        for cpu in Cpu::all() {
            let alone = Run::plain(cpu).product(a, b, None, &epilogue).bits();
            for threads in (1..=8).step_by(every(2)) {
                Team::new(threads).open(|par| {
                    let layouts = if threads < 4 { unless_emulated(6, 2) } else { 1 };
                    for run in (Run { par, ..Run::plain(cpu) }).layouts().take(layouts) {
                        let usual = Blocking::new(cpu, threads, m, n, k);
                        for blocking in [usual, Blocking { chunk_rows: 3, chunk_cols: 1, ..usual }]
                        {
                            let run = Run { blocking: Some(blocking), ..run };
                            let name = format!("{}, {threads} threads", run.name(m, n, k));
                            assert!(run.product(a, b, None, &epilogue).bits() == alone, "{name}");
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let mut rng = Random::new(5);
    let (m, n, k) = (150, 150, 70);
    let (a, b) = (rng.vec(m * k), rng.vec(k * n));
    let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
    let none = Epilogue::default();
    for cpu in Cpu::all() {
        let all = Run::plain(cpu).product(a, b, None, &none).bits();
        for rows in [1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 149].into_iter().step_by(every(4)) {
            for run in Run::plain(cpu).layouts() {
                let first = 150 - rows;
                let some = run.product(a.rows_range(first..m), b, None, &none).bits();
                assert!(some == all[first * n..], "{}", run.name(rows, n, k));
            }
        }
    }
}

/// A B that lies in main memory is walked in parts of its depth, several panels in turns.
#[test]
fn a_b_larger_than_the_caches_does_not_show_in_the_bits() {
    let mut rng = Random::new(12);
    for cpu in Cpu::all() {
        let (mr, nr) = tile(cpu);
        // Three turns of unequal length.
        let (m, k) = (2 * mr + 1, 605);
        // More than a product takes for the share of one layer, and a part of a panel behind whole ones.
        let values = cpu.caches().l3 / 64 / unless_emulated(1, 16);
        let n = (values / k).next_multiple_of(nr) + 2 * nr + 3;
        if n > 20_000 {
            return eprintln!("caches of {} MiB: skipped", cpu.caches().l3 >> 20);
        }
        let (a, b, c) = (rng.vec(m * k), rng.vec(k * n), rng.vec(m * n));
        let (a, b, c) = (Mat::new(&a, m, k), Mat::new(&b, k, n), Mat::new(&c, m, n));
        let (replaced, added) = (bits(&chain(a, b, None)), bits(&chain(a, b, Some(c))));
        for rows in (1..=m).step_by(every(5)) {
            let (a, c) = (a.rows_range(0..rows), c.rows_range(0..rows));
            for run in Run::plain(cpu).layouts().filter(|run| run.left == LeftKind::Plain) {
                let none = Epilogue::default();
                let name = run.name(rows, n, k);
                assert!(run.product(a, b, None, &none).bits() == replaced[..rows * n], "{name}");
                let sums = run.product(a, b, Some(c), &none).bits();
                assert!(sums == added[..rows * n], "{name}, added");
            }
        }
    }
}

#[test]
fn strides_and_alignments_do_not_show_in_the_bits() {
    let mut rng = Random::new(6);
    let (m, n, k) = (9, 71, 19);
    let (a, b) = (rng.vec(m * k), rng.vec(k * n));
    let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
    let expected = bits(&chain(a, b, None));
    for cpu in Cpu::all() {
        for gap in [0, 1, 13, 64] {
            for offset in (0..16).step_by(every(5)) {
                for run in (Run { gap, offset, ..Run::plain(cpu) }).layouts() {
                    let c = run.product(a, b, None, &Epilogue::default());
                    assert!(c.bits() == expected, "{}", run.name(m, n, k));
                }
            }
        }
    }
}

#[test]
fn a_nan_reaches_its_row_or_column_and_no_other_element() {
    let mut rng = Random::new(7);
    for cpu in Cpu::all() {
        let (mr, nr) = tile(cpu);
        let (m, n, k) = (mr + 2, nr + 3, 5);
        let (a, b) = (rng.vec(m * k), rng.vec(k * n));
        for bad in [f32::NAN, f32::INFINITY] {
            for run in Run::plain(cpu).layouts() {
                let surfaces = |a: &[f32], b: &[f32], hit: &dyn Fn(usize, usize) -> bool| {
                    let (a, b) = (Mat::new(a, m, k), Mat::new(b, k, n));
                    let c = run.product(a, b, None, &Epilogue::default()).values();
                    for (at, c) in c.into_iter().enumerate() {
                        let (i, j) = (at / n, at % n);
                        assert_eq!(c.is_finite(), !hit(i, j), "({i}, {j}) {}", run.name(m, n, k));
                    }
                };
                for at in (0..m * k).step_by(every(7)) {
                    let mut a = a.clone();
                    a[at] = bad;
                    surfaces(&a, &b, &|i, _| i == at / k);
                }
                for at in (0..k * n).step_by(every(7)) {
                    let mut b = b.clone();
                    b[at] = bad;
                    surfaces(&a, &b, &|_, j| j == at % n);
                }
            }
        }
    }
}

#[test]
fn nothing_is_skipped_for_a_zero() {
    for cpu in Cpu::all() {
        for run in Run::plain(cpu).layouts() {
            let product = |a: f32, b: f32| {
                let (a, b) = ([a; 3], [b; 3]);
                let (a, b) = (Mat::new(&a, 1, 3), Mat::new(&b, 3, 1));
                run.product(a, b, None, &Epilogue::default()).values()[0]
            };
            assert!(product(0.0, f32::INFINITY).is_nan(), "0·∞");
            assert!(product(f32::NEG_INFINITY, -0.0).is_nan(), "−∞·−0");
            // The chain starts from +0, and +0 + −0 = +0.
            assert_eq!(product(-0.0, 1.0).to_bits(), 0, "−0·1");
            assert_eq!(
                product(1e-30, -1e-30).to_bits(),
                (-0.0f32).to_bits(),
                "underflow keeps its sign"
            );
        }
    }
}

#[test]
fn denormals_are_kept() {
    let mut rng = Random::new(8);
    let (m, n, k) = (7, 40, 9);
    let tiny = |rng: &mut Random, len| rng.vec(len).iter().map(|x| x * 1e-20).collect::<Vec<_>>();
    let (a, b) = (tiny(&mut rng, m * k), tiny(&mut rng, k * n));
    let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
    let expected = chain(a, b, None);
    assert!(expected.iter().any(|x| x.is_subnormal()), "the case has none");
    for cpu in Cpu::all() {
        for run in Run::plain(cpu).layouts() {
            let c = run.product(a, b, None, &Epilogue::default());
            assert!(c.bits() == bits(&expected), "{}", run.name(m, n, k));
        }
    }
}

#[test]
fn packing_column_by_column_equals_packing_at_once() {
    let mut rng = Random::new(10);
    for cpu in Cpu::all() {
        let (_, nr) = tile(cpu);
        let (k, n) = (19, 2 * nr + 5);
        let b = Guarded::random(k, n, n + 2, 1, &mut rng);
        let bt: Vec<f32> = (0..n)
            .flat_map(|j| (0..k).map(|p| (p, j)).collect::<Vec<_>>())
            .map(|(p, j)| b.view().row(p)[j])
            .collect();
        let bt = Mat::new(&bt, n, k);
        let whole = PackedB::new(cpu, b.view());
        let transposed = PackedB::from_transposed(cpu, bt);
        assert_eq!((whole.k(), whole.n()), (k, n));
        assert_eq!(whole.bytes(), k * 3 * nr * size_of::<f32>());
        for width in [1, 3, nr - 1, nr, nr + 1, n] {
            let mut parts = PackedB::zeroed(cpu, k, n);
            for first in (0..n).step_by(width) {
                parts.set_columns(first, bt.rows_range(first..n.min(first + width)));
            }
            for p in 0..k {
                for j in 0..n {
                    let expected = b.view().row(p)[j].to_bits();
                    for packed in [&whole, &transposed, &parts] {
                        assert_eq!(
                            packed.get(p, j).to_bits(),
                            expected,
                            "({p}, {j}), width {width}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn panels_that_several_workers_make_are_those_of_packing_at_once() {
    let mut team = Team::new(3);
    let own = Need::of::<u8>(100);
    for cpu in Cpu::all() {
        let (_, nr) = tile(cpu);
        // Of the deep ones a worker makes one panel at a time, of the others several.
        for (k, n) in [(4_100, 2 * nr + 5), (900, 200), (900, nr), (3, 1), (0, 7), (7, 0)] {
            let value = |p: usize, j: usize| (p * 31 + j) as f32;
            let bt: Vec<f32> = (0..n * k).map(|i| value(i % k, i / k)).collect();
            let expected = PackedB::from_transposed(cpu, Mat::new(&bt, n, k));
            team.open(|par| {
                let mut scratch = Scratch::new(PackedB::made_scratch(cpu, par, k, own));
                let mut stack = scratch.stack();
                let packed =
                    PackedB::made(cpu, par, (k, n), own, &mut stack, &|first, rows, mut stack| {
                        assert_eq!(stack.take::<u8>(100).0.len(), 100);
                        rows.copy_from_slice(&bt[first * k..][..rows.len()]);
                    });
                assert_eq!((packed.k(), packed.n(), packed.bytes()), (k, n, expected.bytes()));
                let columns = |packed: &PackedB, j| {
                    let mut column = vec![0.0; k];
                    packed.copy_column(j, &mut column);
                    column
                };
                let same = (0..n).all(|j| columns(&packed, j) == columns(&expected, j));
                assert!(same, "{k}×{n} on {cpu:?}");
            });
        }
    }
}

#[test]
fn of_a_packing_that_was_given_up_nothing_is_kept() {
    let cpu = Cpu::detect();
    let (k, n) = (4_100, 100);
    let cancel = Cancel::new();
    let par = Par::SERIAL.with_cancel(&cancel);
    let mut scratch = Scratch::new(PackedB::made_scratch(cpu, par, k, Need::NONE));
    let mut stack = scratch.stack();
    let packed = PackedB::made(cpu, par, (k, n), Need::NONE, &mut stack, &|_, rows, _| {
        rows.fill(1.0);
        cancel.cancel();
    });
    assert!((0..n).all(|j| packed.get(k - 1, j) == 0.0));
}

#[test]
fn memory_for_many_rows_serves_fewer_and_few_need_none() {
    for cpu in Cpu::all() {
        for (threads, n, k) in [(1, 1000, 70), (3, 2000, 1100), (1, 20, 5000)] {
            for right in [RightKind::Packed, RightKind::Plain, RightKind::Transposed] {
                let left = LeftKind::Plain;
                let need = |m| gemm_scratch(cpu, threads, m, n, k, left, right).bytes();
                let name = format!("{right:?}, {threads} threads, {n}×{k}");
                assert_eq!(need(1) == 0, right != RightKind::Transposed, "{name}");
                assert!((1..500).all(|m| need(m) <= need(m + 1)), "{name}");
                for m in 1..300 {
                    let blocking = Blocking::new(cpu, threads, m, n, k);
                    let used = gemm_blocked_scratch(cpu, &blocking, threads, m, n, k, left, right);
                    assert!(used.bytes() <= need(m), "{m} rows, {name}");
                }
            }
        }
        // With a flag the chunks are shorter; the memory is that of many rows.
        let (n, k) = (1000, 300);
        let (a, b) = (vec![1.0; 40 * k], vec![1.0; k * n]);
        let cancel = Cancel::new();
        for right in [Right::Plain(Mat::new(&b, k, n)), Right::Transposed(Mat::new(&b, n, k))] {
            let need = gemm_scratch(cpu, 1, 500, n, k, LeftKind::Plain, right.kind());
            let mut scratch = Scratch::new(need);
            for m in [1, 13, 40] {
                for par in [Par::SERIAL, Par::SERIAL.with_cancel(&cancel)] {
                    let mut c = vec![0.0; m * n];
                    let (a, out) = (Mat::new(&a[..m * k], m, k), MatMut::new(&mut c, m, n));
                    let (write, none) = (Write::Replace, Epilogue::default());
                    gemm(cpu, par, a, right, write, &none, out, &mut scratch.stack());
                    assert!(c.iter().all(|&x| x == k as f32), "{m} rows");
                }
            }
        }
    }
}

/// Rows 2³¹ + 3 elements apart. Only the pages that hold values are ever touched.
#[test]
fn offsets_beyond_31_bits_are_reached() {
    let stride = (1usize << 31) + 3;
    let mut buffer: Vec<f32> = Vec::new();
    if buffer.try_reserve_exact(stride + 8).is_err() {
        eprintln!("not enough address space: skipped");
        return;
    }
    // A zeroed allocation is not touched page by page.
    drop(buffer);
    let mut buffer = vec![0.0f32; stride + 8];
    buffer[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
    buffer[stride..stride + 3].copy_from_slice(&[4.0, 5.0, 6.0]);
    let b = [1.0, 10.0, 100.0];
    for cpu in Cpu::all() {
        let packed = PackedB::new(cpu, Mat::new(&b, 3, 1));
        let (a, rest) = buffer.split_at_mut(stride + 3);
        let a = Mat::with_stride(a, 2, 3, stride);
        let mut c = [f32::NAN; 2];
        let mut none = Scratch::new(Need::NONE);
        let (write, epilogue) = (Write::Replace, Epilogue::default());
        let out = MatMut::new(&mut c, 2, 1);
        gemm(cpu, Par::SERIAL, a, &packed, write, &epilogue, out, &mut none.stack());
        assert_eq!(c, [321.0, 654.0]);
        assert!(rest.iter().all(|&x| x == 0.0));
        // And as the output.
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let out = MatMut::with_stride(&mut buffer, 2, 1, stride);
        let a = Mat::new(&a, 2, 3);
        gemm(cpu, Par::SERIAL, a, &packed, write, &epilogue, out, &mut none.stack());
        assert_eq!((buffer[0], buffer[stride]), (321.0, 654.0));
        buffer[0] = 1.0;
        buffer[stride] = 4.0;
    }
}

/// m, n, k, the product's hash with and without an epilogue: the same on every instruction set and in
/// every version.
const RECORDED: [(usize, usize, usize, u64, u64); 6] = [
    (1, 1, 1, 0x38ff_bd8e_9b06_c930, 0x80aa_4eb6_2f2d_4060),
    (5, 17, 33, 0x3cd3_b99d_e4d1_80c6, 0x8dec_b0cc_e129_3a21),
    (13, 65, 64, 0xa40b_1f50_a208_ddee, 0x542a_6c8e_965a_f753),
    (6, 128, 384, 0x8648_8d4a_ec67_34e6, 0xa947_c192_a31c_7f2d),
    (64, 31, 100, 0xa69b_031f_f00e_2ee6, 0xa1b2_71c0_a1b7_08aa),
    (97, 130, 57, 0xe743_dd2b_6f68_e5e8, 0xd533_408c_3160_6e52),
];

#[test]
fn the_bits_are_the_recorded_ones() {
    for cpu in Cpu::all() {
        let measured = RECORDED.map(|(m, n, k, ..)| {
            let mut rng = Random::new((m * 1_000_000 + n * 1000 + k) as u64);
            let (a, b) = (rng.vec(m * k), rng.vec(k * n));
            let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
            let (bias, residual) = (rng.vec(n), rng.vec(m * n));
            let epilogue = Epilogue {
                alpha: Some(0.125),
                bias: Some(&bias),
                activation: Activation::Relu,
                residual: Some(Mat::new(&residual, m, n)),
            };
            let [plain, finished] = [Epilogue::default(), epilogue]
                .map(|epilogue| hash(&Run::plain(cpu).product(a, b, None, &epilogue).values()));
            (m, n, k, plain, finished)
        });
        assert!(measured == RECORDED, "{}: {measured:#x?}", cpu.isa());
    }
}

fn multiply(a: (usize, usize), b: (usize, usize), c: (usize, usize), epilogue: &Epilogue<'_>) {
    let cpu = Cpu::detect();
    let zeros = vec![0.0; 64];
    let mut out = vec![0.0; 64];
    let mut scratch = Scratch::new(Need::of::<f32>(4096));
    let (a, b) = (Mat::new(&zeros, a.0, a.1), Mat::new(&zeros, b.0, b.1));
    let out = MatMut::new(&mut out, c.0, c.1);
    gemm(cpu, Par::SERIAL, a, b, Write::Replace, epilogue, out, &mut scratch.stack());
}

#[test]
#[should_panic(expected = "A is 2×3, B is 4×5, C is 2×5")]
fn unequal_depths_are_refused() {
    multiply((2, 3), (4, 5), (2, 5), &Epilogue::default());
}

#[test]
#[should_panic(expected = "A is 2×3, B is 3×5, C is 3×5")]
fn an_output_of_another_shape_is_refused() {
    multiply((2, 3), (3, 5), (3, 5), &Epilogue::default());
}

#[test]
#[should_panic(expected = "a bias of 4 values for C of 2×5")]
fn a_bias_of_another_length_is_refused() {
    multiply((2, 3), (3, 5), (2, 5), &Epilogue { bias: Some(&[0.0; 4]), ..Epilogue::default() });
}

#[test]
#[should_panic(expected = "a residual of 1×5 for C of 2×5")]
fn a_residual_of_another_shape_is_refused() {
    let residual = Some(Mat::new(&[0.0; 5], 1, 5));
    multiply((2, 3), (3, 5), (2, 5), &Epilogue { residual, ..Epilogue::default() });
}

#[test]
#[should_panic(expected = "scratch too small")]
fn too_little_scratch_is_refused() {
    let (cpu, x) = (Cpu::detect(), [0.0; 4]);
    let x = Mat::new(&x, 2, 2);
    let mut out = [0.0; 4];
    let (write, none) = (Write::Replace, Epilogue::default());
    let out = MatMut::new(&mut out, 2, 2);
    let mut scratch = Scratch::new(Need::NONE);
    gemm(cpu, Par::SERIAL, x, Right::Transposed(x), write, &none, out, &mut scratch.stack());
}
