//! Texts to learn from, read from files: pairs of texts, a text a line, or a text a file.

use crate::error::{Error, Problems, Result};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::Utf8Error;

/// Longest line that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// What a file's lines are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// A source, a tab and a target.
    #[default]
    Pairs,
    /// A text each; empty lines are passed over.
    Lines,
    /// Together one text, as a book is.
    Text,
}

/// Which texts are put into lower case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lowercase {
    /// None.
    #[default]
    Neither,
    /// Sources, or texts that stand alone.
    Sources,
    /// All.
    Both,
}

/// What happens when a line cannot be learnt from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadLines {
    /// It is left out, counted and described.
    #[default]
    Skip,
    /// It is an error.
    Refuse,
}

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataOptions {
    /// What a file's lines are.
    pub layout: Layout,
    /// Which texts are put into lower case.
    pub lowercase: Lowercase,
    /// What happens to bad lines.
    pub bad_lines: BadLines,
}

impl DataOptions {
    /// The same for files of this kind.
    #[must_use]
    pub fn with_layout(self, layout: Layout) -> DataOptions {
        DataOptions { layout, ..self }
    }

    /// The same with these texts in lower case.
    #[must_use]
    pub fn with_lowercase(self, lowercase: Lowercase) -> DataOptions {
        DataOptions { lowercase, ..self }
    }

    /// The same with bad lines left out or refused.
    #[must_use]
    pub fn with_bad_lines(self, bad_lines: BadLines) -> DataOptions {
        DataOptions { bad_lines, ..self }
    }
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// Which of the files, counted from 0.
    pub file: usize,
    /// The line, counted from 1; of a text that is a file, its first.
    pub line: u64,
}

/// A pair of texts, or one alone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The source, or the text alone.
    pub source: String,
    /// The target of a pair.
    pub target: Option<String>,
    /// Where it stands.
    pub origin: Origin,
}

/// The records of files in their order, and what was left out.
#[derive(Clone, Debug)]
pub struct Corpus {
    files: Vec<PathBuf>,
    records: Vec<Record>,
    skipped: Skipped,
}

/// Lines that were left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped {
    pub(super) bad_lines: BadLines,
    pub(super) problems: Problems,
}

impl Skipped {
    /// Leaves out what stands at `place`, or refuses it.
    pub(super) fn add(&mut self, place: &str, problem: &str) -> Result<()> {
        match self.bad_lines {
            BadLines::Refuse => Err(Error::file(place, problem)),
            BadLines::Skip => {
                self.problems.add(|| format!("{place}: {problem}"));
                Ok(())
            }
        }
    }
}

impl Corpus {
    /// Reads files. A mark of byte order at a file's beginning is no part of it, and lines end with `\n` or `\r\n`.
    ///
    /// A line is bad when it is no UTF-8 or has more than a MiB; in a file of pairs also when it has no tab or several, or
    /// nothing but white space on a side.
    ///
    /// # Errors
    /// When a file cannot be read; for a bad line where these are refused.
    pub fn read<P: AsRef<Path>>(files: &[P], options: &DataOptions) -> Result<Corpus> {
        let files = files.iter().map(|path| path.as_ref().to_owned()).collect();
        let skipped = Skipped { bad_lines: options.bad_lines, problems: Problems::default() };
        let mut corpus = Corpus { files, records: Vec::new(), skipped };
        for file in 0..corpus.files.len() {
            corpus.read_file(file, options)?;
        }
        Ok(corpus)
    }

    /// The records in the order of the files.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// All texts: sources and targets.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.records.iter().flat_map(|record| {
            [Some(record.source.as_str()), record.target.as_deref()].into_iter().flatten()
        })
    }

    /// What was left out: how many lines, and the first of them with file, line and what is wrong.
    pub fn skipped(&self) -> &Problems {
        &self.skipped.problems
    }

    /// An empty list of what is left out later on.
    pub(super) fn none_skipped(&self) -> Skipped {
        Skipped { bad_lines: self.skipped.bad_lines, problems: Problems::default() }
    }

    /// A place in words: the file's name and the line.
    pub fn place(&self, origin: Origin) -> String {
        format!("{}: line {}", self.files[origin.file].display(), origin.line)
    }

    fn read_file(&mut self, file: usize, options: &DataOptions) -> Result<()> {
        let path = self.files[file].clone();
        let reader = File::open(&path).map_err(Error::io(&path))?;
        let mut lines = Lines { reader: BufReader::new(reader), bytes: Vec::new() };
        let whole = options.layout == Layout::Text;
        let mut text = String::new();
        for line in 1.. {
            let origin = Origin { file, line };
            let Some(read) = lines.next(line == 1).map_err(Error::io(&path))? else { break };
            match read {
                Ok(line) if whole => text.extend([line, "\n"]),
                Ok(line) => match record(line, origin, options) {
                    Ok(record) => self.records.extend(record),
                    Err(problem) => self.skipped.add(&self.place(origin), problem)?,
                },
                Err(problem) => self.skipped.add(&self.place(origin), &problem)?,
            }
        }
        if whole && !text.is_empty() {
            let source = lowercase(text, options.lowercase != Lowercase::Neither);
            let origin = Origin { file, line: 1 };
            self.records.push(Record { source, target: None, origin });
        }
        Ok(())
    }
}

