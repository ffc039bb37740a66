"""The graph: mutation keeps every index right, iteration survives it, and validate sees planted faults."""

import numpy as np
import pytest

import ingot.ops  # noqa: F401
from ingot.errors import LimitError, LoadError, ShapeError
from ingot.ir.dim import symbol
from ingot.ir.dtype import f32, i64
from ingot.ir.graph import OPS, Graph, TensorType, Value
from ingot.ir.text import dump, parse
from ingot.run.interpret import interpret

CHAIN = """graph chain
input x: f32[2, 3]
weight w: f32[3, 3]
constant one: f32[] = [1.0]
a = relu(x): f32[2, 3]
b = matmul(a, w): f32[2, 3]
c = add(b, b): f32[2, 3]
d = add(c, one): f32[2, 3]
output y = d
output also = b
"""


@pytest.fixture
def graph():
    return parse(CHAIN, {"w": np.eye(3, dtype=np.float32)})


def names(graph):
    return [node.outputs[0] for node in graph.nodes]


def node_of(graph, name):
    node = graph.producer(name)
    assert node is not None
    return node


def test_reading(graph):
    assert names(graph) == ["a", "b", "c", "d"] and len(graph) == 4
    assert graph.producer("x") is None and graph.producer(None) is None
    assert graph.users("b") == [node_of(graph, "c")]
    assert graph.only_user("a") is node_of(graph, "b")
    assert graph.only_user("b") is None, "an output, and read twice"
    assert graph.only_user("d") is None
    assert graph.data("one") == 1 and graph.data("a") is None
    assert graph.type("a").size == 6 and graph.type("a").nbytes == 24
    assert not node_of(graph, "b").transpose_a
    with pytest.raises(AttributeError, match="relu has no attribute 'eps'"):
        _ = node_of(graph, "a").eps


def test_add_infers_and_inserts(graph):
    node = graph.add("neg", ["a"], "a", before=node_of(graph, "b"))
    assert node.output == "a.1" and graph.type("a.1") == graph.type("a")
    assert names(graph) == ["a", "a.1", "b", "c", "d"]
    both = graph.add("topk", ["d"], "top", k=1, axis=1, largest=True)
    assert both.outputs == ("top", "top.1") and graph.type("top.1") == TensorType(i64, (2, 1))
    graph.validate()


def test_a_refused_node_leaves_no_trace(graph):
    before = dump(graph)
    with pytest.raises(ShapeError, match="dims differ, got 2 and 3"):
        graph.add("matmul", ["x", "w"], transpose_a=True)
    for operands, attributes in ((["x"], {}), (["x", None], {}), (["x", "w"], {"sclae": 1.0}), (["x"] * 3, {})):
        with pytest.raises(AssertionError):
            graph.add("matmul", operands, **attributes)
    with pytest.raises(LimitError, match="rank too high, got 13"):
        graph.add("reshape", ["x"], shape=(*[1] * 11, 2, 3))
    assert dump(graph) == before
    graph.validate()


def test_remove(graph):
    with pytest.raises(AssertionError, match="still used"):
        graph.remove(node_of(graph, "a"))
    with pytest.raises(AssertionError, match="still used"):
        graph.remove(node_of(graph, "d"))
    del graph.outputs["y"]
    graph.remove(node_of(graph, "d"))
    graph.remove_value("one")
    graph.remove(node_of(graph, "c"))
    assert names(graph) == ["a", "b"] and "one" not in graph.values and graph.users("b") == []
    graph.validate()


def test_replace_uses_reaches_operands_outputs_and_states(graph):
    graph.add_state("s", graph.type("b"))
    graph.set_state("s", "b")
    graph.replace_uses("b", "x")
    assert node_of(graph, "c").operands == ("x", "x")
    assert graph.outputs["also"] == "x" and graph.states["s"] == "x" and graph.users("b") == []
    assert graph.values["x"].users[node_of(graph, "c")] == 2
    graph.validate()


def test_replace_removes_the_node(graph):
    graph.replace(node_of(graph, "a"), "x")
    assert names(graph) == ["b", "c", "d"] and node_of(graph, "b").operands == ("x", "w")
    graph.validate()


