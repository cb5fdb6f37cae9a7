//! candle's models, timed on the protocol of all contenders: `candle-worker THREADS`.
//!
//! BERT, Llama and Marian are candle-transformers' own; GPT-2 is put together from candle's layers. Translation is greedy:
//! candle has no beam search.

mod gpt2;
mod models;

use headrow_bench_protocol::{serve, threads, Result};

fn main() -> Result<()> {
    let threads = threads()?;
    // candle and its matrix product ask rayon's global pool, which reads this at its first use.
    std::env::set_var("RAYON_NUM_THREADS", threads.to_string());
    serve::<models::Candle>(threads)
}
