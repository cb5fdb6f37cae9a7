//! The command `headrow`.

fn main() {}
