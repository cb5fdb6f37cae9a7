//! Options that commands share.

use crate::decoding::beams;
use crate::failure::Failure;
use clap::ValueEnum;
use headrow::generate::GenerationOptions;
use headrow::{
    Config, Input, Isa, LoadOptions, Normalization, Pooling, SentenceOptions, Session,
    SessionOptions, StackConfig, TextModel, TooLong,
};
use std::path::PathBuf;

/// Which model, and what computes it.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// Folder of the model, in Hugging Face layout. Without it: a small model inside the program, seeded and
    /// untrained.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

/// Which language model or translator, and what computes it.
#[derive(clap::Args)]
pub(crate) struct LanguageArgs {
    /// Folder of the model, in Hugging Face layout, with its tokenizer.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

impl LanguageArgs {
    pub(crate) fn load(&self) -> Result<TextModel, Failure> {
        Ok(TextModel::from_dir_with(&self.model, &self.compute.load_options())?)
    }
}

/// Which model of letters and phonemes, or another in its place, and what computes it.
#[derive(clap::Args)]
pub(crate) struct PronouncerArgs {
    /// Folder of the model, in Hugging Face layout, with its tokenizer. Without it: the model of English letters and phonemes
    /// inside the program.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

impl PronouncerArgs {
    pub(crate) fn load(&self) -> Result<TextModel, Failure> {
        let options = self.compute.load_options();
        match &self.model {
            Some(folder) => Ok(TextModel::from_dir_with(folder, &options)?),
            #[cfg(feature = "embedded-model")]
            None => Ok(TextModel::pronouncer_with(&options)?),
            #[cfg(not(feature = "embedded-model"))]
            None => Err(no_model()),
        }
    }
}

/// That there is no model, in a program without one inside.
#[cfg(not(feature = "embedded-model"))]
pub(crate) fn no_model() -> Failure {
    let message = "no model: give a folder with --model DIR (this build has none inside)";
    Failure::Message(message.to_owned())
}

/// What computes.
#[derive(clap::Args)]
pub(crate) struct ComputeArgs {
    /// Threads to compute with. Without it: as many as this process may use, at most one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Instruction set to compute with: scalar, neon, avx2 or avx512. Without it: the best of this
    /// machine. The results have the same bits on each.
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<Isa>,
}

impl ComputeArgs {
    /// How models are loaded for it.
    fn load_options(&self) -> LoadOptions {
        LoadOptions::default().with_isa(self.isa).with_threads(self.threads.map(usize::from))
    }

    /// The same options with the threads that are wanted.
    pub(crate) fn session_options(&self, options: SessionOptions) -> SessionOptions {
        match self.threads {
            Some(threads) => options.with_threads(threads.into()),
            None => options,
        }
    }

    /// A session of these sizes, or with room for more tokens where the beams of a request need it: they advance together, a
    /// token each.
    pub(crate) fn sized_session(
        &self,
        model: &TextModel,
        sizes: SessionOptions,
        options: &GenerationOptions,
    ) -> Result<Session, Failure> {
        let (sizes, beams) = (self.session_options(sizes), beams(options));
        let session = model.session(&sizes)?;
        if session.max_sequences() >= beams {
            return Ok(session);
        }
        drop(session);
        Ok(model.session(&sizes.with_max_tokens(beams))?)
    }
}

/// How long texts may be.
#[derive(clap::Args)]
pub(crate) struct LengthArgs {
    /// Most tokens of a text, what follows a prompt included; of translations, of either side. Without it: as many as the model
    /// reads, of a decoder at most 4096, of an encoder without a limit 512.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_length: Option<u32>,
}

impl LengthArgs {
    /// The same options for texts as long as that.
    pub(crate) fn over(&self, mut options: GenerationOptions) -> GenerationOptions {
        options.max_length = self.max_length.map(|n| n as usize).or(options.max_length);
        options
    }

