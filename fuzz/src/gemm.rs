use crate::values::{Matrix, assert_close, cpu, plain, size};
use crate::{scratch, with_par};
use arbitrary::{Result, Unstructured};
use headrow_kernels::gemm::{Blocking, LeftKind, RightKind, gemm_blocked, gemm_blocked_scratch};
use headrow_kernels::reference::gemm::{error_bound, product};
use headrow_kernels::{
    Activation, Epilogue, Left, PackedB, Right, Write, activate, gemm, gemm_scratch,
};

/// Rows and columns swapped.
fn transposed(u: &mut Unstructured<'_>, x: &Matrix) -> Result<Matrix> {
    let (rows, cols) = (x.view().rows(), x.view().cols());
    let mut out = Matrix::filled(u, cols, rows, 0.0)?;
    for i in 0..rows {
        for j in 0..cols {
            out.view_mut().row_mut(j)[i] = x.row(i)[j];
        }
    }
    Ok(out)
}

/// Sizes so small that a small product has parts of its depth, several blocks and chunks, and a packed A.
fn blocking(u: &mut Unstructured<'_>) -> Result<Blocking> {
    let mut some = || -> Result<usize> {
        Ok(match u.int_in_range(0..=9)? {
            8 => usize::MAX,
            9 => 0,
            _ => u.int_in_range(1..=40)?,
        })
    };
    Ok(Blocking {
        mc: some()?,
        kc: some()?,
        nc: some()?,
        chunk_rows: some()?,
        chunk_cols: some()?,
        direct_rows: some()?,
        pack_left: u.arbitrary()?,
    })
}

pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let cpu = cpu(u)?;
    let (m, n, k) = (size(u, 70)?, size(u, 70)?, size(u, 40)?);
    // The few choices come first: behind so many numbers an input often has nothing left.
    let write = *u.choose(&[Write::Replace, Write::Accumulate])?;
    let activation = *u.choose(Activation::ALL)?;
    let (with_bias, with_residual, scaled) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let (tiny, threads) = (blocking(u)?, u.int_in_range(1..=3)?);
    let a = Matrix::draw(u, m, k)?;
    let b = Matrix::draw(u, k, n)?;
    let old = Matrix::draw(u, m, n)?;
    let residual = Matrix::draw_plain(u, m, n)?;
    let bias: Vec<f32> = (0..n).map(|_| plain(u)).collect::<Result<_>>()?;
    let epilogue = Epilogue {
        alpha: bool::then_some(scaled, 0.5),
        bias: bool::then_some(with_bias, &bias),
        activation,
        residual: bool::then_some(with_residual, residual.view()),
    };
    let (at, bt) = (transposed(u, &a)?, transposed(u, &b)?);
    let packed = PackedB::new(cpu, b.view());
    let lefts = [
        (Left::Plain(a.view()), LeftKind::Plain),
        (Left::Transposed(at.view()), LeftKind::Transposed),
    ];
    let rights = [
        (Right::Packed(&packed), RightKind::Packed),
        (Right::Plain(b.view()), RightKind::Plain),
        (Right::Transposed(bt.view()), RightKind::Transposed),
    ];
    let run = |left: (Left<'_>, LeftKind),
               right: (Right<'_>, RightKind),
               threads,
               blocking: Option<&Blocking>,
               epilogue: &Epilogue<'_>| {
        let mut c = old.clone();
        let ((left, left_kind), (right, right_kind)) = (left, right);
        let need = match blocking {
            None => gemm_scratch(cpu, threads, m, n, k, left_kind, right_kind),
            Some(sizes) => {
                gemm_blocked_scratch(cpu, sizes, threads, m, n, k, left_kind, right_kind)
            }
        };
        with_par(threads, |par| {
            let (c, mut memory) = (c.view_mut(), scratch(need));
            let stack = &mut memory.stack();
            match blocking {
                None => gemm(cpu, par, left, right, write, epilogue, c, stack),
                Some(sizes) => {
                    gemm_blocked(cpu, par, sizes, left, right, write, epilogue, c, stack);
                }
            }
        });
        c
    };

    // The plain product: the bits of one chain of fused multiply-adds, which lies near the f64 definition.
    let plain = run(lefts[0], rights[0], 1, None, &Epilogue::default());
    let mut chains = old.clone();
    let (want, magnitude) = product(a.view(), b.view());
    for i in 0..m {
        for j in 0..n {
            let start = if write == Write::Accumulate { old.row(i)[j] } else { 0.0 };
            let chain = (0..k).fold(start, |sum, p| a.row(i)[p].mul_add(b.row(p)[j], sum));
            chains.row_mut(i)[j] = chain;
            // On the way the chain may overflow where f64 does not, and then ∞ or NaN is right.
            let size = magnitude[i * n + j] + f64::from(start).abs();
            if size < f64::from(f32::MAX) / 4.0 || size.is_nan() {
                let bound = error_bound(k + 1, size) + f64::from(f32::MIN_POSITIVE);
                let want = want[i * n + j] + f64::from(start);
                assert_close(chain, want, bound, format_args!("C[{i}, {j}] of {m}×{n}×{k}"));
            }
        }
    }
    assert_eq!(plain.bits(), chains.bits(), "{m}×{n}×{k} on {cpu:?}");

    // The fused epilogue against the separate steps.
    let mut separate = plain;
    for i in 0..m {
        for (j, x) in separate.view_mut().row_mut(i).iter_mut().enumerate() {
            *x = epilogue.alpha.map_or(*x, |alpha| *x * alpha);
            *x = epilogue.bias.map_or(*x, |bias| *x + bias[j]);
        }
    }
    with_par(1, |par| activate(cpu, par, activation, separate.view_mut()));
    if with_residual {
        for i in 0..m {
            for (j, x) in separate.view_mut().row_mut(i).iter_mut().enumerate() {
                *x += residual.row(i)[j];
            }
        }
    }
    let want = separate.bits();

    // Every way to hand over the operands gives the same bits, and every way to cut the work.
    for left in lefts {
        for right in rights {
            for blocking in [None, Some(&tiny)] {
                let got = run(left, right, threads, blocking, &epilogue);
                assert_eq!(
                    got.bits(),
                    want,
                    "{m}×{n}×{k}, {:?} · {:?}, {threads} threads, {blocking:?}",
                    left.1,
                    right.1
                );
            }
        }
    }
    Ok(())
}
