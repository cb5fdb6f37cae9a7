//! What a row of attention may be when operands hold NaN, ±∞, or numbers whose products overflow.

use super::Case;
use headrow_kernels::Segment;
use headrow_kernels::reference::attention::Attention;

/// u = 2⁻²⁴.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// What underflow loses.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// Sums of magnitudes below this overflow on no way through them.
const SAFE: f64 = f32::MAX as f64 / 4.0;
/// Above this the error of the weights is no first-order term, and the bound says nothing.
const FIRST_ORDER: f64 = 2.0;

/// One query of one head.
pub(super) struct Row<'a> {
    /// The keys that it sees, by their rows in K and V, with the weights of the definition.
    visible: Vec<(usize, f64)>,
    /// How far a weight may lie from the definition's, relative to it.
    relative: f64,
    /// A score may overflow where f64's does not, and then the row may be NaN.
    wild: bool,
    case: &'a Case<'a>,
    head: usize,
}

impl<'a> Row<'a> {
    pub(super) fn new(
        case: &'a Case<'a>,
        want: &Attention,
        segment: &Segment,
        (i, head): (usize, usize),
    ) -> Row<'a> {
        let (shape, group) = (case.shape, case.shape.heads / case.shape.kv_heads);
        let row = segment.queries.start + i;
        let weights = &want.weights[case.map(head, row) * case.longest..];
        let query = &case.q.row(row)[head * shape.d_k..][..shape.d_k];
        let roundings = (shape.d_k + if shape.softcap.is_some() { 12 } else { 4 }) as f64;
        let (mut visible, mut error, mut wild) = (Vec::new(), 0f64, false);
        for j in (0..segment.keys.len()).filter(|&j| case.sees(segment, (i, head), j)) {
            let key = segment.keys.start + j;
            visible.push((key, weights[j]));
            let keys = &case.k.row(key)[head / group * shape.d_k..][..shape.d_k];
            let products = query.iter().zip(keys).map(|(&q, &k)| f64::from(q) * f64::from(k));
            let (finite, others): (Vec<f64>, Vec<f64>) = products.partition(|x| x.is_finite());
            let size: f64 = finite.iter().map(|x| x.abs()).sum();
            let added: f64 = case.added(segment, (i, head), j).map(f64::abs).iter().sum();
            wild |= size + added > SAFE;
            // An infinite score has no error; a cap makes it a number again.
            let score = match (others.is_empty(), shape.softcap) {
                (true, _) => size * f64::from(shape.scale).abs() + added,
                (false, Some(cap)) => f64::from(cap) + added,
                (false, None) => 0.0,
            };
            error = error.max(roundings * UNIT * score);
        }
        let relative = 4.0 * error + 2.0 * (visible.len() + 16) as f64 * UNIT;
        Row { visible, relative, wild, case, head }
    }

    /// Whether the bound holds.
    fn tight(&self) -> bool {
        !self.wild && self.relative <= FIRST_ORDER
    }

    /// Panics unless a value of the result is what the definition and its bound let it be.
    #[track_caller]
    pub(super) fn check(&self, column: usize, got: f32, want: f64) {
        let Case { shape, v, .. } = self.case;
        let at = self.head / (shape.heads / shape.kv_heads) * shape.d_v + column;
        let terms = || self.visible.iter().map(|&(key, p)| (v.row(key)[at], p));
        let numbers = || terms().map(|(v, _)| f64::from(v)).filter(|v| v.is_finite());
        let all: f64 = numbers().map(f64::abs).sum();
        let holds = if self.visible.is_empty() {
            got.to_bits() == 0
        } else if terms().any(|(v, p)| p.is_nan() || v.is_nan()) {
            got.is_nan()
        } else if terms().any(|(v, _)| v.is_infinite()) {
            // 0·∞ is NaN, and a weight may be 0 where f64's is not.
            let heavy = terms().all(|(v, p)| v.is_finite() || p > LEAST);
            let known = self.tight() && all <= SAFE && (want.is_nan() || heavy);
            let same = if want.is_nan() { got.is_nan() } else { f64::from(got) == want };
            if known { same } else { !got.is_finite() }
        } else if !got.is_finite() {
            got.is_nan() && self.wild || got.is_infinite() && all > SAFE
        } else if self.tight() {
            let size: f64 = terms().map(|(v, p)| p * f64::from(v).abs()).sum();
            (f64::from(got) - want).abs() <= self.relative * size + LEAST * (1.0 + all)
        } else {
            // At least a mean of the values, whatever the weights.
            let (least, most) = numbers()
                .fold((f64::MAX, f64::MIN), |(least, most), v| (v.min(least), v.max(most)));
            let slack = 4.0 * (terms().count() + 16) as f64 * UNIT * least.abs().max(most.abs())
                + LEAST * (1.0 + all);
            (least - slack..=most + slack).contains(&f64::from(got))
        };
        assert!(
            holds,
            "column {column}: {got} instead of {want}; relative error {:e}, wild {}, values {:?}",
            self.relative,
            self.wild,
            terms().collect::<Vec<_>>()
        );
    }

    /// The same for its row of the maps.
    #[track_caller]
    pub(super) fn check_map(&self, segment: &Segment, map: &[f32]) {
        let mut visible = self.visible.iter().peekable();
        for (key, &x) in (segment.keys.start..).zip(map) {
            let Some(&(_, p)) = visible.next_if(|seen| seen.0 == key) else {
                assert!(x.to_bits() == 0, "hidden key {key}: {x}");
                continue;
            };
            let holds = if p.is_nan() || x.is_nan() {
                x.is_nan() && (p.is_nan() || self.wild)
            } else if self.tight() {
                (f64::from(x) - p).abs() <= self.relative * p + LEAST
            } else {
                (0.0..=1.0 + 300.0 * UNIT).contains(&f64::from(x))
            };
            assert!(holds, "key {key}: weight {x} instead of {p}, bound {:e}", self.relative);
        }
    }
}
