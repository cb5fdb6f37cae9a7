"""The peers that have a Python interface, on the protocol of benches/peers/protocol: `python -m suite.peers PEER THREADS HOME`.

HOME holds `models` (Hugging Face folders) and `exports/PEER`. What is timed is the call and, where a word is chosen,
the choice. A case is a function that makes one call and returns (nanoseconds of its parts, outcome).
"""

import json
import os
import pathlib
import sys
import time

from suite.cells import STEPS, TRANSLATED, Shape, parse

now = time.perf_counter_ns


def draw(batch, size, vocabulary):
    import numpy
    return ((numpy.arange(batch * size) * 7919 + 13) % (vocabulary - 100) + 50).reshape(batch, size)


def whole(library, ids):
    """An encoder's inputs without padding."""
    return {"input_ids": ids, "attention_mask": library.ones_like(ids), "token_type_ids": library.zeros_like(ids)}


class Peer:
    """What the peers share: the loop of a decoder. `read(ids, past)` gives scores of the last positions, `start(batch,
    longest)` empties the cache."""

    def __init__(self, threads, home):
        self.threads, self.home = threads, pathlib.Path(home)

    def open(self, model):
        self.folder = self.home / "models" / model
        self.config = json.loads((self.folder / "config.json").read_text())
        self.vocabulary = Shape(self.config).vocabulary
        # A last word that is padding is never drawn.
        self.vocabulary -= self.config.get("pad_token_id") == self.vocabulary - 1
        self.load(model)

    def case(self, name):
        kind, batch, size = parse(name)
        ids = draw(batch, TRANSLATED if kind == "s2s" else size, self.vocabulary)
        call = {"enc": self.encode, "prefill": self.decode, "decode": self.decode, "s2s": self.translate}[kind]
        return call(ids, size if kind == "s2s" else STEPS if kind == "decode" else 0)

    def export(self, peer, model, file):
        path = self.home / "exports" / peer / model
        if not path.exists():
            raise ValueError(f"it has no {model} here")
        return str(path / file)

    def encode(self, ids, _):
        raise ValueError("it was given no encoder")

    def translate(self, ids, _):
        raise ValueError("it was given no translator")

    def decode(self, ids, steps):
        import numpy

        def call():
            self.start(len(ids), ids.shape[1] + steps)
            began = now()
            scores = self.read(ids, 0)
            chosen = scores.argmax(-1)[:, None]
            times, words = [now() - began], []
            if steps == 0:
                return times, numpy.asarray(scores, "<f4")
            times = []
            for step in range(steps):
                began = now()
                chosen = self.read(chosen, ids.shape[1] + step).argmax(-1)[:, None]
                times.append(now() - began)
                words.append(chosen)
            return times, numpy.concatenate([numpy.asarray(w, "<u4") for w in words], 1)
        return call


class Torch(Peer):
    def load(self, _):
        import torch
        import transformers
        self.torch = torch
        torch.set_num_threads(self.threads)
        torch.set_grad_enabled(False)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        classes = {"bert": "BertModel", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "marian": "MarianMTModel"}
        load = getattr(transformers, classes[self.config["model_type"]]).from_pretrained
        self.model, self.cache = load(self.folder, dtype=torch.float32).eval(), transformers.DynamicCache

    def tensor(self, ids):
        return self.torch.as_tensor(ids)

    def encode(self, ids, _):
        ids = self.tensor(ids)
        inputs = whole(self.torch, ids)

        def call():
            began = now()
            states = self.model(**inputs).last_hidden_state
            return [now() - began], states.numpy()
        return call

    def start(self, *_):
        self.past = self.cache(config=self.model.config)

    def read(self, ids, _):
        out = self.model(input_ids=self.tensor(ids), past_key_values=self.past, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1]

    def translate(self, ids, beam):
        ids = self.tensor(ids)
        options = {"num_beams": beam, "max_new_tokens": TRANSLATED, "min_new_tokens": TRANSLATED, "do_sample": False}
        if beam > 1:
            options |= {"length_penalty": 0.6, "early_stopping": False}

        def call():
            began = now()
            words = self.model.generate(input_ids=ids, attention_mask=self.torch.ones_like(ids), **options)
            return [now() - began], words[:, 1:].numpy().astype("<u4")
        return call


class OnnxRuntime(Peer):
    def load(self, model):
        import numpy
        import onnxruntime as ort
        self.numpy, self.value = numpy, ort.OrtValue
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        file = self.export("onnxruntime", model, "model.onnx")
        self.session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.cached = [name.removeprefix("past.") for name in self.inputs if name.startswith("past.")]

    def encode(self, ids, _):
        types = {name: "int32" if "int32" in port.type else "int64" for name, port in self.inputs.items()}
        given = whole(self.numpy, ids)
        given = {name: values.astype(types[name]) for name, values in given.items()}

        def call():
            began = now()
            states = self.session.run(None, given)[0]
            return [now() - began], states
        return call

    def start(self, batch, longest):
        _, heads, _, width = self.inputs["past." + self.cached[0]].shape
        room = (batch, heads, longest, width)
        if getattr(self, "room", None) != room:
            # A value is the array's memory, not a copy of it.
            self.empty = {name: self.numpy.zeros(room, "float32") for name in self.cached}
            self.past = {name: self.value.ortvalue_from_numpy(array) for name, array in self.empty.items()}
            self.room = room

    def read(self, ids, past):
        batch, count = ids.shape
        total = past + count
        places = self.numpy.broadcast_to(self.numpy.arange(past, total), (batch, count))
        # A binding holds no reference to what it was given.
        given = {"input_ids": self.numpy.ascontiguousarray(ids, "int64"),
                 "positions": self.numpy.ascontiguousarray(places, "int64"),
                 "last": self.numpy.full(batch, total - 1, "int32"), "total": self.numpy.array(total, "int32")}
        binding = self.session.io_binding()
        for name in given.keys() & self.inputs.keys():
            binding.bind_cpu_input(name, given[name])
        for name, value in self.past.items():
            binding.bind_ortvalue_input("past." + name, value)
            binding.bind_ortvalue_output("present." + name, value)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()


