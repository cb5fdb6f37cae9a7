//! Small valid checkpoints of every family, and ways to damage them.

use crate::general::{General, reading_tokens};
use crate::tiny::{DECODERS, FAMILIES, Tiny};
use crate::tiny_seq2seq::{KINDS, seq2seq};
use arbitrary::{Result, Unstructured};
use std::fmt::Write;
use std::sync::LazyLock;

/// Tokens, features, inner features, positions, labels.
const SIZES: [usize; 5] = [11, 4, 6, 7, 3];

/// Checkpoints of every family that reads words or spectrograms, and of this library's own form.
static FOLDERS: LazyLock<Vec<Checkpoint>> = LazyLock::new(|| {
    let alone = FAMILIES.into_iter().chain(DECODERS).map(Tiny::new);
    let all = alone.chain(KINDS.map(seq2seq));
    let own = (0..6).map(|seed| {
        let General { config, tensors } = General::new(&reading_tokens(seed, 11, 30), seed);
        let json = config.to_json().expect("its configs say everything");
        Tiny { config: serde_json::from_str(&json).expect("it is JSON"), tensors }
    });
    all.chain(own).map(Checkpoint::of).collect()
});

/// A tensor as the header will have it, in words so that they may be wrong.
#[derive(Clone)]
struct Entry {
    name: String,
    dtype: String,
    shape: Vec<String>,
    offsets: [String; 2],
}

/// A file and a config that fit each other, until they are damaged.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    entries: Vec<Entry>,
    data: Vec<u8>,
    /// Fields of config.json: name and JSON value.
    fields: Vec<(String, String)>,
}

