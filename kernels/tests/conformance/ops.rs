//! Operators of both suites in terms of the public kernels: layout around one kernel call, or a few.

use super::array::{Array, common_shape};
use super::{Lane, Stop};
use headrow_kernels::rows::math;
use headrow_kernels::{
    Activation, Cpu, Epilogue, LayerNorm, Left, Lookup, Mat, MatMut, PackedB, Par, Right, RmsNorm,
    Rope, RopeLayout, Scratch, Visible, Write, activate, embed, gate, gemm, gemm_scratch,
    layer_norm, masked_softmax, rms_norm, rope,
};

/// A dimension counted from either end, as both ONNX and PyTorch have it; a scalar counts as one element.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, Stop> {
    let rank = rank.max(1) as i64;
    let from_start = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&from_start) {
        Ok(from_start as usize)
    } else {
        Err(Stop::fail(format!("axis {axis} of {rank} dimensions")))
    }
}

/// The array as a matrix of its last dimension.
pub(crate) fn matrix(x: &Array<f32>) -> Mat<'_> {
    let cols = x.shape().last().copied().unwrap_or(1);
    Mat::new(x.data(), rows(x), cols)
}

/// Rows of the array as a matrix of its last dimension.
fn rows(x: &Array<f32>) -> usize {
    x.shape().split_last().map_or(1, |(_, outer)| outer.iter().product())
}

pub(crate) fn matrix_mut(x: &mut Array<f32>) -> MatMut<'_> {
    let (rows, cols) = (rows(x), x.shape().last().copied().unwrap_or(1));
    MatMut::new(x.data_mut(), rows, cols)
}

/// An operand of a product, stored as it is or transposed.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) matrix: &'a Array<f32>,
    pub(crate) transposed: bool,
}

impl<'a> From<&'a Array<f32>> for Operand<'a> {
    fn from(matrix: &'a Array<f32>) -> Operand<'a> {
        Operand { matrix, transposed: false }
    }
}

impl Operand<'_> {
    /// Rows and columns of what is meant.
    fn shape(&self) -> (usize, usize) {
        let [rows, cols] = *self.matrix.shape() else {
            panic!("{:?} is no matrix", self.matrix.shape())
        };
        if self.transposed { (cols, rows) } else { (rows, cols) }
    }
}

