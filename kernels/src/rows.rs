//! Operations on the rows of a matrix.

pub mod activation;
