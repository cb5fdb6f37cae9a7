//! Examples in batches of about as many tokens each, in an order that a seed decides (§5.1).

use super::dataset::{Dataset, Task};
use super::examples::Examples;
use crate::error::{Error, Result};
use crate::generate::random::{below, philox};
use std::ops::Range;

/// Tokens that are to be guessed in a masked text: 15 of 100.
const HIDDEN: f64 = 0.15;
/// Of those, the part that is replaced by `<mask>`, and the part up to which another token stands instead; the rest stays.
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.9;
/// Examples whose lengths differ by less stand in the same bucket.
const BUCKET: usize = 4;

/// What random numbers are drawn for; each has a stream of its own.
#[derive(Clone, Copy)]
enum Purpose {
    Examples = 1,
    Batches = 2,
    Masks = 3,
}

/// In which order examples come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// By chance, another in every epoch: first the examples within buckets of about the same length, then the batches.
    #[default]
    Shuffled,
    /// As the files have them, for measuring.
    Given,
}

/// How batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Most tokens of a batch, of the sources and of the targets each. Only real tokens are there to be counted: batches are
    /// never padded.
    pub max_tokens: usize,
    /// In which order examples come.
    pub order: Order,
    /// What decides the order, and what is masked.
    pub seed: u64,
}

impl BatchOptions {
    /// Shuffled batches of at most so many tokens a side, with seed 0.
    pub fn new(max_tokens: usize) -> BatchOptions {
        BatchOptions { max_tokens, order: Order::Shuffled, seed: 0 }
    }

    /// The same in this order.
    #[must_use]
    pub fn with_order(self, order: Order) -> BatchOptions {
        BatchOptions { order, ..self }
    }

    /// The same with this seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> BatchOptions {
        BatchOptions { seed, ..self }
    }
}

/// The batches of a dataset, epoch by epoch. An epoch's batches depend on nothing but the dataset, the options and its number, so
/// that training can go on at any batch of any epoch.
#[derive(Clone, Copy, Debug)]
pub struct Batches<'a> {
    dataset: &'a Dataset,
    options: BatchOptions,
}

/// The batches of one epoch: every example is in one of them.
#[derive(Clone, Debug)]
pub struct Epoch<'a> {
    batches: Batches<'a>,
    number: u64,
    /// Examples, batch by batch.
    order: Vec<u32>,
    /// Which of them each batch has.
    ranges: Vec<Range<usize>>,
}

impl<'a> Batches<'a> {
    /// Batches of these options.
    ///
    /// # Errors
    /// [`Error::TrainingOption`] when an example has more tokens than a batch may have.
    pub fn new(dataset: &'a Dataset, options: BatchOptions) -> Result<Batches<'a>> {
        let sizes = (0..dataset.len()).flat_map(|example| dataset.sizes(example));
        let longest = sizes.max().unwrap_or(0);
        if longest > options.max_tokens {
            let most = options.max_tokens;
            let problem = format!("{most} tokens in a batch, an example has {longest}");
            return Err(Error::training_option("max_tokens", problem));
        }
        Ok(Batches { dataset, options })
    }

    /// An epoch, counted from 0.
    ///
    /// O(n log n) for n examples.
    pub fn epoch(&self, number: u64) -> Epoch<'a> {
        let shuffled = self.options.order == Order::Shuffled;
        let mut order: Vec<u32> = (0..self.dataset.len() as u32).collect();
        if shuffled {
            self.shuffle(&mut order, Purpose::Examples, number);
            // Stable: within a bucket the order stays one of chance. Batches run on from bucket to bucket, so that the
            // last one alone may be small.
            order.sort_by_key(|&example| {
                self.dataset.sizes(example as usize).map(|size| size / BUCKET).iter().sum::<usize>()
            });
        }
        let mut ranges = self.cut(&order);
        if shuffled {
            self.shuffle(&mut ranges, Purpose::Batches, number);
        }
        Epoch { batches: *self, number, order, ranges }
    }

    /// As many examples in each batch as have room on both sides.
    fn cut(&self, order: &[u32]) -> Vec<Range<usize>> {
        let (mut ranges, mut begin, mut sums) = (Vec::new(), 0, [0, 0]);
        for (index, &example) in order.iter().enumerate() {
            let sizes = self.dataset.sizes(example as usize);
            let more = [sums[0] + sizes[0], sums[1] + sizes[1]];
            sums = match more.iter().all(|&sum| sum <= self.options.max_tokens) {
                true => more,
                false => {
                    ranges.push(begin..index);
                    begin = index;
                    sizes
                }
            };
        }
        if begin < order.len() {
            ranges.push(begin..order.len());
        }
        ranges
    }

