//! What comes from outside and is wrong: a table of attempts, each of which must end in the right kind of error, in a line that
//! names the place, in bounded time, and in memory proportional to what was given.
#![cfg(feature = "tokenizers")]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/tiny.rs"]
mod tiny;

use counting::counted;
use headrow::generate::{Beam, GenerationOptions, Sampling};
use headrow::{
    Batch, Chunk, Error, Head, Isa, LoadOptions, Model, Output, Result, SentenceEncoder,
    SentenceOptions, Session, SessionOptions, TextModel, Tokenizer, TooLong,
};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tiny::{D, Folder, Random, Tiny, V, file, tokenizer, with_header};

/// Bytes that a refused attempt may take for each byte it was given, and beside them.
const ALLOWED: (usize, usize) = (64, 4 << 20);
/// Bytes of memory that a text at the limit may take for each of its bytes.
const PER_BYTE: usize = 270;

/// An attempt that takes longer hangs. It is no measure of speed: the longest take seconds, in slow builds and under load too.
const PATIENCE: Duration = Duration::from_secs(120);
/// Instead of an error's variant: what must be taken, or may be either way, as long as nothing panics.
const FINE: &str = "Ok";

/// A text of 50 MB, made before memory is counted.
static LONG: LazyLock<String> = LazyLock::new(|| "a man is eating ".repeat(50 << 16));

/// An attempt in an empty folder.
type Attempt = fn(&Path) -> Result<()>;

/// A name, the error's variant, a word of its message, and what is tried.
type Row = (&'static str, &'static str, &'static str, Attempt);

fn put(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), bytes).unwrap();
}

fn whole_tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(tokenizer().to_string().as_bytes()).unwrap()
}

/// Loads a BERT for sentences.
fn sentences(folder: &Path, options: &SentenceOptions) -> Result<SentenceEncoder> {
    Tiny::new("bert").write(folder);
    put(folder, "tokenizer.json", tokenizer().to_string());
    SentenceEncoder::from_dir_with(folder, options)
}

/// Loads a BERT whose weights are these bytes.
fn weights(folder: &Path, bytes: &[u8]) -> Result<()> {
    Tiny::new("bert").write(folder);
    put(folder, "model.safetensors", bytes);
    Model::from_dir(folder).map(drop)
}

/// Loads a BERT in two files, the second half of the tensors in the other, with an index that was changed.
fn shards(folder: &Path, change: fn(&Path, &mut Map<String, Value>)) -> Result<()> {
    let tiny = Tiny::new("bert");
    let half = tiny.tensors.len() / 2;
    put(folder, "config.json", tiny.config_json());
    put(folder, "a.safetensors", file(&tiny.tensors[..half]));
    put(folder, "b.safetensors", file(&tiny.tensors[half..]));
    let place = |at: usize| json!(if at < half { "a.safetensors" } else { "b.safetensors" });
    let names = tiny.tensors.iter().enumerate();
    let mut map = names.map(|(at, tensor)| (tensor.name.clone(), place(at))).collect();
    change(folder, &mut map);
    put(folder, "model.safetensors.index.json", json!({"weight_map": map}).to_string());
    Model::from_dir(folder).map(drop)
}

/// The last of many errors, which are of one kind; none when one of the attempts met no error.
fn all_refused(attempts: impl Iterator<Item = Result<()>>) -> Result<()> {
    let errors: Option<Vec<Error>> = attempts.map(Result::err).collect();
    let mut errors = errors.unwrap_or_default();
    for pair in errors.windows(2) {
        assert_eq!(variant(&pair[0]), variant(&pair[1]), "{} and {}", pair[0], pair[1]);
    }
    errors.pop().map_or(Ok(()), Err)
}

/// Any end will do that is no panic and says no more than a line.
fn ends<T>(result: Result<T>) {
    let message = result.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(!message.contains('\n') && message.len() <= 4000, "{message:?}");
}

/// The parts of a BERT, and where the data of its file begins.
fn parts() -> (Tiny, Vec<u8>, usize) {
    let tiny = Tiny::new("bert");
    let bytes = file(&tiny.tensors);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (tiny, bytes, 8 + header)
}

