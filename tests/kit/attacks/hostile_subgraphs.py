"""Subgraphs and functions that disagree with their node, and nodes in an order that nothing can mend.

As in `hostile_onnx.py`: (name, builder, error type, fragment of the message).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from attacks.hostile_onnx import Attack, graph
from ingot.errors import LoadError
from onnx_models import value_info

node = helper.make_node
X = value_info("x", np.zeros((2, 3), np.float32))
FLAG = value_info("c", np.array(True))
INPUTS = {
    "If": {"then_branch": 0, "else_branch": 0},
    "Loop": {"body": 3},
    "Scan": {"body": 2},
    "SequenceMap": {"body": 1},
}
OPERANDS = {"If": ["c"], "Loop": ["n", "", "x"], "Scan": ["x", "x"], "SequenceMap": ["q"]}
RESULTS = {"If": 2, "Loop": 3, "Scan": 2, "SequenceMap": 2}  # of a subgraph of a node with two outputs


def body(name: str, inputs: int, results: int, is_loop: bool) -> onnx.GraphProto:
    """A subgraph of so many inputs and results; the first two inputs of a loop, and its first result, are its own."""
    given = [helper.make_tensor_value_info(f"{name}{i}", TensorProto.FLOAT, None) for i in range(inputs)]
    if is_loop:
        for place, kind in enumerate((TensorProto.INT64, TensorProto.BOOL)):
            given[place : place + 1] = [helper.make_tensor_value_info(f"{name}{place}", kind, [])]
        given = given[:inputs]
    names = [f"{name}_r{i}" for i in range(results)]
    nodes = [node("Abs", [given[-1].name if given and not is_loop else "x"], [each]) for each in names]
    if is_loop and results:
        nodes[0] = node("Identity", ["c"], names[:1])
    return helper.make_graph(nodes, name, given, [onnx.ValueInfoProto(name=each) for each in names])


def control(op: str, inputs: int = 0, results: int = 0, known: bool = False) -> Callable[[], onnx.ModelProto]:
    """A node of a control flow with two outputs, whose last subgraph has so many inputs and results more, or fewer."""

    def build() -> onnx.ModelProto:
        wanted = INPUTS[op]
        bodies = {name: body(name, count, RESULTS[op], op == "Loop") for name, count in wanted.items()}
        last = list(wanted)[-1]
        bodies[last] = body(last, wanted[last] + inputs, RESULTS[op] + results, op == "Loop")
        options: dict[str, Any] = bodies | ({"num_scan_inputs": 1} if op == "Scan" else {})
        nodes = [
            node("SequenceConstruct", ["x", "x"], ["q"]),
            node(op, OPERANDS[op], ["y", "z"], "attacked", **options),
        ]
        constants = [("n", np.array(3)), *([("c", np.array(True))] if known else [])]
        outputs = [onnx.ValueInfoProto(name="y")]
        return graph(nodes, [X, *([] if known else [FLAG])], outputs, constants)

    return build


def called(operands: list[str], outputs: list[str]) -> Callable[[], onnx.ModelProto]:
    """A call of a function that has two inputs, adds them, and has one output."""
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("local", "f", ["a", "b"], ["r"], [node("Add", ["a", "b"], ["r"])], imports)
    return lambda: graph(
        [node("f", operands, outputs, "attacked", domain="local")],
        outputs=[onnx.ValueInfoProto(name=outputs[0])],
        functions=[function],
        local=1,
    )


def cycle_of(length: int) -> onnx.ModelProto:
    """Nodes that read one another in a circle, the last first."""
    nodes = [node("Relu", [f"h{i}"], [f"h{(i + 1) % length}"], f"n{i}") for i in reversed(range(length))]
    return graph([*nodes, node("Abs", ["h0"], ["y"])])


def cycle_through_a_branch() -> onnx.ModelProto:
    """An `If` that reads, in a branch, what a node behind it makes of its own result."""
    then = helper.make_graph([node("Neg", ["late"], ["p"])], "then", [], [onnx.ValueInfoProto(name="p")])
    other = helper.make_graph([node("Abs", ["x"], ["q"])], "other", [], [onnx.ValueInfoProto(name="q")])
    nodes = [
        node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other),
        node("Relu", ["y"], ["late"], "behind"),
    ]
    return graph(nodes, [X, FLAG])


def cycle_in_a_function() -> onnx.ModelProto:
    nodes = [node("Add", ["a", "t"], ["r"], "sum"), node("Relu", ["r"], ["t"], "clipped")]
    function = helper.make_function("local", "f", ["a"], ["r"], nodes, [helper.make_opsetid("", 18)])
    return graph([node("f", ["x"], ["y"], domain="local")], functions=[function], local=1)


def hidden(field: str) -> onnx.ModelProto:
    """A loop whose body makes a name of the graph around it anew by a node, which is no single assignment."""
    inner = body("body", 3, 2, True)
    inner.node[1].output[0] = inner.output[1].name = field
    nodes = [node("Relu", ["x"], ["h"]), node("Loop", ["n", "", "h"], ["y"], "attacked", body=inner)]
    return graph(nodes, [X, FLAG], constants=[("n", np.array(3))])


SUBGRAPHS: list[Attack] = [
    *(
        (
            f"{op} {noun} {'more' if change > 0 else 'fewer'}{', known' if known else ''}",
            control(op, known=known, **{noun: change}),
            LoadError,
            f"{list(INPUTS[op])[-1]!r} has a wrong number of {noun}, got",
        )
        for op in INPUTS
        for noun in ("inputs", "results")
        for change in (1, -1)
        for known in ((False, True) if op == "If" else (False,))
        if change > 0 or noun == "results" or INPUTS[op][list(INPUTS[op])[-1]]
    ),
    ("function of fewer operands", called(["x"], ["y"]), LoadError, "onnx node 'r' (Add): input 1 is missing"),
    ("function of more operands", called(["x", "x", "x"], ["y"]), LoadError, "called with too many inputs or outputs"),
    ("function of more outputs", called(["x", "x"], ["y", "z"]), LoadError, "called with too many inputs or outputs"),
    ("cycle of three", lambda: cycle_of(3), LoadError, "got 'n2' (Relu), 'n0' (Relu), 'n1' (Relu), expected"),
    ("cycle of many", lambda: cycle_of(5000), LoadError, "and 4992 more, expected an order"),
    ("cycle through a branch", cycle_through_a_branch, LoadError, "got 'choice' (If), 'behind' (Relu)"),
    ("cycle in a function", cycle_in_a_function, LoadError, "got 'sum' (Add), 'clipped' (Relu)"),
    ("name made again by a node", lambda: hidden("h"), LoadError, "output 'h' is defined twice"),
]
