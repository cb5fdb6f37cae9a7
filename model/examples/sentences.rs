//! Vectors of sentences, and how alike they are.
//!
//! ```text
//! cargo run --release --example sentences -- FOLDER
//! ```
//!
//! Without a folder the model inside the library is used.

use headrow::{Result, SentenceEncoder, SessionOptions};

fn main() -> Result<()> {
    let encoder = match std::env::args().nth(1) {
        Some(folder) => SentenceEncoder::from_dir(folder)?,
        None => SentenceEncoder::seeded()?,
    };
    // Everything that calls need is allocated here.
    let mut session = encoder.session(&SessionOptions::default().with_threads(1))?;
    let texts = ["A man is eating food.", "Somebody is having a meal.", "The train is late."];
    let mut vectors = vec![0.0; texts.len() * encoder.dimension()];
    encoder.embed_into(&mut session, texts, &mut vectors)?;
    let vectors: Vec<&[f32]> = vectors.chunks_exact(encoder.dimension()).collect();
    for (text, vector) in texts.iter().zip(&vectors) {
        let cosine: f32 = vectors[0].iter().zip(*vector).map(|(a, b)| a * b).sum();
        println!("{cosine:.4}  {text}");
    }
    Ok(())
}
