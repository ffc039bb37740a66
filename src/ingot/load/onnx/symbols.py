"""Names of dims: the names in a model's inputs, and new names of dims that are measured at run time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx_ir

from ingot.errors import LoadError
from ingot.ir import dim
from ingot.ir.dim import Dim, Expr, symbol, symbols_of
from ingot.load.onnx.tensors import UNNAMED


class Symbols:
    """Convert dim_params to dims: a name is a symbol; an expression over names of inputs is that expression."""

    def __init__(self, shapes: Iterable[onnx_ir.Shape], sizes: Mapping[str, int] = {}):
        self.sizes = sizes
        params = [d.value for shape in shapes for d in shape if isinstance(d, onnx_ir.SymbolicDim)]
        self.plain = {p for p in params if p and _NAME.fullmatch(p)}
        self.used_names = set(self.plain)
        self.dims: dict[str, Dim] = {}
        self.of_data: set[str] = set()  # dims that are measured at run time
        self.are_open = False

    def dim(self, given: int | onnx_ir.SymbolicDim, hint: str) -> Dim:
        """Return the dim of an input; hint: the name for an unnamed dim."""
        found = dim.bind(self._named(given, hint), self.sizes)
        self.are_open |= not isinstance(found, int)
        return found

    def _named(self, given: int | onnx_ir.SymbolicDim, hint: str) -> Dim:
        if isinstance(given, int) and given != UNNAMED:
            return given
        param = None if isinstance(given, int) else given.value
        if isinstance(param, bytes):
            raise LoadError(f"onnx input dim: not UTF-8, got {param[:100]!r}")
        if not param or param == "?":
            return symbol(self.fresh(hint))
        if param in self.plain:
            return symbol(param)
        if param not in self.dims:
            expression = _expression(param)
            known = isinstance(expression, Expr) and symbols_of(expression) <= self.plain
            self.dims[param] = expression if known else symbol(self.fresh(param))
        return self.dims[param]

    def measured(self) -> Expr:
        """Return a new symbol for a dim that is measured at run time."""
        name = self.fresh(f"u{len(self.of_data)}")
        self.of_data.add(name)
        return symbol(name)

    def needs_run(self, dims: Iterable[Dim]) -> bool:
        """Return whether one of the dims is unknown before a run measures it."""
        return any(isinstance(d, Expr) and symbols_of(d) & self.of_data for d in dims)

    def fresh(self, hint: str) -> str:
        """Return an unused name, based on the hint."""
        name = re.sub(r"\W", "_", hint, flags=re.ASCII)[:64]
        name = name if _NAME.fullmatch(name) else f"d_{name}"
        while name in self.used_names:
            name += "_"
        self.used_names.add(name)
        return name


_NAME = re.compile(r"(?!(?:min|max|none)$)[A-Za-z_]\w{0,63}", re.ASCII)
_EXPRESSION = re.compile(r"[\w+*/ ()-]{1,128}", re.ASCII)


def _expression(text: str) -> Dim:
    if not _EXPRESSION.fullmatch(text):
        return None
    try:
        return dim.parse(text)
    except (ValueError, SyntaxError, ZeroDivisionError):
        return None
