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
    let read = |path: &Path| Ok((read_file(path, MAX_BYTES)?, path.display().to_string()));
    let options = match path.symlink_metadata() {
        Ok(_) => read(&path).and_then(|(json, place)| GenerationOptions::from_json(&place, &json)),
        Err(_) => read(&folder.join("config.json"))
            .and_then(|(json, place)| options_of_config(&json, &place)),
    };
    Ok(with_stop_ids(options?, config))
}

/// A file of a set in memory.
pub(super) fn in_memory<'a>(files: &[(&str, &'a [u8])], name: &str) -> Result<&'a [u8]> {
    let found = files.iter().find(|(own, _)| *own == name);
    found.map(|&(_, bytes)| bytes).ok_or_else(|| Error::file(name, "it is not among the files"))
}

/// [`options`] of a set of files in memory.
pub(crate) fn options_in_memory(
    files: &[(&str, &[u8])],
    config: &Config,
) -> Result<GenerationOptions> {
    let decoding = "generation_config.json";
    let options = match in_memory(files, decoding) {
        Ok(bytes) => GenerationOptions::from_json(decoding, bytes)?,
        Err(_) => options_of_config(in_memory(files, "config.json")?, "config.json")?,
    };
    Ok(with_stop_ids(options, config))
}

/// The same with the stop ids of the config where there are none.
fn with_stop_ids(mut options: GenerationOptions, config: &Config) -> GenerationOptions {
    if options.stop_ids.is_empty() {
        options.stop_ids.clone_from(&config.special.end);
    }
    options
}

fn options_of_config(bytes: &[u8], place: &str) -> Result<GenerationOptions> {
    let fields = Fields::parse(bytes, place)?;
    let field = |name: &str| fields.get(name).map(|value| (name.to_owned(), value.clone()));
    let decoding: Map<String, Value> = DECODING.into_iter().filter_map(field).collect();
    GenerationOptions::from_json(place, Value::Object(decoding).to_string().as_bytes())
}