impl Lane<'_> {
    /// C ← epilogue(A·B), or epilogue(C + A·B) from the old C that is given.
    pub(crate) fn gemm<'a>(
        &self,
        a: impl Into<Operand<'a>>,
        b: impl Into<Operand<'a>>,
        c: Option<Array<f32>>,
        epilogue: &Epilogue<'_>,
    ) -> Array<f32> {
        let (a, b) = (a.into(), b.into());
        let ((m, k), (inner, n)) = (a.shape(), b.shape());
        assert_eq!(k, inner, "inner dimensions of a product");
        let left = match a.transposed {
            false => Left::Plain(matrix(a.matrix)),
            true => Left::Transposed(matrix(a.matrix)),
        };
        let packed = self.packed.then(|| match b.transposed {
            false => PackedB::new(self.cpu, matrix(b.matrix)),
            true => PackedB::from_transposed(self.cpu, matrix(b.matrix)),
        });
        let right = match (&packed, b.transposed) {
            (Some(packed), _) => Right::Packed(packed),
            (None, false) => Right::Plain(matrix(b.matrix)),
            (None, true) => Right::Transposed(matrix(b.matrix)),
        };
        let write = if c.is_some() { Write::Accumulate } else { Write::Replace };
        // What is replaced is not read: NaN would show.
        let mut c = c.unwrap_or_else(|| Array::full(&[m, n], f32::NAN));
        let threads = self.par.threads();
        let need = gemm_scratch(self.cpu, threads, m, n, k, left.kind(), right.kind());
        let (cpu, par, mut scratch) = (self.cpu, self.par, Scratch::new(need));
        gemm(cpu, par, left, right, write, epilogue, matrix_mut(&mut c), &mut scratch.stack());
        c
    }

    /// The matrix product of NumPy, ONNX and PyTorch: vectors are promoted, leading dimensions broadcast.
    pub(crate) fn matmul(&self, a: &Array<f32>, b: &Array<f32>) -> Result<Array<f32>, Stop> {
        if a.rank() == 0 || b.rank() == 0 {
            return Err(Stop::fail("a product of scalars"));
        }
        let (row, column) = (a.rank() == 1, b.rank() == 1);
        let a = a.clone().with_rank(2);
        let b = if column { b.clone().reshape(&[b.len(), 1]) } else { b.clone() };
        let ([outer_a @ .., m, k], [outer_b @ .., inner, n]) = (a.shape(), b.shape()) else {
            unreachable!()
        };
        let (m, k, inner, n) = (*m, *k, *inner, *n);
        let batch = common_shape(outer_a, outer_b).filter(|_| k == inner);
        let shapes = || Stop::fail(format!("a product of {:?} and {:?}", a.shape(), b.shape()));
        let batch = batch.ok_or_else(shapes)?;
        let mut shape = batch.clone();
        if !row {
            shape.push(m);
        }
        if !column {
            shape.push(n);
        }
        if b.rank() == 2 {
            // One right matrix: all rows of all matrices on the left at once.
            let a = a.reshape(&[batch.iter().product::<usize>() * m, k]);
            return Ok(self.gemm(&a, &b, None, &Epilogue::default()).reshape(&shape));
        }
        let all = |x: &Array<f32>, rows, cols| {
            let count = batch.iter().product();
            x.broadcast(&[&batch[..], &[rows, cols]].concat()).reshape(&[count, rows, cols])
        };
        let (a, b) = (all(&a, m, k), all(&b, k, n));
        let mut data = Vec::with_capacity(shape.iter().product());
        for i in 0..a.shape()[0] {
            let a = a.slice(0, i, 1).reshape(&[m, k]);
            let b = b.slice(0, i, 1).reshape(&[k, n]);
            data.extend(self.gemm(&a, &b, None, &Epilogue::default()).data());
        }
        Ok(Array::new(&shape, data))
    }

    /// β·C + α·A·B, the BLAS form, with C broadcast to the product.
    ///
    /// A plain sum starts the chain from C; else a row of C is the bias and a full C the residual of the
    /// epilogue. β scales C beforehand; with β = 0 C is not looked at.
    pub(crate) fn gemm_with<'a>(
        &self,
        a: impl Into<Operand<'a>>,
        b: impl Into<Operand<'a>>,
        c: Option<&Array<f32>>,
        alpha: f64,
        beta: f64,
    ) -> Array<f32> {
        let (a, b) = (a.into(), b.into());
        let shape = [a.shape().0, b.shape().1];
        let mut epilogue = Epilogue::default();
        if alpha != 1.0 {
            epilogue.alpha = Some(alpha as f32);
        }
        let Some(c) = c.filter(|_| beta != 0.0) else { return self.gemm(a, b, None, &epilogue) };
        let is_row = c.rank() < 2 || c.shape()[0] == 1;
        if is_row {
            let row = self.scaled(&c.broadcast(&[1, shape[1]]), beta);
            epilogue.bias = Some(row.data());
            return self.gemm(a, b, None, &epilogue);
        }
        let c = c.broadcast(&shape);
        if alpha == 1.0 && beta == 1.0 {
            return self.gemm(a, b, Some(c), &epilogue);
        }
        let c = self.scaled(&c, beta);
        epilogue.residual = Some(matrix(&c));
        self.gemm(a, b, None, &epilogue)
    }

    /// factor·x, by the kernel that adds up rows of tables.
    pub(crate) fn scaled(&self, x: &Array<f32>, factor: f64) -> Array<f32> {
        self.combined(&[(x, factor)])
    }

    /// Σ factor·x over arrays of one shape, in their order.
    pub(crate) fn combined(&self, terms: &[(&Array<f32>, f64)]) -> Array<f32> {
        let shape = terms[0].0.shape();
        let ids: Vec<u32> = (0..rows(terms[0].0) as u32).collect();
        let lookup = |&(x, factor): &(_, f64)| {
            let table = matrix(x);
            Lookup { table, ids: &ids, scale: factor as f32 }
        };
        let lookups: Vec<Lookup<'_>> = terms.iter().map(lookup).collect();
        let mut out = Array::full(shape, f32::NAN);
        embed(self.cpu, self.par, &lookups, matrix_mut(&mut out));
        out
    }

    /// Rows of `table` (its last dimension is copied, its first indexed): shape of `ids`, then the row's.
    pub(crate) fn gather(&self, table: &Array<f32>, ids: &Array<i64>) -> Result<Array<f32>, Stop> {
        let (&count, row) = table.shape().split_first().ok_or(Stop::fail("a scalar table"))?;
        let wrapped = |&id: &i64| {
            let id = if id < 0 { id + count as i64 } else { id };
            u32::try_from(id).ok().filter(|&id| (id as usize) < count)
        };
        let ids_flat = ids.data().iter().map(wrapped).collect::<Option<Vec<u32>>>();
        let ids_flat = ids_flat.ok_or_else(|| Stop::fail(format!("an id beyond {count} rows")))?;
        let width = row.iter().product();
        let lookup =
            Lookup { table: Mat::new(table.data(), count, width), ids: &ids_flat, scale: 1.0 };
        let mut out = Array::full(&[ids_flat.len(), width], f32::NAN);
        embed(self.cpu, self.par, &[lookup], matrix_mut(&mut out));
        Ok(out.reshape(&[ids.shape(), row].concat()))
    }

    /// A kernel that replaces every element.
    pub(crate) fn each(
        &self,
        x: &Array<f32>,
        kernel: impl Fn(Cpu, Par<'_>, MatMut<'_>),
    ) -> Array<f32> {
        let mut x = x.clone();
        kernel(self.cpu, self.par, matrix_mut(&mut x));
        x
    }

    pub(crate) fn activated(&self, x: &Array<f32>, activation: Activation) -> Array<f32> {
        self.each(x, |cpu, par, x| activate(cpu, par, activation, x))
    }

    /// x·σ(αx) = silu(α·x)/α.
    pub(crate) fn swish(&self, x: &Array<f32>, alpha: f64) -> Result<Array<f32>, Stop> {
        if alpha == 1.0 {
            return Ok(self.activated(x, Activation::Silu));
        }
        if alpha as f32 == 1.702 {
            return Ok(self.activated(x, Activation::GeluQuick));
        }
        if alpha == 0.0 {
            return Err(Stop::skip("not claimed: Swish with alpha 0, which is x/2"));
        }
        let inner = self.activated(&self.scaled(x, alpha), Activation::Silu);
        Ok(self.scaled(&inner, 1.0 / alpha))
    }

    /// activation(x)·up, element by element.
    pub(crate) fn gated(
        &self,
        activation: Activation,
        x: &Array<f32>,
        up: &Array<f32>,
    ) -> Result<Array<f32>, Stop> {
        let shape = common_shape(x.shape(), up.shape());
        let shape = shape.ok_or(Stop::fail("shapes of a product"))?;
        let (x, up) = (x.broadcast(&shape), up.broadcast(&shape));
        let mut out = Array::full(&shape, f32::NAN);
        gate(self.cpu, self.par, activation, matrix(&x), matrix(&up), matrix_mut(&mut out));
        Ok(out)
    }

    /// The gated linear unit a·σ(b), a and b being the halves of x along a dimension.
    pub(crate) fn glu(&self, x: &Array<f32>, axis: usize) -> Result<Array<f32>, Stop> {
        let half = x.shape().get(axis).map_or(0, |width| width / 2);
        let (a, b) = (x.slice(axis, 0, half), x.slice(axis, half, half));
        self.gated(Activation::Identity, &self.each(&b, math::sigmoid), &a)
    }

    /// Tokens × heads·width with the heads turned by their tokens' angles.
    pub(crate) fn rope(
        &self,
        [cos, sin]: [&Array<f32>; 2],
        layout: RopeLayout,
        positions: &[u32],
        heads: usize,
        x: &Array<f32>,
    ) -> Array<f32> {
        let tables = Rope { cos: matrix(cos), sin: matrix(sin), layout };
        self.each(x, |cpu, par, x| rope(cpu, par, &tables, positions, heads, x))
    }

    /// A kernel that works on rows in place, along any dimension.
    pub(crate) fn along(
        &self,
        x: &Array<f32>,
        axis: usize,
        kernel: impl Fn(Cpu, Par<'_>, MatMut<'_>),
    ) -> Array<f32> {
        if x.rank() == 0 {
            return self.each(x, kernel);
        }
        let last = x.rank() - 1;
        self.each(&x.moved(axis, last), kernel).moved(last, axis)
    }

    /// softmax(−x).
    pub(crate) fn softmin(&self, x: &Array<f32>, axis: usize) -> Array<f32> {
        self.along(x, axis, |cpu, par, x| masked_softmax(cpu, par, -1.0, Visible::All, x))
    }

    /// x normalised over the dimensions from `axis` on.
    pub(crate) fn layer_norm(
        &self,
        x: &Array<f32>,
        axis: usize,
        gamma: Option<&Array<f32>>,
        beta: Option<&Array<f32>>,
        epsilon: f64,
    ) -> Result<Array<f32>, Stop> {
        let epsilon = claimed_epsilon(epsilon)?;
        normalise(x, axis, [gamma, beta], |x, [gamma, beta], out| {
            let norm = LayerNorm { gamma: gamma.unwrap(), beta, epsilon };
            layer_norm(self.cpu, self.par, &norm, x, out);
        })
    }

    pub(crate) fn rms_norm(
        &self,
        x: &Array<f32>,
        axis: usize,
        gamma: Option<&Array<f32>>,
        epsilon: f64,
    ) -> Result<Array<f32>, Stop> {
        let epsilon = claimed_epsilon(epsilon)?;
        normalise(x, axis, [gamma, None], |x, [gamma, _], out| {
            let norm = RmsNorm { gamma: gamma.unwrap(), epsilon };
            rms_norm(self.cpu, self.par, &norm, x, out);
        })
    }

    /// Group normalisation of batch × channels × …: each group is a row of its own for layer
    /// normalisation, with the factors of its channels repeated over the places of a channel.
    pub(crate) fn group_norm(
        &self,
        x: &Array<f32>,
        groups: usize,
        gamma: Option<&Array<f32>>,
        beta: Option<&Array<f32>>,
        epsilon: f64,
    ) -> Result<Array<f32>, Stop> {
        let [batch, channels, places @ ..] = x.shape() else {
            return Err(Stop::fail(format!("group normalisation of {:?}", x.shape())));
        };
        let (batch, channels, places) = (*batch, *channels, places.iter().product::<usize>());
        if groups == 0 || channels % groups != 0 {
            return Err(Stop::fail(format!("{channels} channels in {groups} groups")));
        }
        let width = channels / groups * places;
        let per_element = |factors: Option<&Array<f32>>| {
            factors.map(|f| {
                let f = f.clone().reshape(&[f.len(), 1]);
                f.broadcast(&[channels, places]).reshape(&[groups, width])
            })
        };
        let (gamma, beta) = (per_element(gamma), per_element(beta));
        let grouped = x.clone().reshape(&[batch, groups, width]);
        let mut out = Array::full(&[batch, 0, width], 0.0);
        for g in 0..groups {
            let row = |factors: &Option<Array<f32>>| {
                factors.as_ref().map(|f| f.slice(0, g, 1).reshape(&[width]))
            };
            let part = grouped.slice(1, g, 1);
            let (gamma, beta) = (row(&gamma), row(&beta));
            let part = self.layer_norm(&part, 2, gamma.as_ref(), beta.as_ref(), epsilon)?;
            out = out.concat(&part, 1);
        }
        Ok(out.reshape(x.shape()))
    }

    /// ln Σ exp along `axis`, kept as a dimension of 1. With m the largest element of a row,
    /// ln Σ exp(x) = m − log_softmax(x)_m.
    pub(crate) fn log_sum_exp(&self, x: &Array<f32>, axis: usize) -> Result<Array<f32>, Stop> {
        let x = if x.rank() == 0 { x.clone().reshape(&[1]) } else { x.clone() };
        let last = x.rank() - 1;
        let x = x.moved(axis, last);
        let cols = x.shape()[last];
        let logs = self.each(&x, headrow_kernels::log_softmax);
        let (mut largest, mut log) = (Vec::new(), Vec::new());
        for row in 0..rows(&x) {
            let values = &x.data()[row * cols..][..cols];
            let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let place = values.iter().position(|&v| v.is_nan() || v == max);
            match place {
                Some(j) if values[j] != f32::NEG_INFINITY => {
                    largest.push(values[j]);
                    log.push(logs.data()[row * cols + j]);
                }
                _ => {
                    let why =
                        "not claimed: logarithm of an empty sum (log_softmax has no such row)";
                    return Err(Stop::skip(why));
                }
            }
        }
        let shape = [&x.shape()[..last], &[1]].concat();
        let (largest, log) = (Array::new(&shape, largest), Array::new(&shape, log));
        Ok(self.combined(&[(&largest, 1.0), (&log, -1.0)]).moved(last, axis))
    }
}

