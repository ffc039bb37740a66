"""Bisection: planted faults are found at their pass and in few nodes, and a bundle shows a failure again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ingot.errors import OutputError, UnsupportedError
from ingot.inspect.bisection import Bisection, bisect, bisected
from ingot.inspect.bisection.bundle import reproduce, write_bundle
from ingot.inspect.bisection.delta import first_failing, smallest
from ingot.inspect.bisection.parts import captured, cut, static
from ingot.inspect.comparison.prepared import Wanted, executed_side, prepare
from ingot.inspect.comparison.sides import Reference
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from ingot.passes import register_pass, unregister_pass
from inspect_models import DIGITS, TINY_LM
from planted_faults import FAULTS, PROGRAM_FAULTS, Fault, mlp, planted_sides

QUICK = {"eps", "wrong rotary half", "off-by-one cache position", "stale buffer", "truncated sum", "layout"}
ALL = [
    pytest.param(fault, marks=() if fault.name in QUICK else pytest.mark.slow, id=f"{kind}-{fault}")
    for kind, faults in (("graph", FAULTS), ("program", PROGRAM_FAULTS))
    for fault in faults
]
MOST_NODES = 4  # a step of two merged products, their activation and their product


@pytest.mark.parametrize("fault", ALL)
def test_a_planted_fault_is_found_in_a_few_nodes(fault: Fault) -> None:
    found = bisected(planted_sides(fault))
    assert found.part is not None and found.found is not None and found.passes is not None
    names = [name for node in found.part.graph.nodes for name in node.outputs]
    assert fault.node in names and len(found.part.graph) <= MOST_NODES, found
    assert found.found.first is not None and found.found.first.problem == found.problem
    if fault not in PROGRAM_FAULTS:
        assert not found.passes.name and (found.problem == "passes" or fault.name == "layout")


def test_the_pass_that_builds_a_wrong_step_is_named() -> None:
    """The fault is in the step of two merged products, which no other graph has."""
    fault = next(fault for fault in PROGRAM_FAULTS if fault.name == "activation")
    found = bisected(planted_sides(fault)).passes
    assert found is not None and found.name == "merge_matmul" and found.nodes and "+" in found.diff


@pytest.fixture
def without_eps() -> Iterator[None]:
    """A wrong pass, while the test runs."""

    def change(graph: Graph) -> bool:
        wrong = [n for n in graph.nodes if n.op.name == "layer_norm" and n.attributes["eps"] == 0.05]
        for node in wrong:
            node.attributes["eps"] = 0.0
        return bool(wrong)

    register_pass("drop_eps", change, after="absorb_scale")
    yield
    unregister_pass("drop_eps")


def test_a_wrong_pass_is_named(without_eps) -> None:
    graph, feeds = mlp()
    found = bisect(graph, inputs=feeds)
    assert found.problem == "passes" and found.passes is not None and found.part is not None
    assert found.passes.name == "drop_eps" and found.passes.nodes == ("normed",)
    assert [node.outputs for node in found.part.graph.nodes] == [("normed",)]
    assert "'drop_eps', change" in str(found) and "1 node fails alone, of 8" in str(found)


def test_torch_is_judged_node_by_node(without_eps, tmp_path, capsys) -> None:
    """The fault is in Ingot's side: the part is what torch computes in one node of its own."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16, eps=0.05), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    inputs = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    example = (torch.from_numpy(inputs),)
    found = bisect(torch.nn.Sequential(*layers).eval(), a="torch", b="native", example_inputs=example,
                   inputs={"input": inputs})  # fmt: skip
    assert found.problem == "numbers" and found.passes is None and found.part is not None and found.found is not None
    assert [node.op.name for node in found.part.graph.nodes] == ["layer_norm"]
    assert found.found.values[0].sources[0].name == "layer_norm"
    write_bundle(found, tmp_path / "bundle")
    document = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    assert document["reproduced"] and document["weights"]["random"] == ["1.weight", "1.bias"]
    assert reproduce(tmp_path / "bundle") == 0 and "reproduced: numbers" in capsys.readouterr().out
    assert "which are not here: a.npz" in (tmp_path / "bundle" / "README.txt").read_text()


