//! One head of keys and values of one sequence: its gradients, and those of the queries that meet it.

use super::row::{Part, Weighed};
use super::{Added, BackwardBlocking, Place};
use crate::arch::{Distance, PackArgs, Tile, TileArgs};
use crate::attention::AttentionShape;
use crate::attention::block::Operands;
use crate::attention::blocking::row_of_scores;
use crate::attention::keys::{Runs, pack_keys, pack_values};
use crate::attention::mask::{Query, Seen};
use crate::attention::score_rows::{Rows, Span};
use crate::attention::segment::Sequence;
use crate::cpu::Cpu;
use crate::par::Cancel;
use crate::scratch::{Need, Stack};
use crate::view::Mat;
use std::ops::Range;

/// The operands of one call, as every worker sees them.
pub(super) struct Call<'a> {
    pub(super) operands: Operands<'a>,
    pub(super) k: Mat<'a>,
    pub(super) v: Mat<'a>,
    pub(super) d_out: Mat<'a>,
    pub(super) dq: Place,
    pub(super) dk: Place,
    pub(super) dv: Place,
    pub(super) added: Added,
    pub(super) blocking: &'a BackwardBlocking,
    /// Asked between the blocks of a unit.
    pub(super) cancel: Option<&'a Cancel>,
}

// SAFETY: all is read only, but for the gradients: the driver gives a unit, which is a sequence's rows with one head of keys
// and values, to one worker, and with it those that share rows of what is added to scores.
unsafe impl Sync for Call<'_> {}

/// One head of keys and values of one sequence.
struct Unit<'a> {
    sequence: Sequence<'a>,
    /// Packed as keys are for scores: for Q·Kᵀ and for dO·Vᵀ.
    keys_across: Runs<'a>,
    values_across: Runs<'a>,
    /// For dX·K: as values are for weights.
    keys_down: Runs<'a>,
    /// The gradients of its keys and values.
    dk: Part,
    dv: Part,
}

/// One block of queries: rows of weights and of gradients, `ld` apart.
struct Block<'a> {
    rows: Rows<'a>,
    /// The same rows of dO.
    d_out: Rows<'a>,
    ld: usize,
    /// The keys that some row sees, counted from the first of `rows.keys`.
    all: Range<usize>,
    /// Whether products pass marks over.
    marked: bool,
    /// Whether dK and dV hold nothing yet, so that the block writes over what is there.
    begins: bool,
}

/// Rows of transposed weights: a multiple of 8 columns.
fn across(rows: usize) -> usize {
    rows.next_multiple_of(8)
}

/// What [`Call::unit`] takes from its stack, for up to `queries` queries and `keys` keys.
#[track_caller]
pub(super) fn need(
    cpu: Cpu,
    shape: &AttentionShape,
    blocking: &BackwardBlocking,
    queries: usize,
    keys: usize,
) -> Need {
    let nr = cpu.table.gemm.nr;
    let round = |n: usize| n.checked_next_multiple_of(nr).expect("scratch size overflows");
    let of =
        |a: usize, b: usize| Need::of::<f32>(a.checked_mul(b).expect("scratch size overflows"));
    let rows = blocking.rows.min(queries);
    let ld = row_of_scores(nr, keys);
    of(round(keys), shape.d_k)
        .and(of(round(keys), shape.d_v))
        .and(of(keys, round(shape.d_k)))
        .and(of(rows, ld).times(2))
        .and(of(across(rows), keys))
        .and(of(rows, shape.d_k).and(of(rows, shape.d_v)))
        .and(Need::of::<usize>(3 * rows))
        .and(Need::of::<u8>(keys))
        .and(Need::of::<f32>(keys).times(2))
}

