//! Definitions of the operations in `gemm`.