/// Loads a BERT again and again with one bit of its file flipped: this one of each of these bytes.
fn flipped(
    bytes: impl Fn(usize) -> std::ops::Range<usize>,
    bits: std::ops::Range<u32>,
) -> Result<()> {
    let (tiny, file, data) = parts();
    let config = tiny.config()?;
    let places = bytes(data).flat_map(|at| bits.clone().map(move |bit| (at, bit)));
    all_refused(places.map(|(at, bit)| {
        let mut file = file.clone();
        file[at] ^= 1 << bit;
        Model::from_bytes(&config, &file).map(drop)
    }))
}

/// A file of two tensors of two numbers each, at these places.
fn placed(folder: &Path, first: [u64; 2], second: [u64; 2]) -> Result<()> {
    let header = format!(
        r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first:?}}},
            "b":{{"dtype":"F32","shape":[2],"data_offsets":{second:?}}}}}"#
    );
    let end = second[1].max(first[1]) as usize;
    weights(folder, &with_header(&header, &vec![0; end]))
}

/// Reads a config of a family with one field changed.
fn config(family: &str, field: &str, value: Value) -> Result<()> {
    Tiny::new(family).set(field, value).config().map(drop)
}

fn tokenizer_with(change: fn(&mut Value)) -> Result<()> {
    let mut json = tokenizer();
    change(&mut json);
    Tokenizer::from_bytes(json.to_string().as_bytes()).map(drop)
}

fn session_of(family: &str, options: &SessionOptions) -> Result<Session> {
    Session::new(&Arc::new(Tiny::new(family).model().unwrap()), options)
}

fn session(family: &str) -> Session {
    let options = SessionOptions::default()
        .with_max_sequences(2)
        .with_max_tokens(16)
        .with_max_length(20)
        .with_cache_tokens(128)
        .with_threads(1);
    session_of(family, &options).unwrap()
}

/// Encodes ids of sequences of these lengths with a session for 16 tokens in 2 sequences.
fn encode(ids: &[u32], lengths: &[usize]) -> Result<()> {
    let mut hidden = vec![0.0; ids.len() * D];
    session("bert").encode(&Batch::ragged(ids, lengths), &mut hidden)
}

/// Extends a new sequence of a decoder by these ids.
fn extend(ids: &[u32]) -> Result<()> {
    let mut session = session("gpt2");
    let sequence = session.add()?;
    session.extend(&[Chunk::new(sequence, ids)], Output::None, &mut [])
}

fn generate(prompt: &[u32], options: &GenerationOptions) -> Result<()> {
    session("gpt2").generate(&[prompt], options, &mut ()).map(drop)
}

