"""The table of ATen rules: overload name -> function that builds plain ops.

A rule is called as `rule(b, *args, **kwargs)` with the arguments of the ATen call, and its Python signature repeats the
schema's defaults. Tensors are passed as value names, sizes as dims, all other arguments unchanged. A rule returns the
value name of its result, or a tuple of them (None for a result that Ingot does not compute, a function for one that is
computed where it is used), or NotImplemented: then torch's own decomposition of the op is translated. A call with
complex numbers among its arguments or results has a separate rule.
"""

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}

# Why an overload has no rule.
REFUSED = {
    "aten._sparse_mm_reduce_impl.default": "takes a sparse tensor",
    "aten._to_sparse.default": "makes a sparse tensor",
    "aten._to_sparse.sparse_dim": "makes a sparse tensor",
    "aten.sparse_sampled_addmm.default": "takes a sparse tensor",
    "aten.to_sparse.default": "makes a sparse tensor",
    "aten.to_sparse.sparse_dim": "makes a sparse tensor",
}

OTHER_NAMESPACES = ("prims.", "quantized_decomposed.", "torch_nn.", "transformers.")


def rule_key(target: str, is_complex: bool) -> str:
    """Return the key in `RULES` of an overload, called with complex numbers or without."""
    return f"{target} (complex)" if is_complex else target


def aten(*targets: str, is_complex: bool = False) -> Callable[[Rule], Rule]:
    """Declare the rule for some overloads; `linear.default` means `aten.linear.default`."""

    def declare(rule: Rule) -> Rule:
        for target in targets:
            name = rule_key(target if target.startswith(OTHER_NAMESPACES) else f"aten.{target}", is_complex)
            # An import that was interrupted and tried again declares its rules again.
            assert RULES.get(name, rule).__qualname__ == rule.__qualname__, f"{target} has two rules"
            RULES[name] = rule
        return rule

    return declare
