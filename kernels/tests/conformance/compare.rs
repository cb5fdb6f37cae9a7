//! When a computed output is what was recorded.

use super::array::Array;
use super::tensors::{Kind, Value};
use super::{Blind, Output, Stop};

/// |got − want| ≤ `absolute` + `relative`·|want|, element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub(crate) absolute: f64,
    pub(crate) relative: f64,
}

/// Compares one output with its record of element type `kind`.
///
/// Truth values count as 1 and 0. NaN and the infinities compare by kind, with one deviation that is ours by
/// design: a query without any visible key gives zeros. Where the record holds NaN for such a query, ours must be
/// what [`Blind`] says. Elements marked in `overflow` are sums whose terms leave f32 on their way: whether they end
/// as a number, an infinity or NaN depends on the order of the terms, so any result is as good.
pub(crate) fn compare(
    place: &str,
    got: &Output,
    want: &Value,
    kind: Kind,
    tolerance: Tolerance,
    overflow: Option<&Array<bool>>,
) -> Result<(), Stop> {
    let want = &match want {
        Value::Float(want) => want.clone(),
        Value::Bool(want) => want.map(|is| f64::from(u8::from(is))),
        Value::Int(_) => return Err(Stop::fail(format!("{place}: the record holds integers"))),
    };
    if got.value.shape() != want.shape() {
        let shapes = format!("{:?}, recorded {:?}", got.value.shape(), want.shape());
        return Err(Stop::fail(format!("{place}: shape {shapes}")));
    }
    let blind = got.blind.as_ref().map(|blind| blind.broadcast(want.shape()));
    let blind = |i: usize| blind.as_ref().map_or(Blind::No, |blind| blind.data()[i]);
    if let Some(overflow) = overflow.filter(|overflow| overflow.shape() != want.shape()) {
        let shapes = format!("{:?} of a result {:?}", overflow.shape(), want.shape());
        return Err(Stop::fail(format!("{place}: sums of shape {shapes}")));
    }
    let mut worst: Option<(f64, String)> = None;
    let mut wrong = 0;
    for (i, (&got, &want)) in got.value.data().iter().zip(want.data()).enumerate() {
        let right = match blind(i) {
            Blind::Exactly(x) if want.is_nan() => got == x,
            Blind::InSomeHeads if want.is_nan() => got.is_finite(),
            _ => element(kind.round(got), want, tolerance),
        };
        if right || overflow.is_some_and(|overflow| overflow.data()[i]) {
            continue;
        }
        wrong += 1;
        let miss = (f64::from(got) - want).abs() / (tolerance.absolute + want.abs());
        if worst.as_ref().is_none_or(|(other, _)| !miss.is_finite() || miss > *other) {
            worst = Some((miss, format!("element {i} is {got:e}, recorded {want:e}")));
        }
    }
    match worst {
        None => Ok(()),
        Some((_, text)) => Err(Stop::fail(format!(
            "{place}: {text} ({wrong} of {} off; {tolerance:?})",
            want.len()
        ))),
    }
}

fn element(got: f32, want: f64, tolerance: Tolerance) -> bool {
    // A record in f64 may lie beyond what f32 holds.
    let rounded = want as f32;
    if want.is_nan() {
        return got.is_nan();
    }
    if rounded.is_infinite() || got.is_infinite() {
        return got == rounded;
    }
    (f64::from(got) - want).abs() <= tolerance.absolute + tolerance.relative * want.abs()
}

/// The largest finite magnitude, or 0.
pub(crate) fn magnitude(value: &Value) -> f64 {
    let Value::Float(a) = value else { return 0.0 };
    let finite = a.data().iter().map(|x| x.abs()).filter(|x| x.is_finite());
    finite.fold(0.0, f64::max)
}
