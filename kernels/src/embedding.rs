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
/// # Panics
/// When a table's width or the number of ids does not fit `out`, or an id is beyond its table.
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
