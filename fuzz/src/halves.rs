use crate::tiny::{Tiny, file};
use crate::values;
use arbitrary::{Result, Unstructured};
use headrow::train::{Parameters, Precision};
use headrow::{Chunk, Config, LoadOptions, Model, Output, Session, SessionOptions};
use serde_json::json;
use std::sync::{Arc, OnceLock};

/// Tokens of the vocabulary.
const V: usize = 11;

/// A type of 16 bits, by what IEEE 754 says of its kind.
#[derive(Clone, Copy, Debug)]
struct Form {
    name: &'static str,
    precision: Precision,
    /// Bits of the fraction.
    fraction: u32,
    /// The least exponent, that of numbers without a leading 1 too.
    least: i32,
    /// The pattern of +∞.
    infinity: u16,
}

const FORMS: [Form; 2] = [
    Form { name: "F16", precision: Precision::F16, fraction: 10, least: -14, infinity: 0x7c00 },
    Form { name: "BF16", precision: Precision::Bf16, fraction: 7, least: -126, infinity: 0x7f80 },
];

impl Form {
    /// What a pattern without its sign stands for, were the exponents without an end: of +∞ the number behind the largest.
    fn magnitude(self, pattern: u16) -> f64 {
        let exponent = i32::from(pattern >> self.fraction);
        let fraction = f64::from(pattern & ((1 << self.fraction) - 1));
        let one = f64::from(1u16 << self.fraction);
        let significand = if exponent == 0 { fraction } else { one + fraction };
        significand / one * f64::from(self.least + exponent.max(1) - 1).exp2()
    }

    fn value(self, bits: u16) -> f32 {
        let pattern = bits & 0x7fff;
        let magnitude = match pattern {
            p if p > self.infinity => f32::NAN,
            p if p == self.infinity => f32::INFINITY,
            p => self.magnitude(p) as f32,
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// The nearest number to `x`, of two the one with an even pattern.
    fn nearest(self, x: f32) -> f32 {
        if x.is_nan() {
            return x;
        }
        let size = f64::from(x.abs());
        // The largest pattern whose number is not above.
        let (mut low, mut high) = (0, self.infinity);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.magnitude(middle) <= size { low = middle } else { high = middle - 1 }
        }
        if low < self.infinity {
            let middle = self.magnitude(low) / 2.0 + self.magnitude(low + 1) / 2.0;
            low += u16::from(size > middle || (size == middle && low % 2 == 1));
        }
        self.value(low).copysign(x)
    }
}

/// The weights of a small model as 16-bit numbers of any patterns, and f32 numbers written as such: read, they are what the
/// patterns mean, written, what is nearest, and a model computes with them as with the same numbers in f32.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    let form = *u.choose(&FORMS)?;
    let cpu = values::cpu(u)?;
    let (config, whole) = model();
    let (mut halves, mut floats) = (whole.clone(), whole.clone());
    for (half, float) in halves.tensors.iter_mut().zip(&mut floats.tensors) {
        let count = half.data.len() / 4;
        half.dtype = form.name;
        half.data = Vec::with_capacity(2 * count);
        float.data.clear();
        for _ in 0..count {
            // Whatever the input is too short for is 0.
            let bits = u.arbitrary::<u16>().unwrap_or(0);
            half.data.extend(bits.to_le_bytes());
            float.data.extend(form.value(bits).to_le_bytes());
        }
    }
    let (halves_file, floats_file) = (file(&halves.tensors), file(&floats.tensors));
    let read = |bytes: &[u8]| Parameters::from_bytes(config, bytes).expect("a whole file");
    let (mut parameters, wide) = (read(&halves_file), read(&floats_file));
    same(parameters.values(), wide.values(), form);

    let compute = |file: &[u8]| logits(config, file, cpu.isa());
    same(&compute(&halves_file), &compute(&floats_file), form);

    // The patterns once more, as the upper or the lower half of an f32.
    let mut state = u32::from(u.arbitrary::<u16>().unwrap_or(0)) | 1;
    for x in parameters.values_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let rest = [0, 0x8000, 0x7fff, 0x8001, 0x1000, 0x0fff, 0x1001, state >> 16];
        *x = f32::from_bits(x.to_bits() & 0xffff_f000 ^ rest[(state >> 24) as usize % 8]);
    }
    let written = read(&parameters.to_safetensors(form.precision));
    let nearest: Vec<f32> = parameters.values().iter().map(|&x| form.nearest(x)).collect();
    same(written.values(), &nearest, form);
    let again = read(&written.to_safetensors(form.precision));
    same(again.values(), written.values(), form);
    Ok(())
}

/// A decoder of few numbers.
fn model() -> &'static (Config, Tiny) {
    static MODEL: OnceLock<(Config, Tiny)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let tiny = Tiny::of(
            json!({
                "model_type": "gpt2", "vocab_size": V, "n_embd": 4, "n_layer": 1, "n_head": 2,
                "n_inner": 6, "n_positions": 5,
            }),
            1,
        );
        (tiny.config().expect("a whole config"), tiny)
    })
}

fn logits(config: &Config, file: &[u8], isa: headrow::Isa) -> Vec<f32> {
    let options = LoadOptions::default().with_isa(isa);
    let model = Model::from_bytes_with(config, file, &options).expect("a whole file");
    let options = SessionOptions::default().with_threads(1).with_max_tokens(4);
    let mut session = Session::new(&Arc::new(model), &options).expect("room for 4 tokens");
    let sequence = session.add().expect("room for a sequence");
    let mut logits = vec![0.0; 4 * V];
    session
        .extend(&[Chunk::new(sequence, &[1, 0, 7, 10])], Output::AllLogits, &mut logits)
        .expect("4 tokens of the vocabulary");
    logits
}

#[track_caller]
fn same(actual: &[f32], expected: &[f32], form: Form) {
    assert_eq!(actual.len(), expected.len());
    for (at, (a, b)) in actual.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same, "{form:?}, number {at}: {a:e} instead of {b:e}");
    }
}
