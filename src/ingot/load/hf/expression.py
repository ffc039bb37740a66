"""Expressions of templates: `width // heads`, `window if layer % 2 == 0 else 0`. They have no side effects.

A template may come from a model's folder: texts, numbers and exponents are limited, so that evaluation takes little
time and memory.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import bf16

Scalar = int | float | bool | str | None

MAX_CHARACTERS = 300  # of an expression in a template
MAX_NUMBER = 1 << 128  # of the results of a template's expressions
_MAX_EXPONENT = 64


def _divide(a: int, b: int) -> int:
    """Compute a // b, which must have no remainder: heads that do not divide a width are an error."""
    if a % b:
        raise ValueError(f"{a} // {b} leaves a remainder")
    return a // b


def _rounded(value: float) -> float:
    """Round a number to bf16, as some models do."""
    return float(np.float32(value).astype(bf16.numpy))


def _length(entries: list[Any]) -> int:
    """Return the number of entries of a list."""
    if not isinstance(entries, list):
        raise TypeError(f"the length of {_shown(entries)}, expected a list")
    return len(entries)


def _indices(entries: list[Any], entry: Any) -> list[int]:
    """Return the indices of the entries of a list that are equal to one."""
    return [i for i in range(_length(entries)) if entries[i] == entry]


def _index(entries: list[Any], entry: Any) -> int:
    """Return the index of the first entry of a list that is equal to one, which the list must have."""
    found = _indices(entries, entry)
    if not found:
        raise ValueError(f"no {_shown(entry)} in the list")
    return found[0]


def _power(a: float, b: float) -> Any:
    """Compute a ** b, for a small b."""
    if abs(b) > _MAX_EXPONENT:
        raise ValueError(f"the exponent is {b}, expected at most {_MAX_EXPONENT}")
    return a**b


def _normal_share(bound: float) -> float:
    """Return the share of a standard normal distribution below a bound."""
    return NormalDist().cdf(bound)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: _divide,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "int": int, "log": math.log, "bf16": _rounded, "len": _length, "indices": _indices,
    "index": _index, "normal_share": _normal_share,
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None}
_SYNTAX = (
    ast.Constant, ast.Name, ast.List, ast.Subscript, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Call,
)  # fmt: skip


class Expression:
    """Arithmetic, comparisons, and/or/not, `a if b else c`, lists, `list[i]`, min, max and int, over names."""

    def __init__(self, text: str, where: str):
        self.text = text
        self.where = where
        if len(text) > MAX_CHARACTERS:
            raise LoadError(f"{where}: too long, got {len(text)} characters, expected at most {MAX_CHARACTERS}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # nested too deep
            raise LoadError(f"{where}: not an expression, got {text!r}") from error
        self._check(self._tree)
        self.names = sorted(
            {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)} - _CALLS.keys() - _WORDS.keys()
        )

    def evaluate(self, names: Mapping[str, Any]) -> Any:
        """Return the value for `names`. Raises LoadError for an unknown name and for a failed computation."""
        try:
            return _evaluate(self._tree, names)
        except KeyError as error:
            raise LoadError(f"{self.where}: no such name, got {error.args[0]!r} in {self.text!r}") from error
        except (ArithmeticError, TypeError, IndexError, ValueError) as error:
            raise LoadError(f"{self.where}: cannot be computed, got {self.text!r} ({error})") from error

    def number(self, names: Mapping[str, Any]) -> float:
        """Return a finite number. Raises LoadError for anything else."""
        value = self.evaluate(names)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MAX_NUMBER:
            raise LoadError(f"{self.where}: got {_shown(value)} for {self.text!r}, expected a number")
        return float(value)

    def integer(self, names: Mapping[str, Any], least: int, most: int) -> int:
        """Return an integer of least..most. Raises LoadError for anything else."""
        value = self.evaluate(names)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            expected = f"an integer of {least}..{most}"
            raise LoadError(f"{self.where}: got {_shown(value)} for {self.text!r}, expected {expected}")
        return value

    def word(self, names: Mapping[str, Any], known: Collection[str]) -> str:
        """Return one of the known words. Raises LoadError for anything else."""
        value = self.evaluate(names)
        if not isinstance(value, str) or value not in known:
            raise LoadError(f"{self.where}: got {_shown(value)} for {self.text!r}, expected one of {', '.join(known)}")
        return value

    def _check(self, tree: ast.expr) -> None:
        """Raise LoadError for syntax that expressions do not allow."""
        fine = isinstance(tree, _SYNTAX)
        if isinstance(tree, ast.BinOp):
            fine = type(tree.op) in _BINARY
        elif isinstance(tree, ast.Compare):
            fine = len(tree.ops) == 1 and type(tree.ops[0]) in _COMPARE
        elif isinstance(tree, ast.Call):
            fine = isinstance(tree.func, ast.Name) and tree.func.id in _CALLS and not tree.keywords
        elif isinstance(tree, ast.UnaryOp):
            fine = isinstance(tree.op, (ast.USub, ast.Not))
        if not fine:
            raise LoadError(f"{self.where}: not allowed in an expression, got {ast.unparse(tree)!r}")
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, ast.expr):
                self._check(child)


def _shown(value: Any) -> str:
    return repr(value)[:100]


def _bounded(value: Any) -> Any:
    """Return the result of arithmetic. Raises ValueError if it is not a number, or too large."""
    if not isinstance(value, (int, float)) or not abs(value) < MAX_NUMBER:
        raise ValueError("expected a finite number that is not large")
    return value


def _operand(value: Any) -> Any:
    if not isinstance(value, (int, float)):
        raise TypeError(f"arithmetic with {_shown(value)}, expected numbers")
    return value


def _evaluate(tree: ast.expr, names: Mapping[str, Any]) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _CALLS[name] if name in _CALLS else _WORDS[name] if name in _WORDS else names[name]
        case ast.List(elts=elements):
            return [_evaluate(element, names) for element in elements]
        case ast.Subscript(value=value, slice=index):
            return _evaluate(value, names)[_evaluate(index, names)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, names)
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, names)
        case ast.BinOp(left=left, op=op, right=right):
            operands = (_operand(_evaluate(left, names)), _operand(_evaluate(right, names)))
            return _bounded(_BINARY[type(op)](*operands))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(value, names) for value in values)
        case ast.BoolOp(values=values):
            return any(_evaluate(value, names) for value in values)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARE[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _evaluate(body if _evaluate(test, names) else other, names)
        case ast.Call(func=function, args=args):
            return _evaluate(function, names)(*(_evaluate(arg, names) for arg in args))
    raise AssertionError(ast.dump(tree))
