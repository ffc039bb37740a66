"""Commands that look into a model, as a user types them: every format, every stage, text and JSON."""

import gc
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from test_cli import HOSTILE, save_model

from attacks.hostile_configs import write_llama
from graphviz import Drawing
from ingot.cli import commands
from ingot.cli.bisect import COMMANDS as BISECT
from ingot.cli.compare import COMMANDS as COMPARE
from ingot.cli.inspect import COMMANDS as INSPECT
from ingot.cli.plans import COMMANDS as PLANS
from ingot.cli.report import COMMANDS as REPORT
from ingot.inspect.stages import DETAILS, STAGES
from inspect_models import DIGITS, TINY_LM, write_large
from onnx_models import text_model
from small_tokenizers import document, write_folder
from tiny_language_models import random_llama

COMMANDS = [*BISECT, *INSPECT, *COMPARE, *PLANS, *REPORT]
FORMATS = ("onnx", "pt2", "decoder", "encoder", "int4", "gguf", "qdq", "program")
DOCUMENT = (Path(__file__).parents[2] / "docs" / "inspecting.md").read_text()


def documented() -> dict[str, dict[str, bool]]:
    """Of each document, its keys, and whether all have them."""
    found: dict[str, dict[str, bool]] = {}
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] not in ("document", "---"):
            keys = [key.strip() for key in cells[1].split(",")]
            found.setdefault(cells[0], {}).update({key.rstrip("?"): not key.endswith("?") for key in keys})
    return found


def expect_documented(row: dict, *kinds: str) -> None:
    """Raises AssertionError unless a row has the keys of its documents, and no others."""
    table = {key: needed for kind in kinds for key, needed in documented()[kind].items()}
    assert set(row) <= set(table), set(row) - set(table)
    assert {key for key, needed in table.items() if needed} <= set(row)


def looks(models, name: str, stage: str) -> list[tuple[str, ...]]:
    """Each command on a model at a stage."""
    path, dims = models[name]
    options = (path, "--stage", stage, *(dims if stage in ("lowered", "plan") else ()))
    return [("inspect", *options), ("list-nodes", *options), ("dot", *options), ("validate", *options)]


