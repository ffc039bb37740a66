"""Convert symbolic expressions of a .pt2 file to sympy, with an allow-list of functions.

The file stores them in sympy's `srepr` format, such as `Mul(Integer(2), Symbol('s7', integer=True))`. Sympy's own
parser evaluates the text as Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import sympy
from torch.utils._sympy import functions

from ingot.errors import LimitError, LoadError, UnsupportedError

MAX_CHARACTERS = 1 << 14  # of an expression over sizes
MAX_POWER = 8  # the exponents of one expression multiplied: sums are expanded, term by term
_INTEGER_BITS = 64

_SYMPY = (
    "Add", "Mul", "And", "Or", "Not", "Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan",
    "StrictLessThan",
)  # fmt: skip
_TORCH = (
    "FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "PythonMod", "Mod", "Max", "Min", "Where", "CeilToInt",
    "FloorToInt", "TruncToInt", "TruncToFloat", "RoundToInt", "ToFloat", "IntTrueDiv", "FloatTrueDiv", "Identity",
)  # fmt: skip
_FUNCTIONS = {name: getattr(sympy, name) for name in _SYMPY} | {name: getattr(functions, name) for name in _TORCH}
_POWERS: dict[str, Callable[..., Any]] = {"Pow": sympy.Pow, "PowByNatural": functions.PowByNatural}
_ASSUMPTIONS = {"integer", "positive", "nonnegative", "real"}


def read_expression(text: str, where: str) -> sympy.Basic:
    """Parse the `srepr` text of an expression.

    Raises LoadError for any other text, UnsupportedError for a function that is not in the list, LimitError for a text,
    a number or an exponent that is too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise LimitError(f"{where}: expression of {len(text)} characters, expected at most {MAX_CHARACTERS}")
    try:
        tree = ast.parse(text, mode="eval").body
        return _Reader(where).value(tree)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, ZeroDivisionError) as error:
        raise LoadError(f"{where}: not an expression, got {text[:80]!r}") from error


class _Reader:
    def __init__(self, where: str):
        self.where = where
        self.power = 1

    def value(self, tree: ast.expr) -> sympy.Basic:
        if isinstance(tree, ast.Name) and tree.id in ("true", "false"):
            return sympy.true if tree.id == "true" else sympy.false
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            raise ValueError("neither a call of a function nor a truth value")
        name = tree.func.id
        if name in ("Integer", "Float", "Symbol"):
            return getattr(self, f"_{name.lower()}")(tree)
        if tree.keywords or (name not in _FUNCTIONS and name not in _POWERS):
            raise UnsupportedError(f"{self.where}: function {name[:40]!r} in an expression, expected arithmetic")
        if name not in _POWERS:
            return _FUNCTIONS[name](*(self.value(argument) for argument in tree.args))
        base, exponent = (self.value(argument) for argument in tree.args)
        if isinstance(exponent, sympy.Integer):
            self.power *= max(abs(int(exponent)), 1)
        if self.power > MAX_POWER or not isinstance(exponent, sympy.Integer):
            raise LimitError(f"{self.where}: power {str(exponent)[:40]}, expected integers up to {MAX_POWER}")
        return _POWERS[name](base, exponent)

    def _integer(self, tree: ast.Call) -> sympy.Basic:
        value = _literal(tree, int)
        if value.bit_length() >= _INTEGER_BITS:
            raise LimitError(f"{self.where}: integer of {value.bit_length()} bits, expected at most {_INTEGER_BITS}")
        return sympy.Integer(value)

    def _float(self, tree: ast.Call) -> sympy.Basic:
        return sympy.Float(float(_literal(tree, str)))

    def _symbol(self, tree: ast.Call) -> sympy.Basic:
        name = _literal(tree, str)
        assumptions = {str(each.arg): ast.literal_eval(each.value) for each in tree.keywords}
        if not name.isidentifier() or not assumptions.keys() <= _ASSUMPTIONS or {*assumptions.values()} - {True}:
            raise ValueError("not a symbol")
        return sympy.Symbol(name, **assumptions)


def _literal(tree: ast.Call, kind: type) -> Any:
    (argument,) = tree.args
    value = ast.literal_eval(argument)
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    return value