class OpenVino(Peer):
    def load(self, model):
        import numpy
        import openvino
        self.numpy, core = numpy, openvino.Core()
        options = {"INFERENCE_NUM_THREADS": self.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                   "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        compiled = core.compile_model(self.export("openvino", model, "model.xml"), "CPU", options)
        self.request = compiled.create_infer_request()

    def infer(self, given):
        return self.request.infer(given, share_inputs=True, share_outputs=True)[0]

    def encode(self, ids, _):
        given = whole(self.numpy, ids)

        def call():
            began = now()
            states = self.infer(given)
            return [now() - began], states
        return call

    def start(self, *_):
        self.request.reset_state()

    def read(self, ids, past):
        batch, count = ids.shape
        places = self.numpy.broadcast_to(self.numpy.arange(past, past + count), (batch, count))
        return self.infer({"input_ids": self.numpy.ascontiguousarray(ids, "int64"),
                           "positions": self.numpy.ascontiguousarray(places),
                           "rows": self.numpy.arange(batch, dtype="int32")})


class CTranslate2(Peer):
    def load(self, model):
        import ctranslate2
        import numpy
        from suite.export import Words
        self.numpy, self.array = numpy, lambda view: numpy.array(view)
        kind = {"bert": ctranslate2.Encoder, "marian": ctranslate2.Translator}
        kind = kind.get(self.config["model_type"], ctranslate2.Generator)
        folder = self.export("ctranslate2", model, "")
        self.model = kind(folder, device="cpu", compute_type="float32", intra_threads=self.threads, inter_threads=1)
        self.words = Words(self.config).words
        self.numbers = {word: i for i, word in enumerate(self.words)}

    def spelled(self, ids):
        return [[self.words[i] for i in row] for row in ids]

    def encode(self, ids, _):
        ids = ids.tolist()

        def call():
            began = now()
            states = self.model.forward_batch(ids).last_hidden_state
            return [now() - began], self.array(states)
        return call

    def decode(self, ids, steps):
        """Its generator asks for a callback after each word; the prompt's last word is read in the first step."""
        prompts, plain = self.spelled(ids), ids.tolist()
        # A word that must not end anything, as sequences have a length here.
        options = {"beam_size": 1, "sampling_topk": 1, "include_prompt_in_result": False, "end_token": [self.words[3]],
                   "max_batch_size": 0, "min_length": steps + 1, "max_length": steps + 1}

        def call():
            times = {}

            def mark(step):
                times[step.step] = now()
                return False

            began = now()
            result = self.model.generate_batch(prompts, **options, **({"callback": mark} if steps else {}))
            took = now() - began
            if steps == 0:
                return [took], None
            marks = sorted(times.values())
            words = [row.sequences_ids[0][1:] for row in result]
            return [b - a for a, b in zip(marks, marks[1:])], self.numpy.array(words, "<u4")

        def outcome():
            times, words = call()
            return times, self.array(self.model.forward_batch(plain))[:, -1] if words is None else words
        call.outcome = outcome
        return call

    def translate(self, ids, beam):
        sources = self.spelled(ids)
        options = {"beam_size": beam, "length_penalty": 0.6 if beam > 1 else 1, "max_batch_size": 0,
                   "max_decoding_length": TRANSLATED, "min_decoding_length": TRANSLATED}

        def call():
            began = now()
            result = self.model.translate_batch(sources, **options)
            took = now() - began
            words = [[self.numbers[word] for word in row.hypotheses[0]] for row in result]
            return [took], self.numpy.array(words, "<u4")
        return call


PEERS = {"torch": Torch, "onnxruntime": OnnxRuntime, "openvino": OpenVino, "ctranslate2": CTranslate2}


def serve(peer, lines, out):
    loaded, cases = None, {}
    for line in lines:
        request = json.loads(line)
        try:
            if request["model"] != loaded:
                cases, loaded = {}, None
                peer.open(request["model"])
                loaded = request["model"]
            name = request["case"]
            if name not in cases:
                cases[name] = peer.case(name)
            call, operation = cases[name], request.get("op")
            if operation == "output":
                _, outcome = getattr(call, "outcome", call)()
                outcome.astype(outcome.dtype.newbyteorder("<")).tofile(request["file"])
            if operation:
                answer = {"ok": 1}
            else:
                answer = {"ns": timed(call, request)}
        except Exception as error:  # a peer may raise anything; the driver names it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


def timed(call, request):
    for _ in range(request.get("warm", 0)):
        call()
    times, calls, end = [], 0, time.perf_counter() + request["budget"]
    while calls < request["min_reps"] or time.perf_counter() < end:
        times += call()[0]
        calls += 1
    return times


def answers():
    """Where answers go: what was the standard output. Whatever a library prints must not stand between them."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    out = answers()
    serve(PEERS[sys.argv[1]](int(sys.argv[2]), sys.argv[3]), sys.stdin, out)
