use crate::checkpoint::{damage_bytes, hostile};
use crate::memory;
use crate::seeds;
use arbitrary::{Result, Unstructured};
use headrow::Config;
use serde_json::Value;
use std::sync::LazyLock;

/// A config of every family.
static CONFIGS: LazyLock<Vec<Value>> = LazyLock::new(seeds::configs);

/// More fields that some family reads, or must refuse.
const FIELDS: &[&str] = &[
    "model_type",
    "architectures",
    "hidden_act",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "head_dim",
    "num_key_value_heads",
    "tie_word_embeddings",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_hidden_layers",
    "d_kv",
    "relative_attention_num_buckets",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_vocab_size",
    "decoder_start_token_id",
    "is_encoder_decoder",
    "share_encoder_decoder_embeddings",
    "static_position_embeddings",
    "num_mel_bins",
    "tgt_vocab",
    "tied",
    "feed_forward_proj",
    "scale_embedding",
    "eos_token_id",
    "attention_bias",
    "quantization_config",
];

/// A family's config with fields changed, left out or added, and bytes damaged: an error of one line in little memory, or a
/// config that reads back as itself in this library's own form. A whole file may stand in its place.
pub(crate) fn check(u: &mut Unstructured<'_>) -> Result<()> {
    if let Some(file) = crate::whole_file(u) {
        read(file);
        return Ok(());
    }
    let mut config = u.choose(&CONFIGS)?.clone();
    let own = u.arbitrary()?;
    if own && let Ok(read) = Config::from_json(config.to_string().as_bytes()) {
        // The general family's nested form.
        let json = read.to_json().ok().and_then(|json| serde_json::from_str(&json).ok());
        config = json.unwrap_or(config);
    }
    for _ in 0..u.int_in_range(0..=3)? {
        damage(u, &mut config, 0)?;
    }
    let mut bytes = config.to_string().into_bytes();
    if u.ratio(1, 4)? {
        damage_bytes(u, &mut bytes)?;
    }
    read(&bytes);
    Ok(())
}

fn read(bytes: &[u8]) {
    let allowed = (1 << 20) + 64 * bytes.len();
    match memory::within(allowed, || Config::from_json(bytes)) {
        Ok(config) => {
            let Ok(json) = config.to_json() else { return };
            let again = Config::from_json(json.as_bytes());
            let again = again.unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(again.to_json().ok(), Some(json));
        }
        Err(error) => crate::one_line(&error),
    }
}

/// Changes, removes or adds one field, perhaps of an object further in.
fn damage(u: &mut Unstructured<'_>, config: &mut Value, depth: usize) -> Result<()> {
    let Value::Object(fields) = config else { return Ok(()) };
    let names: Vec<String> = fields.keys().cloned().collect();
    if names.is_empty() || u.ratio(1, 3)? {
        let value = hostile(u)?;
        let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
        fields.insert((*u.choose(FIELDS)?).to_owned(), value);
        return Ok(());
    }
    let name = u.choose(&names)?;
    if depth < 3 && fields[name].is_object() {
        return damage(u, &mut fields[name], depth + 1);
    }
    if u.ratio(1, 4)? {
        fields.remove(name);
        return Ok(());
    }
    let value = hostile(u)?;
    fields[name] = serde_json::from_str(&value).unwrap_or(Value::String(value));
    Ok(())
}
