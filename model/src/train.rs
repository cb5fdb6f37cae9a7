//! Training by the paper's recipe (§5).
//!
//! | "Attention Is All You Need" | file |
//! |---|---|
//! | §5.1 texts, vocabularies, batches | `train/data.rs`, `train/vocabulary.rs`, `train/dataset.rs`, `train/batches.rs` |
//! | §5.1 what a step learns from | `train/examples.rs` |
//! | §5.3 the rate of learning over the steps, and Adam | `train/schedule.rs`, `train/optimizer.rs` |
//! | steps, and whole trainings | `train/trainer.rs`, `train/run.rs` |
//! | §6.1 checkpoints averaged | `train/average.rs` |
//! | what goes along with a model's weights | `train/companions.rs` |
//! | checkpoints, and what a training tells | `train/checkpoint.rs`, `train/log.rs`, `train/plot.rs` |
//! | gradients of the whole | `train/network.rs`; of each layer beside it |
//! | the parameters as one vector, and what they begin as | `train/parameters.rs`, `train/initialise.rs` |
//!
//! [`Parameters`] has all numbers of a model one behind the other, as a checkpoint has its tensors; gradients and what an
//! optimiser remembers are vectors of the same form. Nothing is packed beforehand, since every step changes the weights.
//! What a layer computes forward and backward is beside that layer's file.

mod answers;
mod average;
mod batches;
mod checkpoint;
pub(crate) mod claims;
mod companions;
mod data;
mod dataset;
mod entrance;
mod examples;
mod files;
mod initialise;
mod labelled;
mod labels;
mod log;
mod loss;
mod merges;
mod network;
mod objective;
mod optimizer;
mod options;
mod parameters;
pub(crate) mod pass;
mod plot;
mod read_out;
mod run;
mod schedule;
mod side;
mod stack;
mod trainer;
mod vocabulary;

pub(crate) use checkpoint::Slot;
pub(crate) use initialise::initialise;
pub(crate) use optimizer::{Optimizer, Update};
pub(crate) use parameters::{read_values, to_safetensors, zeros};

pub use crate::chart::{Curve, line_chart};
pub use answers::{GreedyBleu, decoding_options};
pub use average::average;
pub use batches::{BatchOptions, Batches, Epoch, Order};
pub use checkpoint::checkpoints;
pub use companions::{companions, read_file};
pub use data::{BadLines, Corpus, DataOptions, Layout, Lowercase, Origin, Record};
pub use dataset::{Dataset, DatasetOptions, SpecialIds, Task};
pub use examples::{Examples, Ragged};
pub use files::replace_file;
pub use log::{LogLine, MetricsLog, TrainLine, ValidationLine};
pub use loss::Loss;
pub use network::Network;
pub use objective::{Dropping, Goal, Objective, Smoothing, Vectors};
pub use optimizer::AdamOptions;
pub use options::NetworkOptions;
pub use parameters::{Parameters, Precision};
pub use plot::loss_curve;
pub use run::{DamagedCheckpoint, Ended, Event, Measure, Resumed, Run, RunOptions, Watch};
pub use schedule::Schedule;
pub use trainer::{SmoothingKind, StepReport, Trainer, TrainerOptions};
pub use vocabulary::{Framing, VocabularyKind, VocabularyOptions, vocabulary};
