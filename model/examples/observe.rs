//! The inside of a pass: how much every sublayer adds to the residual stream, and where its heads look.
//!
//! ```text
//! cargo run --release --example observe -- FOLDER "a text"
//! ```

mod tiny;

use headrow::{Chunk, Mat, Observer, Output, Place, Result, SessionOptions, Sublayer};

/// Prints what it sees.
struct Watch {
    tokens: Vec<String>,
    heads: Vec<usize>,
}

impl Observer for Watch {
    fn wants_increments(&self) -> bool {
        true
    }

    fn increment(&mut self, place: Place, increment: Mat<'_>) {
        let last = increment.row(increment.rows() - 1);
        let norm = last.iter().map(|x| x * x).sum::<f32>().sqrt();
        println!("layer {} {:?}: adds {norm:.3} to the last token", place.layer, place.sublayer);
    }

    fn wants_maps(&self, place: Place) -> &[usize] {
        if place.sublayer == Sublayer::SelfAttention { &self.heads } else { &[] }
    }

    fn maps(&mut self, _: Place, maps: Mat<'_>) {
        let rows = maps.rows() / self.heads.len();
        for (index, head) in self.heads.iter().enumerate() {
            let weights = &maps.row((index + 1) * rows - 1)[..self.tokens.len()];
            let most = (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
            let most = most.expect("a token sees itself");
            println!("  head {head}: {:.2} at {:?}", weights[most], self.tokens[most]);
        }
    }
}

fn main() -> Result<()> {
    let model = tiny::model(tiny::decoder)?;
    let text = std::env::args().nth(2).unwrap_or_else(|| "the cat sat on the mat".to_owned());
    let ids = model.tokenize(text.as_str())?.ids;
    let tokens = ids.iter().map(|&id| model.tokenizer().label(id)).collect();
    let mut session = model.session(&SessionOptions::default())?;
    let sequence = session.add()?;
    let mut watch = Watch { tokens, heads: vec![0, 1] };
    // The bits are those of a pass that nobody watches.
    let chunks = [Chunk::new(sequence, &ids)];
    session.extend_observed(&chunks, Output::None, &mut [], &mut watch)?;
    session.remove(sequence)
}
