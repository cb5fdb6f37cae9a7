//! Einstein sums as matrix products.
//!
//! Repeated letters within an operand are diagonals, sums over letters that one operand alone has are
//! products with a vector of ones, and two operands meet as a stack of matrix products: the letters that
//! both have and the result needs count the stack, those it does not need are the inner dimension.

use super::array::Array;
use super::ops::Operand;
use super::{Lane, Stop};
use headrow_kernels::Epilogue;

/// An array whose dimensions have letters.
#[derive(Clone)]
struct Term {
    letters: Vec<char>,
    array: Array<f32>,
}

/// Dimensions under an ellipsis, counted from the right: characters that no equation holds.
fn hidden_letter(from_right: usize) -> char {
    char::from_u32(0xe000 + from_right as u32).unwrap()
}

/// The letters of one operand, its ellipsis replaced by as many hidden ones as are missing.
fn letters(text: &str, rank: usize) -> Result<Vec<char>, Stop> {
    let wrong = || Stop::fail(format!("{text:?} for {rank} dimensions"));
    let (before, after) = match text.split_once("...") {
        None => (text, ""),
        Some(halves) => halves,
    };
    let named = before.chars().count() + after.chars().count();
    let missing = rank.checked_sub(named).ok_or_else(wrong)?;
    if missing > 0 && !text.contains("...") {
        return Err(wrong());
    }
    let hidden = (0..missing).rev().map(hidden_letter);
    Ok(before.chars().chain(hidden).chain(after.chars()).collect())
}

pub(crate) fn einsum(
    lane: Lane<'_>,
    equation: &str,
    arrays: &[Array<f32>],
) -> Result<Array<f32>, Stop> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let inputs: Vec<&str> = inputs.split(',').collect();
    if inputs.len() != arrays.len() {
        return Err(Stop::fail(format!("{} operands for {equation:?}", arrays.len())));
    }
    let mut terms = Vec::new();
    for (text, array) in inputs.iter().zip(arrays) {
        terms.push(Term { letters: letters(text, array.rank())?, array: array.clone() });
    }
    let mut all: Vec<char> = terms.iter().flat_map(|term| term.letters.clone()).collect();
    let hidden = all.iter().filter(|&&c| c >= hidden_letter(0)).max().copied();
    let hidden = hidden.map_or(0, |c| c as usize - hidden_letter(0) as usize + 1);
    let output = match output {
        Some(text) => {
            let named = text.replace("...", "").chars().count();
            letters(text, if text.contains("...") { named + hidden } else { named })?
        }
        // Without an arrow: the ellipsis, then in alphabetical order what occurs once.
        None => {
            all.sort_unstable();
            let once = |c: &char| all.iter().filter(|&other| other == c).count() == 1;
            let named = all.iter().copied().filter(|c| *c < hidden_letter(0)).filter(once);
            (0..hidden).rev().map(hidden_letter).chain(named).collect()
        }
    };
    let mut terms: std::collections::VecDeque<Term> = terms.into_iter().map(diagonal).collect();
    let mut result = terms.pop_front().unwrap();
    while let Some(next) = terms.pop_front() {
        let later = terms.iter().flat_map(|term| &term.letters);
        let needed: Vec<char> = output.iter().chain(later).copied().collect();
        result = pair(lane, result, next, &needed);
    }
    let result = summed(lane, result, &output);
    let place = |c: &char| result.letters.iter().position(|other| other == c);
    let order: Option<Vec<usize>> = output.iter().map(place).collect();
    let order = order.filter(|order| order.len() == result.letters.len());
    let order = order.ok_or_else(|| Stop::fail(format!("the output of {equation:?}")))?;
    Ok(result.array.permute(&order))
}

/// Each letter once: dimensions of the same letter run together.
fn diagonal(mut term: Term) -> Term {
    for a in 0..term.letters.len() {
        while let Some(b) =
            (a + 1..term.letters.len()).find(|&b| term.letters.get(b) == term.letters.get(a))
        {
            term.array = term.array.diagonal(a, b);
            term.letters.remove(b);
        }
    }
    term
}

