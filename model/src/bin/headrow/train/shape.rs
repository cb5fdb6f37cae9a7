//! The model that a recipe describes.

use super::recipe::{ActivationName, Norm, Objective, Placement, Places, Recipe, Tie};
use crate::failure::Failure;
use headrow::train::SpecialIds;
use headrow::{
    Activation, Config, Gating, Input, NormKind, NormPlacement, Positions, RelativePositions,
    Rotary, StackConfig, TokenInput, Tokenizer,
};
use serde_json::json;

/// Buckets of learned biases, and the distance from which on all share the last, as in T5.
const BUCKETS: (usize, usize) = (32, 128);

/// What `config.json` says of a model that begins with drawn weights.
pub(super) fn config(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    special: &SpecialIds,
) -> Result<String, Failure> {
    if recipe.decoder_layers.is_some() && recipe.objective != Some(Objective::Seq2seq) {
        let problem = "--decoder-layers: only a model of pairs has a decoder behind an encoder";
        return Err(Failure::Message(problem.to_owned()));
    }
    match recipe.objective {
        Some(Objective::Masked) => masked(recipe, tokenizer, special),
        _ => general(recipe, tokenizer, special),
    }
}

/// This library's own family: an encoder–decoder, or a decoder.
fn general(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    special: &SpecialIds,
) -> Result<String, Failure> {
    let size = |size: Option<u32>| size.unwrap_or(0) as usize;
    let (d_model, tie) = (size(recipe.d_model), recipe.tie.unwrap_or(Tie::All));
    let mut config = Config::general(d_model);
    let stack = |layers| stack(recipe, tokenizer.vocabulary(), d_model, layers);
    if recipe.objective == Some(Objective::Seq2seq) {
        config.encoder = Some(stack(recipe.layers));
        config.special.decoder_start = Some(special.begin);
    }
    config.decoder = Some(stack(recipe.decoder_layers.or(recipe.layers)));
    (config.shared_words, config.read_out.tied) = match tie {
        Tie::All => (true, true),
        Tie::Target => (false, true),
        Tie::None => (false, false),
    };
    config.special.begin = Some(special.begin);
    config.special.end = vec![special.end];
    config.special.padding = tokenizer.id("<pad>");
    Ok(config.to_json()?)
}

fn stack(recipe: &Recipe, vocabulary: usize, d_model: usize, layers: Option<u16>) -> StackConfig {
    let size = |size: Option<u32>| size.unwrap_or(0) as usize;
    let mut input = TokenInput::paper(vocabulary, d_model);
    let places = recipe.positions.unwrap_or(Places::Sinusoidal);
    input.positions = match places {
        Places::Sinusoidal => input.positions,
        Places::Learned => {
            Positions::Learned { rows: size(recipe.max_length), first: 0, padding: None }
        }
        Places::Rotary | Places::Buckets | Places::Alibi => Positions::None,
    };
    let (layers, heads) = (layers.unwrap_or(0).into(), size(recipe.heads));
    let input = Input::Tokens(input);
    let mut stack = StackConfig::paper(input, layers, d_model, heads, size(recipe.d_ff));
    stack.kv_heads = size(recipe.kv_heads);
    stack.relative = match places {
        Places::Sinusoidal | Places::Learned => RelativePositions::None,
        Places::Rotary => {
            RelativePositions::Rotary(Rotary::new(10_000.0, stack.d_k, StackConfig::UNLIMITED))
        }
        Places::Buckets => {
            RelativePositions::Buckets { buckets: BUCKETS.0, max_distance: BUCKETS.1 }
        }
        Places::Alibi => RelativePositions::Alibi,
    };
    if recipe.norm == Some(Placement::Pre) {
        (stack.placement, stack.final_norm) = (NormPlacement::Pre, true);
    }
    if recipe.norm_kind == Some(Norm::Rms) {
        (stack.norm, stack.biases.norms) = (NormKind::Rms, false);
    }
    let (activation, word) = activation(recipe);
    (stack.activation, stack.activation_word) = (activation, word.to_owned());
    if recipe.gated == Some(true) {
        stack.gating = Gating::Gated;
    }
    stack
}

fn activation(recipe: &Recipe) -> (Activation, &'static str) {
    match recipe.activation.unwrap_or(ActivationName::Relu) {
        ActivationName::Relu => (Activation::Relu, "relu"),
        ActivationName::Gelu => (Activation::GeluErf, "gelu"),
        ActivationName::GeluTanh => (Activation::GeluTanh, "gelu_new"),
        ActivationName::Silu => (Activation::Silu, "silu"),
    }
}

/// An encoder with a head for hidden words, in the form of BERT.
fn masked(recipe: &Recipe, tokenizer: &Tokenizer, special: &SpecialIds) -> Result<String, Failure> {
    let other = [
        ("--norm pre", recipe.norm == Some(Placement::Pre)),
        ("--norm-kind rms", recipe.norm_kind == Some(Norm::Rms)),
        ("--gated", recipe.gated == Some(true)),
        ("--kv-heads", recipe.kv_heads != recipe.heads),
        ("--positions", recipe.positions != Some(Places::Learned)),
        ("--tie", recipe.tie != Some(Tie::All)),
    ];
    if let Some((option, _)) = other.into_iter().find(|(_, other)| *other) {
        let problem = format!("{option}: a masked model has the form of BERT, which has no such");
        return Err(Failure::Message(problem));
    }
    let config = json!({
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": tokenizer.vocabulary(),
        "hidden_size": recipe.d_model,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "intermediate_size": recipe.d_ff,
        "hidden_act": activation(recipe).1,
        "max_position_embeddings": recipe.max_length,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": true,
        "bos_token_id": special.begin,
        "eos_token_id": special.end,
        "pad_token_id": tokenizer.id("<pad>"),
    });
    Ok(config.to_string())
}

/// What `generation_config.json` says: the paper's four beams beside an encoder, and as many tokens as were learnt.
pub(super) fn generation(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    special: &SpecialIds,
) -> Option<String> {
    let mut options = json!({
        "bos_token_id": special.begin,
        "eos_token_id": special.end,
        "pad_token_id": tokenizer.id("<pad>"),
    });
    match recipe.objective {
        Some(Objective::Seq2seq) => {
            options["decoder_start_token_id"] = json!(special.begin);
            options["num_beams"] = json!(4);
            options["length_penalty"] = json!(0.6);
            options["early_stopping"] = json!("never");
            options["max_new_tokens"] = json!(recipe.max_length);
        }
        Some(Objective::Causal) => (),
        _ => return None,
    }
    Some(options.to_string())
}
