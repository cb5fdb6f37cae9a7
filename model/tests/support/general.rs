//! Seeded checkpoints in memory for any config, and configs drawn from all that can be expressed.
//! Test targets that use it have `mod tiny` at their root.
#![allow(dead_code, reason = "each test target uses a part")]

use crate::tiny::{Random, Tensor, file};
use headrow::{
    Activation, Biases, Config, Gating, Input, Model, NormKind, NormPlacement, Positions,
    RelativePositions, Rotary, RotaryScaling, ScoreScale, SinusoidLayout, StackConfig, TokenInput,
    Widening,
};

/// A config and all its tensors.
#[derive(Clone)]
pub(crate) struct General {
    pub(crate) config: Config,
    pub(crate) tensors: Vec<Tensor>,
}

impl General {
    /// Xavier-uniform matrices, embeddings from N(0, 1/d), norms around 1, small biases.
    pub(crate) fn new(config: &Config, seed: u64) -> General {
        let mut random = Random(seed);
        let listed = config.tensors().unwrap();
        let tensors = listed.into_iter().map(|(name, shape)| drawn(name, shape, &mut random));
        General { config: config.clone(), tensors: tensors.collect() }
    }

    pub(crate) fn model(&self) -> headrow::Result<Model> {
        Model::from_bytes(&self.config, &file(&self.tensors))
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect(name)
    }

    /// The same under other names; one tensor may become several.
    pub(crate) fn renamed(
        mut self,
        config: &Config,
        rename: impl Fn(Tensor) -> Vec<Tensor>,
    ) -> General {
        self.tensors = self.tensors.into_iter().flat_map(rename).collect();
        self.config = config.clone();
        self
    }
}

/// A tensor of random numbers of the size that its name and shape suggest.
pub(crate) fn drawn(name: String, shape: Vec<usize>, random: &mut Random) -> Tensor {
    let values = values(&name, &shape, random);
    let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor { name, dtype: "F32", shape, data }
}

fn values(name: &str, shape: &[usize], random: &mut Random) -> Vec<f32> {
    let count = shape.iter().product();
    let is = |part: &str| name.contains(part);
    let mut draw = |value: &dyn Fn(&mut Random) -> f32| (0..count).map(|_| value(random)).collect();
    match *shape {
        [_] if name.ends_with("bias") => draw(&|random| 0.1 * random.unit()),
        [_] => draw(&|random| 1.0 + 0.2 * random.unit()),
        [_, d] if is("words") || is("positions") || is("types") || is("shared") => {
            // Twelve of variance 1/3: nearly normal.
            let normal = |random: &mut Random| (0..12).map(|_| random.unit()).sum::<f32>() / 2.0;
            draw(&|random| normal(random) / (d as f32).sqrt())
        }
        _ => {
            let sum = shape[0] + shape[1..].iter().product::<usize>();
            let bound = (6.0 / sum as f32).sqrt();
            draw(&|random| bound * random.unit())
        }
    }
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len())].clone()
}

/// An encoder, a decoder or both, with any mixture of options, small and of odd sizes.
pub(crate) fn random_config(random: &mut Random) -> Config {
    let d = 2 * (3 + random.below(10));
    let mut config = Config::general(d);
    let kind = random.below(3);
    if kind != 1 {
        config.encoder = Some(random_stack(random, d, true, kind == 2));
    }
    if kind != 0 {
        config.decoder = Some(random_stack(random, d, false, kind == 2));
    }
    config.read_out.tied = random.below(2) == 0;
    config.read_out.bias = random.below(2) == 0;
    config.read_out.scale = pick(random, &[1.0, 0.3]);
    let tables = |stack: &Option<StackConfig>| {
        let tokens = stack.as_ref().and_then(|stack| stack.tokens());
        tokens.map(|tokens| (tokens.vocabulary, tokens.width))
    };
    let same = tables(&config.encoder) == tables(&config.decoder);
    config.shared_words = same && random.below(2) == 0;
    config
}

