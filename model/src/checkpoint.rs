//! From the names and options of a family of checkpoints to the layers of this library.
//!
//! One file per group of families, each with two functions: what `config.json` says in our letters, and
//! which tensor is which part of a [`Transformer`]. The layers themselves know no family.

mod config_file;
mod layers;
mod names;
mod parts;
mod reader;
mod tables;

mod bart;
mod bert;
mod gpt2;
mod gpt_neox;
mod llama;
mod opennmt;
mod opt;
mod paper;
mod t5;
mod torch;
mod vit;
mod whisper;

use crate::config::{Config, Family, Fields};
use crate::error::Result;
use crate::origin::Planned;
use crate::transformer::Transformer;
use crate::weights::Checkpoint;
use headrow_kernels::par::default_threads;
use headrow_kernels::{Cpu, Par, Team};
pub(crate) use reader::{Part, Reader};
#[cfg(feature = "train")]
use std::collections::BTreeMap;
use std::fmt;

/// How one family is read.
struct Reading {
    family: Family,
    name: &'static str,
    /// Words that `model_type` may be.
    words: &'static [&'static str],
    /// What `config.json` says.
    config: fn(&Fields<'_>, Family) -> Result<Config>,
    /// The family's word for a field of ours, for messages.
    field: fn(&'static str) -> &'static str,
    /// A tensor's name without what was prefixed to it, the same for all ways of saving.
    canonical: fn(&str) -> String,
    /// Which tensor is which part. Called twice: to compare names and shapes, and to read.
    build: fn(&Config, &mut Reader<'_>) -> Result<Transformer>,
    /// Found in files, and without effect on anything computed here.
    harmless: fn(&Config, &str) -> bool,
}

/// Every family there is.
const READINGS: &[Reading] = &[
    bert::BERT,
    bert::ROBERTA,
    bert::DISTILBERT,
    bert::ALBERT,
    vit::VIT,
    gpt2::GPT2,
    gpt_neox::GPT_NEOX,
    opt::OPT,
    llama::LLAMA,
    llama::MISTRAL,
    llama::QWEN2,
    bart::BART,
    bart::MBART,
    bart::MARIAN,
    bart::M2M100,
    opennmt::OPENNMT,
    whisper::WHISPER,
    t5::T5,
    torch::TORCH,
    paper::PAPER,
];

impl Family {
    fn reading(self) -> &'static Reading {
        let found = READINGS.iter().find(|reading| reading.family == self);
        found.expect("every family is in the list")
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.reading().name)
    }
}

/// Bytes of weights that one thread reads and packs sooner than it could share them out.
const WORTH_SHARING: u64 = 8 << 20;

/// Compares the checkpoint with `config`, then reads and packs it with up to so many threads, or as many as it is worth.
pub(crate) fn load(
    config: &Config,
    checkpoint: &Checkpoint<'_>,
    cpu: Cpu,
    threads: Option<usize>,
) -> Result<Transformer> {
    let Reading { canonical, build, harmless, .. } = *config.family.reading();
    let mut survey = Reader::survey(checkpoint, cpu, canonical);
    build(config, &mut survey)?.check(config)?;
    let threads = threads.unwrap_or_else(|| match checkpoint.bytes() {
        ..WORTH_SHARING => 1,
        _ => default_threads(),
    });
    Team::new(threads).open(|par| {
        let mut loader = survey.finish(par, |name| harmless(config, name))?;
        build(config, &mut loader)
    })
}

/// Layers that know where their numbers stand among the parameters, and what these are.
pub(crate) struct Plan {
    pub(crate) transformer: Transformer,
    pub(crate) tensors: Vec<Planned>,
}

/// Plans the model of `config` with the tensors of the checkpoint, or, where that has none, with those that the config
/// asks for.
pub(crate) fn plan(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Plan> {
    config.check("config")?;
    let Reading { canonical, build, harmless, .. } = *config.family.reading();
    if !checkpoint.tensors.is_empty() {
        let mut survey = Reader::survey(checkpoint, Cpu::detect(), canonical);
        build(config, &mut survey)?;
        survey.finish(Par::SERIAL, |name| harmless(config, name))?;
    }
    layout(config, checkpoint)
}

/// [`plan`] of a checkpoint that was compared with the config before.
pub(crate) fn layout(config: &Config, checkpoint: &Checkpoint<'_>) -> Result<Plan> {
    let Reading { canonical, build, .. } = *config.family.reading();
    let mut reader = Reader::plan(checkpoint, canonical);
    let transformer = build(config, &mut reader)?;
    transformer.check(config)?;
    Ok(Plan { transformer, tensors: reader.planned() })
}

/// The file's own names of tensors by their canonical ones.
#[cfg(feature = "train")]
pub(crate) fn own_names(family: Family, checkpoint: &Checkpoint<'_>) -> BTreeMap<String, String> {
    let canonical = family.reading().canonical;
    checkpoint.tensors.keys().map(|name| (canonical(name), name.clone())).collect()
}

/// The word whose look-ups do not train its row: the padding of families whose reference implementations leave it out, even
/// where a decoder starts with it.
#[cfg(feature = "train")]
pub(crate) fn untrained_word(config: &Config) -> Option<u32> {
    use Family::{Gpt2, GptNeoX, Paper, T5, Torch};
    let trained = matches!(config.family, Gpt2 | GptNeoX | Paper | T5 | Torch);
    config.special.padding.filter(|_| !trained)
}

/// Name and shape of every tensor that `config` asks for, in the order of asking.
fn list(config: &Config) -> Result<Vec<(String, Vec<usize>)>> {
    let Reading { canonical, build, .. } = *config.family.reading();
    let nothing = Checkpoint::nothing();
    let mut plan = Reader::plan(&nothing, canonical);
    build(config, &mut plan)?;
    Ok(plan.planned().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect())
}
