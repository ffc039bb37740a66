"""A small model of every format that can be looked at, and a large one whose weights are nowhere."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

import ingot
from gguf_models import TINY_LM, stored_as, write_gguf
from ingot.quantize import Plan, quantize_folder
from quantized_models import LAYERS, quantized

DIGITS = Path(str(importlib.resources.files("ingot") / "data" / "digits.onnx"))
BLOCKS, WIDTH = 2000, 64  # of the large model: five nodes and a matrix each


def write_models(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> the path of a model, and the options that give its dims values."""
    ingot.InferenceSession(DIGITS, dims={"batch": 1}).save(folder / "program")
    write_gguf(TINY_LM, folder / "tiny.gguf", stored_as("q4_0"))
    quantize_folder(TINY_LM, folder / "int4", Plan("int4"))
    module = torch.nn.Sequential(torch.nn.Linear(40, 600), torch.nn.ReLU(), torch.nn.Linear(600, 2))
    shapes = ({0: torch.export.Dim("rows", max=64)},)
    torch.export.save(torch.export.export(module, (torch.ones(2, 40),), dynamic_shapes=shapes), folder / "module.pt2")
    rng = np.random.default_rng(0)
    quantized(LAYERS[0], folder, rng, qdq=True, signed=True, per_channel=True, symmetric=False)
    write_bert(folder / "bert")
    paths = {
        "onnx": (DIGITS, ("--dim", "batch=2")),
        "pt2": (folder / "module.pt2", ("--dim", "s0=2")),
        "decoder": (TINY_LM, ()),
        "encoder": (folder / "bert", ("--dim", "batch=1", "--dim", "length=8")),
        "int4": (folder / "int4", ()),
        "gguf": (folder / "tiny.gguf", ()),
        "qdq": (folder / "quantized.onnx", ()),
        "program": (folder / "program", ()),
    }
    return {name: (str(path), options) for name, (path, options) in paths.items()}


def write_bert(folder: Path) -> None:
    """An encoder of two layers."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=99, max_position_embeddings=40, **sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def write_large(path: Path, blocks: int = BLOCKS) -> Path:
    """An ONNX file of 10 000 nodes; its weights refer to `weights.bin`, which does not exist."""
    nodes, weights, x = [], [], "x"
    for i in range(blocks):
        weight = TensorProto(name=f"layers.{i}.weight", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        weight.data_location = TensorProto.EXTERNAL
        offset = i * WIDTH * WIDTH * 4
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", WIDTH * WIDTH * 4)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        made = [f"layers.{i}.{name}" for name in ("product", "relu", "sum", "sigmoid", "result")]
        product, relu, total, sigmoid, result = made
        nodes += [
            helper.make_node("MatMul", [x, weight.name], [product]), helper.make_node("Relu", [product], [relu]),
            helper.make_node("Add", [relu, x], [total]), helper.make_node("Sigmoid", [total], [sigmoid]),
            helper.make_node("Mul", [sigmoid, total], [result]),
        ]  # fmt: skip
        x = result
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "large", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="tests"), path)
    return path


def written_onnx(path: Path, graph: str) -> Path:
    """An ONNX file of a graph in the text form of onnx."""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {graph}'), path)
    return path
