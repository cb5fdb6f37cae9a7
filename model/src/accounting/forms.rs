//! Closed forms in d, beside what is counted.

use super::counts::{Counts, Kind, Part};
use crate::config::Config;
use crate::observer::{Place, Side, Sublayer};

/// A count as a polynomial in d, v and N, beside the exact one.
///
/// The forms are those of the paper's shape: h·d_k = h·d_v = d, d_ff = 4d. For models of other shapes both numbers
/// show how far they are from it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClosedForm {
    /// Which stack, or both.
    pub side: Option<Side>,
    /// What is counted.
    pub what: &'static str,
    /// The polynomial.
    pub formula: &'static str,
    /// Its value.
    pub value: usize,
    /// What the tensors have.
    pub exact: usize,
}

/// The closed forms of a model's stacks and words: 4d² of an attention, 8d² of a feed-forward network, 12d² of a layer with one
/// attention and 16d² with two, 5d of the network's biases and 4d of those of an attention, 2d of each norm, N layers, v·d of
/// each table of words.
///
/// ```
/// use headrow::Config;
/// use headrow::accounting::{Counts, closed_forms};
///
/// let base = Config::base(37_000, 37_000);
/// let forms = closed_forms(&base, &Counts::of(&base)?);
/// let layer = forms.iter().find(|form| form.what == "a layer").expect("an encoder");
/// assert_eq!((layer.formula, layer.value, layer.exact), ("12d²", 12 * 512 * 512, 12 * 512 * 512));
/// # Ok::<(), headrow::Error>(())
/// ```
pub fn closed_forms(config: &Config, counts: &Counts) -> Vec<ClosedForm> {
    let mut forms = Vec::new();
    for side in [Side::Encoder, Side::Decoder] {
        if let Some(stack) = config.stack(side) {
            let two = side == Side::Decoder && config.encoder.is_some();
            let sizes = Sizes { d: config.d_model, layers: stack.layers, two };
            forms.extend(sizes.stack(side, counts));
        }
    }
    let tables = counts.tensors().iter().filter(|tensor| tensor.kind == Kind::Words);
    let (number, exact) = tables.fold((0usize, 0usize), |(number, exact), tensor| {
        (number + 1, exact.saturating_add(tensor.numbers()))
    });
    let formula = match number {
        0 => return forms,
        1 => "v·d",
        2 => "2·v·d",
        _ => "3·v·d",
    };
    let value = number.saturating_mul(config.vocabulary()).saturating_mul(config.d_model);
    forms.push(ClosedForm { side: None, what: "tables of words", formula, value, exact });
    forms
}

/// What the forms of a stack are made of.
struct Sizes {
    d: usize,
    layers: usize,
    /// Whether its layers attend to an encoder too.
    two: bool,
}

impl Sizes {
    fn stack(&self, side: Side, counts: &Counts) -> Vec<ClosedForm> {
        let &Sizes { d, layers, two } = self;
        let of = |sublayers: &[Sublayer], kind| {
            let places = sublayers.iter().map(|&sublayer| Place { side, layer: 0, sublayer });
            places.map(|place| counts.sublayer(place, kind)).sum::<usize>()
        };
        let attention = [Sublayer::SelfAttention, Sublayer::CrossAttention];
        let network = [Sublayer::FeedForward];
        let all = [attention[0], attention[1], network[0]];
        let (linear, square) = (|k: usize| k.saturating_mul(d), |k: usize| k.saturating_mul(d * d));
        let form = |what, formula, value, exact| ClosedForm {
            side: Some(side),
            what,
            formula,
            value,
            exact,
        };
        let pick = |one, both| if two { both } else { one };
        let in_layers = counts.sum(|tensor| {
            let inside = matches!(tensor.part, Part::Sublayer(place) if place.side == side);
            inside && tensor.kind == Kind::Matrix
        });
        let (maps, norms) = (if two { 8 } else { 4 }, if two { 6 } else { 4 });
        vec![
            form("attention", pick("4d²", "8d²"), square(maps), of(&attention, Kind::Matrix)),
            form("feed-forward", "8d²", square(8), of(&network, Kind::Matrix)),
            form("a layer", pick("12d²", "16d²"), square(maps + 8), of(&all, Kind::Matrix)),
            form("biases of attention", pick("4d", "8d"), linear(maps), of(&attention, Kind::Bias)),
            form("biases of feed-forward", "5d", linear(5), of(&network, Kind::Bias)),
            form("norms", pick("4d", "6d"), linear(norms), of(&all, Kind::Norm)),
            form(
                "all layers",
                pick("12·N·d²", "16·N·d²"),
                square((maps + 8).saturating_mul(layers)),
                in_layers,
            ),
        ]
    }
}
