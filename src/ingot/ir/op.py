"""The meaning of an op: a row of the table `OPS`, with its test cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Sample:
    """One test case of an op: operand types such as `x[2,5,64] ids:i64<7[3]`, and attributes."""

    operands: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Index:
    """The range of an integer operand that addresses elements: indices, positions, lengths.

    range: computed from the operands, as arrays, and the attributes. own: the op's reference checks the elements,
    because unread ones may have any value, or because there are further conditions; otherwise `ops.define.compute`
    checks all of them.
    """

    range: Callable[..., range]
    own: bool = False


@dataclass(frozen=True, eq=False)
class Op:
    """The definition of an op, for every executor. Built by `ops.define.op`; see there for each field."""

    name: str
    function: Callable[..., Any]
    infer: Callable[..., Any]
    operand_names: tuple[str, ...]
    optional_operands: frozenset[str]
    variadic: bool
    attributes: dict[str, Any]  # name -> default, or REQUIRED
    attribute_types: dict[str, Any]  # name -> annotation
    outputs: int  # 0: the inference decides the number
    view: bool
    computes: bool
    inplace: tuple[int, ...]
    acts_on: str
    addresses: dict[str, Index | str]  # integer operand -> its range, or why it has none
    samples: tuple[Sample, ...]
    tolerance: dict[DType, float]
    domain: tuple[float, float]
    any_type: bool
    takes_bodies: bool
    expand: Callable[..., Any] | None
    doc: str

    def __repr__(self) -> str:
        return f"<Op {self.name}>"

    @property
    def indices(self) -> dict[str, Index]:
        """The operands whose elements address others, and their ranges."""
        return {name: index for name, index in self.addresses.items() if isinstance(index, Index)}

    def names_of_indices(self, attributes: Mapping[str, Any]) -> str:
        """Return how errors name the operands whose elements address others."""
        return str(attributes["what"]) if "what" in attributes else " or ".join(self.indices)

    def misuse(self, operands: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        """Return why a use of this op is wrong, before any type is considered; "" if it is right."""
        missing = [k for k, v in self.attributes.items() if v is REQUIRED and k not in attributes]
        if missing or not attributes.keys() <= self.attributes.keys():
            unknown = attributes.keys() - self.attributes.keys()
            return f"{self.name}: unknown attributes {sorted(unknown)}, missing {missing}"
        names, optional = self.operand_names, self.optional_operands
        count = self.variadic or len(names) - len(optional) <= len(operands) <= len(names)
        if count and None not in operands:  # the common case
            return ""
        absent = {names[min(i, len(names) - 1)] for i, o in enumerate(operands) if o is None} if count else set()
        if not count or not absent <= optional:
            return f"{self.name}: bad operands, got {list(operands)}, expected {list(names)}"
        return ""


class _Table(dict[str, Op]):
    """Name -> op. Ops are imported on the first lookup of a missing name, so nobody has to import them."""

    def __missing__(self, name: str) -> Op:
        import ingot.ops  # noqa: F401  fills the table

        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found


REQUIRED = object()
OPS: dict[str, Op] = _Table()
