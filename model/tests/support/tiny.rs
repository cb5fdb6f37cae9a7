//! Small seeded checkpoints of every family, made in memory, and damaged at will.
#![allow(dead_code, reason = "each test target uses a part")]

#[path = "tiny_decoders.rs"]
mod decoders;
#[path = "tiny_encoders.rs"]
mod encoders;

use headrow::Config;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In −1 … 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A tensor as it will be written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

/// A folder in memory.
#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Tensor>,
}

/// Encoders of text.
pub(crate) const FAMILIES: [&str; 4] = ["bert", "roberta", "distilbert", "albert"];
/// Decoders alone.
pub(crate) const DECODERS: [&str; 6] = ["gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2"];
pub(crate) const D: usize = 24;
pub(crate) const D_FF: usize = 40;
pub(crate) const V: usize = 50;
pub(crate) const POSITIONS: usize = 34;
pub(crate) const LAYERS: usize = 2;

impl Tiny {
    /// A family's checkpoint of small sizes, with all of its heads: one of [`FAMILIES`], of [`DECODERS`], or `vit`.
    pub(crate) fn new(family: &str) -> Tiny {
        let config = encoders::config(family).or_else(|| decoders::config(family));
        Tiny::of(config.unwrap_or_else(|| panic!("no tiny {family}")), 7)
    }

    /// A checkpoint as the config has it, whose sizes must be written out; the numbers depend on the seed.
    pub(crate) fn of(config: Value, seed: u64) -> Tiny {
        let family = config["model_type"].as_str().expect("a family").to_owned();
        let mut tiny = Tiny { config, tensors: Vec::new() };
        let mut random = Random(seed);
        let made = encoders::fill(&mut tiny, &family, &mut random)
            || decoders::fill(&mut tiny, &family, &mut random);
        assert!(made, "no tiny {family}");
        tiny
    }

    /// A size in the config.
    fn size(&self, field: &str) -> usize {
        let size = self.config[field].as_u64();
        size.unwrap_or_else(|| panic!("{field} of {}", self.config)) as usize
    }

    /// A flag in the config, or what its absence means.
    fn flag(&self, field: &str, absent: bool) -> bool {
        self.config[field].as_bool().unwrap_or(absent)
    }

    /// `name.weight`, outputs first, and `name.bias`.
    pub(crate) fn linear(&mut self, name: &str, output: usize, input: usize, random: &mut Random) {
        self.floats(&format!("{name}.weight"), &[output, input], random);
        self.floats(&format!("{name}.bias"), &[output], random);
    }

    /// The same, with a bias or without.
    fn map(&mut self, name: &str, output: usize, input: usize, bias: bool, random: &mut Random) {
        match bias {
            true => self.linear(name, output, input, random),
            false => self.floats(&format!("{name}.weight"), &[output, input], random),
        }
    }

    fn norm(&mut self, name: &str, features: usize, random: &mut Random) {
        self.floats(&format!("{name}.weight"), &[features], random);
        self.floats(&format!("{name}.bias"), &[features], random);
    }

    /// Numbers that bf16 and f16 hold exactly, so that a checkpoint in either has the same values.
    pub(crate) fn floats(&mut self, name: &str, shape: &[usize], random: &mut Random) {
        let count = shape.iter().product();
        let values = (0..count).map(|_| (random.unit() * 128.0).round() / 256.0);
        let data = values.flat_map(f32::to_le_bytes).collect();
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Tensor { name, dtype: "F32", shape, data });
    }

    /// The same numbers in another type.
    pub(crate) fn stored_as(mut self, dtype: &'static str) -> Tiny {
        for tensor in &mut self.tensors {
            let values = tensor.data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            tensor.data = match dtype {
                "BF16" => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                "F16" => values.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
                _ => values.flat_map(f32::to_le_bytes).collect(),
            };
            tensor.dtype = dtype;
        }
        self
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect(name)
    }

    pub(crate) fn remove(&mut self, name: &str) -> Tensor {
        let at = self.tensors.iter().position(|tensor| tensor.name == name).expect(name);
        self.tensors.remove(at)
    }

    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Tiny {
        self.tensors.iter_mut().for_each(|tensor| tensor.name = rename(&tensor.name));
        self
    }

    pub(crate) fn set(mut self, field: &str, value: Value) -> Tiny {
        self.config[field] = value;
        self
    }

    pub(crate) fn config_json(&self) -> Vec<u8> {
        self.config.to_string().into_bytes()
    }

    pub(crate) fn config(&self) -> headrow::Result<Config> {
        Config::from_json(&self.config_json())
    }

    pub(crate) fn model(&self) -> headrow::Result<headrow::Model> {
        headrow::Model::from_bytes(&self.config()?, &file(&self.tensors))
    }

    /// Writes the folder.
    pub(crate) fn write(&self, folder: &Path) {
        std::fs::write(folder.join("config.json"), self.config_json()).unwrap();
        std::fs::write(folder.join("model.safetensors"), file(&self.tensors)).unwrap();
    }
}

/// A safetensors file.
pub(crate) fn file(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for Tensor { name, dtype, shape, data: bytes } in tensors {
        let begin = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file with a header of one's own.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Ragged sequences with ids that no family treats specially.
pub(crate) fn sequences(seed: u64, lengths: &[usize]) -> Vec<u32> {
    let mut random = Random(seed);
    (0..lengths.iter().sum()).map(|_| 3 + random.below(V - 3) as u32).collect()
}

/// A folder that is removed when it goes out of scope.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("headrow-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Words of the tokenizer, by id; the rest of the vocabulary are single letters.
const WORDS: [&str; 14] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "is", "eat", "##ing", "food", ".",
    "bread", "of",
];

/// A WordPiece tokenizer over [`V`] tokens in the form of BERT's, with a truncation and a padding that
/// readers must ignore.
pub(crate) fn tokenizer() -> Value {
    let letters = ('b'..='z').map(String::from).chain(('b'..='z').map(|c| format!("##{c}")));
    let words = WORDS.iter().map(|&word| word.to_owned()).chain(letters).take(V);
    let vocab: serde_json::Map<String, Value> =
        words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let special: Vec<Value> = WORDS[..5]
        .iter()
        .enumerate()
        .map(|(id, word)| {
            json!({"id": id, "content": word, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let token = |word: &str, kind: usize| json!({"SpecialToken": {"id": word, "type_id": kind}});
    let text = |name: &str, kind: usize| json!({"Sequence": {"id": name, "type_id": kind}});
    json!({
        "version": "1.0",
        "truncation": {"max_length": 5, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1),
                     token("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    })
}
