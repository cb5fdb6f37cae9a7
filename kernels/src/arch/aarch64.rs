//! 64-bit Arm: NEON.

pub(crate) mod neon;
