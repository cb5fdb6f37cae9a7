//! Where texts come from: arguments, or the lines of a file or of standard input.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;

/// Most texts that are given out together.
const BATCH: usize = 64;
/// Bytes read ahead.
const BUFFER: usize = 64 << 10;
/// Longest line. Memory stays bounded also when a file has no line breaks at all.
const LONGEST: usize = 4 << 20;

/// Texts in order.
pub(crate) struct Source {
    origin: Origin,
    /// What one text is called in messages.
    unit: &'static str,
    /// Texts given out so far.
    given: u64,
    /// What is wrong with the text behind those given out last.
    failure: Option<Failure>,
}

enum Origin {
    Arguments(std::vec::IntoIter<String>),
    Lines(Lines),
}

struct Lines {
    reader: BufReader<Box<dyn Read>>,
    /// The source's name in messages.
    place: String,
    /// Bytes to come when the source was opened, when it tells.
    total: Option<u64>,
    read: u64,
    line: Vec<u8>,
    /// Whether the rest of a line that is too long is still to be read.
    unread: bool,
}

/// How much of a source has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) texts: u64,
    /// Bytes read and in total, where the total is known; for arguments their number.
    pub(crate) part: Option<(u64, u64)>,
}

impl Source {
    /// The arguments, or the lines of standard input when there are none.
    pub(crate) fn arguments_or_stdin(texts: Vec<String>) -> Source {
        if texts.is_empty() { Source::stdin() } else { Source::arguments(texts) }
    }

    pub(crate) fn arguments(texts: Vec<String>) -> Source {
        Source::new(Origin::Arguments(texts.into_iter()), "text")
    }

    pub(crate) fn stdin() -> Source {
        let reader = Box::new(io::stdin().lock());
        Source::lines(reader, "standard input".to_owned(), stdin_length())
    }

    pub(crate) fn file(path: &Path) -> Result<Source, Failure> {
        let place = path.display().to_string();
        let file =
            File::open(path).map_err(|error| Failure::Message(format!("{place}: {error}")))?;
        let total = length(&file);
        Ok(Source::lines(Box::new(file), place, total))
    }

    /// A file as one text.
    pub(crate) fn whole_file(path: &Path) -> Result<Source, Failure> {
        let place = path.display().to_string();
        let failure = |problem: String| Failure::Message(format!("{place}: {problem}"));
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LONGEST as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| failure(error.to_string()))?;
        if bytes.len() > LONGEST {
            return Err(failure(format!("longer than {} MiB", LONGEST >> 20)));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            failure(format!("not UTF-8 from byte {} on", error.utf8_error().valid_up_to() + 1))
        })?;
        Ok(Source::new(Origin::Arguments(vec![text].into_iter()), "text"))
    }

    /// Tells whoever sits at the terminal that it is their turn.
    pub(crate) fn announce(&self, what: &str) {
        if matches!(self.origin, Origin::Lines(_)) && io::stdin().is_terminal() {
            let _ =
                writeln!(io::stderr(), "headrow: reading {what} from the terminal, one per line");
        }
    }

    fn lines(reader: Box<dyn Read>, place: String, total: Option<u64>) -> Source {
        let reader = BufReader::with_capacity(BUFFER, reader);
        Source::new(
            Origin::Lines(Lines { reader, place, total, read: 0, line: Vec::new(), unread: false }),
            "line",
        )
    }

    fn new(origin: Origin, unit: &'static str) -> Source {
        Source { origin, unit, given: 0, failure: None }
    }

    /// How the text with this index, counted from 0 over the whole source, is called.
    pub(crate) fn name(&self, index: u64) -> String {
        match &self.origin {
            Origin::Arguments(_) => format!("{} {}", self.unit, index + 1),
            Origin::Lines(lines) => format!("{}: {} {}", lines.place, self.unit, index + 1),
        }
    }

    pub(crate) fn position(&self) -> Position {
        let part = match &self.origin {
            Origin::Arguments(rest) => Some((self.given, self.given + rest.len() as u64)),
            Origin::Lines(lines) => lines.total.map(|total| (lines.read.min(total), total)),
        };
        Position { texts: self.given, part }
    }

    /// Fills `texts` with the next texts; none when there are no more. Waits for the first one only: what
    /// has arrived with it is given out with it, so that a pipe that is fed line by line is answered line by line.
    ///
    /// # Errors
    /// When reading fails, a line is too long or no UTF-8. The texts before it have been given out.
    pub(crate) fn next(&mut self, texts: &mut Vec<String>) -> Result<(), Failure> {
        texts.clear();
        let mut lines = Vec::new();
        self.next_each(&mut lines)?;
        for line in lines {
            match line {
                Ok(text) => texts.push(text),
                Err(problem) if texts.is_empty() => return Err(Failure::Message(problem)),
                Err(problem) => {
                    self.failure = Some(Failure::Message(problem));
                    break;
                }
            }
        }
        Ok(())
    }

    /// [`Source::next`] that goes on behind a line which is too long or no UTF-8: in its place is what is wrong with it.
    ///
    /// # Errors
    /// When reading fails. The texts before have been given out.
    pub(crate) fn next_each(
        &mut self,
        texts: &mut Vec<Result<String, String>>,
    ) -> Result<(), Failure> {
        texts.clear();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match &mut self.origin {
            Origin::Arguments(rest) => texts.extend(rest.take(BATCH).map(Ok)),
            Origin::Lines(lines) => {
                while texts.len() < BATCH && (texts.is_empty() || lines.has_whole_line()) {
                    match lines.next(self.given + texts.len() as u64) {
                        Ok(Some(line)) => texts.push(line),
                        Ok(None) => break,
                        Err(failure) if texts.is_empty() => return Err(failure),
                        Err(failure) => {
                            self.failure = Some(failure);
                            break;
                        }
                    }
                }
            }
        }
        self.given += texts.len() as u64;
        Ok(())
    }
}

