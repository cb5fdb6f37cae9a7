//! The loop that `embed` and `similarity` share: texts in, vectors out, in order, in constant memory.

use crate::failure::{Failure, culprit, explain};
use crate::options::{ModelArgs, TextArgs};
use crate::progress::Progress;
use crate::source::Source;
use headrow::{Error, SentenceEncoder, SentenceOptions, Session, SessionOptions};

/// Most sequences in one pass.
pub(crate) const MAX_SEQUENCES: usize = 32;
/// Tokens in one pass, unless one text may have more.
pub(crate) const MAX_TOKENS: usize = 512;

/// An encoder and the session it runs in.
pub(crate) struct Embedder {
    encoder: SentenceEncoder,
    session: Session,
    vectors: Vec<f32>,
}

/// Takes vectors in order.
pub(crate) trait Sink {
    /// The text with this index, counted from 0, and its vector.
    fn take(&mut self, index: u64, text: &str, vector: &[f32]) -> Result<(), Failure>;

    /// Nothing more may come for a while.
    fn pause(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Embedder {
    /// Loads the model.
    pub(crate) fn new(model: &ModelArgs, text: &TextArgs) -> Result<Embedder, Failure> {
        let encoder = load(model, &text.sentence_options(model))?;
        let session = encoder.session(&session_options(&encoder, model, text.max_memory))?;
        Ok(Embedder { encoder, session, vectors: Vec::new() })
    }

    /// The vector of one text that is called `name` in messages.
    pub(crate) fn one(&mut self, name: &str, text: &str) -> Result<Vec<f32>, Failure> {
        self.batch(&[text.to_owned()]).map_err(|error| Failure::Message(explain(name, error)))?;
        finite(name, &self.vectors)?;
        Ok(self.vectors.clone())
    }

    /// Embeds all texts of `source`.
    pub(crate) fn run(&mut self, source: &mut Source, sink: &mut dyn Sink) -> Result<(), Failure> {
        let mut progress = Progress::start();
        let mut texts = Vec::new();
        let mut first = 0;
        loop {
            source.next(&mut texts)?;
            if texts.is_empty() {
                return sink.pause();
            }
            let failed = self.batch_up_to_failure(&texts);
            let whole = failed.as_ref().map_or(texts.len(), |(whole, _)| *whole);
            let dimension = self.encoder.dimension();
            let vectors = self.vectors.chunks_exact(dimension);
            for (index, (text, vector)) in (first..).zip(texts[..whole].iter().zip(vectors)) {
                finite(&source.name(index), vector)?;
                sink.take(index, text, vector)?;
            }
            sink.pause()?;
            if let Some((index, error)) = failed {
                let name = source.name(first + index as u64);
                return Err(Failure::Message(explain(&name, error)));
            }
            first += texts.len() as u64;
            progress.show(source.position());
        }
    }

    /// Vectors of the texts before the first that is refused, and the refusal.
    fn batch_up_to_failure(&mut self, texts: &[String]) -> Option<(usize, Error)> {
        let (mut whole, mut failed) = (texts.len(), None);
        while whole > 0 {
            let Err(error) = self.batch(&texts[..whole]) else { break };
            // What is not about one text (no memory, say) concerns them all.
            whole = culprit(&error).unwrap_or(0);
            failed = Some((whole, error));
        }
        failed
    }

    fn batch(&mut self, texts: &[String]) -> Result<(), Error> {
        self.vectors.resize(texts.len() * self.encoder.dimension(), 0.0);
        self.encoder.embed_into(&mut self.session, texts, &mut self.vectors)
    }
}

/// The folder of `--model`, or the model inside the program.
pub(crate) fn load(
    args: &ModelArgs,
    options: &SentenceOptions,
) -> Result<SentenceEncoder, Failure> {
    match &args.model {
        Some(folder) => Ok(SentenceEncoder::from_dir_with(folder, options)?),
        #[cfg(feature = "embedded-model")]
        None => Ok(SentenceEncoder::seeded_with(options)?),
        #[cfg(not(feature = "embedded-model"))]
        None => Err(crate::options::no_model()),
    }
}

/// Sizes of the session in which texts are embedded.
pub(crate) fn session_options(
    encoder: &SentenceEncoder,
    model: &ModelArgs,
    max_memory: Option<usize>,
) -> SessionOptions {
    let mut options = SessionOptions::default()
        .with_max_sequences(MAX_SEQUENCES)
        .with_max_tokens(encoder.max_length().max(MAX_TOKENS));
    options = model.compute.session_options(options);
    if let Some(bytes) = max_memory {
        options = options.with_memory_cap(bytes);
    }
    options
}

/// A vector that no format can say and nothing can be compared with.
fn finite(name: &str, vector: &[f32]) -> Result<(), Failure> {
    if vector.iter().all(|x| x.is_finite()) {
        return Ok(());
    }
    let problem = "the vector has values that are not finite, as the weights may";
    Err(Failure::Message(format!("{name}: {problem}")))
}
