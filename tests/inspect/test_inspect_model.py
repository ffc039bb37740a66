"""Documents of looks: counted by hand or by another way, and made without reading what they do not show."""

import json
import re
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from gguf_models import TINY_LM
from ingot.compile import compile_mode
from ingot.errors import IngotError, LoadError
from ingot.inspect.flops import COUNTS, flops
from ingot.inspect.model import InspectedModel
from ingot.inspect.nodes import list_document, node_document, trace_document
from ingot.inspect.stages import STAGES
from ingot.inspect.summary import summary_document
from ingot.inspect.tensors import BINS, tensor_document
from ingot.ir.text import dump, parse
from ingot.load.aten import load_pt2
from ingot.load.language import read_model
from ingot.lower import Target, step_cost
from ingot.session.saved_program import read_headers
from inspect_models import BLOCKS, DIGITS, WIDTH, write_large
from op_cases import CASES, one_node


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> InspectedModel:
    """Ten thousand nodes, whose weights are nowhere."""
    path = write_large(tmp_path_factory.mktemp("large") / "large.onnx")
    with pytest.raises(LoadError, match=r"external data 'weights.bin' does not exist"):
        ingot.InferenceSession(path)
    return InspectedModel(str(path))


def test_a_large_model_needs_no_weights(large: InspectedModel) -> None:
    document = summary_document(large, "graph")
    assert document["nodes"] == 5 * BLOCKS and document["ops"] == dict.fromkeys(
        ("matmul", "relu", "add", "sigmoid", "mul"), BLOCKS
    )
    assert document["parameters"] == BLOCKS * WIDTH**2 and len(document["absent"]) == BLOCKS
    assert document["flops"]["total"] == f"{2 * BLOCKS * WIDTH**2}*batch"
    assert list_document(large, "graph", "matmul", "layers.7.")["nodes"][0]["name"] == "layers.7.product"
    node = node_document(large, "graph", "layers.1.sigmoid")
    assert (node["producers"], node["consumers"]) == (["layers.1.sum"], ["layers.1.result"])
    assert [row["op"] for row in node["became"]] == ["silu"] and node["became"][0]["how"] == "fused"
    trace = trace_document(large, "graph", "layers.5.relu", 2, 1)
    distances = {row["name"]: row["distance"] for row in trace["nodes"]}
    assert distances == {
        "layers.4.result": -2, "layers.5.product": -1, "layers.5.relu": 0, "layers.5.sum": 1
    }  # fmt: skip
    tensor = tensor_document(large, "graph", "layers.3.weight", 4)
    assert tensor["first"] is None and "does not exist" in tensor["why_no_values"]


