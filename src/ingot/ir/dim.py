"""Dims: an int, a canonical integer expression over symbols, or None for unknown.

An `Expr` is a polynomial with integer coefficients over atoms; an atom is a symbol, one of floordiv, min and max of two
dims, or the broadcast of several dims. Equal expressions written in different forms have equal terms, so `==` decides.
"""

from __future__ import annotations

import ast
import keyword
import math
import numbers
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ingot.errors import InputError, LimitError, ShapeError, UnsizedError
from ingot.ir.dtype import DType

MAX_BYTES = 1 << 46  # of one value; strides are counted even next to a dim of 0
_MAX_TEXT = 10_000
_MAX_TERMS = 256
_MAX_INT = 2**63
_MAX_FRACTION = 2**8


@dataclass(frozen=True, slots=True)
class Limit:
    """A user's upper bound of a dim, in place of a value: no run exceeds it."""

    size: int

    def __str__(self) -> str:
        return f"at most {self.size}"


def at_most(size: int) -> Limit:
    """For `dims=` of a session: one program for every value of a dim from 1 to `size`, if possible.

    Raises InputError unless `size` is an integer of at least 1.
    """
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
        raise InputError(f"at_most: bad size, got {size!r}, expected a whole number of at least 1")
    return Limit(int(size))


