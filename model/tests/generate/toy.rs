//! A model whose predictions are a function of the last two tokens, and how to run requests over it.

use headrow::generate::{
    Generated, GenerationOptions, Generator, Hooks, Limits, Prompt, StepModel,
};
use headrow::{Error, Result};

/// SplitMix64's next number after the state `z`.
pub(crate) fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random numbers for properties.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0) % n as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Logits: multiples of 2⁻¹⁸ from −2 to 2, half more for stop ids. Or the same for every past.
pub(crate) struct Toy {
    pub(crate) vocabulary: usize,
    seed: u64,
    stops: Vec<u32>,
    fixed: Option<Vec<f32>>,
    /// What each sequence has been fed; `None` once it is released.
    pasts: Vec<Option<Vec<u32>>>,
    pub(crate) steps: usize,
    pub(crate) forks: usize,
    /// Most sequences that were live at once.
    pub(crate) most: usize,
    /// The step that fails, and the fork.
    pub(crate) failing_step: Option<usize>,
    pub(crate) refuses_forks: bool,
}

impl Toy {
    pub(crate) fn new(vocabulary: usize, seed: u64, stops: &[u32]) -> Toy {
        Toy {
            vocabulary,
            seed,
            stops: stops.to_vec(),
            fixed: None,
            pasts: Vec::with_capacity(1024),
            steps: 0,
            forks: 0,
            most: 0,
            failing_step: None,
            refuses_forks: false,
        }
    }

    /// A model that predicts the same after everything.
    pub(crate) fn fixed(logits: &[f32]) -> Toy {
        Toy { fixed: Some(logits.to_vec()), ..Toy::new(logits.len(), 0, &[]) }
    }

    pub(crate) fn logits(&self, past: &[u32], row: &mut [f32]) {
        if let Some(fixed) = &self.fixed {
            row.copy_from_slice(fixed);
            return;
        }
        let [a, b] = match past {
            [.., a, b] => [*a, *b],
            [b] => [0, *b],
            [] => [0, 0],
        };
        let v = self.vocabulary as u64;
        for (token, x) in (0u32..).zip(row) {
            let at = (u64::from(a) * v + u64::from(b)) * v + u64::from(token);
            let uniform = (mix((self.seed << 32) + at) >> 44) as f64 / f64::from(1 << 20);
            let bonus = if self.stops.contains(&token) { 0.5 } else { 0.0 };
            *x = (uniform * 4.0 + bonus - 2.0) as f32;
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.pasts.iter().flatten().count()
    }

    fn keep(&mut self, past: Vec<u32>) -> usize {
        let free = self.pasts.iter().position(Option::is_none);
        let handle = free.unwrap_or_else(|| {
            self.pasts.push(None);
            self.pasts.len() - 1
        });
        self.pasts[handle] = Some(past);
        self.most = self.most.max(self.live());
        handle
    }

    /// A sequence that has been fed a prompt, and the logits after it.
    pub(crate) fn feed(&mut self, prompt: &[u32]) -> (usize, Vec<f32>) {
        let mut logits = vec![0.0; self.vocabulary];
        self.logits(prompt, &mut logits);
        // Only the end matters, and a short past takes no more memory as it grows.
        let mut past = Vec::with_capacity(2);
        past.extend_from_slice(&prompt[prompt.len().saturating_sub(2)..]);
        (self.keep(past), logits)
    }

    /// Adds a request with this prompt.
    pub(crate) fn add(
        &mut self,
        generator: &mut Generator<usize>,
        prompt: &[u32],
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
    ) -> Result<usize> {
        let (sequence, logits) = self.feed(prompt);
        let added = generator.add(self, Prompt::new(sequence, prompt, &logits), options, hooks);
        if added.is_err() {
            self.release(sequence);
        }
        added
    }

    /// The result of one request alone.
    pub(crate) fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerationOptions,
        hooks: &mut dyn Hooks,
    ) -> Result<Generated> {
        let mut generator = Generator::new(Limits::new(self.vocabulary, 256, 4096))?;
        let request = self.add(&mut generator, prompt, options, hooks)?;
        generator.run(self, hooks)?;
        assert_eq!(self.live(), 0, "a sequence was not released");
        generator.take(request).unwrap()
    }

    /// The tokens of the best answer alone.
    pub(crate) fn tokens(&mut self, prompt: &[u32], options: &GenerationOptions) -> Vec<u32> {
        self.generate(prompt, options, &mut ()).unwrap().best().tokens.clone()
    }
}

impl StepModel for Toy {
    type Sequence = usize;

    fn step(&mut self, sequences: &[usize], tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        assert_eq!(logits.len(), sequences.len() * self.vocabulary);
        assert_eq!(sequences.len(), tokens.len());
        if self.failing_step == Some(self.steps) {
            self.failing_step = None;
            return Err(Error::Busy);
        }
        self.steps += 1;
        for (i, (&sequence, &token)) in sequences.iter().zip(tokens).enumerate() {
            assert!(!sequences[..i].contains(&sequence), "a sequence is fed twice");
            let mut past = self.pasts[sequence].take().expect("a live sequence");
            if past.len() == 2 {
                past.remove(0);
            }
            past.push(token);
            self.logits(&past, &mut logits[i * self.vocabulary..][..self.vocabulary]);
            self.pasts[sequence] = Some(past);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: usize) -> Result<usize> {
        if self.refuses_forks {
            return Err(Error::OutOfMemory("a fork".to_owned()));
        }
        self.forks += 1;
        let past = self.pasts[sequence].as_ref().expect("a live sequence");
        let mut copy = Vec::with_capacity(2);
        copy.extend_from_slice(past);
        Ok(self.keep(copy))
    }

    fn release(&mut self, sequence: usize) {
        assert!(self.pasts[sequence].take().is_some(), "a sequence is released twice");
    }
}

/// ln softmax in f64.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
    logits.iter().map(|&x| f64::from(x) - f64::from(max) - sum.ln()).collect()
}
