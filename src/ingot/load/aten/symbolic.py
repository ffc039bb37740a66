"""Convert torch sizes (int, SymInt over sympy) to dims."""

from typing import Any

import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

import ingot.ir.dim as dim
from ingot.errors import UnsupportedError
from ingot.ir.dim import Known


class Symbols:
    """Names of the symbols of one program: the user's where known, else s0, s1 ... in order of appearance.

    of_data: the dims u0, u1 ... that depend on data and are measured at run time.
    """

    def __init__(self, names: dict[str, str] | None = None):
        self.names = dict(names or {})
        self.of_data: set[str] = set()
        self._known: dict[str, Known] = {}  # of what torch thinks that data decide it, what is computed of other sizes

    def learn(self, size: int | torch.SymInt, found: Known) -> None:
        """Bind a size with a new data-dependent symbol of torch to a dim, unless it is bound already."""
        expression = size.node.expr if isinstance(size, torch.SymInt) else None
        if isinstance(expression, sympy.Symbol) and symbol_is_type(expression, SymT.UNBACKED_INT):
            name = self._name(expression)
            if name in self.of_data and found != dim.symbol(name):
                self.of_data.discard(name)
                self._known[name] = found

    def dim(self, size: int | torch.SymInt) -> Known:
        """Return the dim of a torch size. Raises UnsupportedError when it depends on a function without a dim."""
        return int(size) if isinstance(size, int) else self.convert(size.node.expr)

    def shape(self, shape: Any) -> tuple[Known, ...]:
        """Return the dims of a torch shape."""
        return tuple(self.dim(size) for size in shape)

    def convert(self, expression: sympy.Expr) -> Known:
        """Return the dim of a sympy expression. Raises UnsupportedError like `dim`."""
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            name = self._name(expression)
            return self._known.get(name, dim.symbol(name))
        if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer) and expression.exp > 0:
            return self._fold(lambda a, b: a * b, [expression.base] * int(expression.exp))
        for kinds, combine in _FUNCTIONS:
            if isinstance(expression, kinds):
                return self._fold(combine, expression.args)
        product = self._scaled(expression)
        if product is not None:
            return product
        raise UnsupportedError(f"torch size: no such dim, got {expression}, expected + * // % min max over symbols")

    def _scaled(self, expression: sympy.Expr) -> Known | None:
        """Return a size times a fraction, rounded down; None for any other expression."""
        if not isinstance(expression, (functions.TruncToInt, functions.FloorToInt)):
            return None
        match expression.args[0].args:
            case (sympy.Float() as factor, functions.ToFloat() as size):
                return dim.scaled(self.convert(size.args[0]), float(factor))
        return None

    def _fold(self, combine: Any, arguments: Any) -> Known:
        first, *rest = (self.convert(argument) for argument in arguments)
        for other in rest:
            first = combine(first, other)
        return first

    def _name(self, expression: sympy.Symbol) -> str:
        if expression.name not in self.names:
            is_of_data = symbol_is_type(expression, SymT.UNBACKED_INT)
            letter, number = "u" if is_of_data else "s", 0
            while f"{letter}{number}" in self.names.values():
                number += 1
            name = self.names[expression.name] = f"{letter}{number}"
            self.of_data |= {name} if is_of_data else set()
        return self.names[expression.name]


_FUNCTIONS = (
    ((sympy.Add,), lambda a, b: a + b),
    ((sympy.Mul,), lambda a, b: a * b),
    ((functions.FloorDiv, functions.CleanDiv), dim.floordiv),
    ((functions.Mod, functions.PythonMod, sympy.Mod), lambda a, b: a - dim.floordiv(a, b) * b),
    ((functions.Max, sympy.Max), dim.maximum),
    ((functions.Min, sympy.Min), dim.minimum),
)
