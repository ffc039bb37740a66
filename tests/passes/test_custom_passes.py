"""Registered passes: their position in the order, the checks of their results, and the names in errors."""

import subprocess
import sys

import numpy as np
import pytest

import ingot
from ingot.errors import ExtensionError, InputError, ShapeError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.ir.text import dump, parse
from ingot.passes import PASSES, optimize
from registered import registering

assert registering

pytestmark = pytest.mark.usefixtures("registering")

TEXT = "input x: f32[3, 4]\na = neg(x)\nb = neg(a)\ny = exp(b)\noutput y = y\n"
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def cancel(graph: Graph) -> bool:
    """-(-x) is x."""
    changed = False
    for node in graph.nodes:
        before = graph.producer(node.operands[0]) if node.op.name == "neg" else None
        if before is not None and before.op.name == "neg":
            graph.replace(node, before.operands[0])
            changed = True
    return changed


def test_it_runs_with_the_others_until_none_changes_the_graph():
    unchanged = ingot.InferenceSession(parse(TEXT), passes=["dce"])
    ingot.register_pass("cancel", cancel)
    session = ingot.InferenceSession(parse(TEXT))
    assert [node.op.name for node in session.graph.nodes] == ["exp"], "dce came behind it"
    assert len(unchanged.graph) == 3
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], unchanged.run(None, {"x": X})[0])
    assert len(ingot.InferenceSession(parse(TEXT), passes=["cancel"]).graph) == 2
    ingot.unregister_pass("cancel")
    assert len(ingot.InferenceSession(parse(TEXT)).graph) == 3
    with pytest.raises(InputError, match="unknown names, got cancel"):
        ingot.InferenceSession(parse(TEXT), passes=["cancel"])


def test_its_position():
    order = list(PASSES)
    seen = []
    for name, place in (("last", {}), ("first", {"before": "dce"}), ("behind", {"after": "cse"})):
        ingot.register_pass(name, lambda graph, name=name: bool(seen.append(name)), **place)
    at = order.index("cse") + 1
    assert list(PASSES) == ["first", *order[:at], "behind", *order[at:], "last"]
    ingot.InferenceSession(parse(TEXT))
    assert seen[:3] == ["first", "behind", "last"]
    for name in ("last", "first", "behind"):
        ingot.unregister_pass(name)
    assert list(PASSES) == order


def test_its_position_between_others():
    places = {"both": {"after": "cse", "before": "fold"}, "several": {"after": ["dce", "fold"], "before": "mask"}}
    for name, place in places.items():
        ingot.register_pass(name, cancel, **place)
    ingot.register_pass("early", cancel, before=("mask", "both", "fuse_norm"))
    order = list(PASSES)
    assert [order[order.index(name) + 1] for name in ("cse", "early", "fold")] == ["early", "both", "several"]


def test_its_validator():
    seen = []

    def validate(before: Graph, after: Graph) -> bool:
        seen.append([[node.op.name for node in graph.nodes] for graph in (before, after)])
        return len(after) <= len(before) and before is not after

    ingot.register_pass("cancel", cancel, after="dce", validate=validate)
    assert [n.op.name for n in ingot.InferenceSession(parse(TEXT)).graph.nodes] == ["exp"]
    assert seen == [[["neg", "neg", "exp"], ["neg", "exp"]]], "not where it changes nothing"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda before, after: False, "pass 'cancel': its validator rejects its result, got False"),
        (lambda before, after: None, "its validator rejects its result, got None, expected True"),
        (lambda before, after: 1 / 0, "validator of pass 'cancel' raised ZeroDivisionError"),
        (lambda graph: True, "validator of pass 'cancel' raised TypeError"),
    ],
)
def test_what_a_validator_refuses(answer, message):
    ingot.register_pass("cancel", cancel, validate=answer)
    with pytest.raises(ExtensionError, match=message):
        ingot.InferenceSession(parse(TEXT))


def spell_out(graph: Graph) -> bool:
    """mine.flip as Ingot has it."""
    found = [node for node in graph.nodes if node.op.name == "mine.flip"]
    for node in found:
        graph.replace(node, graph.add("neg", node.operands, before=node).output)
    return bool(found)