def read(call, *arguments) -> dict:
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, ""), err
    return json.loads(out, parse_constant=pytest.fail)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_at_every_stage(models, call, monkeypatch, name: str, stage: str) -> None:
    """Documents match the documentation, commands accept each other's names, text is at most 80 wide."""
    monkeypatch.setenv("COLUMNS", "80")
    inspect, listing, dot, validate = looks(models, name, stage)
    summary = read(call, *inspect)
    expect_documented(summary, "head", "inspect")
    nodes = read(call, *listing)
    expect_documented(nodes, "head", "list-nodes")
    assert nodes["count"] == nodes["of"] == summary["nodes"] == sum(summary["ops"].values())
    for row in nodes["nodes"]:
        expect_documented(row, "node")
    drawing = read(call, *dot)
    expect_documented(drawing, "head", "dot")
    drawn = Drawing(drawing["dot"])
    assert len(drawn.nodes) == len(drawing["nodes"]) and len(drawn.edges) == len(drawing["edges"])
    checked = read(call, *validate)
    expect_documented(checked, "head", "validate")
    path, *options = inspect[1:]
    middle = nodes["nodes"][len(nodes["nodes"]) // 2]["name"]
    node = read(call, "inspect-node", path, middle, *options)
    expect_documented(node, "head", "inspect-node")
    for tensor in (*node["operands"], *node["outputs"]):
        expect_documented(tensor or dict.fromkeys(documented()["tensor"]), "tensor")
    trace = read(call, "trace-node", path, middle, *options)
    expect_documented(trace, "head", "trace-node")
    assert {row["distance"] for row in trace["nodes"]} <= {-2, -1, 0, 1, 2}
    tensor = next(operand["name"] for operand in node["operands"] if operand is not None)
    expect_documented(read(call, "inspect-tensor", path, tensor, *options), "head", "inspect-tensor")
    for command in (inspect, listing, validate, ("inspect-node", path, middle, *options),
                    ("inspect-tensor", path, tensor, *options), ("trace-node", path, middle, *options)):  # fmt: skip
        code, out, _ = call(*command)
        wide = [line for line in out.replace(path, Path(path).name).splitlines() if len(line.rstrip()) > 80]
        assert code == 0 and out.strip() and not wide, wide


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("name", ["onnx", "decoder", "program"])
def test_drawings_parse_and_get_smaller(models, call, name: str, detail: str) -> None:
    path, _ = models[name]
    drawn = Drawing(call("dot", path, "--detail", detail)[1])
    whole = read(call, "list-nodes", path)
    assert drawn.nodes and drawn.edges
    if detail == "summary":
        assert len([id for id in drawn.nodes if id.startswith("g")]) == len({row["op"] for row in whole["nodes"]})
    shallow = Drawing(call("dot", path, "--detail", "layers", "--depth", "1")[1])
    deep = Drawing(call("dot", path, "--detail", "layers", "--depth", "5")[1])
    assert len(shallow.nodes) < len(deep.nodes)


def test_layers_are_those_of_the_model(call) -> None:
    document = read(call, "dot", "tiny-lm", "--detail", "layers", "--depth", "3")
    layers = {node["label"].split("\n")[0] for node in document["nodes"] if node["kind"] == "group"}
    assert {f"model.layers.{i}" for i in range(5)} <= layers
    assert sum(node.get("nodes", 0) for node in document["nodes"]) == read(call, "list-nodes", "tiny-lm")["of"]


EXAMPLES = [
    line.strip()
    for command in COMMANDS
    for line in (command.help or "").splitlines()
    if line.strip().startswith("ingot ")
]
EXAMPLES += [line.partition("  #")[0].strip() for line in DOCUMENT.splitlines() if line.startswith("ingot ")]


def test_every_command_has_an_example() -> None:
    assert {line.split()[1] for line in EXAMPLES} == {"bench", "profile", *(command.name for command in COMMANDS)}
    for command in COMMANDS:
        assert any(line.split()[1] == command.name for line in (command.help or "").splitlines() if "ingot" in line)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_work_when_pasted(call, tmp_path, monkeypatch, example: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*shlex.split(example)[1:])
    assert (code, err) == (0, "") and (out.strip() or list(tmp_path.iterdir()))


@pytest.mark.parametrize("word", [command.name for command in COMMANDS])
def test_help_fits_and_shows_the_example(call, monkeypatch, word: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(word, "--help")
    assert code == 0 and f"ingot {word} " in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_name_that_ships_gives_way_to_a_file(call, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(call, "inspect", "digits")["inputs"][0]["name"] == "image"
    save_model(tmp_path / "digits", helper.make_node("Relu", ["x"], ["y"]))
    assert read(call, "inspect", "digits")["inputs"][0]["name"] == "x"


def test_a_summary_in_words(call) -> None:
    _, out, _ = call("inspect", DIGITS)
    for words in ("producer   pytorch", "opset ai.onnx 18", "image: f32[batch, 1, 8, 8]", "symbols    batch",
                  "6 mul, 5 add", "parameters  38,4", "675072*batch"):  # fmt: skip
        assert " ".join(words.split()) in " ".join(out.split())


def test_nodes_by_op_and_name(call) -> None:
    names = [row["name"] for row in read(call, "list-nodes", DIGITS, "--op", "conv*")["nodes"]]
    assert names == ["conv2d", "conv2d_1"]
    assert [r["op"] for r in read(call, "list-nodes", DIGITS, "--name", "linear")["nodes"]] == ["matmul", "add"] * 2
    assert read(call, "list-nodes", DIGITS, "--name", "linea?")["count"] == 1
    code, _, err = call("list-nodes", DIGITS, "--op", "conv9")
    assert code == 65 and "no node matches, got op 'conv9'" in err and "max_pool" in err


def test_explain_takes_names_of_the_loaded_graph(call) -> None:
    _, out, _ = call("explain", DIGITS, "val_8", "--dim", "batch=2", "--json")
    assert json.loads(out)["fused_into"] == ["gelu"] and json.loads(out)["version"] == 1
    assert "fused into gelu\n" in call("explain", DIGITS, "val_8", "--dim", "batch=2")[1]


def test_a_trace_ends_with_the_model(call) -> None:
    steps = (str(10**12),) * 2
    traced = read(call, "trace-node", DIGITS, "conv2d", "--up", steps[0], "--down", steps[1])
    assert len(traced["nodes"]) == read(call, "list-nodes", DIGITS)["count"]
    assert traced["goes_on"] == {"above": False, "below": False}


def test_a_node_of_many_names_can_be_read(call, tmp_path, monkeypatch) -> None:
    """Text has the number of the omitted ones; JSON has all of them."""
    parts = [f"part{i}" for i in range(300)]
    nodes = [helper.make_node("Abs", ["x"], ["shared"]), *(helper.make_node("Exp", ["shared"], [p]) for p in parts)]
    nodes.append(helper.make_node("Concat", parts, ["y"], axis=0))
    model = save_model(tmp_path / "m.onnx", *nodes)
    monkeypatch.setenv("COLUMNS", "80")
    for word, name in (("inspect-node", "y"), ("inspect-node", "shared"), ("inspect-tensor", "shared")):
        _, out, _ = call(word, model, name)
        assert len(out.splitlines()) < 60 and re.search(r"and 2(84|92) more", " ".join(out.split()))
    assert len(read(call, "inspect-node", model, "y")["operands"]) == 300
    assert len(read(call, "inspect-tensor", model, "shared")["users"]) == 300


def test_kernels_that_were_refused_for_one_reason_share_a_line(call) -> None:
    arguments = ("explain", DIGITS, "linear", "--dim", "batch=2")
    _, out, _ = call(*arguments)
    (node,) = json.loads(call(*arguments, "--json")[1])["nodes"]
    lines = [line for line in out.splitlines() if line.startswith("  not ")]
    assert len(node["refused"]) > 50 and 0 < len(lines) < 10
    assert sum("and" in line and " more: " in line for line in lines) >= 1
    assert {row["reason"] for row in node["refused"]} == {line.split(": ", 1)[1] for line in lines}


@pytest.mark.parametrize("stage", STAGES)
def test_hostile_names(call, tmp_path, stage: str) -> None:
    nodes = [helper.make_node("Relu", ["x"], [HOSTILE]), helper.make_node("Exp", [HOSTILE], ["y" + HOSTILE])]
    model = save_model(tmp_path / "m.onnx", *nodes, outputs=("y" + HOSTILE,))
    name = read(call, "list-nodes", model, "--stage", stage)["nodes"][0]["name"]
    commands = [("inspect",), ("list-nodes",), ("dot",), ("validate",), ("inspect-node", name), ("trace-node", name)]
    for word, *rest in [*commands, ("inspect-tensor", "y" + HOSTILE), ("inspect", "--full")]:
        _, out, err = call(word, model, *rest, "--stage", stage)
        assert not set("\x1b\u202e\r") & set(out + err)


# -- validate


def problems(document: dict) -> str:
    rows = [*document["problems"], *(text for row in document["executors"] for text in row["problems"])]
    return "\n".join(rows)


def runs(document: dict) -> set[str]:
    return {row["name"] for row in document["executors"] if row["runs"]}


def validated(call, *arguments) -> tuple[int, dict]:
    code, out, _ = call("validate", *arguments, "--json")
    document = json.loads(out)
    assert document["exit_code"] == code
    return code, document


def test_all_problems_of_a_model_are_reported_together(call, tmp_path) -> None:
    save_model(tmp_path / "m.onnx", helper.make_node("Unheard", ["x"], ["a"]), helper.make_node("Unseen", ["x"], ["y"]))
    code, document = validated(call, tmp_path / "m.onnx")
    assert code == 69 and "Unheard" in problems(document) and "Unseen" in problems(document)
    (tmp_path / "cut.onnx").write_bytes(DIGITS.read_bytes()[:5000])
    code, document = validated(call, tmp_path / "cut.onnx")
    assert code == 65 and "truncated" in problems(document)
    code, _, err = call("validate", tmp_path / "absent.onnx")
    assert code == 66 and "absent.onnx" in err


def test_weights_that_are_not_there(call, tmp_path) -> None:
    path = write_large(tmp_path / "large.onnx", 60)
    code, document = validated(call, path)
    assert code == 65 and len(document["problems"]) == 60 and not runs(document)
    code, out, _ = call("validate", path)
    assert code == 65 and "and 10 more" in out


def test_what_each_executor_takes(call, tmp_path) -> None:
    assert runs(validated(call, DIGITS)[1]) == {"native", "strict", "interpret", "emit-c", "webgpu", "emit-web"}
    assert runs(validated(call, "tiny-lm")[1]) == {"native", "strict", "emit-c", "webgpu", "emit-web"}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1], values_floats=[2.0])
    ports = (
        [helper.make_tensor_value_info("x", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", *ports), opset_imports=imports)
    onnx.save(model, tmp_path / "labels.onnx")
    code, document = validated(call, tmp_path / "labels.onnx")
    assert code == 0 and runs(document) == {"native", "interpret", "webgpu"}
    said = "label_encode 'y'"
    assert f"no kernel: {said}" in problems(document) and said in document["executors"][0]["notes"][0]


def test_each_mode_of_a_language_model_is_compiled(call) -> None:
    assert validated(call, DIGITS)[1]["modes"] == []
    assert validated(call, "tiny-lm")[1]["modes"] == ["prefill", "decode", "batch"]
    assert validated(call, "tiny-lm", "--stage", "graph")[1]["modes"] == []
    assert validated(call, "tiny-lm", "--mode", "decode")[1]["modes"] == ["decode"]
    assert "prefill, decode, batch: up to stage plan, not run" in call("validate", "tiny-lm")[1]


def test_validate_reports_what_a_session_does(call, tmp_path, models) -> None:
    """Emitted C accepts a model if and only if the report claims it."""
    for name in ("onnx", "qdq", "program", "encoder"):
        path, dims = models[name]
        allowed = "emit-c" in runs(validated(call, path, *dims)[1])
        assert (call("emit-c", path, *dims, "-o", tmp_path / name)[0] == 0) == allowed, name


@pytest.mark.parametrize("tokenizer", ["unigram", "gemma", "byte_fallback"])
def test_validate_reports_what_a_language_model_does(call, tmp_path, tokenizer: str) -> None:
    """Tokenizers and templates included: C and a page accept a model if and only if the report claims it."""
    random_llama(tmp_path / "model", vocab_size=512)
    write_folder(tmp_path / "model", document(tokenizer))
    code, found = validated(call, tmp_path / "model")
    assert code == 0 and {"native", "strict", "webgpu"} <= runs(found) and "interpret" not in runs(found)
    for command in ("emit-c", "emit-web"):
        done = call(command, tmp_path / "model", "--context", 64, "-o", tmp_path / command)
        assert (done[0] == 0) == (command in runs(found)), (command, done)
        (row,) = (row for row in found["executors"] if row["name"] == command)
        assert all(problem in done[2] for problem in row["problems"])


# -- how it is read


@pytest.mark.parametrize("arguments", [("list-nodes",), ("explain",), ("bench", "--prompt", "4", "--tokens", "2")])
def test_headers_of_weights_are_read_once(arguments: tuple[str, ...]) -> None:
    """In a process of its own: a hook that sees what is opened stays for good."""
    word, *options = arguments
    done = subprocess.run(
        [sys.executable, "-c", NOTED, word, str(TINY_LM), *options], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines().count("opened") == 1, done.stderr


NOTED = """
import sys
import ingot.cli

def note(event, given):
    if event == "open" and isinstance(given[0], str) and given[0].endswith("model.safetensors"):
        print("opened", file=sys.stderr)

sys.addaudithook(note)
ingot.cli.main()
"""


def test_a_pipe_is_not_cut(call, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = call("list-nodes", "tiny-lm", "--stage", "optimized")[1]
    assert "model.layers.0.self_attn.q_proj.weight.f32.early.merged" in out and max(map(len, out.splitlines())) > 100


@pytest.mark.parametrize("word", ["inspect", "list-nodes", "validate", "dot"])
def test_a_look_collects_no_garbage(call, word: str) -> None:
    """Of a graph of ten thousand nodes, that took a quarter of the time."""
    collected: list[str] = []

    def note(phase: str, info: dict) -> None:
        frame = sys._getframe(1)
        while frame is not None and Path(frame.f_code.co_filename).parent.name != "inspect":
            frame = frame.f_back
        collected.extend([phase] * (frame is not None))

    threshold = gc.get_threshold()
    gc.set_threshold(100)
    gc.callbacks.append(note)
    try:
        code, _, _ = call(word, DIGITS)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*threshold)
    assert (code, collected, gc.isenabled()) == (0, [], True)


def test_numbers_are_numbers(call, models) -> None:
    """No JSON holds a number as text, but for what has symbols or is not finite."""

    def texts(value) -> list[str]:
        if isinstance(value, dict):
            return [text for key, each in value.items() if key not in ("name", "metadata") for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    path, dims = models["onnx"]
    asked = [("inspect", path, "--stage", "plan", *dims), ("list-nodes", path), ("inspect-node", path, "conv2d")]
    asked += [("inspect-tensor", path, "classifier.features.2.weight"), ("explain", path, *dims)]
    asked += [("doctor",), ("cache",), ("memory", TINY_LM), ("bench", path, "--seconds", "0.02", *dims)]
    number = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?( ?([KMG]iB|B|%|[um]?s))?")
    for arguments in asked:
        assert [text for text in texts(read(call, *arguments)) if number.fullmatch(text)] == []


def test_commands_are_all_there() -> None:
    assert {command.name for command in COMMANDS} <= set(commands.commands)


def test_a_sequence_and_a_branch_are_shown(call, tmp_path) -> None:
    """Values that are no tensors, and nodes that hold graphs."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("a", "b")]
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [info.name])], info.name, [], [info])
        for op, info in zip(("Relu", "Neg"), made, strict=True)
    ]
    nodes = [
        helper.make_node("If", ["flag"], ["c"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("SequenceConstruct", ["c", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    graph = helper.make_graph(nodes, "g", [x, flag], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    for stage in STAGES:
        rows = read(call, "list-nodes", tmp_path / "m.onnx", "--stage", stage)["nodes"]
        assert any(row["op"] == "if" for row in rows)
        read(call, "inspect", tmp_path / "m.onnx", "--stage", stage)
        Drawing(call("dot", tmp_path / "m.onnx", "--stage", stage)[1])
    node = read(call, "inspect-node", tmp_path / "m.onnx", "c")
    assert "relu" in node["attributes"]["then_branch"]
    assert np.prod(node["outputs"][0]["shape"]) == 6


def test_a_model_without_a_graph_before_its_dims(call, tmp_path) -> None:
    body = "agraph (float[n, m, 4] x) => (y) { z = Squeeze (x) y = Neg (z) }"
    (tmp_path / "m.onnx").write_bytes(text_model(body))
    code, _, err = call("inspect", tmp_path / "m.onnx")
    assert code == 65 and "--dim n=1 --dim m=1" in err
    dims = ("--dim", "n=2", "--dim", "m=1")
    assert read(call, "inspect", tmp_path / "m.onnx", *dims)["outputs"][0]["shape"] == [2, 4]
    code, document = validated(call, tmp_path / "m.onnx")
    assert code == 0 and document["assumed"] == {"n": 1, "m": 1} and "native" in runs(document)


def named_model(path: Path) -> Path:
    """Two modules whose nodes have names, and an op of another domain."""
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="/stem/fc/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], name="/stem/Relu"),
        helper.make_node("FusedMatMul", ["b", "w"], ["c"], name="/head/fc", domain="com.microsoft"),
        helper.make_node("Softmax", ["c"], ["y"], name="/head/Softmax"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "named", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_names_of_the_file_are_accepted_and_shown_at_every_stage(call, tmp_path) -> None:
    model = str(named_model(tmp_path / "m.onnx"))
    for stage in STAGES:
        node = read(call, "inspect-node", model, "/stem/Relu", "--stage", stage)
        assert "/stem/Relu" in [source["name"] for source in node["sources"]]
        trace = read(call, "trace-node", model, "/stem/Relu", "--stage", stage, "--up", "0", "--down", "1")
        assert trace["nodes"][0]["distance"] == 0 and len(trace["nodes"]) >= 2
        assert "/stem/Relu" in call("inspect-node", model, "/stem/Relu", "--stage", stage)[1]
    for op in ("MatMul", "com.microsoft.FusedMatMul", "Fused*"):
        listed = read(call, "list-nodes", model, "--op", op)
        assert [row["op"] for row in listed["nodes"]] == ["matmul"] and listed["ops"] == {"matmul": 1}
        assert sum(listed["source_ops"].values()) == 1
    assert [row["name"] for row in read(call, "list-nodes", model, "--name", "/head/")["nodes"]] == ["c", "y"]
    assert "2 of 4 nodes: 1 matmul, 1 softmax" in call("list-nodes", model, "--name", "/head/")[1]
    explained = read(call, "explain", model, "/head/Softmax")
    assert [row["node"] for row in explained["nodes"]] == ["y"]
    code, _, err = call("inspect-node", model, "/stem/Rel")
    assert code == 65 and "'/stem/Relu'" in err
    summary = read(call, "inspect", model)
    assert [(row["path"], row["nodes"], row["parameters"]) for row in summary["modules"]] == [
        ("stem", 2, 16), ("stem.fc", 1, 16), ("head", 2, 0)
    ]  # fmt: skip
    assert summary["source_ops"] == {"MatMul": 1, "Relu": 1, "FusedMatMul": 1, "Softmax": 1}


def test_a_part_of_a_model_is_drawn(call, tmp_path) -> None:
    model = str(named_model(tmp_path / "m.onnx"))
    kinds = {
        ("--op", "Softmax"): {"node": 1, "cut": 1, "output": 1},
        ("--name", "/stem/"): {"node": 2, "input": 1, "constant": 1},
        ("--around", "/stem/Relu", "--depth", "1"): {"node": 3, "input": 1, "constant": 1},
        ("--around", "/stem/Relu", "--op", "relu"): {"node": 1, "cut": 1},
    }
    for options, expected in kinds.items():
        document = read(call, "dot", model, *options)
        found = [box["kind"] for box in document["nodes"]]
        assert {kind: found.count(kind) for kind in found} == expected, options
        assert len(Drawing(document["dot"]).nodes) == len(found)
    assert call("dot", model, "--op", "conv")[0] == 65


def test_a_picture_is_graphvizs_or_an_error_names_what_is_missing(call, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = call("dot", "digits", "-o", tmp_path / "x.svg")
    assert code == 69 and "needs Graphviz" in err and "-o NAME.dot" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "x.svg").exists()
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "$1"\n/bin/cat\n')
    program.chmod(0o755)
    assert call("dot", "digits", "-o", tmp_path / "x.svg")[0] == 0
    assert (tmp_path / "x.svg").read_text().startswith("-Tsvg\ndigraph")
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    code, _, err = call("dot", "digits", "-o", tmp_path / "y.png")
    assert code == 73 and "exit code 3: broken" in err and not (tmp_path / "y.png").exists()


@pytest.mark.parametrize("model", ["digits", "tiny-lm"])
def test_a_step_of_training_is_looked_at(call, model: str) -> None:
    options = ("--mode", "train", "--dim", "batch=2", *(("--dim", "length=8") if model == "tiny-lm" else ()))
    run, step = read(call, "inspect", model), read(call, "inspect", model, *options, "--stage", "graph")
    numbers = {"digits": 4, "tiny-lm": 0}[model]  # that are constants of the graph, and not trained
    assert step["parameters"] == run["parameters"] - numbers and step["ops"]["adamw"] > 1
    planned = read(call, "inspect", model, *options, "--stage", "plan")
    assert planned["memory"]["arena_bytes"] > 0 and not planned["reference"]
    assert any(row["kernel"].startswith("adamw") for row in read(call, "explain", model, *options)["nodes"])
    assert Drawing(call("dot", model, *options, "--detail", "layers")[1]).nodes
    listed = read(call, "list-nodes", model, *options, "--name", "gradient")
    assert sum(bool(row["sources"]) for row in listed["nodes"]) > len(listed["nodes"]) // 2
    code, _, err = call("inspect", "digits", "--mode", "train")
    assert code == 65 and "batch" in err


def test_a_template_and_a_folder_are_compared(call, tmp_path) -> None:
    folder = write_llama(tmp_path / "model")
    assert call("template", "diff", folder)[0] == 0
    template = tmp_path / "new.yaml"
    template.write_text("extends: llama\noutput:\n  - norm: last\n")
    code, out, _ = call("template", "diff", folder, "--template", template, "--json")
    document = json.loads(out)
    assert code == 65 and document["counts"] == {"missing": 1, "unexpected": 1}
    assert document["tensors"][0] == {
        "kind": "missing", "name": "model.last.weight", "got": None, "expected": [32], "where": f"{template}:3"
    }  # fmt: skip
    code, out, _ = call("template", "diff", folder, "--template", template)
    assert code == 65 and "model.norm.weight" in out and "1 missing, 1 unexpected" in out
    code, _, err = call("inspect", folder, "--template", template)
    assert code == 65 and "do not fit the template" in err
    assert call("inspect", "digits", "--template", template)[0] == 65


@pytest.mark.parametrize(
    ("arguments", "condition", "code"),
    [
        (("--dim", "batch=1"), "flops<=700000", 0), (("--dim", "batch=1"), "flops<1000", 1), ((), "flops<1e12", 1),
        ((), "parameters<1e6", 0), ((), "nodes==26", 0),
        (("--stage", "plan", "--dim", "batch=1"), "arena_bytes<1e5", 0),
        (("--stage", "plan", "--dim", "batch=1"), "arena_bytes<100", 1), ((), "arena_bytes<1e9", 1),
        (("--stage", "lowered", "--dim", "batch=1"), "reference==0", 0), ((), "cost<1", 2),
    ],
)  # fmt: skip
def test_a_summary_meets_conditions(call, arguments: tuple[str, ...], condition: str, code: int) -> None:
    """A number that depends on a dim without a value, or on another stage, meets no condition."""
    assert call("inspect", "digits", *arguments, "--assert", condition)[0] == code
