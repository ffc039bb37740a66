"""Warnings about a model for the page: what a person who looks for an error or for time should know of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ingot.errors import IngotError
from ingot.inspect.comparison.result import Comparison
from ingot.inspect.model import InspectedModel
from ingot.inspect.view import View
from ingot.ir.dtype import DTYPES
from ingot.ir.graph import Graph, Node, TensorType
from ingot.session.reports import refusals

_MOST_ROWS = 200  # of one kind
# The kernels that accept what no other kernel of their op does: they read matrices and filters without packing.
_GENERAL = frozenset({"conv2d_f32", "matmul_f32", "matmul_f32_bf16", "matmul_tn_f32", "product_f64", "product_i64"})
_READERS = ("gemm_", "gemv_", "matmul_", "conv2d_", "expert_matmul_", "lstm_", "gru_", "rnn_")  # kernels of products
_LEAST_SHARE = 0.1  # of the measured time, from which on one task of several threads is reported
_OTHER_SIZE = 64  # of open dims, for which kernels are chosen, too
_MOST_NODES = 2000  # of a graph that is compiled again for this

Row = tuple[str, str, int]  # the name of a node or tensor, a text, and bytes


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of warning. title, about: for people. stage: of the names of its rows, "" where they are tensors."""

    title: str
    about: str
    stage: str
    rows: Iterable[Row]


def warnings_document(
    model: InspectedModel, measured: list[dict[str, Any]] | None, comparison: Comparison | None
) -> list[dict[str, Any]]:
    """Return the warnings by kind: `title`, `about`, `stage`, `count`, `bytes` and `rows` of name, text and bytes."""
    found = []
    for kind in _kinds(model, measured, comparison):
        if rows := list(kind.rows):
            found.append({
                "title": kind.title, "about": kind.about, "stage": kind.stage, "count": len(rows),
                "bytes": sum(row[2] for row in rows), "rows": rows[:_MOST_ROWS],
            })  # fmt: skip
    return found


def _kinds(
    model: InspectedModel, measured: list[dict[str, Any]] | None, comparison: Comparison | None
) -> Iterator[_Kind]:
    if comparison is not None:
        yield _Kind(
            f"Values that differ from {comparison.b}", "The sides of --compare disagree; see Errors.", "graph",
            ((row.name, f"{row.problem}: {row.detail}", 0) for row in comparison.values if row.problem),
        )  # fmt: skip
    yield _Kind(
        "Missing data", "Weights whose data is not there: a session fails.", "",
        ((name, reason, 0) for name, reason in model.absent.items()),
    )  # fmt: skip
    yield _Kind(
        "Weights that nothing needs", "The file has them, but no output depends on them.", "",
        _unneeded(model),
    )  # fmt: skip
    yield _Kind(
        "Casts back and forth", "A cast to a dtype that has fewer values, and back: its rounding stays.", "optimized",
        _round_trips(model.optimized),
    )  # fmt: skip
    if model.has_program:
        yield from _kinds_of_program(model, measured)


def _kinds_of_program(model: InspectedModel, measured: list[dict[str, Any]] | None) -> Iterator[_Kind]:
    view = model.view("plan")
    yield _Kind(
        "Nodes on the reference", "No kernel computes them: the interpreter does, which is slower.", "plan",
        _on_the_reference(model, view),
    )  # fmt: skip
    yield _Kind(
        "General kernels", "They read a matrix or filter without packing it, as no other kernel takes this node.",
        "plan", _general(model),
    )  # fmt: skip
    yield _Kind(
        "Weights of products in f32", "Other weights of this model have fewer bits; these are read in full.", "",
        _wide_weights(view),
    )  # fmt: skip
    yield _Kind(
        "Copies", "Steps that move data, and compute nothing.", "plan",
        ((item.name, item.op, int(item.facts.get("bytes", 0)))
         for item in view.items.values() if item.op.startswith("copy_")),
    )  # fmt: skip
    if model.assumed:
        sizes = ", ".join(f"{name} = {size}" for name, size in model.assumed.items())
        yield _Kind(
            "Kernels that depend on an open dim",
            f"This page is for {sizes}; give other sizes with --dim. These nodes get another kernel in larger ones.",
            "plan", _of_size(model),
        )  # fmt: skip
    if measured and model.target.threads > 1:
        yield _Kind(
            "Steps of one task",
            f"One of {model.target.threads} threads computes them; each takes at least a tenth of the time.", "plan",
            _alone(measured),
        )  # fmt: skip