/// Several dimensions reduced at once: they become the rows' elements, `reduce` leaves one of each row.
/// Without any dimension all are reduced.
pub(crate) fn reduced(
    x: &Array<f32>,
    axes: &[i64],
    keep: bool,
    reduce: impl Fn(&Array<f32>) -> Result<Array<f32>, Stop>,
) -> Result<Array<f32>, Stop> {
    let gone: Vec<usize> = match axes {
        [] => (0..x.rank()).collect(),
        _ if x.rank() == 0 => Vec::new(),
        _ => axes.iter().map(|&a| axis(a, x.rank())).collect::<Result<_, _>>()?,
    };
    let kept: Vec<usize> = (0..x.rank()).filter(|d| !gone.contains(d)).collect();
    let outer: Vec<usize> = kept.iter().map(|&d| x.shape()[d]).collect();
    let cols = (0..x.rank()).filter(|d| gone.contains(d)).map(|d| x.shape()[d]).product();
    let order: Vec<usize> =
        kept.iter().copied().chain((0..x.rank()).filter(|d| gone.contains(d))).collect();
    let rows = x.permute(&order).reshape(&[outer.iter().product(), cols]);
    let result = reduce(&rows)?;
    let dim = |d: usize| if gone.contains(&d) { 1 } else { x.shape()[d] };
    let with_ones: Vec<usize> = (0..x.rank()).map(dim).collect();
    Ok(result.reshape(if keep { &with_ones } else { &outer }))
}

