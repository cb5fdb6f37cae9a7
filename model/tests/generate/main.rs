//! Decoding over toy models: searches against exhaustive ones and recorded ones, sampling against its definition,
//! text, streams, batches, and everything that can go wrong.

mod beam;
mod options;
mod toy;