const FILES: &[Row] = &[
    ("no folder", "Io", "nowhere", |folder| Model::from_dir(folder.join("nowhere")).map(drop)),
    ("an empty folder", "Io", "config.json", |folder| Model::from_dir(folder).map(drop)),
    ("a file instead of the folder", "Io", "x", |folder| {
        put(folder, "x", "x");
        Model::from_dir(folder.join("x")).map(drop)
    }),
    ("a folder instead of config.json", "File", "regular", |folder| {
        std::fs::create_dir(folder.join("config.json")).unwrap();
        Model::from_dir(folder).map(drop)
    }),
    ("a folder instead of the weights", "File", "regular", |folder| {
        put(folder, "config.json", Tiny::new("bert").config_json());
        std::fs::create_dir(folder.join("model.safetensors")).unwrap();
        Model::from_dir(folder).map(drop)
    }),
    ("no weights", "Io", "model.safetensors", |folder| {
        put(folder, "config.json", Tiny::new("bert").config_json());
        Model::from_dir(folder).map(drop)
    }),
    ("a config of 40 MB", "File", "config.json", |folder| {
        put(folder, "config.json", vec![b' '; 40 << 20]);
        Model::from_dir(folder).map(drop)
    }),
    ("weights of no bytes", "File", "model.safetensors", |folder| weights(folder, &[])),
    ("seven bytes", "File", "model.safetensors", |folder| weights(folder, &[0; 7])),
    ("a header of 2^63 bytes", "File", "header", |folder| {
        weights(folder, &(1u64 << 63).to_le_bytes())
    }),
    ("a header of 2^64 - 1 bytes", "File", "header", |folder| weights(folder, &[0xff; 8])),
    ("a header that is longer than the file", "File", "header", |folder| {
        weights(folder, &[&900u64.to_le_bytes()[..], b"{}"].concat())
    }),
    ("a header that is no text", "File", "not a whole safetensors file", |folder| {
        weights(folder, &[&3u64.to_le_bytes()[..], &[0xff, 0xfe, 0xfd]].concat())
    }),
    ("a header that nests deeply", "File", "not a whole safetensors file", |folder| {
        weights(folder, &with_header(&"[".repeat(1 << 20), &[]))
    }),
    ("tensors that overlap", "File", "safetensors", |folder| placed(folder, [0, 8], [4, 12])),
    ("two tensors in one place", "File", "safetensors", |folder| placed(folder, [0, 8], [0, 8])),
    ("a gap between tensors", "File", "safetensors", |folder| placed(folder, [0, 8], [12, 20])),
    ("a bit of the header's length flipped, each in turn", "File", "safetensors", |_| {
        flipped(|_| 0..8, 0..8)
    }),
    ("the top bit of the header's letters flipped, each in turn", "File", "safetensors", |_| {
        flipped(|data| 8..data, 7..8)
    }),
    ("bits of the header flipped at random", FINE, "", |_| {
        let (tiny, bytes, data) = parts();
        let (config, mut random) = (tiny.config()?, Random(2));
        for _ in 0..3000 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.below(3) {
                bytes[random.below(data)] ^= 1 << random.below(8);
            }
            ends(Model::from_bytes(&config, &bytes));
        }
        Ok(())
    }),
    ("half the data", "File", "model.safetensors", |folder| {
        let bytes = file(&Tiny::new("bert").tensors);
        weights(folder, &bytes[..bytes.len() / 2])
    }),
    ("a byte too many", "File", "model.safetensors", |folder| {
        weights(folder, &[&file(&Tiny::new("bert").tensors)[..], &[0]].concat())
    }),
    ("integers for weights", "Weights", "type I64", |folder| {
        let mut tiny = Tiny::new("bert");
        let norm = tiny.tensor("bert.embeddings.LayerNorm.weight");
        (norm.dtype, norm.data) = ("I64", vec![0; 8 * D]);
        weights(folder, &file(&tiny.tensors))
    }),
    ("a tensor on its side", "Weights", "shape", |folder| {
        let mut tiny = Tiny::new("bert");
        tiny.tensor("bert.encoder.layer.0.intermediate.dense.weight").shape.reverse();
        weights(folder, &file(&tiny.tensors))
    }),
    ("a tensor too few", "Weights", "missing", |folder| {
        weights(folder, &file(&Tiny::new("bert").tensors[1..]))
    }),
    ("a tensor of another model", "Weights", "unexpected", |folder| {
        let mut tiny = Tiny::new("bert");
        tiny.tensors[0].name = "bert.encoder.layer.0.adapter.weight".to_owned();
        weights(folder, &file(&tiny.tensors))
    }),
    ("an instruction set of another machine", "Isa", "not available", |_| {
        let other = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
        let tiny = Tiny::new("bert");
        let options = LoadOptions::default().with_isa(other);
        Model::from_bytes_with(&tiny.config()?, &file(&tiny.tensors), &options).map(drop)
    }),
];