fn claimed_epsilon(epsilon: f64) -> Result<f32, Stop> {
    if epsilon > 0.0 && epsilon.is_finite() {
        return Ok(epsilon as f32);
    }
    Err(Stop::skip("not claimed: ε ≤ 0 or not finite is refused when a layer is built"))
}

/// Normalisation of the rows that the dimensions from `axis` on make. The factors broadcast to x; those
/// that differ between rows take one call per row.
fn normalise(
    x: &Array<f32>,
    axis: usize,
    factors: [Option<&Array<f32>>; 2],
    kernel: impl Fn(Mat<'_>, [Option<&[f32]>; 2], MatMut<'_>),
) -> Result<Array<f32>, Stop> {
    let (outer, inner) = x.shape().split_at(axis.min(x.rank()));
    let (rows, cols) = (outer.iter().product::<usize>(), inner.iter().product::<usize>());
    let ones = Array::scalar(1.0);
    let [gamma, beta] = [Some(factors[0].unwrap_or(&ones)), factors[1]];
    let fits = |f: &&Array<f32>| common_shape(f.shape(), x.shape()).as_deref() == Some(x.shape());
    if ![gamma, beta].iter().flatten().all(fits) {
        return Err(Stop::fail(format!("factors do not broadcast to {:?}", x.shape())));
    }
    let same = |f: &&Array<f32>| f.len() <= cols && f.rank() <= inner.len();
    let mut out = Array::full(&[rows, cols], f32::NAN);
    let input = Mat::new(x.data(), rows, cols);
    if [gamma, beta].iter().flatten().all(same) {
        let row = |f: Option<&Array<f32>>| f.map(|f| f.broadcast(inner));
        let (gamma, beta) = (row(gamma), row(beta));
        let factors = [gamma.as_ref().map(Array::data), beta.as_ref().map(Array::data)];
        kernel(input, factors, matrix_mut(&mut out));
    } else {
        let full = |f: Option<&Array<f32>>| f.map(|f| f.broadcast(x.shape()));
        let (gamma, beta) = (full(gamma), full(beta));
        for i in 0..rows {
            let row =
                |f: &Option<Array<f32>>| f.clone().map(|f| f.data()[i * cols..][..cols].to_vec());
            let (gamma, beta) = (row(&gamma), row(&beta));
            let part = MatMut::new(&mut out.data_mut()[i * cols..][..cols], 1, cols);
            kernel(input.rows_range(i..i + 1), [gamma.as_deref(), beta.as_deref()], part);
        }
    }
    Ok(out.reshape(x.shape()))
}
