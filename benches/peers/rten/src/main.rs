//! rten's run of ONNX graphs, timed on the protocol of all contenders: `rten-worker THREADS`.
//!
//! Graphs lie in `exports/onnxruntime` under the path in `PEERS_HOME`: encoders as they were exported, decoders of fused operators.
//! It has no loop for translations.

mod models;

use headrow_bench_protocol::{Result, serve, threads};

fn main() -> Result<()> {
    serve::<models::Graph>(threads()?)
}