/// What a line holds, if anything, or what is wrong with it.
fn record(
    line: &str,
    origin: Origin,
    options: &DataOptions,
) -> Result<Option<Record>, &'static str> {
    let sources = options.lowercase != Lowercase::Neither;
    if options.layout != Layout::Pairs {
        let source = lowercase(line.to_owned(), sources);
        return Ok((!blank(line)).then_some(Record { source, target: None, origin }));
    }
    let (source, target) = line.split_once('\t').ok_or("no tab between a source and a target")?;
    match (target.contains('\t'), blank(source), blank(target)) {
        (true, ..) => Err("several tabs"),
        (_, true, _) => Err("an empty source"),
        (_, _, true) => Err("an empty target"),
        _ => {
            let source = lowercase(source.to_owned(), sources);
            let targets = options.lowercase == Lowercase::Both;
            let target = Some(lowercase(target.to_owned(), targets));
            Ok(Some(Record { source, target, origin }))
        }
    }
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn lowercase(text: String, wanted: bool) -> String {
    if wanted { text.to_lowercase() } else { text }
}

/// The lines of a file, one at a time, in bounded memory.
struct Lines<R> {
    reader: BufReader<R>,
    bytes: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// The next line without its end, or what is wrong with it; `None` behind the last.
    fn next(&mut self, first: bool) -> io::Result<Option<Result<&str, String>>> {
        let Lines { reader, bytes } = self;
        bytes.clear();
        // One byte more than is allowed, and a line end of two.
        if reader.take(LONGEST as u64 + 3).read_until(b'\n', bytes)? == 0 {
            return Ok(None);
        }
        if bytes.pop_if(|last| *last == b'\n').is_some() {
            bytes.pop_if(|last| *last == b'\r');
        } else if bytes.len() > LONGEST {
            reader.skip_until(b'\n')?;
        }
        if bytes.len() > LONGEST {
            return Ok(Some(Err(format!("longer than {} MiB", LONGEST >> 20))));
        }
        let line = std::str::from_utf8(bytes);
        let line = line.map(|line| line.strip_prefix('\u{feff}').filter(|_| first).unwrap_or(line));
        let problem =
            |error: Utf8Error| format!("not UTF-8 from byte {} on", error.valid_up_to() + 1);
        Ok(Some(line.map_err(problem)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<String, String>> {
        let mut lines = Lines { reader: BufReader::new(bytes), bytes: Vec::new() };
        let mut all = Vec::new();
        while let Some(line) = lines.next(all.is_empty()).unwrap() {
            all.push(line.map(str::to_owned));
        }
        all
    }

    #[test]
    fn lines_are_read_as_they_end() {
        let line = |text: &str| Ok::<_, String>(text.to_owned());
        assert_eq!(read(b""), []);
        assert_eq!(read(b"\xef\xbb\xbfa\r\n\nb\r"), [line("a"), line(""), line("b\r")]);
        let bad = Err("not UTF-8 from byte 2 on".to_owned());
        assert_eq!(read(b"a\xff\nb\n"), [bad, line("b")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_whole() {
        let long = |more: usize, end: &str| "x".repeat(LONGEST + more) + end + "next\n";
        for end in ["\n", "\r\n"] {
            assert!(read(long(0, end).as_bytes())[0].is_ok());
            for more in [1, 2, 3, LONGEST] {
                let lines = read(long(more, end).as_bytes());
                assert_eq!(lines, [Err("longer than 1 MiB".to_owned()), Ok("next".to_owned())]);
            }
        }
    }
}
