//! Gradients of matrix products and of rows of a table.

use super::Call;
use super::conformance::array::Array;
use super::conformance::ops::{Operand, matrix, matrix_mut};
use super::conformance::tensors::Value;
use super::conformance::{Lane, Stop};
use super::gradients::Gradients;
use headrow_kernels::{Mat, add_column_sums, embed_backward};

/// The sum over what was repeated to make `shape` the shape of x.
pub(crate) fn summed_to(x: &Array<f32>, shape: &[usize], lane: Lane<'_>) -> Array<f32> {
    let missing = x.rank() - shape.len();
    let repeated = |&d: &usize| d < missing || (shape[d - missing] == 1 && x.shape()[d] != 1);
    let (mut order, kept): (Vec<usize>, Vec<usize>) = (0..x.rank()).partition(repeated);
    let rows = order.iter().map(|&d| x.shape()[d]).product();
    if order.is_empty() {
        return x.clone().reshape(shape);
    }
    order.extend(kept);
    let mut sums = Array::full(shape, 0.0);
    let (x, cols) = (x.permute(&order), sums.len());
    add_column_sums(lane.cpu, lane.par, Mat::new(x.data(), rows, cols), sums.data_mut());
    sums
}

/// Of a·b, leading dimensions broadcast: da = d·bᵀ, db = aᵀ·d.
pub(crate) fn product(
    a: &Array<f32>,
    b: &Array<f32>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> [Array<f32>; 2] {
    let row = a.clone().with_rank(2);
    let column = if b.rank() == 1 { b.clone().reshape(&[b.len(), 1]) } else { b.clone() };
    let (&[.., m, k], &[.., n]) = (row.shape(), column.shape()) else { unreachable!() };
    let dropped = usize::from(a.rank() == 1) + usize::from(b.rank() == 1);
    let batch = d.shape()[..d.rank() + dropped - 2].to_vec();
    let count = batch.iter().product();
    let all = |x: &Array<f32>, rows, cols| {
        x.broadcast(&[&batch[..], &[rows, cols]].concat()).reshape(&[count, rows, cols])
    };
    let (rows, columns) = (all(&row, m, k), all(&column, k, n));
    let d = d.clone().reshape(&[count, m, n]);
    let (mut da, mut db) = (Vec::new(), Vec::new());
    for i in 0..count {
        let part = |x: &Array<f32>, rows, cols| x.slice(0, i, 1).reshape(&[rows, cols]);
        let (a, b, d) = (part(&rows, m, k), part(&columns, k, n), part(&d, m, n));
        let across = |matrix| Operand { matrix, transposed: true };
        da.extend(lane.gemm(&d, across(&b), None, &Default::default()).data());
        db.extend(lane.gemm(across(&a), &d, None, &Default::default()).data());
    }
    let to = |data, rows, cols, like: &Array<f32>, shape: &[usize]| {
        let all = Array::new(&[&batch[..], &[rows, cols]].concat(), data);
        summed_to(&all, like.shape(), lane).reshape(shape)
    };
    [to(da, m, k, &row, a.shape()), to(db, k, n, &column, b.shape())]
}

/// Of a·b.
pub(crate) fn matmul(call: &Call<'_>, d: &Array<f32>, lane: Lane<'_>) -> Result<Gradients, Stop> {
    let [da, db] = product(&call.tensor("a")?, &call.tensor("b")?, d, lane);
    Ok(vec![("a", da), ("b", db)])
}

/// Of β·c + α·a·b.
pub(crate) fn add_product(
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let (alpha, beta) = (call.number("alpha", 1.0)?, call.number("beta", 1.0)?);
    let scaled = |factor: f64| if factor == 1.0 { d.clone() } else { lane.scaled(d, factor) };
    let [da, db] = product(&call.tensor("a")?, &call.tensor("b")?, &scaled(alpha), lane);
    let dc = summed_to(&scaled(beta), call.tensor("c")?.shape(), lane);
    Ok(vec![("c", dc), ("a", da), ("b", db)])
}

/// Of rows of a table. The row that pads gets none; where asked for, the gradient of an id is divided by how often it
/// occurs.
pub(crate) fn embedding(
    call: &Call<'_>,
    d: &Array<f32>,
    lane: Lane<'_>,
) -> Result<Gradients, Stop> {
    let missing = || Stop::fail("embedding without ids or table");
    let first = call.optional_tensor("ids")?.ok_or_else(missing)?;
    let second = call.optional_tensor("table")?.ok_or_else(missing)?;
    let (name, table, ids) = match (&first, &second) {
        (Value::Int(ids), table) => ("table", table.floats()?, ids),
        (table, Value::Int(ids)) => ("ids", table.floats()?, ids),
        _ => return Err(missing()),
    };
    let &[rows, width] = table.shape() else { return Err(Stop::fail("a table of other rank")) };
    let wrapped = |id: i64| (if id < 0 { id + rows as i64 } else { id }) as u32;
    let pads = call.ints("padding_idx").map(|ids| wrapped(ids[0]));
    let ids: Vec<u32> = ids.data().iter().map(|&id| wrapped(id)).collect();
    let d = d.clone().reshape(&[ids.len(), width]);
    let often = |id: u32| ids.iter().filter(|&&other| other == id).count();
    let by_frequency = call.flag("scale_grad_by_freq", false)?;
    let mut d_table = Array::full(&[rows, width], 0.0);
    for times in 1..=if by_frequency { ids.len() } else { 1 } {
        let counts =
            |i: &usize| Some(ids[*i]) != pads && (!by_frequency || often(ids[*i]) == times);
        let places: Vec<usize> = (0..ids.len()).filter(counts).collect();
        let these: Vec<u32> = places.iter().map(|&i| ids[i]).collect();
        let d: Vec<f32> = places.iter().flat_map(|&i| matrix(&d).row(i).to_vec()).collect();
        let (d, scale) = (Mat::new(&d, these.len(), width), 1.0 / times as f32);
        embed_backward(lane.cpu, lane.par, &these, scale, d, matrix_mut(&mut d_table));
    }
    Ok(vec![(name, d_table)])
}