def test_it_sees_subgraphs_and_registered_ops():
    ingot.register_op("mine.flip", lambda x: -x)
    ingot.register_pass("spell_out", spell_out)
    branches = [f"{{graph a; input v: f32[3]; w = {op}(v); output w = w}}" for op in ("mine.flip", "exp")]
    chosen = f"y = if(c, x, x, then_branch={branches[0]}, else_branch={branches[1]})"
    session = ingot.InferenceSession(parse(f"input x: f32[3]\ninput c: bool[]\n{chosen}\noutput y = y"))
    assert "mine.flip" not in dump(session.graph) and "neg(" in dump(session.graph)
    assert session.explain().fallback == ()


def test_cached_programs_know_nothing_of_it(tmp_path):
    path = tmp_path / "m.onnx"
    ingot.export_onnx(parse(TEXT), path)
    ingot.register_pass("cancel", cancel)
    ingot.InferenceSession(path, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


REFUSED = [
    (("dce", cancel), {}, "bad or used name"),
    (("no name", cancel), {}, "bad or used name"),
    (("new", "cancel"), {}, "no function"),
    (("new", cancel), {"before": "nothing"}, "bad position, got before='nothing'"),
    (
        ("new", cancel),
        {"before": "dce", "after": "cse"},
        "got before='dce' and after='cse', expected passes",
    ),
    (("new", cancel), {"before": ["cse", "nothing"]}, "bad position, got before=.'cse', 'nothing'."),
    (("new", cancel), {"after": None}, "bad position, got after=None"),
    (("new", cancel), {"after": 3}, "bad position, got after=3"),
    (("new", cancel), {"before": [["cse"]]}, "bad position"),
    (("new", cancel), {"validate": "cancel"}, "bad validator, got 'cancel'"),
]


@pytest.mark.parametrize(("given", "place", "message"), REFUSED)
def test_what_cannot_be_registered(given, place, message):
    with pytest.raises(InputError, match=message):
        ingot.register_pass(*given, **place)
    with pytest.raises(InputError, match="unregister_pass: no such pass, got 'dce'"):
        ingot.unregister_pass("dce")


def raises(graph):
    return graph.nothing


def contradicts(graph):
    graph.add("reshape", ["x"], shape=(5, 5))
    return True


def misses(graph):
    """The types of what follows are those of the operand before."""
    other = graph.add_constant("other", np.zeros((2, 2), np.float32))
    for node in graph.nodes:
        if node.op.name == "exp":
            graph.set_operands(node, [other])
            return True
    return False


def behind(graph):
    """A node reads what is made after it."""
    *_, last = graph.nodes
    late = graph.add("neg", ["x"]).output
    graph.set_operands(last, [late])
    return True


def retypes(graph):
    graph.set_output("y", graph.add("reshape", ["x"], shape=(12,)).output)
    return True


def drops(graph):
    graph.remove_output("y")
    return True


def adds(graph):
    graph.add_input(graph.fresh("more"), TensorType(f32, (3,)))
    return True


BROKEN = [
    (raises, ExtensionError, "pass 'broken' raised AttributeError: 'Graph' object has no attribute 'nothing'"),
    (contradicts, ShapeError, "pass 'broken': reshape: number of elements"),
    (misses, (ExtensionError, ingot.LoadError), "pass 'broken': the graph that it leaves"),
    (behind, (ExtensionError, ingot.LoadError), "pass 'broken': the graph that it leaves"),
    (retypes, ExtensionError, "pass 'broken': changes inputs, outputs or states"),
    (drops, ExtensionError, "pass 'broken': changes inputs, outputs or states"),
    (adds, ExtensionError, "pass 'broken': changes inputs, outputs or states"),
    (lambda graph: None, ExtensionError, "pass 'broken': does not return whether it changed something, got None"),
    (lambda graph: True, ExtensionError, "passes do not settle after 64 rounds: .*broken"),
]


@pytest.mark.parametrize(("function", "error", "message"), BROKEN)
def test_a_pass_that_breaks_its_promise_is_named(function, error, message):
    ingot.register_pass("broken", function)
    with pytest.raises(error, match=message):
        optimize(parse(TEXT))


def test_promises_are_checked_without_asserts():
    code = """
import numpy as np, ingot
from ingot.ir.text import parse
def misses(graph):
    other = graph.add_constant("other", np.zeros((2, 2), np.float32))
    for node in graph.nodes:
        graph.set_operands(node, [other])
    return True
ingot.register_pass("broken", misses)
try:
    ingot.InferenceSession(parse("input x: f32[3, 4]\\ny = exp(x)\\noutput y = y"))
except ingot.IngotError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pass 'broken': the graph that it leaves: graph text, line")