fn random_stack(random: &mut Random, d: usize, encoder: bool, two: bool) -> StackConfig {
    let kv_heads = 1 + random.below(2);
    let heads = kv_heads * (1 + random.below(3));
    let input = match random.below(5) {
        0 => Input::Vectors,
        _ => Input::Tokens(random_tokens(random, d, encoder)),
    };
    let layers = 1 + random.below(3);
    let mut stack = StackConfig::paper(input, layers, d, heads, 1 + random.below(30));
    stack.kv_heads = kv_heads;
    // Wider than d_model/h, so that no rule ties them together.
    stack.d_k = d + 1 + random.below(4);
    stack.d_v = 1 + random.below(9);
    stack.scale = pick(random, &[ScoreScale::Paper, ScoreScale::One, ScoreScale::PaperByLayer]);
    stack.relative = random_relative(random, stack.d_k);
    stack.softcap = (random.below(4) == 0).then(|| 0.5 + random.below(4) as f32);
    stack.window = (random.below(3) == 0).then(|| 1 + random.below(5));
    (stack.activation, stack.activation_word) = pick(
        random,
        &[
            (Activation::Relu, "relu"),
            (Activation::GeluErf, "gelu"),
            (Activation::GeluTanh, "gelu_new"),
            (Activation::GeluQuick, "quick_gelu"),
            (Activation::Silu, "silu"),
        ]
        .map(|(activation, word)| (activation, word.to_owned())),
    );
    stack.gating = pick(random, &[Gating::None, Gating::Gated]);
    stack.biases = pick(random, &[Biases::ALL, Biases::NONE]);
    stack.biases.queries_keys_values = random.below(2) == 0;
    stack.biases.keys = random.below(2) == 0;
    stack.norm = pick(random, &[NormKind::Layer, NormKind::Rms]);
    stack.epsilon = pick(random, &[1e-5, 1e-6, 1e-12]);
    let placements = [NormPlacement::Post, NormPlacement::Pre, NormPlacement::Parallel];
    stack.placement = pick(random, &placements[..if two && !encoder { 2 } else { 3 }]);
    stack.final_norm = random.below(2) == 0;
    if encoder && stack.scale != ScoreScale::PaperByLayer {
        stack.distinct_layers = 1 + random.below(layers);
    }
    stack
}

fn random_tokens(random: &mut Random, d: usize, encoder: bool) -> TokenInput {
    let mut tokens = TokenInput::paper(pick(random, &[23, 23, 31]), d);
    tokens.width = pick(random, &[d, d, d + 2, 6]);
    tokens.widening = pick(random, &[Widening::Sum, Widening::Words]);
    tokens.scale = pick(random, &[1.0, tokens.scale]);
    tokens.token_types = pick(random, &[0, 0, 2]);
    tokens.norm = random.below(2) == 0;
    let layout = pick(
        random,
        &[SinusoidLayout::Paper, SinusoidLayout::Marian, SinusoidLayout::Tensor2Tensor],
    );
    let first = random.below(3);
    let padding = (encoder && first > 0 && random.below(2) == 0).then_some(1);
    tokens.positions = match random.below(3) {
        0 => Positions::None,
        1 => Positions::Learned { rows: 40 + first, first, padding },
        _ => Positions::Sinusoidal { layout, first },
    };
    tokens
}

fn random_relative(random: &mut Random, d_k: usize) -> RelativePositions {
    match random.below(6) {
        0 => RelativePositions::Alibi,
        1 => RelativePositions::Buckets { buckets: 8, max_distance: 10 },
        2 | 3 => {
            let width = 2 * (2 + random.below(d_k / 2 - 1));
            let mut rotary = Rotary::new(10_000.0, width.min(d_k / 2 * 2), 64);
            rotary.layout =
                pick(random, &[headrow::RopeLayout::HalfSplit, headrow::RopeLayout::Interleaved]);
            rotary.scaling = pick(
                random,
                &[
                    RotaryScaling::None,
                    RotaryScaling::Linear { factor: 2.5 },
                    RotaryScaling::Dynamic { factor: 2.0 },
                    RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32 },
                    RotaryScaling::Yarn {
                        factor: 4.0,
                        original: 16,
                        beta_fast: 32.0,
                        beta_slow: 1.0,
                        truncate: true,
                        attention_factor: 1.1,
                    },
                ],
            );
            RelativePositions::Rotary(rotary)
        }
        _ => RelativePositions::None,
    }
}

/// A drawn config with a decoder, whose stacks read up to `longest` tokens of `vocabulary` words.
pub(crate) fn reading_tokens(seed: u64, vocabulary: usize, longest: usize) -> Config {
    let mut random = Random(seed);
    let mut config = loop {
        let config = random_config(&mut random);
        if config.decoder.is_some() {
            break config;
        }
    };
    let d_model = config.d_model;
    for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
        if stack.input == Input::Vectors {
            stack.input = Input::Tokens(TokenInput::paper(vocabulary, d_model));
        }
        let Input::Tokens(tokens) = &mut stack.input else { continue };
        tokens.vocabulary = vocabulary;
        if let Positions::Learned { rows, first, .. } = &mut tokens.positions {
            *rows = longest + *first;
        }
        if let RelativePositions::Rotary(rotary) = &mut stack.relative {
            rotary.max_position = longest;
        }
    }
    config
}
