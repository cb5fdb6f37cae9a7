//! The gradient of the residual stream: under pre-norm ∂z_N/∂z₀ = I + Σ ∂f_ℓ/∂z₀, so some of it always passes by the layers.
//!
//! Rows of ∂z_N/∂z₀ come from passes back with unit vectors. What they are compared with are central differences, in f64,
//! of what each sublayer adds to the stream.

#[path = "support/general.rs"]
mod general;
#[path = "support/reference.rs"]
mod reference;
#[path = "support/tiny.rs"]
mod tiny;

use general::{General, random_config};
use headrow::train::{Network, NetworkOptions, Parameters, Vectors};
use headrow::{Config, Input, Mat, NormPlacement, RelativePositions};
use reference::{Reference, Rows};
use tiny::{Random, file};

/// The longest sequence.
const LONGEST: usize = 16;
/// Step of the differences, in f64.
const STEP: f64 = 1e-6;
/// Of the largest entry of what is compared.
const TOLERANCE: f64 = 2e-5;

/// One stack of vectors whose residual stream is added to and nothing else: the norms stand in the branches.
fn config(seed: u64) -> Config {
    let mut random = Random(seed);
    let mut config = loop {
        let config = random_config(&mut random);
        if config.stacks().count() == 1 && config.d_model <= 14 {
            break config;
        }
    };
    for stack in [&mut config.encoder, &mut config.decoder].into_iter().flatten() {
        stack.input = Input::Vectors;
        stack.final_norm = false;
        if stack.placement == NormPlacement::Post {
            stack.placement = NormPlacement::Pre;
        }
        if let RelativePositions::Rotary(rotary) = &mut stack.relative {
            rotary.max_position = LONGEST;
        }
    }
    config
}

/// A stack, its definition, and vectors that it reads.
struct Case {
    label: String,
    /// N.
    depth: usize,
    d_model: usize,
    parameters: Parameters,
    network: Network,
    reference: Reference,
    /// z₀, tokens × d_model.
    z: Vec<f32>,
}

impl Case {
    fn new(seed: u64) -> Case {
        let config = config(seed);
        let general = General::new(&config, seed);
        let options = NetworkOptions::default()
            .with_max_tokens(LONGEST)
            .with_max_length(LONGEST)
            .with_threads(1);
        let mut random = Random(seed + 500);
        let d_model = config.d_model;
        let tokens = 1 + random.below(4);
        Case {
            label: format!("seed {seed}: {config:?}"),
            depth: config.last_stack().unwrap().layers,
            d_model,
            parameters: Parameters::from_bytes(&config, &file(&general.tensors)).unwrap(),
            network: Network::new(&config, &options).unwrap(),
            reference: Reference::new(&general, LONGEST),
            z: (0..tokens * d_model).map(|_| random.unit()).collect(),
        }
    }

    /// cᵀ·∂z_N/∂z_ℓ for every ℓ from 0 to N, by one pass back from c.
    fn back(&mut self, c: &[f32]) -> Vec<Vec<f32>> {
        let (mut seen, mut stream) = (Vec::new(), Vec::new());
        let mut observe = |_, layer: usize, d: Mat<'_>| {
            seen.push(layer);
            stream.push((0..d.rows()).flat_map(|i| d.row(i).to_vec()).collect());
        };
        let mut gradients = vec![0.0; self.parameters.values().len()];
        let lengths = [self.z.len() / self.d_model];
        let given = Vectors::new(&self.z, &lengths);
        let (parameters, to) = (&self.parameters, &mut gradients);
        self.network
            .accumulate_states_observed(parameters, None, given, None, c, to, &mut observe)
            .unwrap();
        assert!(seen.iter().copied().eq((0..=self.depth).rev()));
        stream.reverse();
        assert_eq!(self.network.target_gradient(), stream[0]);
        // Nothing stands behind the last layer.
        assert_eq!(c, stream[self.depth]);
        stream
    }

    /// z₀ as the definition has it.
    fn entering(&self) -> Rows {
        let rows = self.z.chunks(self.d_model);
        rows.map(|row| row.iter().map(|&x| x.into()).collect()).collect()
    }

    /// ∂Δ/∂(entry `at` of z), by differences, for everything that the sublayers of some layers add when z enters the first of them.
    fn differences(&self, layers: std::ops::Range<usize>, z: &Rows, at: usize) -> Vec<Vec<f64>> {
        let moved = |by: f64| {
            let mut z = z.clone();
            z[at / self.d_model][at % self.d_model] += by;
            self.reference.layers(layers.clone(), z).1
        };
        let pairs = moved(STEP).into_iter().zip(moved(-STEP));
        let slopes = pairs.map(|(above, below)| {
            let entries = above.iter().flatten().zip(below.iter().flatten());
            entries.map(|(above, below)| (above - below) / (2.0 * STEP)).collect()
        });
        slopes.collect()
    }
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |max, x| max.max(x.abs()))
}

#[test]
fn the_gradient_of_a_pre_norm_stack_is_the_identity_and_what_its_sublayers_add() {
    for seed in 0..40 {
        let mut case = Case::new(seed);
        let n = case.z.len();
        let rows: Vec<Vec<f32>> = (0..n)
            .map(|row| {
                let mut unit = vec![0.0; n];
                unit[row] = 1.0;
                case.back(&unit).remove(0)
            })
            .collect();
        let z = case.entering();
        let unit = largest(rows.iter().flatten().map(|&x| x.into()));
        for column in 0..n {
            let added = case.differences(0..case.depth, &z, column);
            assert_eq!(added.len(), 2 * case.depth);
            for (row, entries) in rows.iter().enumerate() {
                let identity = f64::from(u8::from(row == column));
                let actual = f64::from(entries[column]) - identity;
                let expected: f64 = added.iter().map(|slopes| slopes[row]).sum();
                let error = (actual - expected).abs() / unit;
                let label = &case.label;
                assert!(error < TOLERANCE, "{label}: ({row}, {column}) {actual} {expected}");
            }
        }
    }
}

#[test]
fn each_layer_adds_to_the_gradient_what_comes_back_through_its_own_sublayers() {
    for seed in 0..40 {
        let mut case = Case::new(seed);
        let n = case.z.len();
        let mut random = Random(seed + 900);
        let c: Vec<f32> = (0..n).map(|_| random.unit()).collect();
        let stream = case.back(&c);
        let mut z = case.entering();
        for layer in 0..case.depth {
            let (before, behind) = (&stream[layer], &stream[layer + 1]);
            let unit = largest(before.iter().map(|&x| x.into()));
            for at in 0..n {
                let added = case.differences(layer..layer + 1, &z, at);
                let back = added.iter().map(|slopes| {
                    let terms = slopes.iter().zip(behind);
                    terms.map(|(slope, &g)| slope * f64::from(g)).sum::<f64>()
                });
                let expected: f64 = back.sum();
                let actual = f64::from(before[at]) - f64::from(behind[at]);
                let error = (actual - expected).abs() / unit;
                let label = &case.label;
                assert!(error < TOLERANCE, "{label}: layer {layer}, {at}: {actual} {expected}");
            }
            z = case.reference.layers(layer..layer + 1, z).0;
        }
    }
}
