//! Whole requests: alone and in batches, with caches and without, on any number of threads and every instruction set.

use crate::random_models::{LONGEST, Seeded, V, begin};
use crate::{Random, decoders, options, session, tokens};
use headrow::generate::{
    Beam, EarlyStopping, Generated, GenerationOptions, Generator, Hooks, Limits, Prompt, Sampling,
    StepModel, Strategy,
};
use headrow::{Batch, Chunk, Cpu, LoadOptions, Output, Result, Sequence, Session, SessionOptions};

/// What a sequence has read, and what it attends to in a model with sources.
#[derive(Clone)]
struct Past {
    source: Vec<u32>,
    tokens: Vec<u32>,
}

impl Past {
    /// At the beginning of a request: a model with sources reads the prompt as one.
    fn new(session: &Session, prompt: &[u32]) -> Past {
        match session.model().config().special.decoder_start {
            Some(start) => Past { source: prompt.to_vec(), tokens: vec![start] },
            None => Past { source: Vec::new(), tokens: prompt.to_vec() },
        }
    }

    /// A sequence that has read it, and the logits after it.
    fn feed(&self, session: &mut Session, logits: &mut [f32]) -> Result<Sequence> {
        let sequence = begin(session, &self.source)?;
        session.extend(&[Chunk::new(sequence, &self.tokens)], Output::LastLogits, logits)?;
        Ok(sequence)
    }
}

/// Remembers tokens alone, and reads each sequence from its beginning at every step.
struct Forgetful {
    session: Session,
    pasts: Vec<Option<Past>>,
}

impl Forgetful {
    fn keep(&mut self, past: Past) -> usize {
        self.pasts.push(Some(past));
        self.pasts.len() - 1
    }
}

impl StepModel for Forgetful {
    type Sequence = usize;

    fn step(&mut self, sequences: &[usize], tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let rows = sequences.iter().zip(tokens).zip(logits.chunks_mut(V));
        for ((&sequence, &token), row) in rows {
            let past = self.pasts[sequence].as_mut().expect("a live sequence");
            past.tokens.push(token);
            let read = past.feed(&mut self.session, row)?;
            self.session.remove(read)?;
        }
        Ok(())
    }

    fn fork(&mut self, sequence: usize) -> Result<usize> {
        let past = self.pasts[sequence].clone().expect("a live sequence");
        Ok(self.keep(past))
    }

    fn release(&mut self, sequence: usize) {
        self.pasts[sequence] = None;
    }
}

fn strategies() -> [Strategy; 4] {
    let sampling = Sampling::new(9).with_temperature(0.8);
    let beam = Beam::new(4).with_n_best(3);
    [
        Strategy::Greedy,
        sampling.with_top_k(20).with_top_p(0.95).into(),
        beam.into(),
        beam.with_early_stopping(EarlyStopping::Never).into(),
    ]
}

fn request(strategy: Strategy, random: &mut Random) -> GenerationOptions {
    let options = GenerationOptions::default().with_strategy(strategy);
    let options = options.with_max_new_tokens(3 + random.below(12)).with_stop_ids([4, 5]);
    options.with_log_probabilities(2usize).with_repetition_penalty(1.1)
}

/// Sources are read in one pass, so all of them together are no longer than one may be.
fn prompts(random: &mut Random) -> Vec<Vec<u32>> {
    let lengths = [70, 1, 9, 20, 4, 15, 30].map(|most| 1 + random.below(most));
    lengths.map(|length| tokens(random, length)).to_vec()
}

/// Continues the prompts, or decodes them where they are sources.
pub(crate) fn generate(
    session: &mut Session,
    prompts: &[&[u32]],
    options: &GenerationOptions,
    hooks: &mut dyn Hooks,
) -> Result<Vec<Generated>> {
    if session.model().config().encoder.is_none() {
        return session.generate(prompts, options, hooks);
    }
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
    session.generate_from(&Batch::ragged(&prompts.concat(), &lengths), options, hooks)
}

fn all(session: &mut Session, prompts: &[Vec<u32>], options: &GenerationOptions) -> Vec<Generated> {
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    generate(session, &prompts, options, &mut ()).unwrap()
}

/// Fewer of the models than elsewhere: a request is many passes.
fn some() -> impl Iterator<Item = Seeded> {
    decoders().step_by(3)
}

#[test]
fn a_prompt_gets_in_a_batch_what_it_gets_alone() {
    for (seed, seeded) in some().enumerate() {
        let (mut session, mut random) = (session(&seeded.model()), Random(seed as u64));
        for strategy in strategies() {
            let (prompts, options) = (prompts(&mut random), request(strategy, &mut random));
            let together = all(&mut session, &prompts, &options);
            assert_eq!(together.len(), prompts.len());
            for (prompt, together) in prompts.iter().zip(together) {
                let alone = all(&mut session, std::slice::from_ref(prompt), &options);
                assert_eq!(alone, [together], "{}", seeded.label);
            }
        }
        assert_eq!(session.free_sequences(), 16);
    }
}