def test_rename_everywhere(graph):
    graph.add_state("s", graph.type("b"))
    graph.set_state("s", "b")
    x = np.ones((2, 3), np.float32)
    for old, new in (("x", "in put"), ("b", "β\n"), ("one", "1"), ("w", 'quo"te'), ("s", "state")):
        graph.rename(old, new)
        graph.validate()
    assert graph.inputs == ["in put"] and graph.outputs["also"] == "β\n" and graph.states == {"state": "β\n"}
    assert node_of(graph, "β\n").operands == ("a", 'quo"te')
    np.testing.assert_array_equal(interpret(graph, {"in put": x})["y"], 3 * x)
    with pytest.raises(LoadError, match="defined twice"):
        graph.rename("a", "c")
    graph.rename("a", "a")
    graph.validate()


def test_adding_while_iterating(graph):
    seen = []
    for node in graph.nodes:
        seen.append(node.outputs[0])
        if node.op.name == "add":
            graph.add("neg", [node.outputs[0]], f"before_{node.outputs[0]}")
        if node.outputs[0] == "a":
            graph.add("abs", ["x"], "behind", before=node)
            graph.add("abs", ["x"], "ahead", before=node_of(graph, "b"))
    assert seen == ["a", "ahead", "b", "c", "d", "before_c", "before_d"]
    graph.validate()


def test_removing_while_iterating():
    """Each visited node removes itself and neighbours; every node that is never removed is seen exactly once."""
    for current in range(6):
        for removed in range(2**6):
            graph = Graph()
            graph.add_input("x", TensorType(f32, (1,)))
            nodes = [graph.add("relu", ["x"], f"n{i}") for i in range(6)]
            seen = []
            for node in graph.nodes:
                seen.append(node.outputs[0])
                if node is nodes[current]:
                    for i in range(6):
                        if removed >> i & 1:
                            graph.remove(nodes[i])
                    added = graph.add("neg", ["x"], "added", before=nodes[5] if not removed >> 5 & 1 else None)
            kept = [f"n{i}" for i in range(6) if i <= current or not removed >> i & 1]
            if current < 5 or removed >> 5 & 1:
                kept.insert(kept.index("n5") if "n5" in kept and not removed >> 5 & 1 else len(kept), added.output)
            assert seen == kept, (current, bin(removed))
            graph.validate()


def test_replacing_every_node_while_iterating(graph):
    """The way passes rewrite: add before, replace uses, remove."""
    for node in graph.nodes:
        if node.op.name == "add":
            left, right = node.operands
            graph.replace(
                node, graph.add("sub", [left, graph.add("neg", [right], before=node).output], before=node).output
            )
    assert [node.op.name for node in graph.nodes] == ["relu", "matmul", "neg", "sub", "neg", "sub"]
    graph.validate()
    x = np.float32([[1, -2, 3], [0, 5, -6]])
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], 2 * np.maximum(x, 0) + 1)


def test_random_mutations_keep_every_invariant(rng):
    graph = Graph()
    graph.add_input("x", TensorType(f32, (2,)))
    for _ in range(400):
        nodes = list(graph.nodes)
        values = ["x", *(node.output for node in nodes)]
        match rng.integers(0, 6):
            case 0 | 1 | 2:
                position = int(rng.integers(0, len(nodes) + 1))
                operands = [values[rng.integers(0, position + 1)] for _ in range(2)]
                graph.add("add", operands, before=nodes[position] if position < len(nodes) else None)
            case 3 if nodes:
                position = int(rng.integers(0, len(nodes)))
                graph.replace(nodes[position], values[rng.integers(0, position + 1)])
            case 4 if nodes:
                graph.rename(values[rng.integers(0, len(values))], graph.fresh("renamed"))
                graph.rename(graph.inputs[0], "x")
            case 5 if nodes:
                graph.outputs.clear()
                graph.set_output("y", values[rng.integers(0, len(values))])
        graph.validate()
        assert len(graph) == len(list(graph.nodes))
    assert dump(parse(dump(graph))) == dump(graph)


