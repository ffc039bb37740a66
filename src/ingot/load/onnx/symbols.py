"""Names of dims: those that a model's inputs have, and those of dims that a run measures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import onnx_ir

from ingot.errors import LoadError
from ingot.ir import dim
from ingot.ir.dim import Dim, Expr, symbol, symbols_of
from ingot.load.onnx.tensors import UNNAMED


class Symbols:
    """dim_params as dims: a name is a symbol; an expression over names that inputs have is that expression.

    "?" is no name: two of them are two dims. sizes: the values of symbols that have one already. are_open: whether an
    input has a dim without a value.
    """

    def __init__(self, shapes: Iterable[onnx_ir.Shape], sizes: Mapping[str, int] = {}):
        self.sizes = sizes
        params = [d.value for shape in shapes for d in shape if isinstance(d, onnx_ir.SymbolicDim)]
        self.plain = {p for p in params if p and _NAME.fullmatch(p)}
        self.taken = set(self.plain)
        self.dims: dict[str, Dim] = {}
        self.of_data: set[str] = set()  # those that a run measures
        self.are_open = False

    def dim(self, given: int | onnx_ir.SymbolicDim, hint: str) -> Dim:
        """The dim of an input; hint: what names one that has no name."""
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
        """The name of a dim that a run measures."""
        name = self.fresh(f"u{len(self.of_data)}")
        self.of_data.add(name)
        return symbol(name)

    def needs_run(self, dims: Iterable[Dim]) -> bool:
        """Whether one of the dims has no value before a run measures it."""
        return any(isinstance(d, Expr) and symbols_of(d) & self.of_data for d in dims)

    def fresh(self, hint: str) -> str:
        """A name that no dim has, made of the hint."""
        name = re.sub(r"\W", "_", hint, flags=re.ASCII)[:64]
        name = name if _NAME.fullmatch(name) else f"d_{name}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
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