def test_torch_runs_the_parts_that_are_its_own() -> None:
    """A linear layer is one node of torch and three of the graph; its weights are those of the part."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout()).eval()
    inputs = {"input": np.ones((3, 8), np.float32)}
    pair = prepare(Wanted(model, (torch.ones(3, 8),), inputs), "torch", "float64", None, 1)
    graph = static(pair.graph, pair.feeds)
    values = captured(graph, pair.feeds, Reference(graph, pair.feeds))
    linear = [node.outputs[0] for node in graph.nodes if node.op.name != "relu"]
    for nodes in (linear, [node.outputs[0] for node in graph.nodes][-1:]):
        part = cut(graph, nodes, values, pair.feeds)
        if nodes == linear:
            (weight,) = (name for name in part.graph.values if name.endswith("weight"))
            part.graph.values[weight].data = np.zeros((16, 8), np.float32)
        expected = Reference(part.graph, part.feeds).run()
        for name, array in pair.part_a(part.graph, part.feeds).run().items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6)
    with pytest.raises(UnsupportedError, match="torch has no such value"):
        pair.part_a(cut(graph, linear[:2], values, pair.feeds).graph, pair.feeds)


@pytest.fixture(scope="module")
def rounded() -> Bisection:
    return bisect(DIGITS, precision="int8")


def test_a_precision_names_its_layers(rounded: Bisection) -> None:
    found = rounded
    assert found.problem == "precision" and found.precision is not None and found.precision.is_cause
    assert found.precision.agrees and set(found.precision.layers) == {"conv2d_1", "linear.matmul"}
    assert found.part is not None and [node.op.name for node in found.part.graph.nodes] == ["conv"]


def test_another_model_is_found_by_its_recorded_values() -> None:
    """The other model cannot run parts of this one."""
    graph, feeds = mlp()
    pair = prepare(Wanted(graph, inputs=feeds), "native", "float64", None, 2)
    other, _ = mlp()
    for name, value in graph.values.items():
        other.values[name].data = value.data
    other.values["w_up"].data = -graph.values["w_up"].data
    pair = type(pair)(**{name: getattr(pair, name) for name in pair.__slots__} | {
        "named": other, "b": lambda: Reference(other, feeds), "part_b": None,
    })  # fmt: skip
    found = bisected(pair)
    assert found.problem == "graph" and found.part is not None and found.search is not None
    assert [node.outputs for node in found.part.graph.nodes] == [("up",)]
    assert found.search.with_random_weights(found.part) == (found.part, ())


@pytest.mark.slow
def test_a_language_model_is_bisected() -> None:
    found = bisect(TINY_LM, precision="int8", dims={"rows": 3})
    assert found.problem in ("graph", "precision") and found.part is not None and len(found.part.graph) <= MOST_NODES


def test_sides_that_agree_give_nothing_to_find(call) -> None:
    graph, feeds = mlp()
    found = bisect(graph, inputs=feeds)
    assert found.agrees and "nothing to find" in str(found)
    with pytest.raises(UnsupportedError, match="nothing to write, got no failure"):
        write_bundle(found, "unused")
    code, out, err = call("bisect", DIGITS)
    assert code == 1 and "the sides agree" in out and "agree, nothing to find" in err


def test_the_command_prints_a_document(call) -> None:
    code, out, _ = call("bisect", DIGITS, "--precision", "int8", "--json")
    document = json.loads(out)
    assert code == 0 and document["problem"] == "precision" and document["of"] == 26
    assert [node["name"] for node in document["nodes"]] == ["conv2d_1"] and document["passes"]["name"] == ""
    assert document["nodes"][0]["sources"][0]["op"] == "Conv" and document["wrong"]["problem"] == "precision"


def test_a_bundle_has_random_weights_and_fails_again(rounded: Bisection, tmp_path: Path, capsys) -> None:
    paths = write_bundle(rounded, tmp_path / "fault", command="ingot bisect")
    assert {Path(path).relative_to(tmp_path / "fault").parts[0] for path in paths} == {
        "README.txt", "Makefile", "difference.c", "expected", "c", "a.npz", "b.npz", "inputs.npz", "weights.npz",
        "graph.txt", "part.onnx", "bundle.json", "reproduce.py",
    }  # fmt: skip
    document = json.loads((tmp_path / "fault" / "bundle.json").read_text())
    assert document["reproduced"] and document["onnx"]["fails"] and document["command"] == "ingot bisect"
    assert document["weights"]["random"] == document["weights"]["of"] and document["versions"]["numpy"]
    assert reproduce(tmp_path / "fault") == 0 and "reproduced: precision" in capsys.readouterr().out


@pytest.mark.slow
def test_a_bundle_replaces_no_other_file(rounded: Bisection, tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"README\.txt"):
        write_bundle(rounded, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.txt"]
    write_bundle(rounded, tmp_path, force=True)
    write_bundle(rounded, tmp_path)
    assert "mine" not in (tmp_path / "README.txt").read_text()


def test_weights_are_random_where_the_fault_remains() -> None:
    found = bisected(planted_sides(next(fault for fault in PROGRAM_FAULTS if fault.name == "bias of another")))
    assert found.search is not None and found.part is not None
    part, random = found.search.with_random_weights(found.part)
    assert random == ("norm.weight", "bias") and found.search.fails(part)


def test_a_weight_that_a_fault_needs_stays() -> None:
    def build() -> tuple[Graph, dict[str, np.ndarray]]:
        weights = {"w": np.arange(1, 5, dtype=np.float32) / 4, "b": np.ones(4, np.float32)}
        text = (
            "input x: f32[4]\nweight w: f32[4]\nweight b: f32[4]\n"
            "m = mul(x, w): f32[4]\ny = add(m, b): f32[4]\noutput y = y"
        )
        return parse(text, weights), {"x": np.ones(4, np.float32)}

    def plant(graph: Graph) -> None:
        (node,) = (node for node in graph.nodes if node.op.name == "mul")
        if graph.values["w"].data is not None and graph.values["w"].data[0] == 0.25:
            graph.set_operands(node, ["x", "x"])

    found = bisected(planted_sides(Fault("a number", build, "m", plant)))
    assert found.search is not None and found.part is not None
    part, random = found.search.with_random_weights(found.search.part(["m", "y"]))
    assert random == ("b",) and part.graph.values["w"].data is found.part.graph.values["w"].data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "other"])
def test_a_bundle_is_reproduced_by_a_new_process_and_by_a_c_compiler(tmp_path: Path, call, kind: str) -> None:
    folder = tmp_path / "fault"
    if kind == "int8":
        words = [DIGITS, "--precision", "int8"]
    else:
        np.savez(tmp_path / "b.npz", linear_1=np.full((1, 10), 7, np.float32))
        words = [DIGITS, "--b", tmp_path / "b.npz"]
    code, out, _ = call("bisect", *words, "--bundle", folder)
    assert code == 0 and "reproduce.py" in out
    ran = subprocess.run([sys.executable, folder / "reproduce.py"], capture_output=True, text=True)
    assert ran.returncode == 0 and "reproduced: " in ran.stdout, ran.stderr
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("INGOT", "PYTHON"))}
    built = subprocess.run(
        ["make", "-C", folder, "CC=gcc", "CFLAGS=-O1"], capture_output=True, text=True, env=environment
    )
    assert built.returncode == 0 and "differs: largest error" in built.stdout, built.stdout + built.stderr
    error = float(built.stdout.partition("largest error ")[2].partition(",")[0])
    with np.load(folder / "a.npz") as a, np.load(folder / "b.npz") as b:
        errors = [np.abs(a[name] - b[name]) / np.maximum(1, np.abs(b[name])) for name in b]
    assert error == pytest.approx(max(float(each.max()) for each in errors), rel=1e-2)


def test_parts_keep_states_and_names() -> None:
    text = (
        "input x: f32[3]\nstate s: f32[3] -> t\na = relu(x): f32[3]\nt = add(a, s): f32[3]\n"
        "y = tanh(t): f32[3]\noutput out = y"
    )
    graph, feeds = parse(text), {"x": np.array([1, -2, 3], np.float32)}
    values = captured(graph, feeds, Reference(graph, feeds))
    part = cut(static(graph, feeds), ["t"], values, feeds)
    assert part.graph.inputs == ["a"] and part.graph.states == {"s": "t"} and part.graph.outputs == {"t": "t"}
    assert part.feeds["a"].tolist() == [1, 0, 3]
    results = executed_side("native", part.graph, part.feeds).run()
    assert results["t"].tolist() == results["state:s"].tolist() == [1, 0, 3]


def test_searches_find_the_smallest() -> None:
    assert first_failing(100, lambda count: count >= 37) == 37 and first_failing(1, lambda count: True) == 1
    items = [str(i) for i in range(50)]
    assert smallest(items, lambda chunk: {"7", "31"} <= {*chunk}) == ["7", "31"]
    assert smallest(items, lambda chunk: "0" in chunk) == ["0"] and smallest(["a"], lambda chunk: True) == ["a"]