def test_sort(graph):
    order = names(graph)
    # The list order is scrambled by re-pointing an operand at a later node.
    late = graph.add("abs", ["x"], "late").output
    graph.set_operands(node_of(graph, "b"), [late, "w"])
    with pytest.raises(AssertionError, match="before it is computed"):
        graph.validate()
    graph.sort()
    graph.validate()
    assert names(graph) == ["a", "late", "b", "c", "d"] and order == ["a", "b", "c", "d"]
    before = dump(graph)
    graph.sort()
    assert dump(graph) == before, "a sorted graph stays as it is"


def test_sort_names_a_cycle(graph):
    graph.set_operands(node_of(graph, "a"), ["c"])
    with pytest.raises(LoadError, match="cycle through 'a'"):
        graph.sort()


def plant(graph, fault):
    a, b, c = (node_of(graph, name) for name in "abc")
    match fault:
        case "reads .* before it is computed":
            graph._next |= {None: b, b: a, a: c}
            graph._previous |= {b: None, a: b, c: a}
        case "wrong use list":
            graph.values["x"].users.clear()
        case "wrong producer":
            graph.values["a"].producer = b
        case "ring of nodes is broken":
            graph._previous[None] = b
        case "linked wrongly":
            graph._previous[c] = a
        case "makes f32":
            graph.values["b"].type = TensorType(f32, (2, 4))
        case "its data":
            graph.values["w"].data = np.eye(4, dtype=np.float32)
        case "constant one has no data":
            graph.values["one"].data = None
        case "has data":
            graph.values["x"].data = np.ones((2, 3), np.float32)
        case "output gone is no value":
            graph.outputs["y"] = "gone"
        case "inputs are listed":
            graph.inputs.append("x")
        case "is a weight":
            graph.values["b"].kind = "weight"
        case "is a thing":
            graph.values["x"].kind = "thing"
        case "is stored as":
            graph.values["x"].name = "z"
        case "without a producer":
            graph.values["ghost"] = Value("ghost", graph.type("a"), "activation", None, a)
        case "which is no value":
            graph.add_state("s", graph.type("b"))
            graph.states["s"] = "gone"
        case "its update":
            graph.add_state("s", graph.type("w"))
            graph.set_state("s", "b")


FAULTS = ["reads .* before it is computed", "wrong use list", "wrong producer", "ring of nodes is broken",
          "linked wrongly", "makes f32", "its data", "constant one has no data", "has data", "output gone is no value",
          "inputs are listed", "is a weight", "is a thing", "is stored as", "without a producer", "which is no value",
          "its update"]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_validate_finds(graph, fault):
    graph.validate()
    plant(graph, fault)
    with pytest.raises(AssertionError, match=fault):
        graph.validate()


def symbolic():
    graph = Graph("symbolic")
    B, S = symbol("B"), symbol("S")
    graph.add_input("x", TensorType(f32, (B, S, 4)))
    graph.add_weight("w", np.ones((4, 6), np.float32))
    y = graph.add("matmul", ["x", "w"], "y").output
    z = graph.add("reshape", [y], "z", shape=(B * S * 2, 3)).output
    graph.set_output("z", graph.add("slice", [z], "tail", starts=(B, 0), stops=(B * S * 2, 3), steps=(1, 2)).output)
    graph.set_output("n", graph.add("dims", [], "n", values=(B, S * 2)).output)
    return graph


def test_bind_fixes_types_and_shares_arrays(rng):
    graph = symbolic()
    assert graph.symbols == ["B", "S"]
    bound = graph.bind({"B": 3, "S": 5})
    bound.validate()
    assert bound.symbols == [] and all(bound.type(name).is_static for name in bound.values)
    assert bound.type("tail").shape == (27, 2) and bound.producer("z").shape == (30, 3)
    assert bound.data("w") is graph.data("w")
    x = rng.random((3, 5, 4), np.float32)
    for name, array in interpret(graph, {"x": x}).items():
        np.testing.assert_array_equal(array, interpret(bound, {"x": x})[name])
    assert str(graph.type("tail")) == "f32[2*B*S-B, 2]", "the graph itself is as it was"


