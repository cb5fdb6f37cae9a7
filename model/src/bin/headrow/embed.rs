//! `headrow embed`: a vector for every text.

use crate::embedder::{Embedder, Sink};
use crate::failure::Failure;
use crate::options::{ModelArgs, TextArgs};
use crate::source::Source;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{BufWriter, StdoutLock, Write, stdout};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    text: TextArgs,

    /// What a record looks like.
    #[arg(long, value_enum, default_value_t = Format::Plain)]
    format: Format,

    /// Texts; without any, the lines of standard input.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A line of numbers with spaces between.
    Plain,
    /// A line {"text":…,"embedding":[…]}.
    Json,
    /// The numbers as little-endian 32-bit floats, with nothing between.
    F32,
}

#[derive(Serialize)]
struct Record<'a> {
    text: &'a str,
    embedding: &'a [f32],
}

struct Writer {
    format: Format,
    out: BufWriter<StdoutLock<'static>>,
}

impl Sink for Writer {
    fn take(&mut self, _: u64, text: &str, vector: &[f32]) -> Result<(), Failure> {
        write(&mut self.out, self.format, text, vector).map_err(Failure::output)
    }

    fn pause(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(Failure::output)
    }
}

/// Every number in the fewest digits that give it back.
fn write(
    out: &mut impl Write,
    format: Format,
    text: &str,
    vector: &[f32],
) -> Result<(), std::io::Error> {
    match format {
        Format::Plain => {
            for (index, x) in vector.iter().enumerate() {
                let space = if index == 0 { "" } else { " " };
                write!(out, "{space}{x:?}")?;
            }
            writeln!(out)
        }
        Format::Json => {
            serde_json::to_writer(&mut *out, &Record { text, embedding: vector })?;
            writeln!(out)
        }
        Format::F32 => vector.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())),
    }
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let mut embedder = Embedder::new(&args.model, &args.text)?;
    let mut source = Source::arguments_or_stdin(args.texts);
    source.announce("texts");
    let out = BufWriter::with_capacity(64 << 10, stdout().lock());
    embedder.run(&mut source, &mut Writer { format: args.format, out })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_so_that_they_read_back() {
        let vector = [0.1f32, -1.0, 1e-30, f32::MIN_POSITIVE, f32::MAX, -0.0, 1.0 / 3.0];
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        let written = |format| {
            let mut out = Vec::new();
            write(&mut out, format, "a\"\n\u{7}ü", &vector).unwrap();
            out
        };
        let plain = String::from_utf8(written(Format::Plain)).unwrap();
        let numbers: Vec<f32> =
            plain.strip_suffix('\n').unwrap().split(' ').map(|x| x.parse().unwrap()).collect();
        assert_eq!(bits(&numbers), bits(&vector));

        let json = String::from_utf8(written(Format::Json)).unwrap();
        assert_eq!(json.matches('\n').count(), 1);
        let record: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(record["text"], "a\"\n\u{7}ü");
        let numbers: Vec<f32> = serde_json::from_value(record["embedding"].clone()).unwrap();
        assert_eq!(bits(&numbers), bits(&vector));

        let raw = written(Format::F32);
        let numbers: Vec<f32> =
            raw.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_eq!(bits(&numbers), bits(&vector));
    }
}
