"""Nodes whose result depends on a rank that is only known at run time: nested branches, one per rank.

An operand of sizes determines a rank by its length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ingot.ir.dim import Expr
from ingot.ir.graph import MAX_RANK, Graph, TensorType, UnrankedType
from ingot.load.onnx.builder import Facts, OnnxBuilder
from ingot.load.onnx.call import Body, Call
from ingot.load.onnx.registry import INGOT, onnx


def is_unranked(build: OnnxBuilder, operand: str) -> bool:
    """Return whether the rank of an operand, or the length of an integer vector, is only known at run time."""
    type = build.graph.values[operand].type
    if isinstance(type, TensorType):
        return type.dtype.kind == "i" and type.rank == 1 and not type.is_static
    return isinstance(type, UnrankedType)


def of_rank(build: OnnxBuilder, operand: str, rank: int) -> str:
    """Return such an operand with a given rank (or length); any other rank is an error of the run."""
    is_row = isinstance(build.graph.values[operand].type, TensorType)
    return build.reshape(operand, shape=(rank,)) if is_row else build.as_rank(operand, rank=rank)


@onnx("has_rank", domain=INGOT)
def has_rank(call: Call) -> str:
    """Evaluate the condition of a branch, in a file that Ingot wrote."""
    type, rank = call.value_type(0), call.attr_int("rank")
    if isinstance(type, TensorType):
        return call.build.constant(np.array(type.rank == rank))
    return call.build.has_rank(call[0], rank=rank)


@onnx("as_rank", domain=INGOT)
def as_rank(call: Call) -> str:
    rank = call.attr_int("rank")
    if not 0 <= rank <= MAX_RANK:
        raise call.malformed(f"rank {rank}, expected 0 to {MAX_RANK}")
    return call.build.as_rank(call[0], rank=rank)


def choose(build: OnnxBuilder, operand: str, bodies: Mapping[int, Body]) -> tuple[str, ...]:
    """Return the results of the body for the rank that an operand has, or of the last body, which rejects other
    ranks.
    """
    captured = dict.fromkeys(name for body in bodies.values() for name in body.captured)
    return _choose(build, operand, list(bodies.items()), {name: name for name in captured})


def _choose(
    build: OnnxBuilder, operand: str, bodies: list[tuple[int, Body]], names: Mapping[str, str]
) -> tuple[str, ...]:
    """Choose recursively. names: captured values -> their names in the graph under construction."""
    (rank, body), *others = bodies
    if len(others) == 1:
        ((_, other),) = others
    else:
        facts = Facts(Graph(f"{body.graph.name}_or_another"), build.facts.totals, nested=True)
        inner = OnnxBuilder(facts, build.hint)
        captured = dict.fromkeys(name for _, each in others for name in each.captured)
        inside = {name: _captured(build, inner, names[name]) for name in captured}
        for external, result in zip(body.graph.outputs, _choose(inner, operand, others, inside), strict=True):
            facts.graph.set_output(external, result)
        other = Body(facts.graph, tuple(captured))
    operands = [names[name] for name in (*body.captured, *other.captured)]
    return build.add_all(
        "if", _has_rank(build, names[operand], rank), *operands, then_branch=body.graph, else_branch=other.graph
    )


def _captured(build: OnnxBuilder, inner: OnnxBuilder, name: str) -> str:
    return inner.graph.add_input(inner.graph.fresh(name), build.graph.values[name].type)


def _has_rank(build: OnnxBuilder, operand: str, rank: int) -> str:
    type = build.graph.values[operand].type
    if not isinstance(type, TensorType):
        return build.has_rank(operand, rank=rank)
    (length,) = type.shape
    assert isinstance(length, Expr)
    return build.equal(build.dims(values=(length,)), rank)