/// The sum over all letters that are not `needed`.
fn summed(lane: Lane<'_>, term: Term, needed: &[char]) -> Term {
    let (kept, gone): (Vec<char>, Vec<char>) =
        term.letters.iter().partition(|c| needed.contains(c));
    if gone.is_empty() {
        return term;
    }
    let array = arranged(&term, &[&kept, &gone]);
    let shape: Vec<usize> = array.shape()[..kept.len()].to_vec();
    let k: usize = array.shape()[kept.len()..].iter().product();
    let m = shape.iter().product();
    let ones = Array::full(&[k, 1], 1.0);
    let array = lane.gemm(&array.reshape(&[m, k]), &ones, None, &Epilogue::default());
    Term { letters: kept, array: array.reshape(&shape) }
}

/// The term's array with its dimensions in the order of these letters.
fn arranged(term: &Term, order: &[&[char]]) -> Array<f32> {
    let place = |c: &char| term.letters.iter().position(|other| other == c).unwrap();
    term.array.permute(&order.concat().iter().map(place).collect::<Vec<_>>())
}

fn pair(lane: Lane<'_>, a: Term, b: Term, needed: &[char]) -> Term {
    // What one has alone and nobody needs is summed at once.
    let keep = |other: &Term| needed.iter().chain(&other.letters).copied().collect::<Vec<_>>();
    let (keep_a, keep_b) = (keep(&b), keep(&a));
    let (mut a, mut b) = (summed(lane, a, &keep_a), summed(lane, b, &keep_b));
    let shared: Vec<char> = a.letters.iter().copied().filter(|c| b.letters.contains(c)).collect();
    // Under an ellipsis a dimension of 1 stretches.
    for c in &shared {
        let size = |term: &Term| {
            let place = term.letters.iter().position(|other| other == c).unwrap();
            (place, term.array.shape()[place])
        };
        let stretch = |term: &mut Term, to: usize| {
            let (place, _) = size(term);
            let mut shape = term.array.shape().to_vec();
            shape[place] = to;
            term.array = term.array.broadcast(&shape);
        };
        match (size(&a).1, size(&b).1) {
            (1, n) if n != 1 => stretch(&mut a, n),
            (n, 1) if n != 1 => stretch(&mut b, n),
            _ => {}
        }
    }
    let (stack, inner): (Vec<char>, Vec<char>) = shared.iter().partition(|c| needed.contains(c));
    let alone = |term: &Term| -> Vec<char> {
        term.letters.iter().copied().filter(|c| !shared.contains(c)).collect()
    };
    let (left, right) = (alone(&a), alone(&b));
    let (x, y) = (arranged(&a, &[&stack, &left, &inner]), arranged(&b, &[&stack, &right, &inner]));
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    let (count, m) =
        (size(&x.shape()[..stack.len()]), size(&x.shape()[stack.len()..][..left.len()]));
    let n = size(&y.shape()[stack.len()..][..right.len()]);
    let k = size(&x.shape()[stack.len() + left.len()..]);
    let mut shape = x.shape()[..stack.len() + left.len()].to_vec();
    shape.extend(&y.shape()[stack.len()..][..right.len()]);
    let (x, y) = (x.reshape(&[count, m, k]), y.reshape(&[count, n, k]));
    let mut data = Vec::with_capacity(count * m * n);
    for i in 0..count {
        let a = x.slice(0, i, 1).reshape(&[m, k]);
        let b = y.slice(0, i, 1).reshape(&[n, k]);
        let b = Operand { matrix: &b, transposed: true };
        data.extend(lane.gemm(Operand::from(&a), b, None, &Epilogue::default()).data());
    }
    Term { letters: [stack, left, right].concat(), array: Array::new(&shape, data) }
}
