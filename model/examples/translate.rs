//! Translations with their runners-up.
//!
//! ```text
//! cargo run --release --example translate -- FOLDER
//! ```
//!
//! Without a folder a small seeded model answers.

mod tiny;

use headrow::Result;
use headrow::generate::{Beam, LengthPenalty};

fn main() -> Result<()> {
    let model = tiny::model(tiny::translator)?;
    // The paper's search, and three answers instead of one.
    let beam = Beam::new(4).with_length_penalty(LengthPenalty::Gnmt { alpha: 0.6 }).with_n_best(3);
    let options = model.options().clone().with_strategy(beam).with_max_new_tokens(16usize);
    let texts = ["one", "two words", "and three more"];
    let mut session = model.session(&model.session_options(texts.len(), &options))?;
    for (text, answers) in texts.iter().zip(model.translate(&mut session, texts, &options)?) {
        println!("{text}");
        for answer in &answers.hypotheses {
            println!("  {:8.4}  {}", answer.score, answer.text.as_deref().unwrap_or_default());
        }
    }
    Ok(())
}
