"""A folder as each peer wants it: `python -m suite.export PEER MODELS OUT NAME`.

ONNX Runtime: encoders by torch's exporter and the transformer optimiser, decoders as graphs of its fused operators;
rten reads the same files, an encoder as it was before the optimiser, as it fuses operators itself.
OpenVINO: its own conversion of torch modules, decoders with a state. CTranslate2: its own converter.
torch and candle read the folder itself.
"""

import json
import pathlib
import shutil
import sys
import warnings

warnings.filterwarnings("ignore")


def kind(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


def encoder(folder):
    """BERT as a module of three inputs and one output, and inputs to trace it with: two lengths, so that both axes and
    the mask stay in the trace."""
    import torch
    import transformers

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            load = transformers.BertModel.from_pretrained
            self.bert = load(folder, dtype=torch.float32, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state

    ids = torch.arange(100, 126).reshape(2, 13)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return States().eval(), inputs


def onnxruntime(folder, out):
    import onnx

    if kind(folder) in ("gpt2", "llama"):
        from suite.decoder import Weights, graph
        onnx.save(graph(Weights(folder)), out / "model.onnx")
        return
    import torch
    from onnxruntime.transformers import optimizer

    module, inputs = encoder(folder)
    plain = out / "plain.onnx"
    names = [*inputs, "last_hidden_state"]
    torch.onnx.export(module, tuple(inputs.values()), str(plain), dynamo=False, opset_version=17, input_names=names[:3],
                      output_names=names[3:], dynamic_axes={name: {0: "b", 1: "t"} for name in names})
    config = module.bert.config
    fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=config.num_attention_heads,
                                     hidden_size=config.hidden_size, opt_level=0)
    fused.save_model_to_file(str(out / "model.onnx"))


def openvino(folder, out):
    import openvino as ov
    import torch

    torch.set_grad_enabled(False)
    if kind(folder) not in ("gpt2", "llama"):
        module, inputs = encoder(folder)
        model = ov.convert_model(module, example_input=inputs)
        for port, name in zip(model.inputs, inputs):
            port.get_tensor().set_names({name})
            port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
        model.validate_nodes_and_infer_types()
    else:
        model = stateful(folder)
    ov.save_model(model, out / "model.xml", compress_to_fp16=False)


def stateful(folder):
    """A decoder whose keys and values stay inside, empty at first."""
    import openvino as ov
    import torch
    from openvino import opset13 as op
    from openvino._offline_transformations import apply_make_stateful_transformation
    from suite.decoder import Decoder, Weights

    weights = Weights(folder)
    decoder, count = Decoder(weights).eval(), 2 * weights.layers
    past = [torch.zeros(2, weights.kv_heads, 5, weights.head) for _ in range(count)]
    ids, positions = torch.full((2, 3), 7), torch.arange(5, 8).repeat(2, 1)
    inputs = (ids, positions, torch.arange(2, dtype=torch.int32), *past)
    model = ov.convert_model(decoder, example_input=inputs)
    names = ["input_ids", "positions", "rows"]
    shapes = [[-1, -1], [-1, -1], [-1]] + [[-1, weights.kv_heads, -1, weights.head]] * count
    for port, name, shape in zip(model.inputs, names + [f"past_{i}" for i in range(count)], shapes):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port, name in zip(model.outputs, ["logits"] + [f"present_{i}" for i in range(count)]):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, {f"past_{i}": f"present_{i}" for i in range(count)})
    # As many sequences as the ids have, and no key yet.
    ids = op.shape_of(model.input("input_ids"), output_type="i64")
    zero = op.constant(0, dtype="int64")
    batch = op.unsqueeze(op.gather(ids, zero, zero), zero)
    sizes = [op.constant([n], dtype="int64") for n in (weights.kv_heads, 0, weights.head)]
    nothing = op.broadcast(op.constant(0.0, dtype="float32"), op.concat([batch, *sizes], 0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([nothing.output(0)])
    model.validate_nodes_and_infer_types()
    return model


class Words:
    """Stands in for a tokenizer: the word of id i is `wi`, apart from the special ones."""

    bos_token = eos_token = "<eos>"
    unk_token = "<unk>"

    def __init__(self, config):
        special = {0: "<eos>", 1: "<unk>"}
        if config["model_type"] == "marian":
            special[config["vocab_size"] - 1] = "<pad>"
        self.words = [special.get(i, f"w{i}") for i in range(config["vocab_size"])]

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}

    def convert_ids_to_tokens(self, i):
        return self.words[i]


def ctranslate2(folder, out):
    from ctranslate2.converters import TransformersConverter

    config = json.loads((folder / "config.json").read_text())

    class Converter(TransformersConverter):
        def load_tokenizer(self, *_, **__):
            return Words(config)

        def load_model(self, model_class, path, **options):
            model = model_class.from_pretrained(path, **options)
            if not hasattr(model.config, "position_embedding_type"):
                model.config.position_embedding_type = "absolute"
            return model

    Converter(str(folder)).convert(str(out), force=True)


if __name__ == "__main__":
    peer, folders, home, name = sys.argv[1:]
    target = pathlib.Path(home) / peer / name
    part = target.with_name(name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    {"onnxruntime": onnxruntime, "openvino": openvino, "ctranslate2": ctranslate2}[peer](
        pathlib.Path(folders) / name, part)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
