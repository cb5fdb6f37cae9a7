//! What a folder says about text: its tokenizers, and how its model is decoded.

use crate::config::{Config, Fields, read_file};
use crate::error::{Error, Result};
use crate::generate::GenerationOptions;
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::path::Path;

/// Largest file of options that is read.
const MAX_BYTES: u64 = 16 << 20;

/// Other forms of tokenizers, which are not read.
const OTHERS: [&str; 6] = [
    "spiece.model",
    "source.spm",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
];

/// Fields of a `config.json` that say how the model is decoded where no `generation_config.json` does.
const DECODING: [&str; 33] = [
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "forced_bos_token_id",
    "forced_decoder_ids",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "renormalize_logits",
    "repetition_penalty",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// The tokenizer of the folder, or those of sources and targets.
pub(super) fn tokenizers(folder: &Path) -> Result<(Tokenizer, Option<Tokenizer>)> {
    let there = |name: &str| folder.join(name).symlink_metadata().is_ok();
    if there("tokenizer.json") {
        return Ok((Tokenizer::from_file(folder.join("tokenizer.json"))?, None));
    }
    if there("source_vocabulary.txt") || there("target_vocabulary.txt") {
        let source = Tokenizer::from_vocabulary(folder.join("source_vocabulary.txt"))?;
        let target = Tokenizer::from_vocabulary(folder.join("target_vocabulary.txt"))?;
        return Ok((source, Some(target)));
    }
    std::fs::metadata(folder).map_err(Error::io(folder))?;
    let problem = "no tokenizer.json, and no source_vocabulary.txt and target_vocabulary.txt";
    Err(match OTHERS.into_iter().find(|name| there(name)) {
        None => Error::file(folder.display(), problem),
        Some(other) => {
            let hint = "is not read, save it as tokenizer.json";
            Error::file(folder.display(), format_args!("{problem} ({other} {hint})"))
        }
    })
}

/// The options of `generation_config.json`, or those in `config.json`; stop ids always.
pub(super) fn options(folder: &Path, config: &Config) -> Result<GenerationOptions> {
    let path = folder.join("generation_config.json");
    let mut options = match path.symlink_metadata() {
        Ok(_) => {
            let place = path.display().to_string();
            GenerationOptions::from_json(&place, &read_file(&path, MAX_BYTES)?)?
        }
        Err(_) => options_of_config(&folder.join("config.json"))?,
    };
    if options.stop_ids.is_empty() {
        options.stop_ids.clone_from(&config.special.end);
    }
    Ok(options)
}

fn options_of_config(path: &Path) -> Result<GenerationOptions> {
    let (bytes, place) = (read_file(path, MAX_BYTES)?, path.display().to_string());
    let fields = Fields::parse(&bytes, &place)?;
    let field = |name: &str| fields.get(name).map(|value| (name.to_owned(), value.clone()));
    let decoding: Map<String, Value> = DECODING.into_iter().filter_map(field).collect();
    GenerationOptions::from_json(&place, Value::Object(decoding).to_string().as_bytes())
}