#[test]
fn caches_change_nothing() {
    for (seed, seeded) in some().enumerate() {
        let (model, mut random) = (seeded.model(), Random(20 + seed as u64));
        let mut session = session(&model);
        for strategy in strategies() {
            let (prompts, options) = (prompts(&mut random), request(strategy, &mut random));
            let expected = all(&mut session, &prompts, &options);
            let mut model = Forgetful { session: crate::session(&model), pasts: Vec::new() };
            let limits = Limits::new(V, 100, LONGEST);
            let mut generator = Generator::new(limits).unwrap();
            for prompt in &prompts {
                let (past, mut logits) = (Past::new(&session, prompt), [0.0; V]);
                let read = past.feed(&mut model.session, &mut logits).unwrap();
                model.session.remove(read).unwrap();
                let prompt = Prompt::new(model.keep(past.clone()), &past.tokens, &logits);
                generator.add(&mut model, prompt, &options, &mut ()).unwrap();
            }
            generator.run(&mut model, &mut ()).unwrap();
            for (number, expected) in expected.into_iter().enumerate() {
                let plain = generator.take(number).unwrap().unwrap();
                assert_eq!(plain, expected, "{}", seeded.label);
            }
            assert!(model.pasts.iter().all(Option::is_none), "a sequence is not released");
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_nothing() {
    for (seed, seeded) in some().enumerate() {
        let mut random = Random(40 + seed as u64);
        for strategy in strategies() {
            let (prompts, request) = (prompts(&mut random), request(strategy, &mut random));
            let here = seeded.model();
            let expected = all(&mut session(&here), &prompts, &request);
            for threads in 2..=4 {
                let options = options().with_threads(threads);
                let mut session = Session::new(&here, &options).unwrap();
                assert_eq!(all(&mut session, &prompts, &request), expected, "{threads} threads");
            }
            for cpu in Cpu::all() {
                let model = seeded.model_with(&LoadOptions::default().with_isa(cpu.isa()));
                let found = all(&mut session(&model), &prompts, &request);
                assert_eq!(found, expected, "{}, {}", seeded.label, cpu.isa());
            }
        }
    }
}

#[test]
fn requests_join_and_leave_a_running_batch() {
    for (seed, seeded) in some().enumerate() {
        let (model, mut random) = (seeded.model(), Random(60 + seed as u64));
        let mut session = session(&model);
        let requests: Vec<_> = (0..12)
            .map(|i| {
                let strategy = [Strategy::Greedy, Sampling::new(i).into(), Beam::new(2).into()];
                let options = request(strategy[random.below(3)].clone(), &mut random);
                let length = 1 + random.below(70);
                (tokens(&mut random, length), options)
            })
            .collect();
        let alone = |session: &mut Session, (prompt, options): &(Vec<u32>, GenerationOptions)| {
            all(session, std::slice::from_ref(prompt), options).remove(0)
        };
        let expected: Vec<_> =
            requests.iter().map(|request| alone(&mut session, request)).collect();
        let mut generator = session.generator().unwrap();
        let (mut waiting, mut numbers) = (requests.iter().enumerate(), Vec::new());
        let mut results = vec![None; requests.len()];
        while results.iter().any(Option::is_none) {
            // A new one now and then, when there is room for any.
            let joins = random.below(2) == 0 && generator.reserved() + 2 <= 8;
            if let Some((index, (prompt, options))) = joins.then(|| waiting.next()).flatten() {
                let (past, mut logits) = (Past::new(&session, prompt), [0.0; V]);
                let sequence = past.feed(&mut session, &mut logits).unwrap();
                let prompt = Prompt::new(sequence, &past.tokens, &logits);
                let added = generator.add(&mut session, prompt, options, &mut ());
                numbers.push((added.unwrap(), index));
            }
            generator.step(&mut session, &mut ()).unwrap();
            for &(number, index) in &numbers {
                if let Some(result) = generator.take(number) {
                    results[index] = Some(result.unwrap());
                }
            }
        }
        let results: Vec<_> = results.into_iter().flatten().collect();
        assert_eq!(results, expected, "{}", seeded.label);
        assert_eq!(session.free_sequences(), 16);
    }
}

#[test]
fn requests_that_the_caches_do_not_hold_together_wait_for_each_other() {
    let seeded = Seeded::gpt2(3);
    let model = seeded.model();
    let mut random = Random(9);
    let prompts: Vec<Vec<u32>> = (0..7).map(|_| tokens(&mut random, LONGEST / 2)).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let beam = Strategy::Beam(Beam::new(2));
    let options = GenerationOptions::default().with_max_new_tokens(5usize).with_strategy(beam);
    let mut alone = session(&model);
    let expected: Vec<Generated> = prompts
        .iter()
        .flat_map(|&prompt| alone.generate(&[prompt], &options, &mut ()).unwrap())
        .collect();
    // Pages for two hypotheses of one request, or of two.
    for pages in [4, 8, 9] {
        let sizes = SessionOptions::default().with_cache_tokens(64 * pages).with_threads(1);
        let mut small = Session::new(&model, &sizes).unwrap();
        let free = small.free_tokens();
        assert_eq!(small.generate(&prompts, &options, &mut ()).unwrap(), expected, "{pages} pages");
        assert_eq!(small.free_tokens(), free);
    }
}
