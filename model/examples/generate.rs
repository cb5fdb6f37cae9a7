//! A text that is continued and shown as it comes.
//!
//! ```text
//! cargo run --release --example generate -- FOLDER "Once upon a time"
//! ```
//!
//! Without a folder a small seeded model babbles.

mod tiny;

use headrow::Result;
use headrow::generate::{Callbacks, Sampling, Strategy};
use std::io::Write;
use std::ops::ControlFlow;

fn main() -> Result<()> {
    let model = tiny::model(tiny::decoder)?;
    let prompt = std::env::args().nth(2).unwrap_or_else(|| "once upon a time".to_owned());
    let sampling = Sampling::new(7).with_temperature(0.8).with_top_p(0.95);
    let options = model
        .options()
        .clone()
        .with_max_new_tokens(48usize)
        .with_strategy(Strategy::Sample(sampling));
    let mut session = model.session(&model.session_options(1, &options))?;
    print!("{prompt}");
    let callbacks = Callbacks::new().with_progress(|step| {
        print!("{}", step.text);
        // Nobody reads any more: the request ends here.
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    let answer = model.generate(&mut session, &prompt, &options, callbacks)?;
    let best = answer.best();
    println!("\n{} tokens, ln p {:.3}, {:?}", best.tokens.len(), best.score, best.finish);
    Ok(())
}
