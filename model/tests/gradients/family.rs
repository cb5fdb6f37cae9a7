//! Models of a family of checkpoints whose stacks the general definition computes, under its names.

use crate::general::{General, drawn};
use crate::reference::Reference;
use crate::tiny::{Random, Tensor, file};
use headrow::train::Parameters;
use headrow::{Config, Input};
use serde_json::Value;
use std::collections::BTreeMap;

/// A drawn model.
pub(crate) struct Family {
    pub(crate) config: Config,
    pub(crate) parameters: Parameters,
    general: General,
    /// Of the general definition, by those of the family.
    names: BTreeMap<String, String>,
}

impl Family {
    /// The model of a `config.json`. `more` are names and shapes of tensors beside those of the stacks; `rename` gives the family's
    /// name of a tensor of the general definition, which has its own for the tensors of `more` too where the stacks read them.
    pub(crate) fn new(
        json: &Value,
        more: &[(&str, Vec<usize>)],
        rename: &dyn Fn(&str) -> String,
        random: &mut Random,
    ) -> Family {
        let config = Config::from_json(json.to_string().as_bytes()).unwrap();
        let mut stacks = Config::general(config.d_model);
        (stacks.encoder, stacks.decoder) = (config.encoder.clone(), config.decoder.clone());
        stacks.read_out = config.read_out;
        // What makes vectors of other inputs is defined beside the stacks.
        let others = [&mut stacks.encoder, &mut stacks.decoder].into_iter().flatten();
        let others = others.filter(|stack| stack.tokens().is_none());
        others.for_each(|stack| stack.input = Input::Vectors);
        let mut general = General::new(&stacks, random.next());
        let beside = more.iter();
        let beside = beside.map(|(name, shape)| drawn((*name).to_owned(), shape.clone(), random));
        general.tensors.extend(beside);
        let names: BTreeMap<String, String> =
            general.tensors.iter().map(|t| (rename(&t.name), t.name.clone())).collect();
        let renamed = general.tensors.iter().cloned();
        let renamed = renamed.map(|tensor| Tensor { name: rename(&tensor.name), ..tensor });
        let file = file(&renamed.collect::<Vec<Tensor>>());
        let parameters = Parameters::from_bytes(&config, &file).unwrap();
        Family { config, parameters, general, names }
    }

    /// Its definition for sequences of up to `longest` tokens.
    pub(crate) fn reference(&self, longest: usize) -> Reference {
        Reference::new(&self.general, longest)
    }

    /// The general definition's name of a tensor.
    pub(crate) fn name(&self, name: &str) -> String {
        self.names[name].clone()
    }
}

/// Names that differ from the general definition's, part by part.
pub(crate) fn renamed(name: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

pub(crate) const BERT: &[(&str, &str)] = &[
    ("encoder.words", "embeddings.word_embeddings"),
    ("encoder.positions", "embeddings.position_embeddings"),
    ("encoder.types", "embeddings.token_type_embeddings"),
    ("encoder.input_norm", "embeddings.LayerNorm"),
    ("encoder.layers.", "encoder.layer."),
    ("attention_norm", "attention.LayerNorm"),
    ("feed_forward_norm", "output.LayerNorm"),
    ("attention.query", "attention.self.query"),
    ("attention.key", "attention.self.key"),
    ("attention.value", "attention.self.value"),
    ("attention.output", "attention.output.dense"),
    ("attention.LayerNorm", "attention.output.LayerNorm"),
    ("feed_forward.inner", "intermediate.dense"),
    ("feed_forward.outer", "output.dense"),
];

pub(crate) const DISTILBERT: &[(&str, &str)] = &[
    ("encoder.words", "embeddings.word_embeddings"),
    ("encoder.positions", "embeddings.position_embeddings"),
    ("encoder.input_norm", "embeddings.LayerNorm"),
    ("encoder.layers.", "transformer.layer."),
    ("attention_norm", "sa_layer_norm"),
    ("feed_forward_norm", "output_layer_norm"),
    ("attention.query", "attention.q_lin"),
    ("attention.key", "attention.k_lin"),
    ("attention.value", "attention.v_lin"),
    ("attention.output", "attention.out_lin"),
    ("feed_forward.inner", "ffn.lin1"),
    ("feed_forward.outer", "ffn.lin2"),
];

pub(crate) const ALBERT: &[(&str, &str)] = &[
    ("encoder.words", "embeddings.word_embeddings"),
    ("encoder.positions", "embeddings.position_embeddings"),
    ("encoder.types", "embeddings.token_type_embeddings"),
    ("encoder.input_norm", "embeddings.LayerNorm"),
    ("encoder.projection", "encoder.embedding_hidden_mapping_in"),
    (".attention_norm", ".albert_layers.0.attention.LayerNorm"),
    (".feed_forward_norm", ".albert_layers.0.full_layer_layer_norm"),
    (".attention.output", ".albert_layers.0.attention.dense"),
    (".attention.query", ".albert_layers.0.attention.query"),
    (".attention.key", ".albert_layers.0.attention.key"),
    (".attention.value", ".albert_layers.0.attention.value"),
    (".feed_forward.inner", ".albert_layers.0.ffn"),
    (".feed_forward.outer", ".albert_layers.0.ffn_output"),
    ("encoder.layers.", "encoder.albert_layer_groups."),
];

pub(crate) const VIT: &[(&str, &str)] = &[
    ("encoder.layers.", "encoder.layer."),
    ("encoder.norm", "layernorm"),
    ("attention_norm", "layernorm_before"),
    ("feed_forward_norm", "layernorm_after"),
    ("attention.query", "attention.attention.query"),
    ("attention.key", "attention.attention.key"),
    ("attention.value", "attention.attention.value"),
    ("attention.output", "attention.output.dense"),
    ("feed_forward.inner", "intermediate.dense"),
    ("feed_forward.outer", "output.dense"),
];

pub(crate) const WHISPER: &[(&str, &str)] = &[
    ("encoder.norm", "model.encoder.layer_norm"),
    ("decoder.norm", "model.decoder.layer_norm"),
    ("decoder.words", "model.decoder.embed_tokens"),
    ("decoder.positions", "model.decoder.embed_positions"),
    ("encoder.layers.", "model.encoder.layers."),
    ("decoder.layers.", "model.decoder.layers."),
    ("cross_attention_norm", "encoder_attn_layer_norm"),
    ("cross_attention.output", "encoder_attn.out_proj"),
    ("cross_attention.", "encoder_attn."),
    (".attention_norm", ".self_attn_layer_norm"),
    (".attention.output", ".self_attn.out_proj"),
    (".attention.", ".self_attn."),
    (".query", ".q_proj"),
    (".key", ".k_proj"),
    (".value", ".v_proj"),
    ("feed_forward_norm", "final_layer_norm"),
    ("feed_forward.inner", "fc1"),
    ("feed_forward.outer", "fc2"),
];
