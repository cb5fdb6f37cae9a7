//! Why a command ends early.

use headrow::Error;
use std::io::{self, Write};

/// The ways to end without success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something is wrong: one line on standard error, exit status 2.
    Message(String),
    /// Something was wrong with a part of the input, and has been told: exit status 2.
    Told,
    /// Whoever read standard output has had enough: no word, exit status 0.
    ReaderGone,
}

/// What is wrong with single texts, while the others are worked on.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    count: u64,
}

impl Complaints {
    /// Tells what is wrong, in a line on standard error.
    pub(crate) fn tell(&mut self, message: &str) {
        self.count += 1;
        tell(message);
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// How the command ends when all texts have been worked on.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        if self.count == 0 { Ok(()) } else { Err(Failure::Told) }
    }
}

/// A line on standard error. That may be closed; there is nobody to tell then.
pub(crate) fn tell(message: &str) {
    let _ = writeln!(io::stderr(), "headrow: {}", one_line(message));
}

impl Failure {
    /// An error of writing to standard output.
    pub(crate) fn output(error: impl Into<io::Error>) -> Failure {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Message(format!("standard output: {error}")),
        }
    }
}

impl From<headrow::Error> for Failure {
    fn from(error: headrow::Error) -> Failure {
        Failure::Message(error.to_string())
    }
}

/// A message as one line: names of files and the texts of others may hold anything.
pub(crate) fn one_line(message: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        match breaks(c) {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

/// Which text of a call is refused.
pub(crate) fn culprit(error: &Error) -> Option<usize> {
    match error {
        Error::TextTooLong { text, .. } | Error::Text { text, .. } => Some(*text),
        Error::TokenId { sequence, .. }
        | Error::TokenType { sequence, .. }
        | Error::EmptySequence { sequence }
        | Error::InvalidLogit { sequence, .. }
        | Error::NoToken { sequence, .. }
        | Error::SequenceTooLong { sequence, .. } => Some(*sequence),
        _ => None,
    }
}

/// The same error about a text that has a name.
pub(crate) fn explain(name: &str, error: Error) -> String {
    match error {
        Error::TextTooLong { tokens, maximum, .. }
        | Error::SequenceTooLong { tokens, maximum, .. }
        // A text alone is a batch.
        | Error::BatchTooLarge { what: "tokens", actual: tokens, maximum } => {
            format!("{name}: {tokens} tokens, the limit is {maximum}")
        }
        Error::TextTooLarge { bytes, maximum } => {
            format!("{name}: {bytes} bytes, the limit is {maximum}")
        }
        Error::TokenId { id, vocabulary, .. } => {
            format!("{name}: the tokenizer gives id {id}, the model has {vocabulary} words")
        }
        Error::Text { source, .. } => explain(name, *source),
        Error::EmptySequence { .. } => format!("{name}: the tokenizer gives no tokens"),
        Error::InvalidLogit { .. } => {
            format!("{name}: the model gives values that are not finite, as the weights may")
        }
        Error::NoToken { .. } => format!("{name}: every token is ruled out"),
        error => format!("{name}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_on_its_line() {
        assert_eq!(one_line("a\nb\r\u{1b}[2J\u{2028}ü"), "a\\nb\\r\\u{1b}[2J\\u{2028}ü");
    }

    #[test]
    fn a_broken_pipe_is_no_message() {
        let gone = Failure::output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(gone, Failure::ReaderGone));
        let full = Failure::output(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, Failure::Message(_)));
    }
}
