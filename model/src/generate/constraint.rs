//! What may not come next, and what must: rules over the tokens so far that change a row of logits.

use super::options::{GenerationOptions, Span};
use crate::memory::filled;

/// A set of tokens, all of them out between two uses.
#[derive(Debug)]
pub(crate) struct Seen(Vec<u64>);

impl Seen {
    /// For a vocabulary; `None` when the allocator refuses.
    pub(crate) fn try_new(vocabulary: usize) -> Option<Seen> {
        filled(0, vocabulary.div_ceil(64)).map(Seen)
    }

    /// Puts a token in; whether it was out.
    fn insert(&mut self, token: u32) -> bool {
        let (word, bit) = (&mut self.0[token as usize / 64], 1 << (token % 64));
        let out = *word & bit == 0;
        *word |= bit;
        out
    }

    fn remove(&mut self, token: u32) {
        self.0[token as usize / 64] &= !(1 << (token % 64));
    }
}

/// Changes the row of what follows `tokens` as the options say, in the order that [`GenerationOptions`]
/// states.
pub(crate) fn constrain(
    options: &GenerationOptions,
    span: Span,
    tokens: &[u32],
    row: &mut [f32],
    seen: &mut Seen,
) {
    let step = tokens.len() - span.prompt;
    if options.repetition_penalty != 1.0 {
        penalise(options.repetition_penalty, tokens, row, seen);
    }
    if options.no_repeat_ngram > 0 {
        break_ngrams(options.no_repeat_ngram, tokens, row);
    }
    for word in &options.bad_words {
        break_word(word, &options.stop_ids, tokens, row);
    }
    if step < options.min_new_tokens || tokens.len() < options.min_length {
        suppress(&options.stop_ids, row);
    }
    if let Some(forced) = options.forced_first.filter(|_| step == 0) {
        force(forced, row);
    }
    if let Some(forced) = options.forced_last.filter(|_| step + 1 == span.max_new) {
        force(forced, row);
    }
    suppress(&options.suppressed, row);
    if step == usize::from(options.forced_first.is_some()) {
        suppress(&options.suppressed_first, row);
    }
}

/// Each token that occurred becomes less likely, once however often it did. (A token that has no logit, as of a
/// prompt with more ids than the read-out has, needs none.)
fn penalise(penalty: f32, tokens: &[u32], row: &mut [f32], seen: &mut Seen) {
    let vocabulary = row.len();
    let inside = || tokens.iter().copied().filter(|&token| (token as usize) < vocabulary);
    for token in inside() {
        if seen.insert(token) {
            let x = &mut row[token as usize];
            *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
        }
    }
    inside().for_each(|token| seen.remove(token));
}

/// Rules out each token that followed an earlier occurrence of the last n − 1 tokens.
fn break_ngrams(n: usize, tokens: &[u32], row: &mut [f32]) {
    if tokens.len() < n {
        return;
    }
    let last = &tokens[tokens.len() + 1 - n..];
    for ngram in tokens.windows(n) {
        if let Some((&next, before)) = ngram.split_last()
            && before == last
        {
            suppress(&[next], row);
        }
    }
}

fn break_word(word: &[u32], stop_ids: &[u32], tokens: &[u32], row: &mut [f32]) {
    let Some((last, before)) = word.split_last() else { return };
    let stops = before.is_empty() && stop_ids.contains(last);
    if !stops && tokens.ends_with(before) {
        suppress(&[*last], row);
    }
}

fn suppress(ids: &[u32], row: &mut [f32]) {
    for &id in ids {
        if let Some(x) = row.get_mut(id as usize) {
            *x = f32::NEG_INFINITY;
        }
    }
}

/// Leaves one token, with a logit (and a log-probability) of 0.
fn force(id: u32, row: &mut [f32]) {
    row.fill(f32::NEG_INFINITY);
    row[id as usize] = 0.0;
}