def test_bind_in_two_steps():
    graph = symbolic()
    assert dump(graph.bind({"S": 5}).bind({"B": 3})) == dump(graph.bind({"B": 3, "S": 5}))
    assert graph.bind({"B": 3}).symbols == ["S"]


def test_bind_refuses_a_contradiction():
    graph = Graph()
    graph.add_input("x", TensorType(f32, (symbol("S"),)))
    graph.set_output("y", graph.add("add", ["x", graph.add_constant("c", np.ones(3, np.float32))], "y").output)
    with pytest.raises(ShapeError, match=r"got \[4\] and \[3\]"):
        graph.bind({"S": 4})


def test_bind_keeps_what_a_loader_knew():
    graph = Graph()
    graph.add_input("x", TensorType(f32, (None, 4)))
    y = graph.add("relu", ["x"], "y").output
    graph.values[y].type = TensorType(f32, (7, 4))
    graph.set_output("y", y)
    assert graph.bind({}).type("y").shape == (7, 4)


def test_bind_tells_a_measured_dim_that_sizes_decide():
    """A flattened operand is as long as a run measures, until its shape is known: then nothing is measured."""
    graph = parse("""
        graph "g"
        input x: f32[N, 3]
        flat = reshape(x, shape=[none]): f32[u0]
        wide = reshape(flat, shape=[1, u0]): f32[1, u0]
        output wide = wide
    """)
    assert graph.measured == {"u0": "flat"}
    bound = graph.bind({"N": 4})
    bound.validate()
    assert not bound.measured and node_of(bound, "wide").shape == (1, 12)


def test_copy_is_equal_and_independent(graph):
    graph.add_state("s", graph.type("b"))
    graph.set_state("s", "c")
    copy = graph.copy()
    copy.validate()
    before = dump(graph)
    assert dump(copy) == before and copy.data("w") is graph.data("w")
    copy.replace(node_of(copy, "a"), "x")
    copy.rename("b", "other")
    assert dump(graph) == before and dump(copy) != before
    assert graph.fresh("a") == "a.1"


def test_interpret_runs_states():
    graph = parse("graph counter\ninput x: f32[2]\nstate total: f32[2] -> next\nnext = add(total, x): f32[2]\n"
                  "twice = add(total, total): f32[2]\noutput y = twice\n")  # fmt: skip
    x = np.float32([1, 2])
    first = interpret(graph, {"x": x})
    assert sorted(first) == ["state:total", "y"]
    np.testing.assert_array_equal(first["state:total"], x)
    second = interpret(graph, {"x": x, "total": first["state:total"]})
    np.testing.assert_array_equal(second["y"], 2 * x)
    np.testing.assert_array_equal(second["state:total"], 2 * x)


def test_interpret_watches_and_returns_fresh_arrays(graph):
    watched = {}
    x = np.ones((2, 3), np.float32)
    graph.set_output("x", "x")
    graph.set_output("w", "w")
    results = interpret(graph, {"x": x}, watch=watched.__setitem__)
    assert list(watched) == ["a", "b", "c", "d"] and list(results) == ["y", "also", "x", "w"]
    for array in results.values():
        array += 1
    assert x.max() == 1 and graph.data("w").max() == 1


def test_interpret_in_float64(graph):
    x = np.full((2, 3), 0.1, np.float32)
    results = interpret(graph, {"x": x}, float64=True)
    assert results["y"].dtype == np.float64
    np.testing.assert_array_equal(results["y"], 2 * np.maximum(x.astype(np.float64), 0) + 1)
    graph.set_output("cast", graph.add("cast", ["b"], dtype=f32).output)
    graph.set_output("iota", graph.add("iota", [], length=3, start=0.1, step=1, dtype=f32).output)
    results = interpret(graph, {"x": x.astype(np.float64)}, float64=True)
    assert results["cast"].dtype == np.float64 and results["iota"][0] == 0.1


def test_every_op_documents_itself():
    for name, op in OPS.items():
        assert op.doc and len(op.doc) <= 120, name
        assert op.samples or op.any_type, name