    /// Fisher and Yates' shuffle.
    fn shuffle<T>(&self, items: &mut [T], purpose: Purpose, epoch: u64) {
        for last in (1..items.len()).rev() {
            let [a, b, ..] = self.draw([last as u32, 0], purpose, epoch);
            items.swap(last, below([a, b], last + 1));
        }
    }

    /// Random words for a step of a purpose.
    fn draw(&self, step: [u32; 2], purpose: Purpose, epoch: u64) -> [u32; 4] {
        let seed = self.options.seed;
        let counter = [step[0], step[1], epoch as u32, purpose as u32];
        philox(counter, [seed as u32, (seed >> 32) as u32])
    }
}

impl<'a> Epoch<'a> {
    /// How many batches there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether any token is to be predicted. In masked texts chance may leave none.
    pub(super) fn predicts(&self) -> bool {
        let Dataset { task, targets, .. } = self.batches.dataset;
        let hides = |&example: &u32| {
            let places = 0..targets.length(example as usize) as u32;
            places.map(|at| self.draw(example, at)).any(|[choice, ..]| part(choice) < HIDDEN)
        };
        match task {
            Task::Masking => self.order.iter().any(hides),
            _ => !self.order.is_empty(),
        }
    }

    /// Random words for a token of a masked text.
    fn draw(&self, example: u32, position: u32) -> [u32; 4] {
        self.batches.draw([example, position], Purpose::Masks, self.number)
    }

    /// Which examples of the dataset a batch has.
    ///
    /// # Panics
    /// When there is no such batch.
    #[track_caller]
    pub fn members(&self, batch: usize) -> &[u32] {
        &self.order[self.ranges[batch].clone()]
    }

    /// Makes `examples` those of a batch. Its memory is used again.
    ///
    /// # Panics
    /// When there is no such batch.
    #[track_caller]
    pub fn fill(&self, batch: usize, examples: &mut Examples) {
        examples.clear();
        for &example in self.members(batch) {
            match self.batches.dataset.task {
                Task::Masking => self.add_masked(example, examples),
                _ => self.add_shifted(example, examples),
            }
        }
    }

    /// The source, and the target behind a beginning, each token in its predecessor's place a label.
    fn add_shifted(&self, example: u32, examples: &mut Examples) {
        let Dataset { task, sources, targets, special, .. } = self.batches.dataset;
        let target = targets.get(example as usize);
        let (forced, read, end) = match task {
            Task::Translation => {
                examples.sources.push(sources.get(example as usize).iter().copied());
                (&special.forced[..], target, Some(special.end))
            }
            _ => (&[][..], &target[..target.len() - 1], None),
        };
        let behind = |said: &'a [u32]| forced.iter().chain(said).copied();
        examples.targets.push([special.begin].into_iter().chain(behind(read)));
        examples.labels.extend(behind(target).chain(end).map(Some));
    }

    /// The text between its two special tokens, with some of its tokens hidden or changed; those are the labels.
    fn add_masked(&self, example: u32, examples: &mut Examples) {
        let Dataset { targets, special, .. } = self.batches.dataset;
        let text = targets.get(example as usize);
        let hidden =
            text.iter().zip(0..).map(|(&id, position)| self.hide(id, self.draw(example, position)));
        let (read, labels): (Vec<u32>, Vec<Option<u32>>) = hidden.unzip();
        examples.targets.push([special.begin].into_iter().chain(read).chain([special.end]));
        examples.labels.extend([None].into_iter().chain(labels).chain([None]));
    }

    /// What is read in the place of a token, and what is to be said there.
    fn hide(&self, id: u32, [choice, way, high, low]: [u32; 4]) -> (u32, Option<u32>) {
        let special = &self.batches.dataset.special;
        if part(choice) >= HIDDEN {
            return (id, None);
        }
        let read = match (part(way), special.mask) {
            (way, Some(mask)) if way < MASKED => mask,
            (way, _) if way < REPLACED && !special.ordinary.is_empty() => {
                special.ordinary[below([high, low], special.ordinary.len())]
            }
            _ => id,
        };
        (read, Some(id))
    }
}

/// From [0, 1).
fn part(word: u32) -> f64 {
    f64::from(word) / 2f64.powi(32)
}