def test_stored_arrays_of_a_program_are_not_read(tmp_path: Path) -> None:
    """Their bytes are others than were written, which a session refuses."""
    ingot.InferenceSession(DIGITS, dims={"batch": 1}).save(tmp_path / "program")
    weights = tmp_path / "program" / "weights.bin"
    size = weights.stat().st_size
    weights.unlink()
    with weights.open("wb") as file:
        file.truncate(size)
    with pytest.raises(LoadError, match="is damaged"):
        ingot.InferenceSession(tmp_path / "program")
    looked = InspectedModel(str(tmp_path / "program"))
    assert summary_document(looked, "plan")["memory"]["arena_bytes"] > 0
    assert read_headers(str(tmp_path / "program"))[0].outputs == {"probabilities": "probabilities"}


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in the memory of this process."""
    sections = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    mapped = [section for section in sections if str(path) in section.partition("\n")[0]]
    assert mapped, path
    return sum(1024 * int(re.search(r"^Rss:\s+(\d+) kB", section, re.MULTILINE)[1]) for section in mapped)


def test_weights_of_a_folder_are_not_read(tmp_path: Path) -> None:
    shutil.copytree(TINY_LM, tmp_path / "model")
    looked = InspectedModel(str(tmp_path / "model"))
    for stage in STAGES:
        summary_document(looked, stage)
    file = tmp_path / "model" / "model.safetensors"
    assert file.stat().st_size > 5 << 20 and resident(file) < 1 << 20
    tensor_document(looked, "graph", "model.embed_tokens.weight", 1)
    assert resident(file) < 2 << 20  # its pages are let go of


def test_parameters_are_those_of_the_file_in_every_format(models) -> None:
    stored = sum(int(np.prod(tensor.shape)) for tensor in read_model(TINY_LM).tensors.values())
    for name in ("decoder", "gguf", "int4"):
        assert summary_document(InspectedModel(models[name][0]), "graph")["parameters"] == stored
    digits = ingot.InferenceSession(DIGITS, executor="interpret", passes=()).graph
    floats = [v for v in digits.values.values() if v.kind in ("weight", "constant") and v.type.dtype.kind == "f"]
    assert summary_document(InspectedModel(str(DIGITS)), "graph")["parameters"] == sum(v.type.size for v in floats)


def test_flops_of_nodes_are_those_of_their_kernels() -> None:
    """Wherever a kernel computes a node that is counted; transposed convolutions are other ones then, and experts that
    are no weights are all computed.
    """
    compared = {}
    for op, sample in CASES:
        if op.name not in COUNTS or op.name in ("conv_transpose", "expert_matmul"):
            continue
        graph, _ = one_node(op, sample, (1,))
        native = [part.lowered for part in compile_mode(graph, Target("scalar", 1)).segments if part.native]
        total = sum(step_cost(lowered, step).flops for lowered in native for step in lowered.steps)
        if total:
            assert flops(graph, next(iter(graph.nodes))) == total, (op.name, sample)
            compared[op.name] = compared.get(op.name, 0) + 1
    assert set(compared) >= {"matmul", "matmul_integer", "conv", "conv_integer", "attention", "lstm", "gru", "rnn"}


def test_flops_grow_with_dims() -> None:
    graph = parse("graph g\ninput x: f32[B, 3, T, T]\nweight w: f32[8, 3, 1, 1]\ny = conv(x, w, strides=[1, 1],"
                  " pads=[0, 0, 0, 0], dilations=[1, 1], groups=1)\noutput y = y\n")  # fmt: skip
    assert str(flops(graph, next(iter(graph.nodes)))) == "48*B*T*T"


@pytest.mark.parametrize("model", ["onnx", "decoder", "gguf", "int4", "qdq", "pt2"])
def test_statistics_are_numpys(models, model: str, rng) -> None:
    """Statistics of the largest weight as stored, and of quantized weights as decoded."""
    looked = InspectedModel(models[model][0])
    edges = [e for e in looked.view("graph").edges.values() if e.data is not None and e.data.dtype != object]
    largest = max(edges, key=lambda edge: edge.data.size)
    names = [largest.name, *tensor_document(looked, "graph", largest.name, 0)["decoded_as"]]
    for name in names:
        document = tensor_document(looked, "graph", name, 5)
        data = largest.data if name == largest.name else _decoded(looked, name)
        numbers = data.astype(np.float64)
        statistics = document["statistics"]
        found = [statistics[key] for key in ("min", "max", "mean", "std")]
        expected = [numbers.min(), numbers.max(), numbers.mean(), numbers.std()]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert statistics["zeros"] == (numbers == 0).sum() and statistics["elements"] == numbers.size
        counts, edges = np.histogram(numbers, BINS)
        assert document["histogram"]["counts"] == counts.tolist()
        np.testing.assert_allclose(document["histogram"]["edges"], edges)
        assert document["first"] == numbers.ravel()[:5].tolist()


def _decoded(looked: InspectedModel, name: str) -> np.ndarray:
    """By the interpreter, of a graph that returns the value alone."""
    graph = looked.loaded.copy()
    for external in list(graph.outputs):
        graph.remove_output(external)
    graph.states.clear()
    graph.set_output("decoded", name)
    part = ingot.ir.graph.Graph()
    waiting, needed = [name], set()
    while waiting:
        producer = graph.producer(waiting.pop())
        if producer is not None and producer not in needed:
            needed.add(producer)
            waiting += [operand for operand in producer.operands if operand is not None]
    for node in graph.nodes:
        if node in needed:
            for operand in node.operands:
                if operand is not None and operand not in part.values:
                    part.add_weight(operand, graph.values[operand].data)
            part.add(node.op.name, node.operands, node.outputs, **node.attributes)
    part.set_output("decoded", name)
    return ingot.InferenceSession(part, executor="interpret", passes=()).run(None, {})[0]


@pytest.mark.parametrize("values", [[], [np.nan, np.inf, -np.inf], [2.0, 2.0], [True, False, True]])
def test_odd_numbers(values: list, tmp_path: Path) -> None:
    data = np.array(values) if values and isinstance(values[0], bool) else np.array(values, np.float32)
    weights = [numpy_helper.from_array(data, "w")]
    dtype, op = (TensorProto.BOOL, "And") if data.dtype == bool else (TensorProto.FLOAT, "Add")
    ports = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in (("x", []), ("y", data.shape))]
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    looked = InspectedModel(str(tmp_path / "m.onnx"))
    document = tensor_document(looked, "graph", "w", 3)
    json.dumps(document, allow_nan=False)
    assert len(document["first"]) == len(values)
    if values:
        assert sum((document["histogram"] or {"counts": [0]})["counts"]) == np.isfinite(data.astype(float)).sum()


def test_what_nodes_became(models) -> None:
    looked = InspectedModel(models["onnx"][0])
    known = {"conv2d": ("same", "conv2d"), "val_8": ("fused", "gelu"), "gelu": ("rewritten", "gelu")}
    for name, (how, became) in known.items():
        (row,) = node_document(looked, "graph", name)["became"]
        assert (row["how"], row["name"]) == (how, became)
    decoder = InspectedModel(models["decoder"][0])
    q, k = (node_document(decoder, "graph", f"model.layers.0.self_attn.{x}_proj")["became"] for x in "qk")
    assert q == k == [{"name": "model.layers.0.self_attn.q_proj.merged", "op": "matmul", "how": "fused"}]


def test_a_name_that_the_passes_removed_is_reported(models) -> None:
    looked = InspectedModel(models["onnx"][0])
    with pytest.raises(IngotError, match="optimized: no such node, got 'val_8', which became 'gelu'"):
        node_document(looked, "optimized", "val_8")
    planned = InspectedModel(models["onnx"][0], dims={"batch": 2})
    with pytest.raises(IngotError, match="plan: no such node, got 'linear', which became 'gelu_2'"):
        node_document(planned, "plan", "linear")
    with pytest.raises(IngotError, match="expected 'conv2d' or 'conv2d_1'"):
        node_document(looked, "graph", "conv2")


def test_a_mapped_pt2_is_the_same(models) -> None:
    read, mapped = (load_pt2(models["pt2"][0], is_mapped=is_mapped) for is_mapped in (False, True))
    assert dump(read) == dump(mapped)
    for name, value in read.values.items():
        if value.data is not None:
            assert np.array_equal(value.data, mapped.values[name].data)


def test_records_of_a_pt2_are_not_read(models, tmp_path: Path) -> None:
    """Another byte of a weight is an error of its checksum where it is read."""
    content = bytearray(Path(models["pt2"][0]).read_bytes())
    with zipfile.ZipFile(models["pt2"][0]) as archive:
        (entry,) = (each for each in archive.infolist() if each.filename.endswith("data/weights/weight_0"))
    assert entry.file_size > 1 << 16
    content[entry.header_offset + 5000] ^= 1
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(LoadError, match="CRC"):
        load_pt2(tmp_path / "m.pt2")
    assert summary_document(InspectedModel(str(tmp_path / "m.pt2")), "optimized")["nodes"] == 5


@pytest.mark.parametrize("offset", [0xFFFFFFF0, 100, -10, 3])
def test_a_record_elsewhere_is_refused(models, tmp_path: Path, offset: int) -> None:
    """The offset of a record's header, as the directory at the end of the file declares it."""
    content = bytearray(Path(models["pt2"][0]).read_bytes())
    entry = content.rindex(b"PK\1\2", 0, content.rindex(b"data/weights/weight_0"))
    struct.pack_into("<I", content, entry + 42, offset % (len(content) if offset < 0 else 1 << 32))
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(LoadError):
        InspectedModel(str(tmp_path / "m.pt2"))
