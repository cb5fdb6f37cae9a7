//! Writes a small, seeded sentence encoder in Hugging Face layout: what `headrow embed` runs on a fresh
//! clone, and what tests use. It has learned nothing; sentences that share words come out similar
//! because they share random word vectors.
//!
//! ```text
//! cargo run --release --example seeded_model -- model/assets/seeded-bert
//! ```
//!
//! The numbers follow the paper's initialisation as this library has it: γ = 1, β = 0, biases 0,
//! Xavier-uniform weights, embeddings N(0, 1/d). They are the same on every machine.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::Path;

const SEED: u64 = 2017;
const D_MODEL: usize = 32;
const D_FF: usize = 64;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const POSITIONS: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: seeded_model FOLDER")?;
    write(Path::new(&folder))
}

/// Writes the folder. The same bytes each time.
pub(crate) fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder.join("1_Pooling"))?;
    let vocabulary = vocabulary();
    std::fs::write(folder.join("model.safetensors"), weights(vocabulary.len())?)?;
    let files: [(&str, Value); 5] = [
        ("config.json", config(vocabulary.len())),
        ("tokenizer.json", tokenizer(&vocabulary)),
        ("modules.json", modules()),
        ("sentence_bert_config.json", json!({"max_seq_length": POSITIONS, "do_lower_case": false})),
        ("1_Pooling/config.json", pooling()),
    ];
    for (name, value) in files {
        std::fs::write(folder.join(name), format!("{value:#}\n"))?;
    }
    Ok(())
}

fn modules() -> Value {
    let module = |index: usize, path: &str, kind: &str| {
        json!({
            "idx": index,
            "name": index.to_string(),
            "path": path,
            "type": format!("sentence_transformers.models.{kind}"),
        })
    };
    json!([
        module(0, "", "Transformer"),
        module(1, "1_Pooling", "Pooling"),
        module(2, "2_Normalize", "Normalize"),
    ])
}

fn pooling() -> Value {
    json!({
        "word_embedding_dimension": D_MODEL,
        "pooling_mode_cls_token": false,
        "pooling_mode_mean_tokens": true,
        "pooling_mode_max_tokens": false,
        "pooling_mode_mean_sqrt_len_tokens": false,
    })
}

/// Special tokens, every printable ASCII character alone and inside a word, common words and endings.
/// Any ASCII text can be spelled.
fn vocabulary() -> Vec<String> {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
    let alone = ('!'..='~').filter(|c| !c.is_ascii_uppercase()).map(String::from);
    let inside = ('0'..='9').chain('a'..='z').map(|c| format!("##{c}"));
    let endings = "s es ed ing er ers est ly al an ic ion ions tion ment ness able ful less ity \
                   ous ive th st nd rd on en in or ar le el te re"
        .split_whitespace()
        .map(|ending| format!("##{ending}"));
    let words = "the of and to a in is it you that he was for on are with as his they be at one \
                 have this from or had by hot but some what there we can out other were all your \
                 when up use word how said an each she which do their time if will way about many \
                 then them would write like so these her long make thing see him two has look more \
                 day could go come did my sound no most number who over know water than call first \
                 people may down side been now find any new work part take get place made live \
                 where after back little only round man year came show every good me give our \
                 under name very through just form much great think say help low line before turn \
                 cause same mean differ move right boy old too does tell sentence set three want \
                 air well also play small end put home read hand port large spell add even land \
                 here must big high such follow act why ask men change went light kind off need \
                 house picture try us again animal point mother world near build self earth father \
                 head stand own page should country found answer school grow study still learn \
                 plant cover food sun four thought let keep eye never last door between city tree \
                 cross since hard start might story saw far sea draw left late run while press \
                 close night real life few stop open seem together next white children begin got \
                 walk example ease paper often always music those both mark book letter until mile \
                 river car feet care second group carry took rain eat room friend began idea fish \
                 mountain north once base hear horse cut sure watch color face wood main attention \
                 heads query key value row rows column layer model token tokens vector matrix \
                 encoder decoder transformer language machine translation memory cache speed fast \
                 slow cat dog bird sits sat mat rug garden street coffee tea bread song piano \
                 guitar plays playing market price bank money doctor hospital train station summer \
                 winter snow storm weather bright dark cold warm not without into because against"
        .split_whitespace()
        .map(str::to_owned);
    let mut vocabulary = Vec::new();
    for token in special.into_iter().chain(alone).chain(inside).chain(endings).chain(words) {
        if !vocabulary.contains(&token) {
            vocabulary.push(token);
        }
    }
    vocabulary
}

