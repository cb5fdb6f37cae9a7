//! GEMM against its definition, and its bits against themselves.

mod support;

use headrow_kernels::gemm::{Blocking, gemm_blocked, gemm_blocked_scratch};
use headrow_kernels::{Cpu, Epilogue, Left, Mat, PackedB, Par, Right, Scratch, Write, reference};
use support::{Guarded, Random};

#[allow(clippy::too_many_arguments)]
fn product(
    cpu: Cpu,
    par: Par<'_>,
    blocking: Option<Blocking>,
    a: Left<'_>,
    b: Right<'_>,
    write: Write,
    epilogue: &Epilogue<'_>,
    c: &mut Guarded,
) {
    let mut c = c.view_mut();
    let (m, n) = (c.rows(), c.cols());
    let k = match a {
        Left::Plain(a) => a.cols(),
        Left::Transposed(at) => at.rows(),
    };
    let threads = par.threads();
    let blocking = blocking.unwrap_or(Blocking::new(cpu, threads, m, n, k));
    let need = gemm_blocked_scratch(cpu, &blocking, threads, m, n, k, a.kind(), b.kind());
    let mut scratch = Scratch::new(need);
    gemm_blocked(cpu, par, &blocking, a, b, write, epilogue, c.reborrow(), &mut scratch.stack());
}

fn transpose(a: Mat<'_>) -> Vec<f32> {
    (0..a.cols()).flat_map(|j| (0..a.rows()).map(move |i| a.row(i)[j])).collect()
}

#[test]
fn small_products_are_within_the_error_bound_on_every_instruction_set() {
    let mut rng = Random::new(1);
    for cpu in Cpu::all() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (13, 33, 2), (5, 17, 0), (7, 70, 31), (40, 130, 65)]
        {
            let a = Guarded::random(m, k, k + 1, 1, &mut rng);
            let b = Guarded::random(k, n, n + 3, 2, &mut rng);
            let (exact, magnitude) = reference::gemm::product(a.view(), b.view());
            let packed = PackedB::new(cpu, b.view());
            let (at, bt) = (transpose(a.view()), transpose(b.view()));
            let (at, bt) = (Mat::new(&at, k, m), Mat::new(&bt, n, k));
            for b in [Right::Packed(&packed), Right::Plain(b.view()), Right::Transposed(bt)] {
                for a in [Left::Plain(a.view()), Left::Transposed(at)] {
                    let mut c = Guarded::filled(m, n, n + 2, 3, f32::NAN);
                    let none = Epilogue::default();
                    product(cpu, Par::SERIAL, None, a, b, Write::Replace, &none, &mut c);
                    c.assert_intact("C");
                    for (at, c) in c.values().into_iter().enumerate() {
                        let error = (f64::from(c) - exact[at]).abs();
                        let bound = reference::gemm::error_bound(k, magnitude[at]);
                        assert!(error <= bound, "{cpu:?} {m}×{n}×{k} element {at}: {error:e}");
                    }
                }
            }
        }
    }
}
