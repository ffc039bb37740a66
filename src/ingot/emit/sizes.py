"""C expressions of run-time sizes, and of dims computed from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir.dim import AtMost, Atom, Expr, Known, content_of, dim_of, solve
from ingot.lower.lowered import Lowered, Tensor, sizes_of

_FUNCTIONS = {
    "floordiv": (
        "size_quotient",
        """\
/* a / b, rounded down. */
static inline int64_t size_quotient(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
""",
    ),
    "min": ("size_min", "static inline int64_t size_min(int64_t a, int64_t b) { return a < b ? a : b; }\n"),
    "max": ("size_max", "static inline int64_t size_max(int64_t a, int64_t b) { return a > b ? a : b; }\n"),
}


class Sizes:
    """The dims of a program that fields of steps are multiples of, with C names `n0` and so on."""

    def __init__(self, lowered: Lowered):
        self._names = {dim: f"n{i}" for i, dim in enumerate(dict.fromkeys(sizes_of(lowered)))}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """The C names of the dims."""
        return [*self._names.values()]

    def declared(self, symbols: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the C statements that compute the dims, with comments. symbols: the C of each symbol."""
        return [(f"  const int64_t {name} = {c_text(dim, symbols)};", str(dim)) for dim, name in self._names.items()]

    def text(self, size: AtMost, divisor: int = 1) -> str:
        """Return the C of a size divided by a divisor of it."""
        factor, rest = content_of(size.dim)
        assert factor % divisor == 0, f"{size.dim} in {divisor} parts"
        factor //= divisor
        return self._names[rest] if factor == 1 else f"{factor} * {self._names[rest]}"


def c_text(dim: Known, symbols: Mapping[str, str]) -> str:
    """Return the C of a dim, an int64_t. symbols: the C of each. Raises UnsupportedError for unsupported operations."""
    if not isinstance(dim, Expr):
        return str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [_atom(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        terms.append(" * ".join(factors))
    return " + ".join(terms).replace("+ -", "- ")


def _atom(atom: Atom, symbols: Mapping[str, str]) -> str:
    if not atom.args:
        return symbols[atom.name]
    if atom.name not in _FUNCTIONS:
        raise UnsupportedError(f"emit: a size of a run, got {atom}, expected quotients, minima and maxima")
    return f"{_FUNCTIONS[atom.name][0]}({', '.join(c_text(arg, symbols) for arg in atom.args)})"


def functions(text: str) -> str:
    """Return the helper functions that some C of sizes calls."""
    return "".join(code for name, code in _FUNCTIONS.values() if re.search(rf"\b{name}\(", text))


def sizes_from_shapes(tensors: Sequence[Tensor], arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the values of symbols that follow from the shapes of arrays, which are given by tensor names."""
    found: dict[str, int] = {}
    for tensor in tensors:
        pairs = zip(tensor.shape, arrays[tensor.name].shape, strict=True)
        solved = (solve(dim_of(dim), size) for dim, size in pairs)
        found.update(each for each in solved if each is not None)
    return found
