//! Definitions of the operations in `rows`.
