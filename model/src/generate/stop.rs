//! Text in pieces, and strings that end it.
//!
//! Tokens are pieces of bytes whose borders fall anywhere, also inside a character or a stop string. What is
//! matched are therefore bytes, and what is shown is held back while it may belong to either. The stop string that is
//! complete first ends the text, of two that are complete at one place the longer: so the borders of tokens do not show.

use crate::memory::{copied_lists, room};

/// Strings to look for.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<Vec<u8>>,
    longest: usize,
}

impl StopStrings {
    pub(crate) fn new(strings: &[String]) -> StopStrings {
        let bytes = |string: &String| string.as_bytes().to_vec();
        let strings = strings.iter().filter(|string| !string.is_empty());
        let longest = strings.clone().map(String::len).max().unwrap_or(0);
        StopStrings { strings: strings.map(bytes).collect(), longest }
    }

    /// Strings none of which is empty; `None` when the allocator refuses.
    pub(crate) fn try_new(strings: &[String]) -> Option<StopStrings> {
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        let strings = copied_lists(strings.iter().map(|string| string.as_bytes()))?;
        Some(StopStrings { strings, longest })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// How much of the end of a text matters for what may follow.
    pub(crate) fn overlap(&self) -> usize {
        self.longest.saturating_sub(1)
    }

    /// Where the string begins that is complete first in `text`, none being complete in its first `old` bytes.
    pub(crate) fn find(&self, text: &[u8], old: usize) -> Option<usize> {
        (old + 1..=text.len()).find_map(|end| {
            let ending = self.strings.iter().filter(|string| text[..end].ends_with(string));
            ending.map(|string| end - string.len()).min()
        })
    }

    /// How many bytes at the end of `text` may be the beginning of one of the strings.
    fn begun(&self, text: &[u8]) -> usize {
        let most = self.overlap().min(text.len());
        let begins = |n: &usize| {
            let end = &text[text.len() - n..];
            self.strings.iter().any(|string| string.starts_with(end))
        };
        (1..=most).rev().find(begins).unwrap_or(0)
    }
}

/// Text from bytes that come in pieces, up to a stop string.
///
/// Whole characters are handed out as soon as it is certain that they do not belong to a stop string; the
/// string itself and what follows it never are. Bytes that are no UTF-8 become U+FFFD.
///
/// ```
/// use headrow::generate::TextStream;
///
/// let (mut stream, mut text) = (TextStream::new(&["END".to_owned()]), String::new());
/// // A character in two pieces, and what may be the beginning of the end.
/// for piece in [&b"caf\xc3"[..], b"\xa9 E", b"ND and more"] {
///     stream.push(piece, &mut text);
/// }
/// assert_eq!((text.as_str(), stream.stopped()), ("café ", true));
/// ```
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    stops: StopStrings,
    pending: Vec<u8>,
    stopped: bool,
}

impl TextStream {
    /// A text that ends before the first of these strings; an empty one is never found.
    pub fn new(stop_strings: &[String]) -> TextStream {
        let stops = StopStrings::new(stop_strings);
        TextStream { stops, pending: Vec::with_capacity(256), stopped: false }
    }

    /// A text that ends before the first of these strings; `None` when the allocator refuses.
    pub(crate) fn try_new(stops: &StopStrings) -> Option<TextStream> {
        let StopStrings { ref strings, longest } = *stops;
        let strings = copied_lists(strings.iter().map(Vec::as_slice))?;
        let stops = StopStrings { strings, longest };
        Some(TextStream { stops, pending: room(256)?, stopped: false })
    }

    /// [`TextStream::push`]; `None`, and nothing has changed, when the allocator refuses. [`TextStream::finish`] needs
    /// no memory after it.
    pub(crate) fn try_push(&mut self, bytes: &[u8], text: &mut String) -> Option<()> {
        self.pending.try_reserve(bytes.len()).ok()?;
        // The character in place of a byte that is none has three.
        text.try_reserve(3 * (self.pending.len() + bytes.len())).ok()?;
        self.push(bytes, text);
        Some(())
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes the next bytes and appends to `text` what is certain now.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        if self.stopped {
            return;
        }
        let old = self.pending.len();
        self.pending.extend_from_slice(bytes);
        if let Some(start) = self.stops.find(&self.pending, old) {
            self.pending.truncate(start);
            self.finish(text);
            self.stopped = true;
            return;
        }
        let held = self.stops.begun(&self.pending).max(incomplete(&self.pending));
        let certain = self.pending.len() - held;
        append_lossy(&self.pending[..certain], text);
        self.pending.drain(..certain);
    }

    /// Appends what was held back: nothing more will come.
    pub fn finish(&mut self, text: &mut String) {
        append_lossy(&self.pending, text);
        self.pending.clear();
    }
}

/// How many bytes at the end of `bytes` are the beginning of a character.
fn incomplete(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let begins = |&start: &usize| {
        let error = std::str::from_utf8(&bytes[start..]).err();
        // No error length: the end came too early.
        error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (from..bytes.len()).find(begins).map_or(0, |start| bytes.len() - start)
}

fn append_lossy(bytes: &[u8], text: &mut String) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
