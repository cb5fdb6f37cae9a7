//! 64-bit Arm: NEON.
