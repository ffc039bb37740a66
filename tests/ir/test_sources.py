"""What nodes stand for in the model that was loaded: through loaders, passes, text and programs, of no effect."""

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ingot
from ingot.compile import Mode, compile_mode
from ingot.errors import InputError
from ingot.inspect.model import InspectedModel
from ingot.inspect.provenance import became_of
from ingot.ir.graph import Graph, Source
from ingot.ir.node import merged_sources, shown_sources
from ingot.ir.text import dump, parse
from ingot.load.aten import load_module
from ingot.load.onnx import load_onnx
from ingot.lower import Target
from ingot.ops.define import expand_node
from ingot.passes import optimize
from ingot.plan.memory import layout
from random_graphs import random_graph

A, B, C = (Source(i, name, name.upper()) for i, name in enumerate("abc"))


def named(graph: Graph) -> dict[str, list[str]]:
    """The names of the sources of each node, by its first value."""
    return {node.outputs[0]: [source.name for source in node.sources] for node in graph.nodes}


def test_merged_sources_are_in_order_and_each_once():
    assert merged_sources((B,), [A, C], [B]) == (A, B, C) == merged_sources((), [C, B, A, B])
    assert merged_sources((A, B), [], ()) == (A, B)
    assert shown_sources((A, B)) == " (from A 'a', B 'b')" and shown_sources((A,), "a") == "" == shown_sources(())
    assert "and 2 more" in shown_sources([Source(i, f"n{i}", "Op") for i in range(6)])


def test_the_replacement_of_a_chain_has_all_its_sources():
    graph = parse(
        "graph g\ninput x: f32[4]\na = relu(x)\nb = neg(a)\nc = exp(b)\nd = abs(a)\noutput y = c\noutput z = d\n"
    )
    for node, source in zip(graph.nodes, (A, B, C), strict=False):
        graph.name_after(node, [source])
    added = graph.add("sigmoid", ["a"], before=graph.producer("c"))
    assert added.sources == (C,)
    graph.replace(graph.producer("c"), added.output)
    assert added.sources == (B, C), "not what another node reads"
    assert named(graph.copy()) == named(graph.bind({})) == named(graph)


def test_what_is_replaced_by_an_input_leaves_its_name_to_its_only_reader():
    graph = parse("graph g\ninput x: f32[4]\na = cast(x, dtype=@f32)\nb = neg(a)\noutput y = b\n")
    for node, source in zip(graph.nodes, (A, B), strict=True):
        graph.name_after(node, [source])
    optimize(graph)
    assert named(graph) == {"b": ["a", "b"]}


def test_the_expansion_of_an_op_has_its_sources():
    graph = parse("graph g\ninput x: f32[4]\na = hard_swish(x)\noutput y = a\n")
    (node,) = graph.nodes
    graph.name_after(node, [A])
    expand_node(graph, node)
    assert len(graph) > 1 and all(node.sources == (A,) for node in graph.nodes)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_passes_keep_names_and_do_not_look_at_them(first):
    """Of random graphs: a remaining node has itself as a source; a node that was merged is a source of the other node,
    but for what hands on an input to several readers.
    """
    kinds = Counter[str]()
    for seed in range(first, first + 20):
        plain = random_graph(seed)[0]
        graph = plain.copy()
        for number, node in enumerate(graph.nodes):
            graph.name_after(node, [Source(number, f"n{number}", node.op.name)])
        loaded = graph.copy()
        optimize(graph)
        optimize(plain)
        assert dump(graph, has_sources=False) == dump(plain)
        assert dump(parse(dump(graph))) == dump(graph)
        assert all([*node.sources] == sorted({*node.sources}) for node in graph.nodes)
        there = {source for node in graph.nodes for source in node.sources}
        for node in loaded.nodes:
            for row in became_of(graph, loaded, node):
                kinds[row["how"]] += 1
                maker = graph.producer(row["name"])
                if row["how"] in ("same", "rewritten"):
                    assert maker is not None and node.sources[0] in maker.sources, (seed, node, row)
                elif row["how"] == "fused" and maker is not None:
                    kinds["lost"] += node.sources[0] not in there
    assert kinds["same"] > 100 and kinds["fused"] > 20 and kinds["rewritten"] > 10
    assert kinds["lost"] <= kinds["fused"] // 20


def block(has_names: bool = True) -> onnx.ModelProto:
    """Three products of one input, a branch of two, a function, an identity and attention in small ops."""

    def node(op, inputs, outputs, name, **attributes):
        return helper.make_node(op, inputs, outputs, name=name if has_names else "", **attributes)

    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), f"w{i}") for i in range(3)]
    nodes = [
        node("MatMul", ["x", "w0"], ["q"], "/q/MatMul"), node("MatMul", ["x", "w1"], ["k"], "/k/MatMul"),
        node("MatMul", ["x", "w2"], ["v"], "/v/MatMul"), node("Transpose", ["k"], ["kt"], "/Transpose", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "/MatMul"), node("Softmax", ["s"], ["p"], "/Softmax", axis=-1),
        node("MatMul", ["p", "v"], ["o"], "/MatMul_1"), node("Identity", ["o"], ["i"], "/Identity"),
        node("Twice", ["i"], ["t"], "/Twice", domain="local"), node("Selu", ["t"], ["y"], "/Selu"),
    ]  # fmt: skip
    inner = [
        helper.make_node("Add", ["a", "a"], ["b"], name="sum"),
        helper.make_node("Neg", ["b"], ["c"], name="turned"),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    twice = helper.make_function("local", "Twice", ["a"], ["c"], inner if has_names else [
        helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])], opsets[:1])  # fmt: skip
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 4, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "block", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=10)


