"""What an op means: a row of the table `OPS`, and the test cases that it brings."""

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
    """The range of an operand of integers that address something: indices, positions, lengths.

    range: of the operands, as arrays, and the attributes. own: the op's reference checks the elements, as those that it
    does not read may hold anything, or as more must hold; otherwise `ops.define.compute` checks all of them.
    """

    range: Callable[..., range]
    own: bool = False


@dataclass(frozen=True, eq=False)
class Op:
    """What an op means, whoever runs it. Made by `ops.define.op`; see there for each field."""

    name: str
    function: Callable[..., Any]
    infer: Callable[..., Any]
    operand_names: tuple[str, ...]
    optional_operands: frozenset[str]
    variadic: bool
    attributes: dict[str, Any]  # name -> default, or REQUIRED
    attribute_types: dict[str, Any]  # name -> annotation
    outputs: int  # 0: as many as its inference says
    view: bool
    computes: bool
    inplace: tuple[int, ...]
    acts_on: str
    addresses: dict[str, Index | str]  # operand of integers -> its range, or why it has none
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
        """The operands whose elements address something, and their ranges."""
        return {name: index for name, index in self.addresses.items() if isinstance(index, Index)}

    def names_of_indices(self, attributes: Mapping[str, Any]) -> str:
        """What errors call the operands whose elements address something."""
        return str(attributes["what"]) if "what" in attributes else " or ".join(self.indices)

    def misuse(self, operands: Sequence[str | None], attributes: Mapping[str, Any]) -> str:
        """What is wrong with a use of this op before any type is looked at; "" when nothing is."""
        missing = [k for k, v in self.attributes.items() if v is REQUIRED and k not in attributes]
        if missing or not attributes.keys() <= self.attributes.keys():
            unknown = attributes.keys() - self.attributes.keys()
            return f"{self.name}: unknown attributes {sorted(unknown)}, missing {missing}"
        names, optional = self.operand_names, self.optional_operands
        count = self.variadic or len(names) - len(optional) <= len(operands) <= len(names)
        if count and None not in operands:  # as in most
            return ""
        absent = {names[min(i, len(names) - 1)] for i, o in enumerate(operands) if o is None} if count else set()
        if not count or not absent <= optional:
            return f"{self.name}: bad operands, got {list(operands)}, expected {list(names)}"
        return ""


class _Table(dict[str, Op]):
    """Name -> op. Nobody has to import the ops first: a name that is missed does, once."""

    def __missing__(self, name: str) -> Op:
        import ingot.ops  # noqa: F401  fills the table

        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found


REQUIRED = object()
OPS: dict[str, Op] = _Table()
