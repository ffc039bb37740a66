"""Rules for ops with subgraphs. Values of the outer graph that a subgraph reads become operands of the op."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.errors import IngotError, ShapeError
from ingot.ir.dtype import boolean, i64
from ingot.ir.graph import Graph, SequenceType, TensorType, Type, forget, join
from ingot.load.onnx.call import Body, Call
from ingot.load.onnx.registry import onnx
from ingot.load.onnx.shapes import normalize_axes
from ingot.ops.control import result_types


@onnx("If")
def if_(call: Call) -> tuple[str, ...]:
    """If with a condition that is unknown at load time; a known condition selects its branch before this rule is
    called.
    """
    found = [call.branch(name) for name in ("then_branch", "else_branch")]
    fitting = next((branch for branch in found if isinstance(branch, Body)), None)
    if fitting is None:
        raise found[0]  # type: ignore[misc]
    chosen, other = (each if isinstance(each, Body) else _refused(call, each, fitting) for each in found)
    operands = (call[0], *chosen.captured, *other.captured)
    return call.build.add_all("if", *operands, then_branch=chosen.graph, else_branch=other.graph)


def _refused(call: Call, error: IngotError, other: Body) -> Body:
    """Return a branch that replaces one that does not fit the given dims: taking it is an error of the run."""
    graph = Graph("refused")
    condition = graph.add_input("condition", call.value_type(0))
    for external, type in zip(other.graph.outputs, result_types(other.graph, []), strict=True):
        graph.set_output(external, graph.add("refuse", [condition], external, why=str(error), result=type).output)
    return Body(graph, (call[0],))


@onnx("Loop")
def loop(call: Call) -> tuple[str, ...]:
    given = [TensorType(i64, ()), TensorType(boolean, ())]
    carried = [call[i] for i in range(2, len(call))]
    body = _settled(call, given, [call.value_type(i) for i in range(2, len(call))], [], 1)
    flags = call.get(0), call.get(1)
    return call.build.add_all("loop", *flags, *carried, *body.captured, body=body.graph, carried=len(carried))


def _settled(call: Call, before: Sequence[Type], carried: list[Type], after: Sequence[Type], first: int) -> Body:
    """Load the body repeatedly until its carried inputs have the joined types of initial values and results.

    Each further iteration makes a dim or a rank unknown, so the loop terminates. first: index of the first carried
    result.
    """
    while True:
        body = call.body("body", [*before, *carried, *after], first)
        around = [*carried, *after, *(call.build.graph.values[name].type for name in body.captured)]
        results = result_types(body.graph, around)[first:]
        if len(results) < len(carried):
            raise call.malformed(f"the body has {len(results)} results, expected at least {len(carried)}")
        joined = [join(a, b) for a, b in zip(carried, results, strict=False)]
        if joined == carried:
            return body
        carried = joined


@onnx("Scan", since=9)
def scan(call: Call) -> tuple[str, ...]:
    count = _count(call, len(call))
    states = len(call) - count
    types = [call.type(i) for i in range(states, len(call))]
    axes = call.attr_ints("scan_input_axes", (0,) * count)
    if len(axes) != count:
        raise call.malformed(f"attribute 'scan_input_axes' has {len(axes)} axes, expected {count}")
    axes = tuple(normalize_axes((axis,), t.rank)[0] for axis, t in zip(axes, types, strict=True))
    elements = [without(t, axis) for t, axis in zip(types, axes, strict=True)]
    body = _settled(call, [], [call.value_type(i) for i in range(states)], elements, 0)
    stacked = [_element(call, body.graph.values[name].type) for name in list(body.graph.outputs.values())[states:]]
    outputs = call.attr_ints("scan_output_axes", (0,) * len(stacked))
    if len(outputs) != len(stacked):
        raise call.malformed(f"attribute 'scan_output_axes' has {len(outputs)} axes, expected {len(stacked)}")
    return call.build.add_all(
        "scan",
        *call.values(),
        *body.captured,
        body=body.graph,
        carried=states,
        input_axes=axes,
        input_backward=_directions(call, "scan_input_directions", count),
        output_axes=tuple(normalize_axes((a,), t.rank + 1)[0] for a, t in zip(outputs, stacked, strict=True)),
        output_backward=_directions(call, "scan_output_directions", len(stacked)),
    )


def _element(call: Call, type: Type) -> TensorType:
    if not isinstance(type, TensorType):
        raise call.unsupported(f"an output of type {type}")
    return type


def without(type: TensorType, axis: int) -> TensorType:
    """Return the type without one of its axes."""
    return TensorType(type.dtype, (*type.shape[:axis], *type.shape[axis + 1 :]))


def _count(call: Call, operands: int) -> int:
    count = call.attr_int("num_scan_inputs")
    if not 1 <= count <= operands:
        raise call.malformed(f"attribute 'num_scan_inputs' is {count}, expected 1..{operands}")
    return count


def _directions(call: Call, name: str, count: int) -> tuple[bool, ...]:
    directions = call.attr_ints(name, (0,) * count)
    if len(directions) != count or not set(directions) <= {0, 1}:
        raise call.malformed(f"attribute {name!r} is {list(directions)}, expected {count} of 0 and 1")
    return tuple(map(bool, directions))


@onnx("Scan", since=8)
def scan_with_batch(call: Call) -> tuple[str, ...]:
    """Operand 0 holds lengths of sequences. Axis 0 of all values is a batch, axis 1 is scanned: two nested scans."""
    if call.has(0):
        raise call.unsupported("lengths of sequences")
    call = call.replaced(*call.operands[1:])
    count = _count(call, len(call))
    states = len(call) - count
    types = [call.type(i) for i in range(len(call))]
    if any(type.rank < 1 + (i >= states) for i, type in enumerate(types)):
        raise ShapeError(f"operands {', '.join(map(str, types))}, expected a batch, and an axis to scan")
    inner = [without(type, 0) for type in types]
    body = _settled(call, [], list(inner[:states]), [without(type, 0) for type in inner[states:]], 0)
    around = [call.build.graph.values[name].type for name in body.captured]
    outer = Graph(f"{body.graph.name}_of_batch")
    inputs = [outer.add_input(f"x{i}", call.build.facts.measure(type)) for i, type in enumerate([*inner, *around])]
    num_outputs = len(body.graph.outputs) - states
    node = outer.add(
        "scan",
        inputs,
        "y",
        body=body.graph,
        carried=states,
        input_axes=(0,) * count,
        input_backward=_directions(call, "directions", count),
        output_axes=(0,) * num_outputs,
        output_backward=(False,) * num_outputs,
    )
    for name in node.outputs:
        outer.narrow(name, call.build.facts.measure(outer.values[name].type))
        outer.set_output(name, name)
    each = {"input_axes": (0,) * len(types), "input_backward": (False,) * len(types)}
    each |= {"output_axes": (0,) * len(node.outputs), "output_backward": (False,) * len(node.outputs)}
    return call.build.add_all("scan", *call.values(), *body.captured, body=outer, carried=0, **each)


@onnx("SequenceMap")
def sequence_map(call: Call) -> tuple[str, ...]:
    """Apply the body to each element of the sequences; tensor operands are the same for each."""
    kinds = [call.value_type(i) for i in range(len(call))]
    lists = [i for i, kind in enumerate(kinds) if isinstance(kind, SequenceType)]
    body = call.body("body", [forget(kind.element) if isinstance(kind, SequenceType) else kind for kind in kinds])
    order = [*lists, *(i for i in range(len(call)) if i not in lists)]
    inputs = body.graph.inputs
    body.graph.inputs = [inputs[i] for i in order] + inputs[len(kinds) :]
    operands = [call[i] for i in order]
    return call.build.add_all("sequence_map", *operands, *body.captured, body=body.graph, sequences=len(lists))
