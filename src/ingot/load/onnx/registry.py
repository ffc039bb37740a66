"""The table of ONNX rules: `@onnx("Name", since=opset)` says how one op type becomes plain ops.

A rule gets a `Call` (see `call.py`) and returns what each output of the node is: one operand, or a tuple of
them; None passes a form that the rule does not cover on to the body that ONNX's schema gives the op.
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
INGOT = "ingot"  # of functions that Ingot writes, whose bodies are plain ONNX ops
DESCRIBED = ("", PREVIEW, TRAINING)  # domains whose nodes ONNX's schemas are held against

Rule = Callable[["Call"], str | tuple[str | None, ...] | None]
Declared = TypeVar("Declared", bound=Rule)

RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}

# Why there is no rule, and what to do instead.
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
    """Why an op type has no rule."""
    return REFUSED.get((domain, name)) or REFUSED_DOMAINS.get(domain) or "has no rule; see 'ingot ops'"


def onnx(*names: str, since: int = 1, domain: str = "") -> Callable[[Declared], Declared]:
    """Declares a rule for op types of a domain from opset `since` on, until a rule with a later one."""

    def declare(rule: Declared) -> Declared:
        for name in names:
            rows = RULES.setdefault((domain, name), [])
            known: Rule = dict(rows).get(since, rule)
            # An import that was interrupted and tried again declares its rules again.
            assert known.__qualname__ == rule.__qualname__, f"onnx {name} since {since} is declared twice"
            rows[:] = sorted((dict(rows) | {since: rule}).items())
        return rule

    return declare


def find_rule(domain: str, name: str, opset: int) -> Rule | None:
    """The rule for an op type at an opset."""
    for since, rule in reversed(RULES.get((domain, name), ())):
        if since <= opset:
            return rule
    return None


def foreign_name(domain: str, name: str) -> str:
    """How an op type is called outside: `Gelu`, or `com.microsoft::Gelu`."""
    return f"{domain}::{name}" if domain else name