/// The names of a linear map or a norm inside a layer, with the sizes (of [`SIZES`]) of output and input.
type Names = [(&'static str, usize, usize)];

const BERT_LAYER: [(&str, usize, usize); 6] = [
    ("attention.self.query", 1, 1),
    ("attention.self.key", 1, 1),
    ("attention.self.value", 1, 1),
    ("attention.output.dense", 1, 1),
    ("intermediate.dense", 2, 1),
    ("output.dense", 1, 2),
];
const BERT_NORMS: [&str; 2] = ["attention.output.LayerNorm", "output.LayerNorm"];
const DISTILBERT_LAYER: [(&str, usize, usize); 6] = [
    ("attention.q_lin", 1, 1),
    ("attention.k_lin", 1, 1),
    ("attention.v_lin", 1, 1),
    ("attention.out_lin", 1, 1),
    ("ffn.lin1", 2, 1),
    ("ffn.lin2", 1, 2),
];
const DISTILBERT_NORMS: [&str; 2] = ["sa_layer_norm", "output_layer_norm"];

impl Checkpoint {
    /// The same as a folder in memory.
    fn of(tiny: Tiny) -> Checkpoint {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for tensor in tiny.tensors {
            let first = data.len();
            data.extend(tensor.data);
            entries.push(Entry {
                name: tensor.name,
                dtype: tensor.dtype.to_owned(),
                shape: tensor.shape.iter().map(usize::to_string).collect(),
                offsets: [first.to_string(), data.len().to_string()],
            });
        }
        let fields = tiny.config.as_object().expect("a config");
        let fields = fields.iter().map(|(name, value)| (name.clone(), value.to_string()));
        Checkpoint { entries, data, fields: fields.collect() }
    }

    /// A checkpoint of some family; BERT and its kin the smallest, and with all their heads.
    pub(crate) fn draw(u: &mut Unstructured<'_>) -> Result<Checkpoint> {
        match u.ratio(1, 2)? {
            true => Checkpoint::draw_encoder(u),
            false => Ok(u.choose(&FOLDERS)?.clone()),
        }
    }

    /// A family, a head or none, one or two layers, a number type, seeded values.
    fn draw_encoder(u: &mut Unstructured<'_>) -> Result<Checkpoint> {
        let family = u.int_in_range(0..=2)?;
        let layers = u.int_in_range(1..=2)?;
        let head = u.int_in_range(0..=4)?;
        let (dtype, width) = *u.choose(&[("F32", 4), ("F16", 2), ("BF16", 2)])?;
        let [vocabulary, d, d_ff, positions, labels] = SIZES;

        let prefix = ["bert.", "roberta.", "distilbert."][family];
        let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
        let mut linear = |name: &str, output: usize, input: usize| {
            tensors.push((format!("{name}.weight"), vec![output, input]));
            tensors.push((format!("{name}.bias"), vec![output]));
        };
        let (names, norms, layer): (&Names, _, _) = match family {
            2 => (&DISTILBERT_LAYER, DISTILBERT_NORMS, "transformer.layer"),
            _ => (&BERT_LAYER, BERT_NORMS, "encoder.layer"),
        };
        for number in 0..layers {
            for &(name, output, input) in names {
                linear(&format!("{prefix}{layer}.{number}.{name}"), SIZES[output], SIZES[input]);
            }
        }
        match (family, head) {
            (_, 0) => {}
            (0, 1) => linear("bert.pooler.dense", d, d),
            (0, 2) => {
                linear("bert.pooler.dense", d, d);
                linear("classifier", labels, d);
                linear("cls.seq_relationship", 2, d);
            }
            (0, 3) => linear("cls.predictions.transform.dense", d, d),
            (1, 1 | 2) => {
                linear("classifier.dense", d, d);
                linear("classifier.out_proj", labels, d);
            }
            (1, 3) => linear("lm_head.dense", d, d),
            (2, 1 | 2) => {
                linear("pre_classifier", d, d);
                linear("classifier", labels, d);
            }
            (2, 3) => linear("vocab_transform", d, d),
            _ => linear("classifier", labels, d),
        }
        let mut norm = |name: &str| {
            tensors.push((format!("{name}.weight"), vec![d]));
            tensors.push((format!("{name}.bias"), vec![d]));
        };
        norm(&format!("{prefix}embeddings.LayerNorm"));
        for number in 0..layers {
            norms.iter().for_each(|name| norm(&format!("{prefix}{layer}.{number}.{name}")));
        }
        if head == 3 {
            let names = [
                ("cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
                ("lm_head.layer_norm", "lm_head.bias"),
                ("vocab_layer_norm", "vocab_projector.bias"),
            ];
            norm(names[family].0);
            tensors.push((names[family].1.to_owned(), vec![vocabulary]));
        }
        let mut table = |name: &str, rows: usize| {
            tensors.push((format!("{prefix}embeddings.{name}.weight"), vec![rows, d]));
        };
        table("word_embeddings", vocabulary);
        table("position_embeddings", positions);
        if family != 2 {
            table("token_type_embeddings", 2);
        }

        let (mut entries, mut data) = (Vec::new(), Vec::new());
        let mut state = 1u32;
        for (name, shape) in tensors {
            let first = data.len();
            for _ in 0..shape.iter().product::<usize>() {
                // A few bits around 1 in each type: sign and mantissa of a fixed sequence.
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let value = (state >> 24) as f32 / 128.0 - 1.0;
                let bits = match dtype {
                    "F32" => value.to_bits(),
                    "BF16" => value.to_bits() >> 16,
                    _ => 0x3800 | state >> 30 << 15 | state >> 20 & 0x3ff,
                };
                data.extend_from_slice(&bits.to_le_bytes()[..width]);
            }
            let shape = shape.iter().map(usize::to_string).collect();
            let offsets = [first.to_string(), data.len().to_string()];
            entries.push(Entry { name, dtype: dtype.to_owned(), shape, offsets });
        }

        let words: [&str; 6] = match family {
            2 => [
                "vocab_size",
                "max_position_embeddings",
                "dim",
                "n_layers",
                "n_heads",
                "hidden_dim",
            ],
            _ => [
                "vocab_size",
                "max_position_embeddings",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            ],
        };
        let kind = ["bert", "roberta", "distilbert"][family];
        let mut fields = vec![("model_type".to_owned(), format!("{kind:?}"))];
        let sizes = [vocabulary, positions, d, layers, 2, d_ff];
        fields.extend(
            words.iter().zip(sizes).map(|(word, size)| ((*word).to_owned(), size.to_string())),
        );
        if family != 2 {
            let word = *u.choose(&["gelu", "gelu_new", "quick_gelu", "relu", "silu"])?;
            fields.push(("hidden_act".to_owned(), format!("{word:?}")));
            fields.push(("layer_norm_eps".to_owned(), "1e-5".to_owned()));
        }
        Ok(Checkpoint { entries, data, fields })
    }

    /// Changes one thing in the header or the config.
    pub(crate) fn damage(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if u.ratio(1, 3)? {
            let value = hostile(u)?;
            if self.fields.is_empty() || u.ratio(1, 8)? {
                let names = [
                    "id2label",
                    "architectures",
                    "tie_word_embeddings",
                    "pad_token_id",
                    "is_decoder",
                ];
                self.fields.push(((*u.choose(&names)?).to_owned(), value));
            } else {
                let at = u.choose_index(self.fields.len())?;
                match u.int_in_range(0..=3)? {
                    0 => drop(self.fields.remove(at)),
                    _ => self.fields[at].1 = value,
                }
            }
            return Ok(());
        }
        if self.entries.is_empty() {
            return Ok(());
        }
        let at = u.choose_index(self.entries.len())?;
        let other = u.choose_index(self.entries.len())?;
        match u.int_in_range(0..=8)? {
            0 => self.entries[at].dtype = (*u.choose(&DTYPES)?).to_owned(),
            1 => {
                let value = hostile(u)?;
                match self.entries[at].shape.first_mut() {
                    Some(size) => *size = value,
                    None => self.entries[at].shape.push(value),
                }
            }
            2 => self.entries[at].shape.push(hostile(u)?),
            3 => drop(self.entries[at].shape.pop()),
            4 => {
                let which = usize::from(u.arbitrary::<bool>()?);
                self.entries[at].offsets[which] = hostile(u)?;
            }
            5 => self.entries[at].offsets = self.entries[other].offsets.clone(),
            6 => {
                let name = u.choose(&NAMES)?;
                self.entries[at].name = (*name).to_owned();
            }
            7 => {
                let copy = self.entries[other].clone();
                self.entries[at] = copy;
            }
            _ => drop(self.entries.remove(at)),
        }
        Ok(())
    }

    /// The bytes of the safetensors file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
        for Entry { name, dtype, shape, offsets: [first, end] } in &self.entries {
            let shape = shape.join(",");
            let _ = write!(
                header,
                ",{name:?}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{first},{end}]}}"
            );
        }
        header.push('}');
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(&self.data);
        file
    }

    /// The text of config.json.
    pub(crate) fn config(&self) -> Vec<u8> {
        let fields: Vec<String> =
            self.fields.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    }
}

const DTYPES: [&str; 12] =
    ["F32", "F16", "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E5M2", "F4", "C64", "nonsense"];

const NAMES: [&str; 8] = [
    "",
    "bert.bert.",
    "encoder.layer.1",
    "bert.encoder.layer.18446744073709551615.output.dense.bias",
    "encoder.layer.999999999999999999999999999.output.dense.bias",
    "embeddings.position_ids",
    "bert.embeddings.LayerNorm.gamma",
    "qa_outputs.weight",
];

/// A JSON value that is hardly what is expected.
pub(crate) fn hostile(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=15)? {
        0 => "0".to_owned(),
        1 => "-1".to_owned(),
        2 => "1e300".to_owned(),
        3 => "null".to_owned(),
        4 => "true".to_owned(),
        5 => "\"\\u0000\"".to_owned(),
        6 => "[[[[]]]]".to_owned(),
        7 => "{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}".to_owned(),
        8 => u64::MAX.to_string(),
        9 => (1u64 << u.int_in_range(0..=63)?).to_string(),
        10 => "18446744073709551616".to_owned(),
        11 => "0.5".to_owned(),
        _ => u.int_in_range(0..=20)?.to_string(),
    })
}

/// Cuts, lengthens or overwrites, mostly near the start, where the lengths and names are.
pub(crate) fn damage_bytes(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    let most = if u.arbitrary()? { bytes.len() } else { bytes.len().min(16) };
    let at = u.int_in_range(0..=most)?;
    match u.int_in_range(0..=4)? {
        0 => bytes.truncate(at),
        1 => bytes.extend_from_slice(&[0; 3][..u.int_in_range(1..=3)?]),
        2 if at < bytes.len() => drop(bytes.remove(at)),
        3 if bytes.len() >= 8 => bytes[..8].copy_from_slice(&u.arbitrary::<u64>()?.to_le_bytes()),
        _ if at < bytes.len() => bytes[at] = u.arbitrary()?,
        _ => {}
    }
    Ok(())
}