def test_onnx_nodes_functions_and_identities_are_named():
    graph = load_onnx(block().SerializeToString())
    found = named(graph)
    assert found["o"] == ["/MatMul_1", "/Identity"]
    assert found["b"] == ["/Twice", "sum"] and found["c"] == ["/Twice", "turned"]
    (source,) = (s for node in graph.nodes for s in node.sources if s.name == "/Twice" and node.output == "c")
    assert (source.op, source.domain) == ("Twice", "local")
    optimize(graph)
    every = [name for node in graph.nodes for name in named(graph)[node.outputs[0]]]
    assert {"/q/MatMul", "/k/MatMul", "/v/MatMul", "/MatMul", "/Softmax", "/MatMul_1", "/Transpose"} <= {*every}
    merged = next(node for node in graph.nodes if node.op.name == "matmul")
    assert [s.name for s in merged.sources] == ["/q/MatMul", "/k/MatMul", "/v/MatMul"]
    attention = next(node for node in graph.nodes if node.op.name == "attention")
    assert [s.name for s in attention.sources] == ["/Transpose", "/MatMul", "/Softmax", "/MatMul_1", "/Identity"]


def test_subgraphs_are_named_and_round_trip():
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], ["r"], name=f"{op} inside")], op, [],
                          [helper.make_tensor_value_info("r", TensorProto.FLOAT, [4])])
        for op in ("Neg", "Abs")
    )  # fmt: skip
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
             helper.make_tensor_value_info("c", TensorProto.BOOL, []),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]  # fmt: skip
    branch = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other)
    model = helper.make_model(helper.make_graph([branch], "g", ports[:2], ports[2:]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 18)])  # fmt: skip
    graph = load_onnx(model.SerializeToString())
    assert [named(body) for body in graph.bodies] == [{"r": ["Neg inside"]}, {"r": ["Abs inside"]}]
    again = parse(dump(graph))
    assert dump(again) == dump(graph) and [named(body) for body in again.bodies] == [named(b) for b in graph.bodies]


def test_names_change_no_plan_no_packed_weight_and_no_result(tmp_path):
    compiled = []
    for has_names in (True, False):
        graph = load_onnx(block(has_names).SerializeToString())
        optimize(graph)
        compiled.append(compile_mode(graph, Target(), Mode(sizes={"B": 2})))
    (one,), (other,) = (each.segments for each in compiled)
    assert layout(one.lowered, one.plan) == layout(other.lowered, other.plan)
    assert str(one.lowered) == str(other.lowered) and one.lowered.sources != other.lowered.sources
    x = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    results = [ingot.InferenceSession(block(n).SerializeToString()).run(None, {"x": x})[0] for n in (True, False)]
    assert results[0].tobytes() == results[1].tobytes()


def test_a_saved_program_keeps_names(tmp_path):
    session = ingot.InferenceSession(block().SerializeToString())
    session.run(None, {"x": np.zeros((2, 4, 8), np.float32)})
    session.save(tmp_path / "program")
    saved = ingot.InferenceSession(tmp_path / "program")
    assert dump(saved.graph) == dump(session.graph)
    model = InspectedModel(str(tmp_path / "program"), dims={"B": 2})
    assert [item.name for item in model.view("optimized").items_from("/Softmax")]


def test_explanations_profiles_and_errors_name_sources():
    session = ingot.InferenceSession(block().SerializeToString())
    session.run(None, {"x": np.zeros((2, 4, 8), np.float32)})
    explained = session.explain("/Softmax")
    assert "(from" in str(explained) and {c.node for c in explained.choices} <= {
        c.node for c in session.explain().choices
    }
    rows = explained.to_json()["nodes"]
    assert rows and all("/Softmax" in [source["name"] for source in row["sources"]] for row in rows)
    profile = session.profile({"x": np.zeros((2, 4, 8), np.float32)})
    assert {s["name"] for row in profile.to_json()["steps"] for s in row["sources"]} >= {
        "/q/MatMul",
        "/Softmax",
        "/Selu",
    }
    assert "MatMul '/q/MatMul'" in str(profile)
    with pytest.raises(InputError, match="no such node, got '/Nothing'"):
        session.explain("/Nothing")


@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_an_index_out_of_range_names_the_node_of_the_file(executor):
    table = onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32), "table")
    ports = [helper.make_tensor_value_info("ids", TensorProto.INT64, [2]),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], name="/embed/Gather")]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], [table]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 18)])  # fmt: skip
    session = ingot.InferenceSession(model.SerializeToString(), executor=executor)
    with pytest.raises(InputError, match=r"node 'y'.*got 9.*\(from Gather '/embed/Gather'\)"):
        session.run(None, {"ids": np.array([0, 9])})


def test_torch_calls_have_their_module_and_operator():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.drop = torch.nn.Dropout()

        def forward(self, x):
            return self.drop(self.linear(x)).relu()

    graph = load_module(torch.nn.Sequential(Inner(), Inner()), (torch.zeros(2, 4),))
    sources = sorted({source for node in graph.nodes for source in node.sources})
    assert [(s.op, s.module) for s in sources[:3]] == [
        ("aten.linear.default", "0.linear"), ("aten.dropout.default", "0.drop"), ("aten.relu.default", "0")
    ]  # fmt: skip
    assert [s.module for s in sources[3:]] == ["1.linear", "1.drop", "1"] and all(s.name for s in sources)