#[cfg(unix)]
const NO_FILES: &[Row] = &[
    ("a pipe instead of config.json", "File", "not a regular file", |folder| {
        pipe(folder, "config.json");
        Model::from_dir(folder).map(drop)
    }),
    ("a pipe instead of the weights", "File", "not a regular file", |folder| {
        put(folder, "config.json", Tiny::new("bert").config_json());
        pipe(folder, "model.safetensors");
        Model::from_dir(folder).map(drop)
    }),
    ("a pipe instead of a shard", "File", "not a regular file", |folder| {
        shards(folder, |folder, _| {
            std::fs::remove_file(folder.join("b.safetensors")).unwrap();
            pipe(folder, "b.safetensors");
        })
    }),
    ("a pipe instead of the tokenizer", "File", "not a regular file", |folder| {
        pipe(folder, "tokenizer.json");
        Tokenizer::from_file(folder.join("tokenizer.json")).map(drop)
    }),
    ("a device that never ends", "File", "not a regular file", |folder| {
        std::os::unix::fs::symlink("/dev/zero", folder.join("config.json")).unwrap();
        Model::from_dir(folder).map(drop)
    }),
];

/// Nobody writes to it, so whoever reads it waits. Without the command: the device of zeros.
#[cfg(unix)]
fn pipe(folder: &Path, name: &str) {
    let path = folder.join(name);
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    }
}

const SHARDS: &[Row] = &[
    ("a shard that is not there", "Io", "b.safetensors", |folder| {
        shards(folder, |folder, _| std::fs::remove_file(folder.join("b.safetensors")).unwrap())
    }),
    ("a shard outside the folder", "Config", "not a file name", |folder| {
        shards(folder, |_, map| {
            map.insert("bert.pooler.dense.bias".to_owned(), json!("../b.safetensors"));
        })
    }),
    ("a shard at an absolute path", "Config", "not a file name", |folder| {
        shards(folder, |_, map| {
            map.insert("bert.pooler.dense.bias".to_owned(), json!("/dev/zero"));
        })
    }),
    ("a shard without a name", "Config", "not a file name", |folder| {
        shards(folder, |_, map| {
            map.insert("bert.pooler.dense.bias".to_owned(), json!(""));
        })
    }),
    ("a shard by number", "Config", "not a file name", |folder| {
        shards(folder, |_, map| {
            map.insert("bert.pooler.dense.bias".to_owned(), json!(7));
        })
    }),
    ("the same tensor in two shards", "File", "safetensors", |folder| {
        shards(folder, |folder, _| put(folder, "b.safetensors", file(&Tiny::new("bert").tensors)))
    }),
    ("an index of nothing", "Weights", "missing", |folder| shards(folder, |_, map| map.clear())),
    ("an index that is no JSON", "File", "index", |folder| {
        put(folder, "config.json", Tiny::new("bert").config_json());
        put(folder, "model.safetensors.index.json", "{");
        Model::from_dir(folder).map(drop)
    }),
];

