//! Two tasks that a Transformer learns in a minute: to say a sequence again, and to say it backwards.
//!
//! ```text
//! cargo run --release --example train_copy
//! ```

use headrow::generate::{Callbacks, GenerationOptions};
use headrow::train::{
    AdamOptions, Examples, NetworkOptions, Parameters, Precision, Schedule, Trainer, TrainerOptions,
};
use headrow::{
    Batch, Config, Input, Model, Result, Session, SessionOptions, StackConfig, TokenInput,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Tokens: one to begin with, one to end with, and those of the sequences.
const BEGIN: u32 = 0;
const END: u32 = 1;
const FIRST: u32 = 2;
const VOCABULARY: usize = 22;
/// The longest sequence.
const LONGEST: usize = 12;
const BATCH: usize = 48;
const STEPS: u64 = 3000;
const TESTS: usize = 1000;
/// So many of them should be right.
const ENOUGH: usize = 995;

fn main() -> Result<ExitCode> {
    let copied = learn("copy", |source| source.to_vec())?;
    let reversed = learn("reverse", |source| source.iter().rev().copied().collect())?;
    let learnt = copied.min(reversed) >= ENOUGH;
    Ok(if learnt { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Learns what `answer` makes of a sequence, and tells how many new ones are answered exactly.
fn learn(name: &str, answer: fn(&[u32]) -> Vec<u32>) -> Result<usize> {
    let started = Instant::now();
    let config = config();
    let options = TrainerOptions::paper(config.d_model)
        .with_schedule(Schedule::Cosine { rate: 0.003, floor: 0.0, warmup: 300, total: STEPS })
        .with_adam(AdamOptions::default().with_clip(1.0))
        .with_dropout(0.0)
        .with_seed(1);
    let network = NetworkOptions::default().with_max_tokens(BATCH * (LONGEST + 1));
    let mut trainer = Trainer::new(Parameters::initialise(&config, 1)?, &network, options)?;
    let (mut random, mut examples) = (Random(7), Examples::default());
    for _ in 0..STEPS {
        examples.clear();
        for _ in 0..BATCH {
            let source = random.sequence();
            let target = answer(&source);
            examples.targets.push([BEGIN].into_iter().chain(target.iter().copied()));
            examples.labels.extend(target.into_iter().chain([END]).map(Some));
            examples.sources.push(source.into_iter().chain([END]));
        }
        trainer.accumulate(&examples)?;
        let report = trainer.step()?;
        if report.step % 300 == 0 {
            let (loss, accuracy) = (report.loss.mean(), report.loss.accuracy());
            println!("{name}: step {:4}  loss {loss:.4}  accuracy {accuracy:.4}", report.step);
        }
    }
    let weights = trainer.parameters().to_safetensors(Precision::F32);
    let model = Arc::new(Model::from_bytes(&config, &weights)?);
    let right = test(&model, answer)?;
    let (part, seconds) = (100.0 * right as f64 / TESTS as f64, started.elapsed().as_secs_f64());
    println!("{name}: {part:.1} % of {TESTS} new sequences are exact, after {seconds:.0} seconds");
    Ok(right)
}

/// The original model, small.
fn config() -> Config {
    let d_model = 32;
    let stack = || {
        let input = Input::Tokens(TokenInput::paper(VOCABULARY, d_model));
        StackConfig::paper(input, 2, d_model, 4, 4 * d_model)
    };
    let mut config = Config::general(d_model);
    (config.encoder, config.decoder) = (Some(stack()), Some(stack()));
    config.special.decoder_start = Some(BEGIN);
    config.special.end = vec![END];
    config
}

/// How many sequences that were never seen are answered exactly, by greedy search.
fn test(model: &Arc<Model>, answer: fn(&[u32]) -> Vec<u32>) -> Result<usize> {
    let mut session = Session::new(model, &SessionOptions::default().with_cache_tokens(4096))?;
    let options =
        GenerationOptions::default().with_stop_ids([END]).with_max_new_tokens(2 * LONGEST);
    let (mut random, mut right) = (Random(1 << 40), 0);
    for _ in 0..TESTS {
        let source = random.sequence();
        let ids: Vec<u32> = source.iter().copied().chain([END]).collect();
        let batch = Batch::one(&ids);
        let answers = session.generate_from(&batch, &options, &mut Callbacks::new())?;
        let tokens = answers[0].best().tokens.iter().copied().filter(|&id| id != END);
        right += usize::from(tokens.eq(answer(&source)));
    }
    Ok(right)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }

    /// 1 to [`LONGEST`] tokens.
    fn sequence(&mut self) -> Vec<u32> {
        (0..=self.below(LONGEST)).map(|_| FIRST + self.below(VOCABULARY - 2) as u32).collect()
    }
}
