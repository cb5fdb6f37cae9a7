//! What a model costs: parameters, operations, memory, and the shapes of a pass, from its config alone.
//!
//! | "Attention Is All You Need" | here |
//! |---|---|
//! | figure 1, the shapes that flow through it | [`trace`] |
//! | §4, table 1: complexity, sequential operations and path lengths of layers | [`LayerType`] |
//! | §5.2, table 2: operations of a training | [`Published`], [`Operations::training`] |
//! | table 3: 65 and 213 million parameters | [`Counts`], [`closed_forms`], [`Published::vocabularies`] |
//!
//! Operations are those of the matrix products, 2 for a multiplication and an addition; softmax, norms and activations are of
//! lower order. Letters are the paper's: n tokens of a source, m of a target, d = d_model.

mod counts;
mod forms;
mod layer_types;
mod memory;
mod operations;
mod published;
mod roofline;
mod trace;

pub use counts::{Counts, Kind, Part, Tensor};
pub use forms::{ClosedForm, closed_forms};
pub use layer_types::LayerType;
pub use memory::{activations, cache, cache_per_token, naive_scores};
pub use operations::{Operations, crossover};
pub use published::Published;
pub use roofline::{Machine, Traffic, traffic};
pub use trace::{Step, trace};
