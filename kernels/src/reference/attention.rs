//! Definitions of the operations in `attention`.
