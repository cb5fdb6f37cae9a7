//! The immutable model: weights packed for this machine, shared by as many sessions as there are.

use crate::checkpoint::bert;
use crate::config::Config;
use crate::embedding::Embedding;
use crate::encoder::{Encoder, Probe};
use crate::error::{Error, Result};
use crate::head::{Encoded, Head, Heads};
use crate::linear::{Call, Linear, room};
use crate::session::Batch;
use crate::weights::Checkpoint;
use headrow_kernels::{Cpu, Isa, MatMut, Need, Segment, Stack};
use std::path::Path;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The instruction set to compute with; `None` takes the best of this machine. The results have the
    /// same bits on each.
    pub isa: Option<Isa>,
}

impl LoadOptions {
    /// The same options with this instruction set.
    #[must_use]
    pub fn with_isa(mut self, isa: impl Into<Option<Isa>>) -> LoadOptions {
        self.isa = isa.into();
        self
    }

    fn cpu(&self) -> Result<Cpu> {
        match self.isa {
            Some(isa) => Cpu::with_isa(isa).ok_or(Error::Isa(isa)),
            None => Ok(Cpu::detect()),
        }
    }
}

/// An encoder with its heads. Immutable: share it through an [`Arc`](std::sync::Arc).
///
/// ```no_run
/// use headrow::{Batch, Model, Session, SessionOptions};
/// use std::sync::Arc;
///
/// let model = Arc::new(Model::from_dir("all-MiniLM-L6-v2")?);
/// let mut session = Session::new(&model, &SessionOptions::default())?;
/// let ids = [101, 7592, 2088, 102];
/// let mut hidden = vec![0.0; ids.len() * model.config().d_model];
/// session.encode(&Batch::one(&ids), &mut hidden)?;
/// # Ok::<(), headrow::Error>(())
/// ```
pub struct Model {
    config: Config,
    cpu: Cpu,
    parts: Parts,
    dtypes: Vec<String>,
}

/// What a checkpoint is turned into.
pub(crate) struct Parts {
    pub(crate) embedding: Embedding,
    pub(crate) encoder: Encoder,
    pub(crate) heads: Heads,
}

