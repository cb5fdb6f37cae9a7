//! What the measurements share: the machine's peak, interleaved timing, options, whole models' cases.
//!
//! On a machine that others use too, only what runs in the same moment can be compared: contenders take turns
//! in short slices ([`race`]), the peak ([`peak`]) among them, and both the median and the minimum are told.

pub mod affinity;
pub mod cases;
pub mod limits;
pub mod options;
pub mod peak;
pub mod process;
pub mod race;
pub mod tail;
pub mod translator;

pub use race::{Contender, Times, race};