def _unneeded(model: InspectedModel) -> Iterator[Row]:
    """Yield weights that no output or state depends on."""
    for name, nbytes in model.unused.items():
        yield name, "no node reads it", nbytes
    graph = model.loaded
    waiting = [*graph.outputs.values(), *graph.states.values()]
    needed = set(waiting)
    for name in waiting:
        node = graph.producer(name)
        for operand in () if node is None else _read_by(node):
            if operand not in needed:
                needed.add(operand)
                waiting.append(operand)
    for name, value in graph.values.items():
        if value.kind == "weight" and name not in needed:
            readers = ", ".join(user.outputs[0] for user in value.users)
            nbytes = value.type.nbytes if isinstance(value.type, TensorType) and value.type.is_static else 0
            yield name, f"only nodes that no output needs read it: {readers}" if readers else "no node reads it", nbytes


def _read_by(node: Node) -> list[str]:
    """Return the values that a node reads, those of its bodies included."""
    found = [name for name in node.operands if name is not None]
    for value in node.attributes.values():
        if isinstance(value, Graph):
            found += [name for inner in value.nodes for name in _read_by(inner)]
    return found


def _round_trips(graph: Graph) -> Iterator[Row]:
    for node in graph.nodes:
        before = graph.producer(node.operands[0]) if node.op.name == "cast" and node.operands[0] else None
        if before is None or before.op.name != "cast" or before.operands[0] is None:
            continue
        first, middle, last = (
            found.dtype.name if isinstance(found := graph.values[name].type, TensorType) else ""
            for name in (before.operands[0], before.outputs[0], node.outputs[0])
        )
        if first == last and first and DTYPES[middle].bits < DTYPES[first].bits:
            yield node.outputs[0], f"{before.operands[0]}: {first} to {middle} to {last}", 0


def _on_the_reference(model: InspectedModel, view: View) -> Iterator[Row]:
    reasons = model.compiled.fallback
    for item in view.items.values():
        if item.facts.get("kernel") == "reference":
            named = [text for text in reasons if repr(item.name) in text]
            yield item.name, named[0] if named else item.op, 0


def _general(model: InspectedModel) -> Iterator[Row]:
    for choice in model.explain(None).choices:
        kernel = choice.candidates[-1][0]
        if kernel in _GENERAL:
            packed = [each for each in choice.candidates[:-1] if each[0].endswith("_packed") and "f32" in each[0]]
            yield choice.node, "; ".join([kernel, *refusals(packed[-1:])]), 0


def _wide_weights(view: View) -> Iterator[Row]:
    """Yield f32 matrices of products, if other weights have fewer bits."""
    weights = {name: edge for name, edge in view.edges.items() if edge.kind in ("weight", "constant") and edge.nbytes}
    if not any(DTYPES[edge.dtype].bits <= 16 for edge in weights.values() if edge.dtype in DTYPES):
        return
    for item in view.items.values():
        for name in item.operands if item.op.startswith(_READERS) else ():
            edge = weights.get(name or "")
            if edge is not None and edge.dtype == "f32" and "packed_weight" in edge.facts and _is_matrix(edge.shape):
                yield str(name), f"read by {item.op} for {item.name}", int(edge.nbytes or 0)


def _is_matrix(shape: list[int | str | None] | None) -> bool:
    return shape is not None and len([size for size in shape if size != 1]) > 1


def _of_size(model: InspectedModel) -> Iterator[Row]:
    """Yield the nodes that get another kernel if assumed dims are larger."""
    if len(model.loaded) > _MOST_NODES:
        return
    sizes = dict.fromkeys(model.assumed, _OTHER_SIZE)
    try:
        other = _kernels(model.with_sizes(sizes))
    except IngotError as error:  # the model's own dims may contradict the size
        yield model.loaded.name, f"with {_OTHER_SIZE}: {error}", 0
        return
    for name, kernel in _kernels(model).items():
        if other.get(name, kernel) != kernel:
            yield name, f"{kernel}; with {_OTHER_SIZE}: {other[name]}", 0


def _kernels(model: InspectedModel) -> dict[str, str]:
    return {choice.node: choice.candidates[-1][0] for choice in model.explain(None).choices}


def _alone(measured: list[dict[str, Any]]) -> Iterator[Row]:
    total = sum(row["nanoseconds"] for row in measured) or 1
    for row in measured:
        if row["parts"] == 1 and row["nanoseconds"] >= _LEAST_SHARE * total:
            yield row["node"], f"{row['kernel']}: {row['nanoseconds'] / total:.0%} of the time", 0
