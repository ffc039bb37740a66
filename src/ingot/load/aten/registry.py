"""The table of ATen rules: overload name -> function that makes plain ops.

A rule is called as `rule(b, *args, **kwargs)` with the arguments of the ATen call, and its Python signature repeats
the schema's defaults. Tensors arrive as value names, sizes as dims, everything else as it was; a rule returns the
value name of its result, or a tuple of them (None for a result that Ingot does not compute), or NotImplemented: then
torch's own decomposition of the op is translated.
"""

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


def aten(*targets: str) -> Callable[[Rule], Rule]:
    """Declares the rule for some overloads; `linear.default` means `aten.linear.default`."""

    def declare(rule: Rule) -> Rule:
        for target in targets:
            name = target if target.startswith("prims.") else f"aten.{target}"
            # An import that was interrupted and tried again declares its rules again.
            assert RULES.get(name, rule).__qualname__ == rule.__qualname__, f"{target} has two rules"
            RULES[name] = rule
        return rule

    return declare