impl Model {
    /// Loads a Hugging Face folder: `config.json` and `model.safetensors`, or its shards.
    ///
    /// # Errors
    /// When a file is missing or damaged, the config asks for what this library does not compute, or
    /// the weights do not fit it. All problems with tensors are reported together.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Model> {
        Model::from_dir_with(folder, &LoadOptions::default())
    }

    /// [`Model::from_dir`] with options.
    pub fn from_dir_with(folder: impl AsRef<Path>, options: &LoadOptions) -> Result<Model> {
        let folder = folder.as_ref();
        let config = Config::from_file(folder.join("config.json"))?;
        let checkpoint = Checkpoint::open(folder)?;
        Model::build(config, &checkpoint, options)
    }

    /// Loads a safetensors file that is in memory, embedded or mapped.
    ///
    /// # Errors
    /// As [`Model::from_dir`].
    pub fn from_bytes(config: &Config, weights: &[u8]) -> Result<Model> {
        Model::from_bytes_with(config, weights, &LoadOptions::default())
    }

    /// [`Model::from_bytes`] with options.
    pub fn from_bytes_with(
        config: &Config,
        weights: &[u8],
        options: &LoadOptions,
    ) -> Result<Model> {
        Model::build(config.clone(), &Checkpoint::from_bytes(weights)?, options)
    }

    fn build(config: Config, checkpoint: &Checkpoint<'_>, options: &LoadOptions) -> Result<Model> {
        config.check("config")?;
        let cpu = options.cpu()?;
        let parts = bert::load(&config, checkpoint, cpu)?;
        Ok(Model { config, cpu, parts, dtypes: checkpoint.float_types() })
    }

    /// What `config.json` says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The instruction set that computes, and the caches it is blocked for.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// Types of the numbers in the file, as `F32` or `F16`. In memory they are f32.
    pub fn stored_types(&self) -> &[String] {
        &self.dtypes
    }

    /// Whether the checkpoint has what `head` needs.
    pub fn has(&self, head: Head) -> bool {
        self.output_shape(head, 0, 0).is_ok()
    }

    /// Rows and columns of `head`'s result for a batch of so many tokens and sequences.
    ///
    /// # Errors
    /// [`Error::NoHead`] when the checkpoint has no weights for it.
    pub fn output_shape(
        &self,
        head: Head,
        tokens: usize,
        sequences: usize,
    ) -> Result<(usize, usize)> {
        self.parts.heads.shape(head, &self.parts.embedding, tokens, sequences)
    }

    /// How many numbers each part has, in the order of the forward pass.
    pub fn parameters(&self) -> Vec<(&'static str, usize)> {
        let Parts { embedding, encoder, heads } = &self.parts;
        let layers = &encoder.layers;
        let sum = |of: fn(&crate::encoder::EncoderLayer) -> usize| layers.iter().map(of).sum();
        let mut parts = vec![
            ("embeddings", embedding.parameters()),
            ("attention", sum(|l| l.attention.qkv.parameters() + l.attention.output.parameters())),
            (
                "feed-forward",
                sum(|l| l.feed_forward.inner.parameters() + l.feed_forward.outer.parameters()),
            ),
            (
                "layer norms",
                sum(|l| l.attention_norm.parameters() + l.feed_forward_norm.parameters()),
            ),
        ];
        parts.extend(heads.parameters());
        parts
    }

    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        // Everything that is not packed is as long as it has numbers; packing pads to whole panels.
        let numbers: usize = self.parameters().iter().map(|(_, count)| count).sum();
        let decoder = self.parts.heads.masked_lm.as_ref().and_then(|lm| lm.decoder.as_ref());
        let packed = self.linears().map(|linear| &linear.weight).chain(decoder);
        let padding: usize = packed.map(|b| b.bytes() - b.k() * b.n() * size_of::<f32>()).sum();
        numbers * size_of::<f32>() + padding
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        let Parts { encoder, heads, .. } = &self.parts;
        let layers = encoder.layers.iter().flat_map(|layer| {
            let (attention, feed_forward) = (&layer.attention, &layer.feed_forward);
            [&attention.qkv, &attention.output, &feed_forward.inner, &feed_forward.outer]
        });
        let classifier = heads.classifier.as_ref();
        let heads = [
            heads.pooler.as_ref(),
            heads.masked_lm.as_ref().map(|lm| &lm.transform),
            classifier.and_then(|head| head.dense.as_ref()),
            classifier.map(|head| &head.output),
            heads.tagger.as_ref(),
            heads.next_sentence.as_ref(),
        ];
        layers.chain(heads.into_iter().flatten())
    }

    /// hidden ← encoder(embeddings), `tokens × d_model`.
    pub(crate) fn encode(
        &self,
        call: Call<'_>,
        batch: &Batch<'_>,
        segments: &[Segment],
        mut hidden: MatMut<'_>,
        probe: Probe<'_>,
        stack: &mut Stack<'_>,
    ) {
        self.parts.embedding.forward(call, batch, hidden.reborrow(), stack);
        self.parts.encoder.forward(call, hidden, segments, probe, stack);
    }

    /// out ← head(hidden).
    pub(crate) fn apply(
        &self,
        head: Head,
        call: Call<'_>,
        hidden: headrow_kernels::Mat<'_>,
        segments: &[Segment],
        out: MatMut<'_>,
        stack: &mut Stack<'_>,
    ) {
        let encoded = Encoded { hidden, segments, embedding: &self.parts.embedding };
        self.parts.heads.forward(head, call, encoded, out, stack);
    }

    /// Scratch of a session: the hidden states, and what computes them or a head of them.
    pub(crate) fn scratch(&self, tokens: usize, sequences: usize, threads: usize) -> Need {
        let Parts { embedding, encoder, heads } = &self.parts;
        let longest = tokens.min(self.config.max_length());
        let d_model = self.config.d_model;
        let layers = encoder.scratch(self.cpu, threads, tokens, longest, d_model);
        let heads = heads.scratch(self.cpu, threads, embedding, tokens, sequences);
        room(tokens, d_model).and(embedding.scratch(tokens).or(layers).or(heads))
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("cpu", &self.cpu).finish()
    }
}