const CONFIGS: &[Row] = &[
    ("no JSON", "File", "config", |_| headrow::Config::from_json(b"{").map(drop)),
    ("a list", "File", "config", |_| headrow::Config::from_json(b"[1]").map(drop)),
    ("no text", "File", "config", |_| headrow::Config::from_json(&[0xff, 0xfe]).map(drop)),
    ("bits flipped at random", FINE, "", |_| {
        let (tiny, file, _) = parts();
        let (text, mut random) = (tiny.config_json(), Random(3));
        for _ in 0..3000 {
            let mut text = text.clone();
            let at = random.below(text.len());
            text[at] ^= 1 << random.below(8);
            ends(
                headrow::Config::from_json(&text)
                    .and_then(|config| Model::from_bytes(&config, &file)),
            );
        }
        Ok(())
    }),
    ("a family that is none", "Unsupported", "gpt9", |_| {
        config("bert", "model_type", json!("gpt9"))
    }),
    ("no features", "Config", "hidden_size", |_| config("bert", "hidden_size", json!(0))),
    ("2^63 features", "Config", "hidden_size", |_| {
        config("bert", "hidden_size", json!(1u64 << 63))
    }),
    ("2^40 words", "Config", "vocab_size", |_| {
        Tiny::new("bert").set("vocab_size", json!(1u64 << 40)).model().map(drop)
    }),
    ("2^31 layers", "Weights", "layers", |_| {
        Tiny::new("bert").set("num_hidden_layers", json!(1u64 << 31)).model().map(drop)
    }),
    ("heads that do not divide the features", "Config", "num_attention_heads", |_| {
        config("bert", "num_attention_heads", json!(7))
    }),
    ("an activation that is none", "Unsupported", "hidden_act", |_| {
        config("bert", "hidden_act", json!("gelu_fast"))
    }),
    ("ε = 0", "Config", "layer_norm_eps", |_| config("bert", "layer_norm_eps", json!(0))),
    ("a rotary scaling that is none", "Unsupported", "rope", |_| {
        config("llama", "rope_scaling", json!({"rope_type": "fractal", "factor": 2.0}))
    }),
    ("quantised weights", "Unsupported", "quantization_config", |_| {
        config("llama", "quantization_config", json!({"bits": 4}))
    }),
    ("a window of no tokens", "Config", "sliding_window", |_| {
        config("mistral", "sliding_window", json!(0))
    }),
    ("generation options that are a list", "File", "options", |_| {
        GenerationOptions::from_json("options", b"[]").map(drop)
    }),
    ("a generation option that is not known", "Unsupported", "sorcery", |_| {
        GenerationOptions::from_json("options", br#"{"sorcery": 3}"#).map(drop)
    }),
    ("beams by a fraction", "Config", "num_beams", |_| {
        GenerationOptions::from_json("options", br#"{"num_beams": 1.5}"#).map(drop)
    }),
];

const TEXTS: &[Row] = &[
    ("no tokenizer.json", "File", "tokenizer.json", |folder| {
        Tiny::new("gpt2").write(folder);
        TextModel::from_dir(folder).map(drop)
    }),
    ("a tokenizer that is no JSON", "Tokenizer", "tokenizer", |_| {
        Tokenizer::from_bytes(b"{").map(drop)
    }),
    ("a tokenizer that is no text", "Tokenizer", "tokenizer", |_| {
        Tokenizer::from_bytes(&[0xff; 9]).map(drop)
    }),
    ("a tokenizer without a model", "Tokenizer", "tokenizer", |_| {
        tokenizer_with(|json| json["model"] = Value::Null)
    }),
    ("a model of tokens that is none", "Tokenizer", "tokenizer", |_| {
        tokenizer_with(|json| json["model"]["type"] = json!("Oracle"))
    }),
    ("a template with tokens that it does not define", "Tokenizer", "[CLS]", |_| {
        tokenizer_with(|json| json["post_processor"]["special_tokens"] = json!({}))
    }),
    ("a vocabulary of negative ids", "Tokenizer", "tokenizer", |_| {
        tokenizer_with(|json| json["model"]["vocab"]["a"] = json!(-4))
    }),
    ("a list of tokens that is not UTF-8", "File", "not UTF-8", |folder| {
        put(folder, "vocabulary.txt", b"<unk>\nth\xe9\n");
        Tokenizer::from_vocabulary(folder.join("vocabulary.txt")).map(drop)
    }),
    #[cfg(feature = "train")]
    ("a line of training data that is not UTF-8", "File", "line 2: not UTF-8", |folder| {
        use headrow::train::{BadLines, Corpus, DataOptions};
        put(folder, "data.tsv", b"a\tB\ncaf\xe9\tX\n");
        let strict = DataOptions::default().with_bad_lines(BadLines::Refuse);
        Corpus::read(&[folder.join("data.tsv")], &strict).map(drop)
    }),
    ("no texts", FINE, "", |folder| {
        let none: [&str; 0] = [];
        sentences(folder, &SentenceOptions::default())?.embed(none).map(drop)
    }),
    ("a text of 50 MB", "TextTooLarge", "52428800 bytes", |_| {
        whole_tokenizer().encode(&*LONG, Some(9)).map(drop)
    }),
    ("a text of 50 MB without special tokens", "TextTooLarge", "limit", |_| {
        whole_tokenizer().encode_plain(&LONG).map(drop)
    }),
    ("a text of 50 MB with its offsets", "TextTooLarge", "limit", |_| {
        whole_tokenizer().encode_with_offsets(&*LONG, None).map(drop)
    }),
    ("a pair with a text of 50 MB", "TextTooLarge", "limit is 1048576", |_| {
        whole_tokenizer().encode(("a", LONG.as_str()), None).map(drop)
    }),
    ("a sentence of 50 MB", "TextTooLarge", "text 1: ", |folder| {
        let encoder = sentences(folder, &SentenceOptions::default())?;
        encoder.embed(["a man", LONG.as_str()]).map(drop)
    }),
    (
        "a sentence above the encoder's own limit",
        "TextTooLarge",
        "7 bytes, the limit is 6",
        |folder| {
            let options = SentenceOptions::default().with_max_text_bytes(6);
            sentences(folder, &options)?.embed(["abcdefg"]).map(drop)
        },
    ),
    ("a sentence of too many tokens", "TextTooLong", "limit", |folder| {
        let options = SentenceOptions::default().with_too_long(TooLong::Error);
        sentences(folder, &options)?.embed(["a man is eating ".repeat(99).as_str()]).map(drop)
    }),
    ("a prompt of 50 MB", "TextTooLarge", "limit", |_| {
        let model = TextModel::new(Arc::new(Tiny::new("gpt2").model()?), whole_tokenizer());
        model.tokenize(&*LONG).map(drop)
    }),
    ("a prompt above the model's own limit", "TextTooLarge", "limit is 2", |_| {
        let model = TextModel::new(Arc::new(Tiny::new("gpt2").model()?), whole_tokenizer());
        model.with_max_text_bytes(2).tokenize("abc").map(drop)
    }),
    ("ids of words that the model lacks", "TokenId", "id 50", |_| encode(&[1, V as u32], &[2])),
];

const CALLS: &[Row] = &[
    ("no sequences", FINE, "", |_| encode(&[], &[])),
    ("no sequences, and ids of some", "Lengths", "add up", |_| encode(&[1], &[])),
    ("nothing to extend", FINE, "", |_| session("gpt2").extend(&[], Output::None, &mut [])),
    ("no prompts", FINE, "", |_| {
        let options = GenerationOptions::default();
        session("gpt2").generate(&[], &options, &mut ()).map(drop)
    }),
    ("a sequence without tokens", "EmptySequence", "no tokens", |_| encode(&[1], &[1, 0])),
    ("lengths that do not add up", "Lengths", "add up", |_| encode(&[1, 2, 3], &[1, 1])),
    ("lengths that overflow", "Lengths", "add up", |_| encode(&[1], &[usize::MAX, 2])),
    ("an id of 2^32 - 1", "TokenId", "4294967295", |_| encode(&[u32::MAX], &[1])),
    ("more tokens than the session has room for", "BatchTooLarge", "tokens", |_| {
        encode(&[1; 17], &[9, 8])
    }),
    ("more sequences than the session has room for", "BatchTooLarge", "sequences", |_| {
        encode(&[1; 3], &[1, 1, 1])
    }),
    ("a sequence beyond the positions", "SequenceTooLong", "limit", |_| {
        let mut session = session_of("bert", &SessionOptions::default().with_max_tokens(64))?;
        session.encode(&Batch::one(&[1; 40]), &mut [0.0; 40 * D])
    }),
    ("a token type beyond the table", "TokenType", "type 9", |_| {
        let batch = Batch::one(&[1]).with_token_types(&[9]);
        session("bert").encode(&batch, &mut [0.0; D])
    }),
    ("token types for other ids", "Lengths", "token types", |_| {
        let batch = Batch::one(&[1, 2]).with_token_types(&[0]);
        session("bert").encode(&batch, &mut [0.0; 2 * D])
    }),
    ("a buffer that is too short", "Buffer", "buffer", |_| {
        session("bert").encode(&Batch::one(&[1, 2]), &mut [0.0; D])
    }),
    ("a head of another model", "NoStack", "encoder", |_| {
        session("gpt2").predict(&Batch::one(&[1]), Head::MaskedLm, &mut [])
    }),
    ("vectors for a model of words", "WrongInput", "not", |_| {
        session("bert").encode(&Batch::vectors(&[0.0; D], &[1]), &mut [0.0; D])
    }),
    ("images for a model of words", "WrongInput", "not", |_| {
        session("bert").encode(&Batch::images(&[0.0; 12], 1), &mut [0.0; D])
    }),
    ("no encoder", "NoStack", "encoder", |_| {
        session("gpt2").encode(&Batch::one(&[1]), &mut [0.0; D])
    }),
    ("no decoder", "NoStack", "decoder", |_| session("bert").add().map(drop)),
    ("a session under a cap", "MemoryCap", "cap", |_| {
        session_of("gpt2", &SessionOptions::default().with_memory_cap(1000)).map(drop)
    }),
    ("a session beyond any memory", "OutOfMemory", "memory", |_| {
        let options = SessionOptions::default().with_cache_tokens(usize::MAX);
        session_of("gpt2", &options.with_max_length(20)).map(drop)
    }),
    ("an empty chunk", "EmptySequence", "no tokens", |_| extend(&[])),
    ("an id beyond the vocabulary", "TokenId", "id 77", |_| extend(&[1, 77])),
    ("a chunk beyond the session's length", "SequenceTooLong", "limit", |_| extend(&[1; 21])),
    ("a sequence that was removed", "NoSequence", "no such", |_| {
        let mut session = session("gpt2");
        let sequence = session.add()?;
        session.remove(sequence)?;
        session.extend(&[Chunk::new(sequence, &[1])], Output::None, &mut [])
    }),
    ("a sequence twice in a call", "TwiceInCall", "chunk 1", |_| {
        let mut session = session("gpt2");
        let chunk = Chunk::new(session.add()?, &[1]);
        session.extend(&[chunk, chunk], Output::None, &mut [])
    }),
    ("a sequence too many", "TooManySequences", "remembers", |_| {
        let mut session = session("gpt2");
        (0..9).try_for_each(|_| session.add().map(drop))
    }),
    ("a longer past than there is", "Truncate", "first 3", |_| {
        let mut session = session("gpt2");
        let sequence = session.add()?;
        session.truncate(sequence, 3)
    }),
    ("a prompt without tokens", "EmptySequence", "no tokens", |_| {
        generate(&[], &GenerationOptions::default())
    }),
    ("a prompt without room behind it", "SequenceTooLong", "limit", |_| {
        generate(&[1; 20], &GenerationOptions::default())
    }),
    ("no new tokens", "GenerationOption", "max_new_tokens", |_| {
        generate(&[1], &GenerationOptions::default().with_max_new_tokens(0usize))
    }),
    ("a beam of nothing", "GenerationOption", "beam.size", |_| {
        generate(&[1], &GenerationOptions::default().with_strategy(Beam::new(0)))
    }),
    ("more answers than beams", "GenerationOption", "beam.n_best", |_| {
        generate(&[1], &GenerationOptions::default().with_strategy(Beam::new(1).with_n_best(2)))
    }),
    ("a temperature that is no number", "GenerationOption", "temperature", |_| {
        let sampling = Sampling::new(1).with_temperature(f32::NAN);
        generate(&[1], &GenerationOptions::default().with_strategy(sampling))
    }),
    ("stop strings without a detokenizer", "GenerationOption", "stop_strings", |_| {
        generate(&[1], &GenerationOptions::default().with_stop_strings(["x".to_owned()]))
    }),
    ("a forced token that does not exist", "GenerationOption", "forced_first", |_| {
        generate(&[1], &GenerationOptions::default().with_forced_first(99u32))
    }),
    ("nothing that may follow", "NoToken", "no token", |_| {
        let all: Vec<u32> = (0..V as u32).collect();
        generate(&[1], &GenerationOptions::default().with_suppressed(all))
    }),
];

/// The name of an error's variant.
fn variant(error: &Error) -> String {
    match error {
        // An error about one text of several is the error itself here.
        Error::Text { source, .. } => variant(source),
        error => {
            let debug = format!("{error:?}");
            debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
        }
    }
}

/// Bytes of the files in a folder.
fn size(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len() as usize).sum()
}

/// What an attempt ends in, and the peak of its memory; when it does neither well, what happened.
fn tried(folder: &Path, attempt: Attempt) -> std::result::Result<(Result<()>, usize), String> {
    let (done, ended) = channel();
    let folder = folder.to_owned();
    // Memory is counted by thread. One that hangs ends with the test's process.
    std::thread::spawn(move || {
        let (result, _, _, peak) = counted(|| attempt(&folder));
        let _ = done.send((result, peak));
    });
    ended.recv_timeout(PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("no end after {PATIENCE:?}"),
        RecvTimeoutError::Disconnected => "a panic".to_owned(),
    })
}