impl Lines {
    fn has_whole_line(&self) -> bool {
        self.reader.buffer().contains(&b'\n')
    }

    /// The next line without its end, which is `\n` or `\r\n`, or what is wrong with it; the last one may have no end.
    fn next(&mut self, index: u64) -> Result<Option<Result<String, String>>, Failure> {
        let Lines { reader, place, read, line, unread, .. } = self;
        let failure = |error: io::Error| Failure::Message(format!("{place}: {error}"));
        if std::mem::take(unread) {
            *read += reader.skip_until(b'\n').map_err(failure)? as u64;
        }
        line.clear();
        let count = reader.take(LONGEST as u64 + 1).read_until(b'\n', line).map_err(failure)?;
        *read += count as u64;
        if count == 0 {
            return Ok(None);
        }
        let problem = |what: String| format!("{place}: line {}: {what}", index + 1);
        match line.pop_if(|last| *last == b'\n') {
            Some(_) => drop(line.pop_if(|last| *last == b'\r')),
            None if line.len() > LONGEST => {
                // Its rest may never end, and is nobody's concern before the next line is wanted.
                *unread = true;
                return Ok(Some(Err(problem(format!("longer than {} MiB", LONGEST >> 20)))));
            }
            None => (),
        }
        let text = std::str::from_utf8(line).map(str::to_owned).map_err(|error| {
            problem(format!("not UTF-8 from byte {} on", error.valid_up_to() + 1))
        });
        Ok(Some(text))
    }
}

/// Bytes from the current position to the end, of a regular file.
fn length(file: &File) -> Option<u64> {
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut file = file;
    Some(metadata.len().saturating_sub(io::Seek::stream_position(&mut file).ok()?))
}

#[cfg(unix)]
fn stdin_length() -> Option<u64> {
    use std::os::fd::AsFd;
    length(&File::from(io::stdin().as_fd().try_clone_to_owned().ok()?))
}

#[cfg(not(unix))]
fn stdin_length() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: impl Read + 'static) -> Source {
        Source::lines(Box::new(bytes), "here".to_owned(), None)
    }

    fn all(source: &mut Source) -> (Vec<Vec<String>>, Option<String>) {
        let (mut batches, mut texts) = (Vec::new(), Vec::new());
        loop {
            match source.next(&mut texts) {
                Ok(()) if texts.is_empty() => return (batches, None),
                Ok(()) => batches.push(texts.clone()),
                Err(Failure::Message(message)) => return (batches, Some(message)),
                Err(other) => unreachable!("{other:?}: nothing is written"),
            }
        }
    }

    #[test]
    fn line_ends_are_taken_off_and_nothing_else() {
        let source = &mut lines(&b"one\r\n\n\r\n two \rx\n\r\r\nlast\r"[..]);
        let (batches, failure) = all(source);
        assert_eq!(batches.concat(), ["one", "", "", " two \rx", "\r", "last\r"]);
        assert!(failure.is_none());
        assert_eq!(all(&mut lines(&b""[..])), (vec![], None));
        assert_eq!(all(&mut lines(&b"\n"[..])), (vec![vec![String::new()]], None));
    }

    #[test]
    fn what_precedes_a_bad_line_is_given_out_first() {
        let (batches, failure) = all(&mut lines(&b"a\nb\n\xc3(\nc\n"[..]));
        assert_eq!(batches, [["a", "b"]]);
        assert_eq!(failure.unwrap(), "here: line 3: not UTF-8 from byte 1 on");
    }

    #[test]
    fn bad_lines_leave_the_others_their_numbers() {
        let long = "x".repeat(LONGEST + 7);
        let mut source = lines(io::Cursor::new([long.as_bytes(), b"\na\n\xff\nb\n"].concat()));
        let (mut all, mut texts) = (Vec::new(), Vec::new());
        while source.next_each(&mut texts).is_ok() && !texts.is_empty() {
            all.append(&mut texts);
        }
        let bad = |line: u64, what: &str| Err(format!("here: line {line}: {what}"));
        let expected = [
            bad(1, "longer than 4 MiB"),
            Ok("a".to_owned()),
            bad(3, "not UTF-8 from byte 1 on"),
            Ok("b".to_owned()),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_line_without_end_is_refused_in_bounded_memory() {
        let (batches, failure) = all(&mut lines(io::repeat(b'x')));
        assert!(batches.is_empty());
        assert_eq!(failure.unwrap(), "here: line 1: longer than 4 MiB");
    }

    /// Gives out one piece per read, as a pipe does.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = (!self.0.is_empty()).then(|| self.0.remove(0)) else { return Ok(0) };
            out[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn lines_that_have_arrived_are_not_kept_waiting_for_more() {
        let mut source = lines(Pieces(vec![b"a\nb\nc", b"c\n", b"d\n"]));
        let (batches, _) = all(&mut source);
        assert_eq!(batches, [vec!["a", "b"], vec!["cc"], vec!["d"]]);
    }

    #[test]
    fn many_texts_come_in_batches_in_order() {
        let texts: Vec<String> = (0..600).map(|i| i.to_string()).collect();
        let mut bytes = Vec::new();
        texts.iter().for_each(|text| bytes.extend_from_slice(format!("{text}\n").as_bytes()));
        for mut source in [lines(io::Cursor::new(bytes)), Source::arguments(texts.clone())] {
            let (batches, failure) = all(&mut source);
            assert!(failure.is_none());
            assert!(batches.iter().all(|batch| batch.len() <= BATCH));
            assert_eq!(batches.concat(), texts);
            assert_eq!(source.position().texts, 600);
        }
    }
}
