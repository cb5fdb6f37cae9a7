"""GPT-2 and Llama with keys and values as inputs and outputs, from the weights of their folders.

One description serves two: `Decoder` is a torch module, which OpenVINO converts; `graph` is an ONNX graph of ONNX
Runtime's fused operators, with a cache that is written in place.
"""

import json
import pathlib

import numpy
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file


class Weights:
    """The tensors of a folder under names that both families share, outputs of a product first."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        self.llama = config["model_type"] == "llama"
        if self.llama:
            self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
            self.kv_heads, self.epsilon = config["num_key_value_heads"], config["rms_norm_eps"]
            self.positions = config["max_position_embeddings"]
            rope = config.get("rope_parameters") or config
            self.theta = rope.get("rope_theta", 10000.0)
            self.words, self.readout = self["model.embed_tokens.weight"], self["lm_head.weight"]
            self.last = (self["model.norm.weight"], None)
        else:
            self.layers, self.heads = config["n_layer"], config["n_head"]
            self.kv_heads, self.epsilon = self.heads, config["layer_norm_epsilon"]
            self.positions = config["n_positions"]
            self.words = self.readout = self["transformer.wte.weight"]
            self.places = self["transformer.wpe.weight"]
            self.last = (self["transformer.ln_f.weight"], self["transformer.ln_f.bias"])
        self.vocabulary, self.width = self.words.shape
        self.head = self.width // self.heads

    def __getitem__(self, name):
        return self.tensors[name]

    def norms(self, i):
        """(gain, bias) before attention and before the feed-forward layer."""
        if self.llama:
            names = "input_layernorm", "post_attention_layernorm"
            return [(self[f"model.layers.{i}.{name}.weight"], None) for name in names]
        return [tuple(self[f"transformer.h.{i}.{name}.{part}"] for part in ("weight", "bias"))
                for name in ("ln_1", "ln_2")]

    def products(self, i):
        """name → (weight, bias): qkv, out, up (gate and up side by side for Llama), down."""
        if not self.llama:
            names = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
            return {short: (numpy.ascontiguousarray(self[f"transformer.h.{i}.{name}.weight"].T),
                            self[f"transformer.h.{i}.{name}.bias"]) for short, name in names.items()}

        def rows(*names):
            return numpy.concatenate([self[f"model.layers.{i}.{name}.weight"] for name in names])

        attention = [f"self_attn.{x}_proj" for x in "qkv"]
        return {"qkv": (rows(*attention), None), "out": (rows("self_attn.o_proj"), None),
                "up": (rows("mlp.gate_proj", "mlp.up_proj"), None), "down": (rows("mlp.down_proj"), None)}

    def angles(self):
        """Cosines and sines by position and pair."""
        rate = 1 / self.theta ** (numpy.arange(0, self.head, 2) / self.head)
        angles = numpy.arange(self.positions)[:, None] * rate
        return numpy.cos(angles).astype(numpy.float32), numpy.sin(angles).astype(numpy.float32)


class Decoder(torch.nn.Module):
    """ids, positions, the rows of the cache to go on from, then keys and values of each layer; the scores of the last
    position, then keys and values with the new ones behind."""

    def __init__(self, weights):
        super().__init__()
        self.w = weights
        self.words, self.readout = self.hold("words", weights.words), self.hold("readout", weights.readout)
        if weights.llama:
            rate = 1 / weights.theta ** (numpy.arange(0, weights.head, 2) / weights.head)
            self.rate = self.hold("rate", rate.astype(numpy.float32))
        else:
            self.places = self.hold("places", weights.places)
        self.last = self.pair("last", weights.last)
        self.blocks = []
        for i in range(weights.layers):
            norms = [self.pair(f"norm_{i}_{j}", norm) for j, norm in enumerate(weights.norms(i))]
            products = {k: self.pair(f"{k}_{i}", p) for k, p in weights.products(i).items()}
            self.blocks.append((norms, products))

    def hold(self, name, values):
        self.register_buffer(f"b_{name}", torch.from_numpy(values))
        return getattr(self, f"b_{name}")

    def pair(self, name, values):
        return tuple(None if v is None else self.hold(f"{name}_{i}", v) for i, v in enumerate(values))

    def norm(self, x, gain, bias):
        if self.w.llama:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.w.epsilon) * gain
        return F.layer_norm(x, (self.w.width,), gain, bias, self.w.epsilon)

    def turn(self, x, cos, sin):
        half = self.w.head // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, ids, positions, rows, *past):
        w = self.w
        batch, count = ids.shape
        x = F.embedding(ids, self.words)
        if w.llama:
            angles = positions[:, None, :, None].float() * self.rate
            angles = torch.cat([angles, angles], -1)
            cos, sin = angles.cos(), angles.sin()
        else:
            x = x + F.embedding(positions, self.places)
        total = past[0].shape[2] + count
        before = total - count
        seen = torch.arange(total)[None, :] <= (torch.arange(count) + before)[:, None]
        present = []
        for i, ((first, second), products) in enumerate(self.blocks):
            qkv = F.linear(self.norm(x, *first), *products["qkv"])
            parts = qkv.split([h * w.head for h in (w.heads, w.kv_heads, w.kv_heads)], -1)
            q, k, v = (p.view(batch, count, -1, w.head).transpose(1, 2) for p in parts)
            if w.llama:
                q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
            k = torch.cat([past[2 * i].index_select(0, rows), k], 2)
            v = torch.cat([past[2 * i + 1].index_select(0, rows), v], 2)
            present += [k, v]
            group = w.heads // w.kv_heads
            if group > 1:
                wide = (batch, w.kv_heads, group, total, w.head)
                k, v = (t[:, :, None].expand(wide).reshape(batch, w.heads, total, w.head) for t in (k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None])
            x = x + F.linear(out.transpose(1, 2).reshape(batch, count, w.width), *products["out"])
            up = F.linear(self.norm(x, *second), *products["up"])
            if w.llama:
                gate, up = up.chunk(2, -1)
                up = F.silu(gate) * up
            else:
                up = F.gelu(up, approximate="tanh")
            x = x + F.linear(up, *products["down"])
        return (F.linear(self.norm(x[:, -1], *self.last), self.readout), *present)


def graph(weights):
    """The same as an ONNX model: `input_ids`, `positions`, `last` (the last key's index of each sequence), `total` (keys),
    `past.LAYER.key|value`; `logits` of the last position and `present.LAYER.key|value`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, fused = [], [], "com.microsoft"

    def constant(name, values):
        constants.append(numpy_helper.from_array(numpy.array(values, order="C"), name))
        return name

    def add(op, inputs, outputs=1, domain=fused, **attributes):
        names = [f"{op}_{len(nodes)}_{i}" for i in range(outputs)]
        nodes.append(helper.make_node(op, inputs, names, domain=domain, name=names[0], **attributes))
        return names if outputs > 1 else names[0]

    def product(x, name, pair):
        weight, bias = pair
        y = add("MatMul", [x, constant(f"{name}.weight", weight.T)], domain="")
        return y, None if bias is None else constant(f"{name}.bias", bias)

    def with_bias(pair):
        x, bias = pair
        return x if bias is None else add("Add", [x, bias], domain="")

    def add_norm(pair, residual, name, norm):
        """The sum of a product, its bias and the residual, normalised; and the sum."""
        (x, bias), (gain, shift) = pair, norm
        inputs = [x, residual, constant(f"{name}.gain", gain)]
        if weights.llama:
            names = add("SkipSimplifiedLayerNormalization", inputs, 4, epsilon=weights.epsilon)
        else:
            inputs += [constant(f"{name}.shift", shift), bias]
            names = add("SkipLayerNormalization", inputs, 4, epsilon=weights.epsilon)
        return names[0], names[3]

    x = add("Gather", [constant("words", weights.words), "input_ids"], domain="")
    gain, shift = weights.norms(0)[0]
    gain = constant("first.gain", gain)
    if weights.llama:
        turned = [constant(name, table) for name, table in zip(("cos", "sin"), weights.angles())]
        h = add("SimplifiedLayerNormalization", [x, gain], domain="", epsilon=weights.epsilon)
    else:
        turned = []
        place = add("Gather", [constant("places", weights.places), "positions"], domain="")
        x = add("Add", [x, place], domain="")
        h = add("LayerNormalization", [x, gain, constant("first.shift", shift)], domain="", epsilon=weights.epsilon)
    for i in range(weights.layers):
        products = weights.products(i)
        qkv = with_bias(product(h, f"qkv.{i}", products["qkv"]))
        inputs = [qkv, "", "", f"past.{i}.key", f"past.{i}.value", "last", "total", *turned]
        a = f"attention.{i}"
        nodes.append(helper.make_node(
            "GroupQueryAttention", inputs, [a, f"present.{i}.key", f"present.{i}.value"], domain=fused,
            num_heads=weights.heads, kv_num_heads=weights.kv_heads, do_rotary=int(weights.llama)))
        h, x = add_norm(product(a, f"out.{i}", products["out"]), x, f"second.{i}", weights.norms(i)[1])
        if weights.llama:
            gate, up = numpy.split(products["up"][0], 2)
            gate, _ = product(h, f"gate.{i}", (gate, None))
            up, _ = product(h, f"up.{i}", (up, None))
            gate = add("Mul", [gate, add("Sigmoid", [gate], domain="")], domain="")
            h = add("Mul", [gate, up], domain="")
        else:
            h = add("FastGelu", [*product(h, f"up.{i}", products["up"])])
        norm = weights.last if i + 1 == weights.layers else weights.norms(i + 1)[0]
        h, x = add_norm(product(h, f"down.{i}", products["down"]), x, f"first.{i + 1}", norm)
    h = add("Gather", [h, constant("end", numpy.array(-1))], domain="", axis=1)
    readout = constant("readout", weights.readout.T)
    nodes.append(helper.make_node("MatMul", [h, readout], ["logits"], name="logits"))

    def value(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    ids = [value("input_ids", TensorProto.INT64, ["b", "t"])]
    if not weights.llama:
        ids.append(value("positions", TensorProto.INT64, ["b", "t"]))
    ids += [value("last", TensorProto.INT32, ["b"]), value("total", TensorProto.INT32, [])]
    cache = ["b", weights.kv_heads, "s", weights.head]

    def caches(which):
        return [value(f"{which}.{i}.{part}", TensorProto.FLOAT, cache)
                for i in range(weights.layers) for part in ("key", "value")]

    logits = value("logits", TensorProto.FLOAT, ["b", weights.vocabulary])
    whole = helper.make_graph(nodes, "decoder", ids + caches("past"), [logits, *caches("present")], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(fused, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9)
