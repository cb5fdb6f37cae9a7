"""What is measured: models, cases, and what each case costs at least.

A case is `KIND:BATCHxSIZE`, as benches/src/cases.rs has it. The floating-point operations counted are those of the
layers' products, of attention over the keys that are seen, and of the read-out; the bytes are those of the weights that
every call, step or phase has to read, and of the cache of keys and values.
"""

import json
import pathlib

STEPS = 32  # of a decoding case
TRANSLATED = 32  # tokens of a source and of its translation
# The limits that a bound can come from.
ARITHMETIC, READING = "multiply-adds", "weights"
# Of weights below so many times the last cache a quarter or more may stay there from call to call.
PARTLY = 4

ENCODE = ["enc:1x8", "enc:1x32", "enc:1x128", "enc:1x512", "enc:8x128", "enc:32x128"]
DECODE = ["prefill:1x128", "prefill:1x512", "decode:1x128", "decode:8x128"]
ALL = {
    "minilm": ENCODE,
    "bert-base": ENCODE,
    "gpt2": DECODE,
    "llama-small": DECODE,
    "transformer-base": ["s2s:1x1", "s2s:1x4"],
}
QUICK = {"minilm": ["enc:1x8", "enc:1x32", "enc:1x128"]}


def chosen(names, quick):
    """Model → cases. `names` are `model/case` or `model`; without any, the quick or all cells."""
    if not names:
        return QUICK if quick else ALL
    cells = {}
    for name in names:
        model, _, case = name.partition("/")
        if model not in ALL:
            raise ValueError(f"no model {model}: there are {', '.join(ALL)}")
        for case in [case] if case else ALL[model]:
            parse(case)
            cells.setdefault(model, []).append(case)
    return cells


def parse(case):
    """Kind, batch and size."""
    kind, _, shape = case.partition(":")
    batch, _, size = shape.partition("x")
    if kind not in ("enc", "prefill", "decode", "s2s") or not (batch.isdigit() and size.isdigit()):
        raise ValueError(f"no case {case}: a case is enc, prefill, decode or s2s, as in enc:1x32")
    return kind, int(batch), int(size)


class Shape:
    """The sizes in a config.json."""

    def __init__(self, config):
        kind = config["model_type"]
        if kind == "gpt2":
            self.width, self.layers, heads = config["n_embd"], config["n_layer"], config["n_head"]
            self.inner = config.get("n_inner") or 4 * self.width
        elif kind == "marian":
            self.width, self.layers = config["d_model"], config["decoder_layers"]
            heads, self.inner = config["decoder_attention_heads"], config["decoder_ffn_dim"]
        else:
            self.width, self.layers = config["hidden_size"], config["num_hidden_layers"]
            heads, self.inner = config["num_attention_heads"], config["intermediate_size"]
        head = self.width // heads
        # All keys of a position, and as many values.
        self.keys = head * (config.get("num_key_value_heads") or heads)
        self.vocabulary = config["vocab_size"]
        projections = 2 * self.width * self.width + 2 * self.width * self.keys
        gated = kind == "llama"
        # Weights of a layer, without the cross-attention of a decoder behind an encoder.
        self.layer = projections + (3 if gated else 2) * self.width * self.inner

    @staticmethod
    def of(folder):
        return Shape(json.loads((pathlib.Path(folder) / "config.json").read_text()))


def phases(shape, case):
    """(times, floating-point operations, bytes) of what a call does one after the other."""
    kind, batch, size = parse(case)
    weights, readout = shape.layer * shape.layers, shape.width * shape.vocabulary

    def attention(pairs):
        return 4 * shape.width * shape.layers * pairs

    if kind == "enc":
        flops = 2 * batch * size * weights + attention(batch * size * size)
        return [(1, flops, 4 * weights)]
    if kind == "prefill":
        seen = batch * size * (size + 1) // 2
        flops = 2 * batch * (size * weights + readout) + attention(seen)
        return [(1, flops, 4 * (weights + readout))]
    if kind == "decode":
        seen = size + (STEPS + 1) / 2
        flops = 2 * batch * (weights + readout) + attention(batch * seen)
        cached = 2 * 4 * shape.keys * shape.layers * batch * seen
        return [(1, flops, 4 * (weights + readout) + cached)]
    # An encoder whose states become keys and values once, and 32 steps of as many rows as there are hypotheses.
    cross = 2 * shape.width * shape.width * shape.layers
    source, rows = batch * TRANSLATED, batch * size
    encoder = 2 * source * (weights + cross) + attention(batch * TRANSLATED**2)
    seen = (TRANSLATED + 1) / 2 + TRANSLATED
    step = 2 * rows * (weights + cross + readout) + attention(rows * seen)
    return [(1, encoder, 4 * (weights + cross)), (TRANSLATED, step, 4 * (weights + cross + readout))]


def bound(shape, case, limits):
    """What the machine needs at least: milliseconds as `bound`, which limit makes the most of them as `limit`, and as
    `cached` whether a good part of the weights that are then read from memory may lie in the last cache instead.

    Each phase takes the longer of its operations at the peak and its weights at the rate of reading memory, which counts
    only where they exceed the last cache. `limits` is a line of the `limits` program."""
    of, cached = {ARITHMETIC: 0.0, READING: 0.0}, False
    for times, flops, size in phases(shape, case):
        arithmetic = flops / (limits["gflops_best"] * 1e9)
        reading = size / (limits["gbs_best"] * 1e9) if size > limits["l3"] else 0.0
        of[READING if reading > arithmetic else ARITHMETIC] += times * max(arithmetic, reading)
        cached |= reading > arithmetic and size < PARTLY * limits["l3"]
    limit = max(of, key=of.get)
    return {"bound": sum(of.values()) * 1e3, "limit": limit, "cached": cached and limit == READING}


def work(shape, case):
    """Floating-point operations and bytes of a whole call (of a step for `decode`)."""
    parts = phases(shape, case)
    return sum(n * flops for n, flops, _ in parts), sum(n * size for n, _, size in parts)
