//! Keys and values of past tokens, in pages, stored the way the kernels read them.

use super::STEP;
use super::keys::{Pages, Runs, pack_keys};
use super::parts::Parts;
use crate::cpu::Cpu;
use crate::par::Par;
use crate::scratch::{ALIGN, zeros};
use crate::view::Mat;
use aligned_vec::{AVec, ConstAlign};
use std::fmt;

/// Tokens of a page: a multiple of the panels of every instruction set.
pub const PAGE: usize = STEP;

/// The keys and values of one layer, for any number of sequences: a pool of pages of [`PAGE`] tokens.
///
/// Which pages a sequence has, and in which order, is its owner's affair: a list of page numbers says it in
/// every call, so sequences can share pages, and a copy of a sequence is a copy of its list.
///
/// Keys lie in panels of nr, transposed, \[head\]\[page\]\[PAGE/nr\]\[d_k\]\[nr\], so that Q·Kᵀ needs no packing;
/// values in rows, \[head\]\[page\]\[PAGE\]\[d_v\]. nr belongs to the instruction set. Pages that follow one
/// another in number and in a sequence are one run of memory, so it pays to hand them out in ascending order. What
/// attention computes from a cache has the bits it has from rows.
///
/// ```
/// use headrow_kernels::attention::PAGE;
/// use headrow_kernels::{Cpu, KvCache, Mat, Par};
/// let mut cache = KvCache::try_new(Cpu::detect(), 1, 2, 2, 3).expect("memory for 3 pages");
/// let x = vec![0.5; 2 * (PAGE + 6)];
/// let x = Mat::new(&x, PAGE + 6, 2);
/// // A sequence in pages 0 and 2; another goes on from its tokens: it shares the full page and has page 1 for itself.
/// cache.write(Par::SERIAL, &[0, 2], 0, x, x);
/// cache.copy_page(2, 1, 6);
/// let next = x.rows_range(0..1);
/// cache.write(Par::SERIAL, &[0, 1], PAGE + 6, next, next);
/// assert_eq!(cache.bytes(), 3 * PAGE * 4 * size_of::<f32>());
/// ```
pub struct KvCache {
    cpu: Cpu,
    kv_heads: usize,
    d_k: usize,
    d_v: usize,
    pages: usize,
    keys: AVec<f32, ConstAlign<ALIGN>>,
    values: AVec<f32, ConstAlign<ALIGN>>,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvCache { kv_heads, d_k, d_v, pages, .. } = self;
        write!(f, "KvCache({pages} pages of {PAGE}, {kv_heads} heads of {d_k} and {d_v})")
    }
}

/// Elements written by one thread sooner than they could be shared out.
const WORTH_SHARING: usize = 1 << 15;

impl KvCache {
    /// A cache of `pages` pages, zeroed; `None` when that overflows or the allocator refuses.
    pub fn try_new(
        cpu: Cpu,
        kv_heads: usize,
        d_k: usize,
        d_v: usize,
        pages: usize,
    ) -> Option<KvCache> {
        KvCache::bytes_for(kv_heads, d_k, d_v, pages)?;
        let tokens = kv_heads * PAGE * pages;
        let (keys, values) = (zeros(tokens * d_k)?, zeros(tokens * d_v)?);
        Some(KvCache { cpu, kv_heads, d_k, d_v, pages, keys, values })
    }

    /// Bytes that a cache of this shape takes; `None` when that overflows.
    pub fn bytes_for(kv_heads: usize, d_k: usize, d_v: usize, pages: usize) -> Option<usize> {
        let width = d_k.checked_add(d_v)?.checked_mul(kv_heads)?;
        // Widths may be 0, and still the number of tokens must be one.
        kv_heads.checked_mul(PAGE)?.checked_mul(pages)?;
        width.checked_mul(PAGE * size_of::<f32>())?.checked_mul(pages)
    }

    /// Bytes of this cache.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.keys[..]) + size_of_val(&self.values[..])
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Heads of the keys and values, and the widths of a head in each.
    pub(super) fn shape(&self) -> (usize, usize, usize) {
        (self.kv_heads, self.d_k, self.d_v)
    }

    /// Keys in a panel.
    pub(super) fn nr(&self) -> usize {
        self.cpu.table.gemm.nr
    }

    /// `pages` must hold `keys` keys, and exist.
    #[track_caller]
    pub(super) fn check(&self, pages: &[u32], keys: usize) {
        let needed = keys.div_ceil(PAGE);
        assert!(needed <= pages.len(), "{keys} tokens in {} pages of {PAGE}", pages.len());
        for &page in &pages[..needed] {
            assert!((page as usize) < self.pages, "page {page} of {}", self.pages);
        }
    }