impl Call<'_> {
    /// All gradients of one sequence and one head of keys and values.
    ///
    /// # Safety
    /// Nobody else handles this sequence with this head, nor one that shares rows of what is added to scores.
    pub(super) unsafe fn unit(
        &self,
        sequence: Sequence<'_>,
        kv_head: usize,
        stack: &mut Stack<'_>,
    ) {
        let Operands { cpu, shape, .. } = self.operands;
        let (nr, group) = (cpu.table.gemm.nr, shape.heads / shape.kv_heads);
        let AttentionShape { d_k, d_v, .. } = *shape;
        let key_rows = sequence.row..sequence.row + sequence.keys;
        let dk = self.dk.part(key_rows.clone(), kv_head * d_k, d_k);
        let dv = self.dv.part(key_rows, kv_head * d_v, d_v);
        let queries = sequence.count();
        if queries == 0 {
            // SAFETY: rows and columns of this unit; the caller's promise.
            return unsafe {
                dk.clear();
                dv.clear();
            };
        }
        let keys = sequence.keys_for(0..queries);
        let across = keys.len().next_multiple_of(nr);
        // Few queries read the keys where they lie.
        let packed = queries * group >= self.blocking.pack_keys;
        let columns = if packed { d_k.next_multiple_of(nr) } else { 0 };
        let (keys_across, mut stack) = stack.take::<f32>(across * d_k);
        let (values_across, mut stack) = stack.take::<f32>(across * d_v);
        let (keys_down, mut stack) = stack.take::<f32>(keys.len() * columns);
        let panels = [keys_across, values_across, keys_down];
        let [keys_across, values_across, keys_down] =
            self.pack(sequence.row, kv_head, keys, panels);
        let unit = Unit { sequence, keys_across, values_across, keys_down, dk, dv };
        // Of equal blocks none is small.
        let rows = queries.div_ceil(queries.div_ceil(self.blocking.rows));
        let rows = rows.next_multiple_of(cpu.table.gemm.mr).min(self.blocking.rows);
        for head in kv_head * group..(kv_head + 1) * group {
            for first in (0..queries).step_by(rows) {
                if self.cancel.is_some_and(Cancel::is_cancelled) {
                    return;
                }
                let count = rows.min(queries - first);
                let begins = head == kv_head * group && first == 0;
                // SAFETY: queries of this unit.
                unsafe { self.block(&unit, head, first..first + count, begins, &mut stack) };
            }
        }
        // SAFETY: as above.
        unsafe {
            (cpu.table.rows.scale)(shape.scale, dk);
            (cpu.table.rows.scale)(1.0, dv);
        }
    }

    /// Some keys of a sequence that begins at row `row`, packed for Q·Kᵀ, dO·Vᵀ and dX·K; without memory for the last it reads them
    /// where they lie.
    fn pack<'r>(
        &self,
        row: usize,
        kv_head: usize,
        keys: Range<usize>,
        [keys_across, values_across, keys_down]: [&mut [f32]; 3],
    ) -> [Runs<'r>; 3] {
        let Operands { cpu, shape, .. } = self.operands;
        let (nr, d_k, d_v) = (cpu.table.gemm.nr, shape.d_k, shape.d_v);
        let rows = row + keys.start..row + keys.end;
        let k = self.k.rows_range(rows.clone()).columns(kv_head * d_k..(kv_head + 1) * d_k);
        let v = self.v.rows_range(rows).columns(kv_head * d_v..(kv_head + 1) * d_v);
        let run = |base, ld, panel| Runs { base, first: keys.start, ld, panel, pages: None };
        pack_keys(cpu, k, keys_across);
        pack_keys(cpu, v, values_across);
        let down = if keys_down.is_empty() {
            run(k.as_ptr(), k.stride(), nr)
        } else {
            pack_values(k, nr, keys_down);
            run(keys_down.as_ptr(), nr, keys.len() * nr)
        };
        [run(keys_across.as_ptr(), d_k, 0), run(values_across.as_ptr(), d_v, 0), down]
    }

    /// The part of some queries of one head in the gradients; `begins` says that it is the unit's first.
    ///
    /// # Safety
    /// As [`Call::unit`], whose queries and heads these are.
    unsafe fn block(
        &self,
        unit: &Unit<'_>,
        head: usize,
        queries: Range<usize>,
        begins: bool,
        stack: &mut Stack<'_>,
    ) {
        let Operands { cpu, shape, .. } = self.operands;
        let (d_k, d_v, count) = (shape.d_k, shape.d_v, queries.len());
        let rows = Rows::new(&self.operands, unit.sequence, (head, queries.start), count, false);
        let width = rows.keys.len();
        let ld = row_of_scores(cpu.table.gemm.nr, width);
        let (weights, mut stack) = stack.take::<f32>(count * ld);
        let (d, mut stack) = stack.take::<f32>(count * ld);
        let (transposed, mut stack) = stack.take::<f32>(across(count) * width);
        let (q_copy, mut stack) = stack.take::<f32>(count * d_k);
        let (d_out_copy, mut stack) = stack.take::<f32>(count * d_v);
        let (seen, mut stack) = stack.take::<usize>(3 * count);
        let (visible, mut stack) = stack.take::<u8>(width);

        let at = unit.sequence.start + queries.start;
        let columns = head * d_v..(head + 1) * d_v;
        let d_out = self.d_out.rows_range(at..at + count).columns(columns);
        let (seen, _) = seen.as_chunks_mut::<3>();
        for (r, seen) in seen.iter_mut().enumerate() {
            *seen = self.operands.see(&rows, r, visible);
        }
        let all = Span::of(seen).all;
        let dq = self.dq.part(at..at + count, head * d_k, d_k);
        let mut block = Block {
            d_out: rows.over(d_out.as_ptr(), d_out.stride()),
            rows,
            ld,
            all,
            marked: false,
            begins,
        };
        if block.all.is_empty() {
            // SAFETY: rows and columns of this unit.
            return unsafe {
                dq.clear();
                block.begin(unit);
            };
        }
        if width >= self.blocking.copy_rows {
            block.rows = block.rows.copied(d_k, q_copy);
            block.d_out = block.d_out.copied(d_v, d_out_copy);
        }
        // SAFETY: the block is of this unit, and the memory is as large as it asks for.
        unsafe { self.products(unit, &mut block, seen, [weights, d, transposed], dq, &mut stack) };
    }

    /// The five products of a block, around the row by row part between them.
    ///
    /// # Safety
    /// As [`Call::unit`], whose block it is; `memory` holds its rows twice, and once transposed.
    unsafe fn products(
        &self,
        unit: &Unit<'_>,
        block: &mut Block<'_>,
        seen: &[Seen],
        [weights, d, transposed]: [&mut [f32]; 3],
        dq: Part,
        stack: &mut Stack<'_>,
    ) {
        let Operands { cpu, shape, .. } = self.operands;
        let (count, ld) = (block.rows.count, block.ld);
        // SAFETY: the unit's keys hold those of the block; the products write rows and columns of this unit, and
        // scratch memory that is the block's.
        unsafe {
            let scores = |rows: &Rows<'_>, panels: Runs<'_>, to: &mut [f32]| {
                let nr = cpu.table.gemm.nr;
                let all = block.all.start / nr * nr..block.all.end;
                self.operands.score_keys(rows, 0..count, all, panels, to.as_mut_ptr(), ld);
            };
            scores(&block.rows, unit.keys_across, weights);
            scores(&block.d_out, unit.values_across, d);
            block.marked = !self.differentiate(block, seen, weights, d, stack);
            if block.all.len() < unit.sequence.keys || block.marked {
                block.begin(unit);
            }
            let (b, ldb) = (block.d_out.q, block.d_out.ldq);
            self.over_queries(block, weights, transposed, (b, ldb), unit.dv);
            let (b, ldb) = (block.rows.q, block.rows.ldq);
            self.over_queries(block, d, transposed, (b, ldb), unit.dk);
            self.over_keys(unit, block, d, dq);
            (cpu.table.rows.scale)(shape.scale, dq);
        }
    }

    /// Turns rows of scores and of dO·Vᵀ into normalised weights and the gradients of scores. Hidden keys become −0. Gives
    /// whether the operands of hidden pairs are known to be finite, so that −0 times them is a zero.
    ///
    /// # Safety
    /// As [`Call::unit`].
    unsafe fn differentiate(
        &self,
        block: &Block<'_>,
        seen: &[Seen],
        weights: &mut [f32],
        d: &mut [f32],
        stack: &mut Stack<'_>,
    ) -> bool {
        let Operands { cpu, shape, .. } = self.operands;
        let table = &cpu.table.rows;
        let Block { rows, ld, all, .. } = block;
        let (added, mut stack) = stack.take::<f32>(rows.keys.len());
        let (capped, _) = stack.take::<f32>(rows.keys.len());
        let mut finite = true;
        for (r, &seen) in seen.iter().enumerate() {
            let (weights, d) = (&mut weights[r * ld..][..*ld], &mut d[r * ld..][..*ld]);
            let [first, end, visible] = seen;
            let (first, end) = if visible == 0 { (all.start, all.start) } else { (first, end) };
            // A sum of products is finite only when all factors are.
            let holes = if visible == end - first { first..first } else { first..end };
            for hidden in [all.start..first, end..all.end, holes] {
                finite &= hidden.is_empty()
                    || (table.finite)(&weights[hidden.clone()]) && (table.finite)(&d[hidden]);
            }
            let query = rows.at(r, self.operands.q.rows());
            let to = shape.softcap.map(|_| &mut *capped);
            let sum = self.operands.weigh(&query, seen, all.clone(), weights, added, to);
            d[all.start..first].fill(-0.0);
            d[end..all.end].fill(-0.0);
            if visible > 0 {
                // SAFETY: rows that are ours (the caller's promise), and columns that the mask has (`Mask::check`).
                let d_added = unsafe { self.added_to(&query, first, end - first) };
                let capped = shape.softcap.map(|cap| (cap, &capped[first..end]));
                let how = Weighed { sum, capped, d_added };
                (table.gradient)(how, &mut weights[first..end], &mut d[first..end]);
            }
        }
        finite
    }

    /// Sums of the gradients of what is added to the scores of a query, for keys from `first` on.
    ///
    /// # Safety
    /// As [`Call::unit`], for keys that the query may see.
    unsafe fn added_to<'r>(
        &self,
        query: &Query<'_>,
        first: usize,
        keys: usize,
    ) -> [Option<&'r mut [f32]>; 2] {
        let Added { relative, bias, shared } = self.added;
        // SAFETY: the caller's promise.
        let relative = relative.zip(self.operands.mask.relative).map(|(place, table)| unsafe {
            place.row(query.head, query.column(&table, first), keys)
        });
        let row = if shared { query.row() } else { query.head * query.of + query.row() };
        // SAFETY: as above.
        let bias = bias.map(|place| unsafe { place.row(row, query.base + first, keys) });
        [relative, bias]
    }

    /// to\[j\] ← to\[j\] + Σ_r x_rj·b_r over the rows of the block, for every key j of it: for dV and dK.
    ///
    /// # Safety
    /// `b` are rows as wide as those of `to`, as far apart as said, one for each row of the block. `to` has a row for each key
    /// of its sequence.
    unsafe fn over_queries(
        &self,
        block: &Block<'_>,
        x: &[f32],
        transposed: &mut [f32],
        (b, ldb): (*const f32, usize),
        to: Part,
    ) {
        let Block { rows, ld, all, begins, .. } = block;
        if to.cols == 0 {
            return;
        }
        let gemm = &self.operands.cpu.table.gemm;
        let product = block.product(self.operands.cpu);
        let lda = across(rows.count);
        assert!(x.len() >= rows.count * ld && transposed.len() >= all.len() * lda);
        // SAFETY: all keys of the block in `x` and in the target, and as many rows of transposed weights; the
        // rest is the caller's promise. `Cpu` proves the instruction set.
        unsafe {
            (gemm.pack_rows)(PackArgs {
                rows: rows.count,
                depth: all.len(),
                from: x.as_ptr().add(all.start),
                ld: *ld,
                nr: lda,
                to: transposed.as_mut_ptr(),
                ldt: lda,
            });
            for first in (0..all.len()).step_by(self.blocking.keys) {
                product(TileArgs {
                    m: self.blocking.keys.min(all.len() - first),
                    n: to.cols,
                    k: rows.count,
                    a: transposed.as_ptr().add(first * lda),
                    lda,
                    packed: false,
                    b,
                    ldb,
                    panel: gemm.nr,
                    c: to.first.add((rows.keys.start + all.start + first) * to.ld),
                    ldc: to.ld,
                    accumulate: !begins,
                    from: Distance::Near,
                });
            }
        }
    }

    /// dq\[r\] ← Σ_j dx_rj·k_j over the keys of the block.
    ///
    /// # Safety
    /// `dx` has the block's rows, which are the unit's, and `dq` too.
    unsafe fn over_keys(&self, unit: &Unit<'_>, block: &Block<'_>, dx: &[f32], dq: Part) {
        let &Block { ref rows, ld, ref all, marked, .. } = block;
        let product = block.product(self.operands.cpu);
        if dq.cols == 0 {
            return;
        }
        let base = rows.keys.start;
        let keys = unit.keys_down;
        if marked {
            // SAFETY: rows and columns of the unit.
            unsafe { dq.clear() };
        }
        for (run, b) in keys.cut(base + all.start..base + all.end, self.blocking.keys) {
            // SAFETY: the keys of the block are within those of the unit, and its rows of `dx` hold them.
            unsafe {
                product(TileArgs {
                    m: rows.count,
                    n: dq.cols,
                    k: run.len(),
                    a: dx.as_ptr().add(run.start - base),
                    lda: ld,
                    packed: false,
                    b,
                    ldb: keys.ld,
                    panel: keys.panel,
                    c: dq.first,
                    ldc: dq.ld,
                    accumulate: marked || run.start > base + all.start,
                    from: Distance::Near,
                });
            }
        }
    }
}

impl Block<'_> {
    /// The kernel for weights and gradients of scores.
    fn product(&self, cpu: Cpu) -> Tile {
        if self.marked { cpu.table.gemm.marked } else { cpu.table.gemm.tile }
    }

    /// Zeros in dK and dV, when they hold nothing yet.
    ///
    /// # Safety
    /// They are the unit's, and nobody else uses them meanwhile.
    unsafe fn begin(&mut self, unit: &Unit<'_>) {
        if std::mem::take(&mut self.begins) {
            // SAFETY: the caller's promise.
            unsafe {
                unit.dk.clear();
                unit.dv.clear();
            }
        }
    }
}