fn config(vocab_size: usize) -> Value {
    json!({
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": D_MODEL,
        "intermediate_size": D_FF,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": vocab_size,
    })
}

fn tokenizer(vocabulary: &[String]) -> Value {
    let ids: Map<String, Value> =
        vocabulary.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let id = |token: &str| vocabulary.iter().position(|t| t == token);
    let special = |token: &str| json!({"id": token, "ids": [id(token)], "tokens": [token]});
    let piece = |kind: &str, id: &str, type_id: u32| json!({kind: {"id": id, "type_id": type_id}});
    let added: Vec<Value> = vocabulary[..5]
        .iter()
        .map(|token| {
            json!({
                "id": id(token), "content": token, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let (cls, sep) = ("[CLS]", "[SEP]");
    let single =
        [piece("SpecialToken", cls, 0), piece("Sequence", "A", 0), piece("SpecialToken", sep, 0)];
    let second = [piece("Sequence", "B", 1), piece("SpecialToken", sep, 1)];
    let pair = [&single[..], &second[..]].concat();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {cls: special(cls), sep: special(sep)},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    })
}

/// How a tensor starts out.
enum Init {
    Ones,
    Zeros,
    /// U(−√(6/(in+out)), √(6/(in+out))).
    Xavier,
    /// N(0, 1/d).
    Embedding,
}

fn weights(vocab_size: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    use Init::{Embedding, Ones, Xavier, Zeros};
    let mut shapes: Vec<(String, Vec<usize>, Init)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![vocab_size, D_MODEL], Embedding),
        ("embeddings.position_embeddings.weight".into(), vec![POSITIONS, D_MODEL], Embedding),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, D_MODEL], Embedding),
        ("embeddings.LayerNorm.weight".into(), vec![D_MODEL], Ones),
        ("embeddings.LayerNorm.bias".into(), vec![D_MODEL], Zeros),
    ];
    for layer in 0..LAYERS {
        let linear = [
            ("attention.self.query", D_MODEL, D_MODEL),
            ("attention.self.key", D_MODEL, D_MODEL),
            ("attention.self.value", D_MODEL, D_MODEL),
            ("attention.output.dense", D_MODEL, D_MODEL),
            ("intermediate.dense", D_FF, D_MODEL),
            ("output.dense", D_MODEL, D_FF),
        ];
        for (name, rows, cols) in linear {
            shapes.push((format!("encoder.layer.{layer}.{name}.weight"), vec![rows, cols], Xavier));
            shapes.push((format!("encoder.layer.{layer}.{name}.bias"), vec![rows], Zeros));
        }
        for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
            shapes.push((format!("encoder.layer.{layer}.{name}.weight"), vec![D_MODEL], Ones));
            shapes.push((format!("encoder.layer.{layer}.{name}.bias"), vec![D_MODEL], Zeros));
        }
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut tensors = Vec::new();
    for (name, shape, init) in shapes {
        let bytes: Vec<u8> = (0..shape.iter().product::<usize>())
            .flat_map(|_| value(&init, &shape, &mut rng).to_le_bytes())
            .collect();
        tensors.push((name, shape, bytes));
    }
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<_, safetensors::SafeTensorError>>();
    Ok(safetensors::serialize(views?, None)?)
}

fn value(init: &Init, shape: &[usize], rng: &mut Xoshiro256PlusPlus) -> f32 {
    match init {
        Init::Ones => 1.0,
        Init::Zeros => 0.0,
        Init::Xavier => {
            let bound = (6.0 / (shape[0] + shape[1]) as f64).sqrt();
            rng.random_range(-bound..bound) as f32
        }
        Init::Embedding => {
            // Box–Muller with libm, whose results do not depend on the platform.
            let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
            let normal = (-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v);
            (normal / (shape[1] as f64).sqrt()) as f32
        }
    }
}
