//! Rows gathered from tables and added up: token, position and type embeddings (paper, section 3.4).

use crate::arch::FloatMode;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::rows::for_rows;
use crate::view::{Mat, MatMut};

/// A table of embeddings and the row to take from it for each output row.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// One row of d features per id.
    pub table: Mat<'a>,
    /// The id of each output row.
    pub ids: &'a [u32],
    /// Multiplies the row that is taken: √d for the paper's token embeddings, else 1.
    pub scale: f32,
}

/// out\[i\] = Σ scale·table\[ids\[i\]\] over the lookups, added in their order; each product and sum is rounded.
///
/// `out` n×d, each table as many rows as it has ids to name, of d columns; zeros without a lookup. One pass, O(n·d)
/// a lookup.
///
/// # Panics
/// When a table's width or the number of ids does not fit `out`, or an id is beyond its table.
///
/// ```
/// use headrow_kernels::{Cpu, Lookup, Mat, MatMut, Par, embed};
/// let (words, positions) = ([1.0, 2.0, 3.0, 4.0], [0.5, 0.0]);
/// let word = Lookup { table: Mat::new(&words, 2, 2), ids: &[1], scale: 2.0 };
/// let position = Lookup { table: Mat::new(&positions, 1, 2), ids: &[0], scale: 1.0 };
/// let mut out = [0.0; 2];
/// embed(Cpu::detect(), Par::SERIAL, &[word, position], MatMut::new(&mut out, 1, 2));
/// assert_eq!(out, [6.5, 8.0]);
/// ```
#[track_caller]
pub fn embed(_cpu: Cpu, par: Par<'_>, lookups: &[Lookup<'_>], out: MatMut<'_>) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (out.rows(), out.cols());
    for (at, Lookup { table, ids, .. }) in lookups.iter().enumerate() {
        assert!(
            table.cols() == cols && ids.len() == rows,
            "lookup {at}: {} ids into a table {} wide for an output of {rows}×{cols}",
            ids.len(),
            table.cols()
        );
        if let Some((i, id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= table.rows())
        {
            panic!("lookup {at}: id {id} at place {i} in a table of {} rows", table.rows());
        }
    }
    for_rows(par, out, &|first, mut block| {
        for i in 0..block.rows() {
            let row = block.row_mut(i);
            match lookups.split_first() {
                None => row.fill(0.0),
                Some((lookup, rest)) => {
                    let from = lookup.table.row(lookup.ids[first + i] as usize);
                    row.iter_mut().zip(from).for_each(|(y, x)| *y = x * lookup.scale);
                    for lookup in rest {
                        let from = lookup.table.row(lookup.ids[first + i] as usize);
                        row.iter_mut().zip(from).for_each(|(y, x)| *y += x * lookup.scale);
                    }
                }
            }
        }
    });
}

/// Fewest columns that make a chunk worth handing out.
const COLUMNS: usize = 64;
/// Chunks per worker: enough that a late or slow one leaves little for the others to wait for.
const CHUNKS_PER_WORKER: usize = 4;

/// The gradient of one lookup of [`embed`] for its table, added to what is there:
///
/// d_table\[ids\[i\]\] ← d_table\[ids\[i\]\] + scale·dy\[i\], i ascending; each product and sum is rounded.
///
/// `dy` n×d, `d_table` vocabulary×d. Rows of `d_table` that no id names are left alone. With m the times that an id
/// occurs, its row's error is at most (m + 1)·u times the sum of the absolute values, u = 2⁻²⁴. Workers share out the
/// columns, so frequent ids cost no more than others. O(n·d).
///
/// # Panics
/// When the widths differ, there is not one id per row of `dy`, or an id is beyond the table.
///
/// ```
/// use headrow_kernels::{Cpu, Mat, MatMut, Par, embed_backward};
/// // Id 1 was looked up twice.
/// let (dy, mut sums) = ([1.0, 2.0, 4.0], [0.0; 2]);
/// let (dy, to) = (Mat::new(&dy, 3, 1), MatMut::new(&mut sums, 2, 1));
/// embed_backward(Cpu::detect(), Par::SERIAL, &[1, 0, 1], 2.0, dy, to);
/// assert_eq!(sums, [4.0, 10.0]);
/// ```
#[track_caller]
pub fn embed_backward(
    _cpu: Cpu,
    par: Par<'_>,
    ids: &[u32],
    scale: f32,
    dy: Mat<'_>,
    d_table: MatMut<'_>,
) {
    let _mode = FloatMode::default_scope();
    let (rows, cols) = (d_table.rows(), d_table.cols());
    assert!(
        dy.cols() == cols && ids.len() == dy.rows(),
        "{} ids, gradients of {}×{} for a table {cols} wide",
        ids.len(),
        dy.rows(),
        dy.cols()
    );
    if let Some((i, id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= rows) {
        panic!("id {id} at place {i} in a table of {rows} rows");
    }
    let each = match par.threads() {
        1 => cols,
        threads => cols.div_ceil(threads * CHUNKS_PER_WORKER).max(COLUMNS),
    };
    par.for_columns(d_table, each, &|first, mut block| {
        for (i, &id) in ids.iter().enumerate() {
            let row = block.row_mut(id as usize);
            let from = &dy.row(i)[first..];
            row.iter_mut().zip(from).for_each(|(sum, dy)| *sum += dy * scale);
        }
    });
}
