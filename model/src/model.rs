//! The immutable model: weights packed for this machine, shared by as many sessions as there are.

use crate::accounting::Counts;
use crate::checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::transformer::Transformer;
use crate::weights::Checkpoint;
use headrow_kernels::{Cpu, Isa};
use std::path::Path;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The instruction set to compute with; `None` takes the best of this machine. The results have the
    /// same bits on each.
    pub isa: Option<Isa>,
    /// Threads that read and pack, the caller included; `None` takes one for weights of less than 8 MiB, and
    /// [`default_threads`](crate::default_threads) otherwise. The others begin and end with the loading.
    pub threads: Option<usize>,
}

impl LoadOptions {
    /// The same options with this instruction set.
    #[must_use]
    pub fn with_isa(mut self, isa: impl Into<Option<Isa>>) -> LoadOptions {
        self.isa = isa.into();
        self
    }

    /// The same options with so many threads.
    #[must_use]
    pub fn with_threads(mut self, threads: impl Into<Option<usize>>) -> LoadOptions {
        self.threads = threads.into();
        self
    }

    fn cpu(&self) -> Result<Cpu> {
        match self.isa {
            Some(isa) => Cpu::with_isa(isa).ok_or(Error::Isa(isa)),
            None => Ok(Cpu::detect()),
        }
    }
}

/// A Transformer with its heads. Immutable: share it through an [`Arc`](std::sync::Arc).
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
    transformer: Transformer,
    dtypes: Vec<String>,
    counts: Counts,
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
        let transformer = checkpoint::load(&config, checkpoint, cpu, options.threads)?;
        let counts = Counts::loaded(&config, checkpoint)?;
        Ok(Model { config, cpu, transformer, dtypes: checkpoint.float_types(), counts })
    }

    /// What `config.json` says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The instruction set that computes, and the caches it is blocked for.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.transformer
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
        self.transformer.heads.shape(head, self.config.d_model, tokens, sequences)
    }

    /// How many numbers each part has, in the order of the forward pass. What parts share counts once.
    pub fn parameters(&self) -> Vec<(&'static str, usize)> {
        self.counts.parts()
    }

    /// The tensors that were read, and what each is for.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        self.transformer.bytes()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("cpu", &self.cpu).finish()
    }
}
