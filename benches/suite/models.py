"""Seeded folders in Hugging Face layout: `python -m suite.models DIR NAME…`.

Weights are drawn as such models are initialised, with biases and gains not exactly 0 and 1, so that a contender that
left one out would be seen. Speed does not depend on them.
"""

import json
import pathlib
import struct
import sys
import zlib

import numpy

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "num_attention_heads": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
    "type_vocab_size": 2, "vocab_size": 30522, "initializer_range": 0.02,
}
CONFIGS = {
    "minilm": {**BERT, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6},
    "bert-base": {**BERT, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_inner": None,
        "layer_norm_epsilon": 1e-5, "vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256,
        "tie_word_embeddings": True,
    },
    "llama-small": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    },
    "transformer-base": {
        "model_type": "marian", "architectures": ["MarianMTModel"], "activation_function": "relu",
        "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
        "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
        "max_position_embeddings": 512, "scale_embedding": True, "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True, "normalize_before": False, "is_encoder_decoder": True,
        "vocab_size": 37000, "decoder_vocab_size": 37000, "pad_token_id": 36999, "eos_token_id": 0,
        "bos_token_id": None, "decoder_start_token_id": 36999, "forced_eos_token_id": None,
        "tie_word_embeddings": True, "init_std": 0.02, "use_cache": True,
    },
}


def tensors(config):
    """(name, shape) of every tensor."""
    return {"bert": bert, "gpt2": gpt2, "llama": llama, "marian": marian}[config["model_type"]](config)


def linear(name, outputs, inputs):
    return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]


def norm(name, width):
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def bert(config):
    d, inner = config["hidden_size"], config["intermediate_size"]
    sizes = ("word", "vocab_size"), ("position", "max_position_embeddings"), ("token_type", "type_vocab_size")
    found = [(f"embeddings.{name}_embeddings.weight", (config[size], d)) for name, size in sizes]
    found += norm("embeddings.LayerNorm", d)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found += linear(f"{layer}.attention.{name}", d, d)
        found += norm(f"{layer}.attention.output.LayerNorm", d)
        found += linear(f"{layer}.intermediate.dense", inner, d) + linear(f"{layer}.output.dense", d, inner)
        found += norm(f"{layer}.output.LayerNorm", d)
    return found + linear("pooler.dense", d, d)


def gpt2(config):
    d = config["n_embd"]
    found = [("transformer.wte.weight", (config["vocab_size"], d)), ("transformer.wpe.weight", (config["n_positions"], d))]
    # Its layers keep weights with the inputs first.
    shapes = ("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, 4 * d), ("mlp.c_proj", 4 * d, d)
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}"
        found += norm(f"{layer}.ln_1", d) + norm(f"{layer}.ln_2", d)
        for name, inputs, outputs in shapes:
            found += [(f"{layer}.{name}.weight", (inputs, outputs)), (f"{layer}.{name}.bias", (outputs,))]
    return found + norm("transformer.ln_f", d)


def llama(config):
    d, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    rows = {"self_attn.q_proj": (d, d), "self_attn.k_proj": (keys, d), "self_attn.v_proj": (keys, d),
            "self_attn.o_proj": (d, d), "mlp.gate_proj": (inner, d), "mlp.up_proj": (inner, d),
            "mlp.down_proj": (d, inner), "input_layernorm": (d,), "post_attention_layernorm": (d,)}
    found = [(f"{name}.weight", (config["vocab_size"], d)) for name in ("model.embed_tokens", "lm_head")]
    for i in range(config["num_hidden_layers"]):
        found += [(f"model.layers.{i}.{name}.weight", shape) for name, shape in rows.items()]
    return found + [("model.norm.weight", (d,))]


def marian(config):
    d, vocabulary = config["d_model"], config["vocab_size"]
    found = [("model.shared.weight", (vocabulary, d)), ("final_logits_bias", (1, vocabulary))]
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        inner = config[f"{side}_ffn_dim"]
        for i in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{i}"
            for attention in attentions:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found += linear(f"{layer}.{attention}.{name}", d, d)
                found += norm(f"{layer}.{attention}_layer_norm", d)
            found += linear(f"{layer}.fc1", inner, d) + linear(f"{layer}.fc2", d, inner)
            found += norm(f"{layer}.final_layer_norm", d)
    return found


def drawn(name, shape, config):
    """The values of a tensor, which depend on its name alone."""
    if name == "final_logits_bias":
        return numpy.zeros(shape, numpy.float32)
    random = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(name.encode())))
    values = 0.02 * random.standard_normal(shape, numpy.float32)
    gain = name.endswith(("LayerNorm.weight", "layer_norm.weight", "layernorm.weight", "norm.weight"))
    if gain or (".ln_" in name and name.endswith(".weight")):
        values += 1
    if name == "model.shared.weight":
        values[config["pad_token_id"]] = 0  # what a decoder starts from
    return values


def write(folder, config):
    """config.json and model.safetensors, a tensor at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(config):
        end = at + 4 * int(numpy.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = folder / "model.safetensors.part"
    with open(part, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(config):
            out.write(drawn(name, shape, config).astype("<f4").tobytes())
    part.rename(folder / "model.safetensors")


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        write(pathlib.Path(sys.argv[1]) / wanted, CONFIGS[wanted])
