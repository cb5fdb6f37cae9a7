//! Every operation's definition in f64 and plain loops: what tests, fuzz targets and benches compare with.
//!
//! ```
//! use headrow_kernels::{Mat, reference};
//! assert_eq!(reference::rows::softmax(Mat::from_row(&[1.0, 1.0])), [0.5, 0.5]);
//! ```
//!
//! Slow on purpose. Inputs are the same f32 views that the kernels take; results are `Vec<f64>`, row-major.

pub mod attention;
pub mod gemm;
pub mod rope;
pub mod rows;
pub mod training;
