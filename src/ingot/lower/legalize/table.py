"""The table of legalizations, by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, Node
from ingot.ops.define import Expansion, replace_node

Legalization = Callable[..., str | tuple[str, ...] | None]

LEGALIZATIONS: dict[str, Legalization] = {}
LEGALIZED_AS_THEMSELVES: set[str] = set()


def legalizes(*ops: str, again: bool = False) -> Callable[[Legalization], Legalization]:
    """Declare f(g, *operands, **attributes) for ops, written like an op's expansion.

    again: the result contains the same op in a form that kernels accept. Without any kernel for the op, the
    legalization would repeat forever.
    """

    def declare(legalization: Legalization) -> Legalization:
        LEGALIZATIONS.update(dict.fromkeys(ops, legalization))
        LEGALIZED_AS_THEMSELVES.update(ops if again else ())
        return legalization

    return declare


def legalize_node(graph: Graph, node: Node) -> bool:
    """Replace a node of static types; its values keep their names. Return False if there is no replacement."""
    legalization = LEGALIZATIONS.get(node.op.name)
    results = None if legalization is None else legalization(Expansion(graph, node), *node.operands, **node.attributes)
    if results is None:
        return False
    replace_node(graph, node, results if isinstance(results, tuple) else (results,))
    return True


@legalizes("matmul", again=True)
def _matmul(g: Expansion, a: str, b: str, **settings: Any) -> str | None:
    """Apply the scale as a separate multiplication."""
    if settings["scale"] == 1.0:
        return None
    return g.mul(g.matmul(a, b, **settings | {"scale": 1.0}), float(settings["scale"]))


@legalizes("dynamic_quantize", again=True)
def _dynamic_quantize(g: Expansion, x: str) -> tuple[str, ...] | None:
    """Cast f64 to f32, as the op is defined."""
    if g.type(x).dtype is f32:
        return None
    quantized, scale, zero = g.add_all("dynamic_quantize", g.cast(x, dtype=f32))
    return quantized, g.cast(scale, dtype=g.type(x).dtype), zero


@legalizes("topk", again=True)
def _topk(g: Expansion, x: str, *, k: int, axis: int, largest: bool) -> tuple[str, ...] | None:
    """Compute topk along the last axis."""
    last = g.type(x).rank - 1
    if axis == last:
        return None
    axes = tuple(last if i == axis else axis if i == last else i for i in range(last + 1))
    found = g.add_all("topk", g.permute(x, axes=axes), k=k, axis=last, largest=largest)
    return tuple(g.permute(each, axes=axes) for each in found)
