//! What a call takes from its stack.

use super::block::Call;
use super::blocking::{Blocking, MOST_ROWS, most_scores, row_of_scores};
use super::{AttentionExtent, AttentionShape};
use crate::cpu::Cpu;
use crate::scratch::Need;

/// Room for `rows` rows of scores, with `scores` elements for them all.
#[track_caller]
pub(super) fn block_need(d_k: usize, rows: usize, row: RowNeed, scores: usize) -> Need {
    let queries = rows.checked_mul(d_k).expect("scratch size overflows");
    Need::of::<f32>(scores)
        .and(Need::of::<f32>(rows))
        .and(Need::of::<usize>(3 * rows))
        .and(row.need())
        .and(Need::of::<f32>(queries))
}

/// Elements that a row of scores needs while it is weighed: for marks of hidden keys, and for biases.
#[derive(Clone, Copy)]
pub(super) struct RowNeed {
    pub(super) marks: usize,
    pub(super) added: usize,
}

impl RowNeed {
    /// What a call needs for rows of `keys` keys.
    pub(super) fn of(call: &Call<'_>, keys: usize) -> RowNeed {
        RowNeed {
            marks: if call.operands.mask.is_none() { 0 } else { keys },
            added: if call.operands.mask.relative.is_none() { 0 } else { keys },
        }
    }

    #[track_caller]
    pub(super) fn need(self) -> Need {
        Need::of::<u8>(self.marks).and(Need::of::<f32>(self.added))
    }
}

/// Room for the keys and values of one head.
#[track_caller]
pub(super) fn panels_need(cpu: Cpu, shape: &AttentionShape, keys: usize) -> Need {
    let nr = cpu.table.gemm.nr;
    let round = |n: usize| n.checked_next_multiple_of(nr).expect("scratch size overflows");
    let product = |a: usize, b: usize| a.checked_mul(b).expect("scratch size overflows");
    Need::of::<f32>(product(round(keys), shape.d_k))
        .and(Need::of::<f32>(product(keys, round(shape.d_v))))
}

/// Most rows that a block can have, whatever the block sizes: all queries, or a single one's heads.
pub(super) fn most_rows(shape: &AttentionShape, extent: AttentionExtent) -> usize {
    extent.queries.max(shape.heads / shape.kv_heads.max(1))
}

/// What [`run`](super::driver::run) takes, for any sequences within `extent`: with the block sizes of the call's own
/// choice, or given ones; from a cache nothing is packed.
#[track_caller]
pub(super) fn scratch(
    cpu: Cpu,
    blocking: Option<&Blocking>,
    threads: usize,
    shape: &AttentionShape,
    extent: AttentionExtent,
    cached: bool,
) -> Need {
    let keys = extent.keys;
    let row = row_of_scores(cpu.table.gemm.nr, keys);
    let rows = blocking.map_or(MOST_ROWS.max(cpu.table.gemm.mr), |blocking| blocking.rows);
    let rows = rows.min(most_rows(shape, extent));
    let scores = match blocking {
        Some(_) => rows.checked_mul(row),
        None => Some(most_scores(cpu, rows, keys)),
    };
    let scores = scores.expect("scratch size overflows");
    let each_row = RowNeed { marks: keys, added: keys };
    let panels = if cached { Need::NONE } else { panels_need(cpu, shape, keys) };
    let each = panels.and(block_need(shape.d_k, rows, each_row, scores));
    let all_heads = shape.heads.checked_mul(row).expect("scratch size overflows");
    let spread = block_need(0, shape.heads, each_row, all_heads);
    let spread = if threads > 1 { spread } else { Need::NONE };
    each.times(threads.max(1)).and(spread)
}
