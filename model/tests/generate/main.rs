//! Decoding over toy models: searches against exhaustive ones and recorded ones, sampling against its definition,
//! text, streams, batches, and everything that can go wrong.

mod batch;
mod beam;
mod constraint;
mod errors;
mod options;
mod sampling;
mod stream;
mod text;
mod toy;
