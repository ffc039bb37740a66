"""C for the sizes that a run says, and for what is computed of them."""

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
    """The sizes of a program, each by a name in C: `n0`, of which fields of steps are multiples."""

    def __init__(self, lowered: Lowered):
        self._names = {dim: f"n{i}" for i, dim in enumerate(dict.fromkeys(sizes_of(lowered)))}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """What the sizes are called in C."""
        return [*self._names.values()]

    def declared(self, symbols: Mapping[str, str]) -> list[tuple[str, str]]:
        """Statements that compute them, and what they are. symbols: the C of each symbol."""
        return [(f"  const int64_t {name} = {c_text(dim, symbols)};", str(dim)) for dim, name in self._names.items()]

    def text(self, size: AtMost, divisor: int = 1) -> str:
        """The C of a size, or of a whole part of it."""
        factor, rest = content_of(size.dim)
        assert factor % divisor == 0, f"{size.dim} in {divisor} parts"
        factor //= divisor
        return self._names[rest] if factor == 1 else f"{factor} * {self._names[rest]}"


def c_text(dim: Known, symbols: Mapping[str, str]) -> str:
    """The C of a dim, an int64_t. symbols: the C of each. Raises UnsupportedError for what sizes of a run never are."""
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
    """The functions that some C of sizes calls."""
    return "".join(code for name, code in _FUNCTIONS.values() if re.search(rf"\b{name}\(", text))


def sizes_said(tensors: Sequence[Tensor], arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The values of symbols that the shapes of arrays say, by the names of tensors that they are for."""
    found: dict[str, int] = {}
    for tensor in tensors:
        pairs = zip(tensor.shape, arrays[tensor.name].shape, strict=True)
        solved = (solve(dim_of(dim), size) for dim, size in pairs)
        found.update(each for each in solved if each is not None)
    return found