    /// Stores the keys and values of tokens `start..start + rows` of the sequence that has these pages.
    ///
    /// `k` is rows × h_kv·d_k, `v` rows × h_kv·d_v. No other token changes.
    ///
    /// # Panics
    /// When the shapes do not fit the cache, or the pages do not hold that many tokens.
    #[track_caller]
    pub fn write(&mut self, par: Par<'_>, pages: &[u32], start: usize, k: Mat<'_>, v: Mat<'_>) {
        let &mut KvCache { cpu, kv_heads, d_k, d_v, pages: all, .. } = self;
        assert!(
            k.rows() == v.rows() && k.cols() == kv_heads * d_k && v.cols() == kv_heads * d_v,
            "keys {}×{} and values {}×{} into {self:?}",
            k.rows(),
            k.cols(),
            v.rows(),
            v.cols()
        );
        let end = start.checked_add(k.rows()).expect("a number of tokens");
        self.check(pages, end);
        let nr = self.nr();
        let (keys, values) = (Parts::new(&mut self.keys), Parts::new(&mut self.values));
        let work = k.rows() * kv_heads * (d_k + d_v);
        let par = if work < WORTH_SHARING { Par::SERIAL } else { par };
        par.run(kv_heads, &|head, _| {
            let k = k.columns(head * d_k..(head + 1) * d_k);
            let v = v.columns(head * d_v..(head + 1) * d_v);
            let mut token = start;
            while token < end {
                // Up to the end of a panel.
                let next = end.min((token / nr + 1) * nr);
                let (page, within) = (pages[token / PAGE] as usize, token % PAGE);
                let first = (head * all + page) * PAGE;
                let rows = token - start..next - start;
                // SAFETY: this head's panel of keys and rows of values in a page that exists (`check`); a head
                // is one worker's.
                let (panel, to) = unsafe {
                    (
                        keys.part((first + within / nr * nr) * d_k, nr * d_k),
                        values.part((first + within) * d_v, rows.len() * d_v),
                    )
                };
                write_keys(cpu, k.rows_range(rows.clone()), within % nr, panel);
                for (to, j) in to.chunks_exact_mut(d_v.max(1)).zip(rows) {
                    to.copy_from_slice(v.row(j));
                }
                token = next;
            }
        });
    }

    /// Copies the first tokens of a page with all heads: the first step of writing to a page that several sequences
    /// share. What the other page holds behind them means nothing then.
    ///
    /// # Panics
    /// When there is no such page, or a page has fewer tokens.
    #[track_caller]
    pub fn copy_page(&mut self, from: u32, to: u32, tokens: usize) {
        assert!(tokens <= PAGE, "{tokens} tokens of a page of {PAGE}");
        let (pages, nr) = (self.pages, self.nr());
        for page in [from, to] {
            assert!((page as usize) < pages, "page {page} of {pages}");
        }
        let copy = |memory: &mut [f32], width: usize, tokens: usize| {
            let page = PAGE * width;
            for head in memory.chunks_exact_mut((pages * page).max(1)) {
                let first = from as usize * page;
                head.copy_within(first..first + tokens * width, to as usize * page);
            }
        };
        // Keys stand in panels, whose tokens cannot be told apart.
        copy(&mut self.keys, self.d_k, tokens.next_multiple_of(nr));
        copy(&mut self.values, self.d_v, tokens);
    }

    /// The keys of one head of a sequence.
    pub(super) fn keys<'a>(&'a self, head: usize, pages: &'a [u32]) -> Runs<'a> {
        self.runs(&self.keys, self.d_k, head, pages)
    }

    /// The values of one head of a sequence.
    pub(super) fn values<'a>(&'a self, head: usize, pages: &'a [u32]) -> Runs<'a> {
        self.runs(&self.values, self.d_v, head, pages)
    }

    fn runs<'a>(
        &self,
        memory: &'a [f32],
        width: usize,
        head: usize,
        numbers: &'a [u32],
    ) -> Runs<'a> {
        Runs {
            base: memory.as_ptr().wrapping_add(head * self.pages * PAGE * width),
            first: 0,
            ld: width,
            panel: self.nr(),
            pages: Some(Pages { numbers, length: PAGE }),
        }
    }
}

/// Writes keys into a panel, the first one as its column `first`.
fn write_keys(cpu: Cpu, keys: Mat<'_>, first: usize, panel: &mut [f32]) {
    /// Features that are turned at a time, for up to a page of keys.
    const DEPTH: usize = 32;
    /// So few keys are written one by one sooner.
    const FEW: usize = 4;
    let (rows, nr) = (keys.rows(), cpu.table.gemm.nr);
    if rows == nr {
        return pack_keys(cpu, keys, panel);
    }
    if rows < FEW {
        for j in 0..rows {
            for (column, &x) in panel.chunks_exact_mut(nr).zip(keys.row(j)) {
                column[first + j] = x;
            }
        }
        return;
    }
    // Packing fills a panel's last columns, where other tokens are: not in place.
    let mut turned = [0.0; DEPTH * PAGE];
    for (start, to) in (0..keys.cols()).step_by(DEPTH).zip(panel.chunks_mut(DEPTH * nr)) {
        let features = start..keys.cols().min(start + DEPTH);
        let turned = &mut turned[..features.len() * nr];
        pack_keys(cpu, keys.columns(features), turned);
        for (to, from) in to.chunks_exact_mut(nr).zip(turned.chunks_exact(nr)) {
            to[first..first + rows].copy_from_slice(&from[..rows]);
        }
    }
}
