//! 64-bit Arm: NEON.

pub(crate) mod neon;
pub(crate) mod vector;