fn refuses(table: &[Row], name: &str) {
    let mut wrong = Vec::new();
    for (row, &(what, kind, word, attempt)) in table.iter().enumerate() {
        let folder = Folder::new(&format!("{name}-{row}"));
        let (result, peak) = match tried(&folder.0, attempt) {
            Ok(tried) => tried,
            Err(happened) => {
                wrong.push(format!("{what}: {happened}"));
                continue;
            }
        };
        let (got, message) = match &result {
            Ok(()) => (FINE.to_owned(), String::new()),
            Err(error) => (variant(error), error.to_string()),
        };
        if got != kind || !message.contains(word) {
            wrong.push(format!("{what}: {got} instead of {kind}: {message}"));
        }
        if message.contains('\n') || message.len() > 4000 {
            wrong.push(format!("{what}: {message:?}"));
        }
        let allowed = ALLOWED.0 * size(&folder.0) + ALLOWED.1;
        if peak > allowed {
            wrong.push(format!("{what}: {peak} bytes at the peak, allowed are {allowed}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files() {
    refuses(FILES, "refused-files");
}

#[cfg(unix)]
#[test]
fn what_is_no_file() {
    refuses(NO_FILES, "refused-special");
}

#[test]
fn shards_and_their_index() {
    refuses(SHARDS, "refused-shards");
}

#[test]
fn configs_and_options() {
    refuses(CONFIGS, "refused-configs");
}

#[test]
fn tokenizers_and_texts() {
    LazyLock::force(&LONG);
    refuses(TEXTS, "refused-texts");
}

/// A tokenizer that has a token for each byte, and no more.
fn bytes_alone() -> Tokenizer {
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": true});
    let vocabulary: Map<String, Value> =
        "aemnistgx!Ġ".chars().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_text_at_the_limit_takes_bounded_memory() {
    let most = Tokenizer::MAX_TEXT_BYTES;
    for (kind, tokenizer) in [("pieces", whole_tokenizer()), ("bytes", bytes_alone())] {
        for piece in ["a ", "!", "x"] {
            let text = piece.repeat(most / piece.len());
            let (encoding, .., peak) = counted(|| tokenizer.encode_with_offsets(&text, Some(9)));
            encoding.unwrap();
            let per_byte = peak as f64 / text.len() as f64;
            println!("{kind}: {per_byte:.0} bytes of memory for each byte of {piece:?}");
            assert!(peak <= PER_BYTE * most, "{kind}, {piece:?}: {per_byte}");
            let more = text + piece;
            if more.len() > most {
                let refused = tokenizer.encode(&more, Some(9));
                assert!(matches!(refused, Err(Error::TextTooLarge { bytes, maximum })
                    if bytes == more.len() && maximum == most));
            }
        }
    }
}

#[test]
fn calls() {
    refuses(CALLS, "refused-calls");
}

/// Not in the table, since it depends on who asks: whoever may read everything reads it, and finds no family in it.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("refused-locked");
    put(&folder.0, "config.json", "{}");
    let locked = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(folder.0.join("config.json"), locked).unwrap();
    match Model::from_dir(&folder.0).unwrap_err() {
        Error::Io { path, .. } => assert!(path.ends_with("config.json")),
        error => assert_eq!(variant(&error), "Config", "{error}"),
    }
}
