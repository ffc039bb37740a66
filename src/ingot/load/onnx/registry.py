"""The table of ONNX rules: `@onnx("Name", since=opset)` declares how one op type is lowered to plain ops.

A rule gets a `Call` (see `call.py`) and returns the value of each output of the node: one value, or a tuple. None
leaves a form that the rule does not cover to the function body in ONNX's schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ingot.load.onnx.call import Call

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
PREVIEW = "ai.onnx.preview"
TRAINING = "ai.onnx.preview.training"
INGOT = "ingot"  # for functions that Ingot writes, whose bodies are plain ONNX ops
DESCRIBED = ("", PREVIEW, TRAINING)  # domains whose nodes are checked against ONNX's schemas

Rule = Callable[["Call"], str | tuple[str | None, ...] | None]
Declared = TypeVar("Declared", bound=Rule)

RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}

# Reasons for ops without a rule, with the alternative.
_DICTIONARY = "reads a dictionary; feed tensors"
_LAID_OUT = (
    "is how ONNX Runtime lays a model out for one CPU; have it optimise the original again, at the level"
    " ORT_ENABLE_EXTENDED or below"
)
REFUSED: dict[tuple[str, str], str] = {
    (ML, "DictVectorizer"): _DICTIONARY,
    (ML, "CastMap"): _DICTIONARY,
    (MICROSOFT, "NhwcFusedConv"): _LAID_OUT,
}
REFUSED_DOMAINS = {"com.microsoft.nchwc": _LAID_OUT}


def reason(domain: str, name: str) -> str:
    """Return why an op type has no rule."""
    return REFUSED.get((domain, name)) or REFUSED_DOMAINS.get(domain) or "has no rule; see 'ingot ops'"


def onnx(*names: str, since: int = 1, domain: str = "") -> Callable[[Declared], Declared]:
    """Declare a rule for op types of a domain, from opset `since` up to the next rule with a later opset."""

    def declare(rule: Declared) -> Declared:
        for name in names:
            rows = RULES.setdefault((domain, name), [])
            known: Rule = dict(rows).get(since, rule)
            # After an interrupted import, the next import declares the same rules again.
            assert known.__qualname__ == rule.__qualname__, f"onnx {name} since {since} is declared twice"
            rows[:] = sorted((dict(rows) | {since: rule}).items())
        return rule

    return declare


def find_rule(domain: str, name: str, opset: int) -> Rule | None:
    """Return the rule for an op type at an opset."""
    for since, rule in reversed(RULES.get((domain, name), ())):
        if since <= opset:
            return rule
    return None


def foreign_name(domain: str, name: str) -> str:
    """Return the public name of an op type: `Gelu`, or `com.microsoft::Gelu`."""
    return f"{domain}::{name}" if domain else name