    /// A session for requests of these options, one at a time, unless the model reads no texts as long as that.
    pub(crate) fn session(
        &self,
        compute: &ComputeArgs,
        model: &TextModel,
        options: &GenerationOptions,
    ) -> Result<Session, Failure> {
        let sizes = self.sizes(model, options)?;
        compute.sized_session(model, sizes, options)
    }

    fn sizes(
        &self,
        model: &TextModel,
        options: &GenerationOptions,
    ) -> Result<SessionOptions, Failure> {
        let Config { encoder, decoder, .. } = model.model().config();
        let mut sized_by = options.clone();
        let Some(n) = self.max_length else {
            // What a folder allows to generate makes no session larger than usual.
            if encoder.is_none() {
                sized_by.max_length = None;
            }
            return Ok(model.session_options(1, &sized_by));
        };
        let n = n as usize;
        sized_by.max_length = Some(n);
        let sizes = model.session_options(1, &sized_by);
        // An encoder of images or sounds reads no text.
        let reads = |stack: &&StackConfig| matches!(stack.input, Input::Tokens(_));
        let readers = encoder.iter().chain(decoder).filter(reads);
        match readers.map(StackConfig::max_length).min() {
            Some(most) if n > most => Err(Failure::Message(format!(
                "--max-length {n}: the model reads at most {most} tokens"
            ))),
            _ if encoder.as_ref().is_some_and(|stack| reads(&stack)) => {
                Ok(sizes.with_max_tokens(n))
            }
            _ if encoder.is_some() => Ok(sizes),
            _ => Ok(sizes.with_max_length(n)),
        }
    }
}

/// How texts become vectors.
#[derive(clap::Args)]
pub(crate) struct TextArgs {
    /// What happens to texts with more tokens than the model reads.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnTooLong::Truncate)]
    too_long: OnTooLong,

    /// How the states of a text's tokens become its vector. Without it: as the folder says, else the mean.
    #[arg(long, value_name = "HOW", value_enum)]
    pooling: Option<PoolingName>,

    /// Scale every vector to length 1. Without this and --no-normalize: as the folder says.
    #[arg(long, conflicts_with = "no_normalize")]
    normalize: bool,

    /// Leave the vectors as they are.
    #[arg(long)]
    no_normalize: bool,

    /// Most memory to compute in, beside the weights: bytes, or with a suffix K, M or G.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) max_memory: Option<usize>,
}

impl TextArgs {
    pub(crate) fn sentence_options(&self, model: &ModelArgs) -> SentenceOptions {
        let normalization = match (self.normalize, self.no_normalize) {
            (true, _) => Some(Normalization::L2),
            (false, true) => Some(Normalization::None),
            (false, false) => None,
        };
        SentenceOptions::default()
            .with_isa(model.compute.isa)
            .with_too_long(match self.too_long {
                OnTooLong::Truncate => TooLong::Truncate,
                OnTooLong::Error => TooLong::Error,
            })
            .with_pooling(self.pooling.map(|name| match name {
                PoolingName::Mean => Pooling::Mean,
                PoolingName::Cls => Pooling::Cls,
                PoolingName::Max => Pooling::Max,
                PoolingName::Last => Pooling::LastToken,
            }))
            .with_normalization(normalization)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum OnTooLong {
    /// Cut off their end.
    Truncate,
    /// Stop with an error that names the text.
    Error,
}

#[derive(Clone, Copy, ValueEnum)]
enum PoolingName {
    /// The mean over the tokens.
    Mean,
    /// The first token's state.
    Cls,
    /// The largest value of each feature.
    Max,
    /// The last token's state.
    Last,
}

/// A number of bytes: `1000`, `64K`, `512M`, `2G`, in powers of 1024.
fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| "expected a size such as 64M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "beyond any memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read_with_and_without_suffix() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("12"), Ok(12));
        assert_eq!(size("3k"), Ok(3 << 10));
        assert_eq!(size("5M"), Ok(5 << 20));
        assert_eq!(size("2G"), Ok(2 << 30));
        for bad in ["", "K", "-1", "1.5G", "99999999999999999999", "9999999999999G", "ü"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
