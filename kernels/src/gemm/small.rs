//! Few rows (m ≤ 16, a short sequence or one decoding step): B is read once, and that is all that counts.