class AtMost(int):
    """A size that memory is planned for, of which a run may use only a prefix: `dim`, whose symbols get values in each
    run.

    As an int it is the planned size. Arithmetic with ints acts on both, so the result also carries its dim. Two sizes
    are equal only if they are equal in every run, so an AtMost equals no plain int. `<` compares planned sizes: a
    decision based on it must be right for smaller sizes, too. An operation that would lose the dim, such as a shift or
    a division with a remainder, raises UnsizedError; use `int(size)` to get the planned size for a bound or an
    estimate.
    """

    dim: Expr

    def __new__(cls, planned: int, dim: str | Expr) -> AtMost:
        size = super().__new__(cls, planned)
        size.dim = symbol(dim) if isinstance(dim, str) else dim
        return size

    def _after(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if not isinstance(left, int) or not isinstance(right, int):
            return NotImplemented
        return _sized(operation(int(left), int(right)), operation(dim_of(left), dim_of(right)))

    def __mul__(self, other: Any) -> Any:
        return self._after(operator.mul, self, other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self._after(operator.add, self, other)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self._after(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._after(operator.sub, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._after(floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._after(floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return self._after(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._after(operator.mod, other, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AtMost) and self.dim == other.dim

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.dim)

    def _refuse(self, *others: Any) -> Any:
        raise UnsizedError(
            f"dim {self.dim}: would be lost, got {[*others]}, expected sums, products or whole quotients"
        )

    __truediv__ = __rtruediv__ = __float__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __and__ = __rand__ = __or__ = __ror__ = _refuse
    __xor__ = __rxor__ = __invert__ = _refuse  # type: ignore[assignment]


def _sized(planned: int, dim: Known) -> int:
    """Return a size with its dim; a plain int if it is the same in every run."""
    return AtMost(planned, dim) if isinstance(dim, Expr) else planned


def dim_of(size: int) -> Known:
    """Return the dim of a size, or the size itself if it is a plain int."""
    return size.dim if isinstance(size, AtMost) else size


def has_size(value: Any) -> bool:
    """Return whether an attribute or a shape contains a run-time size."""
    return any(map(has_size, value)) if value.__class__ is tuple else value.__class__ is AtMost


def sizes_in(value: Any) -> Iterator[AtMost]:
    """Yield the run-time sizes in a shape, an attribute, or a tuple of them, at any depth."""
    if isinstance(value, AtMost):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from sizes_in(each)


def divides(divisor: int, size: int) -> bool:
    """Return whether a size is a multiple of another in every run, including for planned sizes."""
    if not isinstance(size, AtMost) and not isinstance(divisor, AtMost):
        return size % divisor == 0
    whole, part = dim_of(size), dim_of(divisor)
    return not part or floordiv(whole, part) * part == whole


def size_at(size: int, symbols: Mapping[str, int]) -> int:
    """Return the value of a size for these values of symbols."""
    if not isinstance(size, AtMost):
        return size
    found = bind(size.dim, symbols)
    assert isinstance(found, int), f"{size.dim} at {symbols}"
    return found


def content_of(dim: Expr) -> tuple[int, Expr]:
    """Split a dim into its largest integer factor and the rest: 2 and n + 2 for 2*n + 4."""
    factor = math.gcd(*(coefficient for _, coefficient in dim.terms))
    return factor, Expr(tuple((monomial, coefficient // factor) for monomial, coefficient in dim.terms))


def grows(dim: Known, least: Mapping[str, int] = {}) -> bool:
    """Return whether a dim never decreases when symbols increase, as far as its form shows.

    least: the smallest values of symbols: n * m - n grows if m is at least 1.
    """
    if least and isinstance(dim, Expr):
        dim = _bound(dim, {name: symbol(name) + size for name, size in least.items()})
    if isinstance(dim, int):
        return True
    return all(monomial == () or coefficient > 0 for monomial, coefficient in dim.terms) and all(
        all(map(grows, atom.args)) and (atom.name != "floordiv" or isinstance(atom.args[1], int))
        for monomial, _ in dim.terms
        for atom in monomial
    )


@dataclass(frozen=True, slots=True)
class Atom:
    """A symbol (`args` empty, `name` its name), or a call: floordiv, min or max of two dims, broadcast of several."""

    name: str
    args: tuple[Known, ...] = ()

    def __str__(self) -> str:
        if not self.args:
            return self.name
        if self.name == "floordiv":
            return "({})//({})".format(*self.args)
        return f"{self.name}({', '.join(map(str, self.args))})"


Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Expr:
    """A polynomial: sorted (monomial, coefficient) pairs, no zero coefficient, never a plain int.

    Arithmetic raises ValueError for more than 256 terms.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Known) -> Known:
        total = dict(self.terms)
        for monomial, coefficient in _terms(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return _canonical(total)

    __radd__ = __add__

    def __neg__(self) -> Known:
        return self * -1

    def __sub__(self, other: Known) -> Known:
        return self + other * -1

    def __rsub__(self, other: int) -> Known:
        return self * -1 + other

    def __mul__(self, other: Known) -> Known:
        if other.__class__ is int:  # the most common case
            return Expr(tuple([(monomial, c * other) for monomial, c in self.terms])) if other else 0
        product: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                monomial = tuple(sorted(left + right, key=str))
                product[monomial] = product.get(monomial, 0) + a * b
        return _canonical(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Known) -> Known:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Known:
        return floordiv(other, self)

    def __mod__(self, other: Known) -> Known:
        return self - floordiv(self, other) * other

    def __rmod__(self, other: int) -> Known:
        return other - floordiv(other, self) * self

    def __str__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [f"({a})" if a.name == "floordiv" else str(a) for a in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            parts.append("-" * (coefficient < 0) + "*".join(factors))
        return "+".join(parts).replace("+-", "-")

    __repr__ = __str__


Known = int | Expr
Dim = int | Expr | None


def _terms(value: Known) -> tuple[tuple[Monomial, int], ...]:
    value = dim_of(value)  # type: ignore[arg-type]
    if isinstance(value, Expr):
        return value.terms
    return (((), value),) if value else ()


def _canonical(terms: Mapping[Monomial, int]) -> Known:
    nonzero = sorted(((m, c) for m, c in terms.items() if c), key=lambda t: (-len(t[0]), [str(a) for a in t[0]]))
    if not nonzero:
        return 0
    if len(nonzero) == 1 and nonzero[0][0] == ():
        return nonzero[0][1]
    if len(nonzero) > _MAX_TERMS:
        raise ValueError(f"dim: too many terms, got {len(nonzero)}, expected at most {_MAX_TERMS}")
    return Expr(tuple(nonzero))


_NOT_SYMBOLS = {*keyword.kwlist, "min", "max", "broadcast", "true", "false", "none", "inf", "nan"}


def is_symbol_name(name: str) -> bool:
    """Return whether a name is an ASCII identifier without another meaning in the text form."""
    return name.isascii() and name.isidentifier() and name not in _NOT_SYMBOLS


def symbol(name: str) -> Expr:
    """Return the dim with this name. Raises ValueError for a name that `is_symbol_name` rejects."""
    if not is_symbol_name(name):
        raise ValueError(f"dim: not a symbol, got {name!r}, expected an identifier")
    return Expr((((Atom(name),), 1),))


def floordiv(a: Known, b: Known) -> Known:
    """Return a // b: terms that b divides are outside the quotient, and common factors are cancelled.

    Raises ZeroDivisionError for b == 0.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        raise ZeroDivisionError("dim // 0")
    if a == b or a == 0:
        return int(a == b)
    if isinstance(b, int):
        if b > 0:
            return _by_number(a, b)
    elif isinstance(a, Expr):
        quotient = _whole_factor(a, b)
        if quotient is not None:
            return quotient
    return _floor(a, b)


def _by_number(a: Known, b: int) -> Known:
    """Return a // b for b > 0: multiples of b leave the quotient, and a nested quotient multiplies b into its divisor.

    The remainder of a coefficient keeps its sign, so that a size rounded up is -((-n) // b); but half of b becomes
    positive.
    """
    left = {m: c % b - b * (c < 0 and m != () and 0 < 2 * (c % b) != b) for m, c in _terms(a)}
    rest, whole = _canonical(left), _canonical({m: (c - left[m]) // b for m, c in _terms(a)})
    if isinstance(rest, int):  # less than b
        return whole
    (monomial, coefficient), *others = rest.terms
    if coefficient == 1 and len(monomial) == 1 and monomial[0].name == "floordiv" and all(m == () for m, _ in others):
        inner, divisor = monomial[0].args
        if isinstance(divisor, int) and divisor > 0:
            return whole + floordiv(inner + sum(c for _, c in others) * divisor, divisor * b)
    return whole + _floor(rest, b)


def _floor(a: Known, b: Known) -> Known:
    """Return the quotient of dims without a common factor."""
    reduced = cancelled(a, b)
    return floordiv(*reduced) if reduced != (a, b) else Expr((((Atom("floordiv", (a, b)),), 1),))


def scaled(value: Known, factor: float) -> Known | None:
    """Multiply a dim by a positive fraction of few bits, rounded down; None for other factors.

    Floats compute such a product exactly, so any implementation gives the same.
    """
    numerator, denominator = factor.as_integer_ratio()
    if not 0 < numerator <= _MAX_FRACTION or denominator > _MAX_FRACTION:
        return None
    return floordiv(value * numerator, denominator)


def cancelled(a: Known, b: Known) -> tuple[Known, Known]:
    """Divide both by the number and the atoms that all of their terms contain."""
    terms = [*_terms(a), *_terms(b)]
    number = math.gcd(*(c for _, c in terms))
    shared = reduce(lambda x, y: x & y, (Counter(m) for m, _ in terms))
    rest = [(tuple((Counter(m) - shared).elements()), c // number) for m, c in terms]
    count = len(_terms(a))
    return _canonical(dict(rest[:count])), _canonical(dict(rest[count:]))


def _whole_factor(a: Expr, b: Expr) -> int | None:
    """Return the integer k with a == k * b; None if there is none."""
    factor = a.terms[0][1] // b.terms[0][1]
    return factor if a == b * factor else None


def minimum(a: Known, b: Known) -> Known:
    """Return the smaller of two dims."""
    return _choose("min", a, b)


def maximum(a: Known, b: Known) -> Known:
    """Return the larger of two dims."""
    return _choose("max", a, b)


def broadcast(a: Known, b: Known) -> Known:
    """Return the broadcast of two dims: one of equal dims, or the other dim of a 1. Raises ShapeError.

    The broadcast of two symbols remains an expression until they have values: only then can a 1 be dropped.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError(f"dims do not broadcast, got {a} and {b}, expected equal ones or a 1")
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    members = {*_broadcast_members(a), *_broadcast_members(b)}
    return Expr((((Atom("broadcast", tuple(sorted(members, key=str))),), 1),))


def _broadcast_members(value: Expr) -> tuple[Known, ...]:
    """Return the dims of a broadcast, so that the result contains no dim twice."""
    ((monomial, coefficient), *others) = value.terms
    is_broadcast = not others and coefficient == 1 and len(monomial) == 1 and monomial[0].name == "broadcast"
    return monomial[0].args if is_broadcast else (value,)


def _choose(name: str, a: Known, b: Known) -> Known:
    if a == b:
        return a
    if isinstance(a, AtMost) or isinstance(b, AtMost):
        assert isinstance(a, int) and isinstance(b, int), f"{name} of {a} and {b}"
        ordered = [(less, more) for less, more in ((a, b), (b, a)) if _most(less) <= _least(more)]  # in every run
        chosen = [less if name == "min" else more for less, more in ordered]
        if chosen:  # of equal dims, the choice may depend on the planned size: keep the one with a dim
            return next((size for size in chosen if isinstance(size, AtMost)), chosen[0])
        planned = _choose(name, int(a), int(b))
        assert isinstance(planned, int)
        return _sized(planned, _choose(name, dim_of(a), dim_of(b)))
    if never_negative(a - b):
        return b if name == "min" else a
    if never_negative(b - a):
        return a if name == "min" else b
    return Expr((((Atom(name, tuple(sorted((a, b), key=str))),), 1),))


def _most(size: int) -> float:
    return math.inf if isinstance(size, AtMost) and not grows(size.dim) else int(size)


def _least(size: int) -> float:
    if not isinstance(size, AtMost):
        return size
    return size_at(size, dict.fromkeys(symbols_of(size.dim), 1)) if grows(size.dim) else -math.inf


def never_negative(value: Known) -> bool:
    """Return whether a value is known to be 0 or more for all sizes of its symbols.

    A quotient by a number c is bounded by x - c + 1 <= c * (x // c) <= x if its own sign does not decide.
    """
    if isinstance(value, int):
        return value >= 0
    if all(c > 0 and all(map(_is_never_negative, m)) for m, c in value.terms):
        return True
    for monomial, coefficient in value.terms:
        quotient = next((atom for atom in monomial if atom.name == "floordiv" and isinstance(atom.args[1], int)), None)
        if quotient is None or (coefficient > 0 and _is_never_negative(quotient)):
            continue
        rest = list(monomial)
        rest.remove(quotient)
        dividend, divisor = quotient.args
        if not isinstance(divisor, int) or divisor < 0 or not all(map(_is_never_negative, rest)):
            return False
        bound = dividend if coefficient < 0 else dividend - (divisor - 1)
        others = value - Expr(((monomial, coefficient),))
        return never_negative(others * divisor + _canonical({tuple(rest): coefficient}) * bound)
    return False


def _is_never_negative(atom: Atom) -> bool:
    """Symbols are sizes. One argument is enough for a maximum."""
    return not atom.args or (any if atom.name == "max" else all)(map(never_negative, atom.args))


class Values(dict[str, int]):
    """Values of symbols with a cache of evaluated dims, for repeated queries.

    Immutable.
    """

    def __init__(self, symbols: Mapping[str, int]):
        super().__init__(symbols)
        self._known: dict[int, tuple[Expr, Known]] = {}  # by id, with the dim, so that the id is not reused

    def of(self, dim: Expr) -> Known:
        """Return the value of a dim."""
        known = self._known.get(id(dim))
        if known is None:
            known = self._known[id(dim)] = dim, _bound(dim, self)
        return known[1]


def bind(value: Dim, symbols: Mapping[str, Known]) -> Dim:
    """Return `value` with the given symbols replaced; other symbols stay."""
    if not isinstance(value, Expr):
        return value
    return symbols.of(value) if isinstance(symbols, Values) else _bound(value, symbols)


def _bound(value: Expr, symbols: Mapping[str, Known]) -> Known:
    total: Known = 0
    for monomial, coefficient in value.terms:
        product: Known = coefficient
        for atom in monomial:
            product = product * _bind_atom(atom, symbols)
        total = total + product
    return total


def _bind_atom(atom: Atom, symbols: Mapping[str, Known]) -> Known:
    if not atom.args:
        return symbols[atom.name] if atom.name in symbols else symbol(atom.name)
    functions = {"floordiv": floordiv, "min": minimum, "max": maximum, "broadcast": broadcast}
    bound = (bind(arg, symbols) for arg in atom.args)
    return reduce(functions[atom.name], (arg for arg in bound if arg is not None))


def solve(value: Dim, wanted: int) -> tuple[str, int] | None:
    """Solve value == wanted for the symbol of a * symbol + b; None if `value` has another form.

    Raises ValueError when no integer of at least 0 is a solution.
    """
    if not isinstance(value, Expr):
        return None
    *linear, (last, offset) = value.terms if value.terms[-1][0] == () else (*value.terms, ((), 0))
    if len(linear) != 1 or len(linear[0][0]) != 1 or linear[0][0][0].args or last:
        return None
    ((atom,), factor) = linear[0]
    quotient, rest = divmod(wanted - offset, factor)
    if rest or quotient < 0:
        raise ValueError(f"{value} cannot be {wanted}")
    return atom.name, quotient


def symbols_of(value: Dim) -> set[str]:
    """Return the names of the symbols in a dim."""
    if not isinstance(value, Expr):
        return set()
    names: set[str] = set()
    for monomial, _ in value.terms:
        for atom in monomial:
            names |= set().union(*(symbols_of(arg) for arg in atom.args)) if atom.args else {atom.name}
    return names


def given(symbols: Sequence[str]) -> str:
    """Return how values are assigned to symbols, in Python and at the command line, for error messages."""
    values, options = ", ".join(f"{name!r}: 1" for name in symbols), " ".join(f"--dim {name}=1" for name in symbols)
    return f"dims={{{values}}}, or {options} at the command line"


def check_shape(name: str, shape: Sequence[Dim], dtype: DType, max_rank: int) -> None:
    """Raise LimitError for a value of too high a rank or too many known bytes, ShapeError for a negative dim."""
    if len(shape) > max_rank:
        raise LimitError(f"value {name[:200]!r}: rank too high, got {len(shape)}, expected at most {max_rank}")
    elements = 1
    for dim in shape:
        if not isinstance(dim, int):
            continue
        if dim < 0:
            raise ShapeError(f"value {name!r}: negative dim, got {list(shape)}, expected 0 or more")
        elements *= int(dim) or 1
    if dtype.nbytes(elements) > MAX_BYTES:
        raise LimitError(f"value {name!r}: too large, got {list(shape)}, expected at most {MAX_BYTES} bytes")


def parse(text: str) -> Dim:
    """Parse a dim that `str` wrote; `?` is unknown. Raises ValueError for any other text."""
    if text.strip() == "?":
        return None
    if len(text) > _MAX_TEXT:
        raise ValueError(f"dim: too long, got {len(text)} characters, expected at most {_MAX_TEXT}")
    try:
        if "\0" in text:  # some Pythons raise ValueError for it
            raise SyntaxError("null character")
        return _evaluate(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"dim: not an integer expression, got {text!r}") from error


def _evaluate(tree: ast.expr, text: str) -> Known:
    match tree:
        case ast.Constant(value=int() as number) if not isinstance(number, bool) and number <= _MAX_INT:
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _evaluate(operand, text) * -1
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _evaluate(left, text), _evaluate(right, text)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
        case ast.Call(func=ast.Name(id="broadcast"), args=[_, _, *_]):
            return reduce(broadcast, (_evaluate(argument, text) for argument in tree.args))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[left, right]):
            return _choose(name, _evaluate(left, text), _evaluate(right, text))
    raise ValueError(f"dim: not an integer expression, got {text!r}")
