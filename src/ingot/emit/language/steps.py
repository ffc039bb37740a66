"""The steps of a mode as C: those of layers that are alike stand there once, in a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingot import abi
from ingot.dim import AtMost
from ingot.emit.interface import wrapped
from ingot.emit.source import field_text, is_zero, operand
from ingot.errors import UnsupportedError
from ingot.lower.lowered import FAULT, Field, Lowered, Pointer, Step
from ingot.plan import Plan

_MOST_PERIOD = 1 << 10  # steps of what repeats
_LEAST_TIMES = 3


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Steps that follow one another: `times` times `period` of them, from `begin` on."""

    begin: int
    period: int
    times: int


def steps_text(lowered: Lowered, planned: Plan) -> str:
    """The body of a function over `weights`, `state`, `arena`, inputs and outputs by their ids, `fault`, and sizes of a
    run by their symbols; it returns early where `*stop` is set.

    Raises UnsupportedError for a size of a run that is no polynomial.
    """
    writer = _Writer(lowered, planned)
    return "".join(writer.stretch(each) for each in _stretches([writer.form(step) for step in planned.steps]))


def _stretches(forms: Sequence[object]) -> Iterator[_Stretch]:
    """What repeats, from left to right, and what lies between: there with period 1 and once."""
    numbers = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    row, at = [numbers[form] for form in forms], 0
    while at < len(row):
        best = _Stretch(at, 1, 1)
        for period in range(1, min(_MOST_PERIOD, (len(row) - at) // _LEAST_TIMES) + 1):
            same = 0
            while at + same + period < len(row) and row[at + same] == row[at + same + period]:
                same += 1
            times = same // period + 1
            if times >= _LEAST_TIMES and (times - 1) * period > (best.times - 1) * best.period:
                best = _Stretch(at, period, times)
        yield best
        at += best.period * best.times


class _Writer:
    def __init__(self, lowered: Lowered, planned: Plan):
        self._lowered, self._planned = lowered, planned

    def form(self, step: Step) -> object:
        """What steps have alike whose pointers alone differ, and those into the weights, the state or the arena."""
        fields = tuple((name, self._form(value)) for name, value in step.fields.items())
        return step.kernel, step.turns, fields

    def _form(self, value: Field) -> object:
        if isinstance(value, tuple):
            return tuple(map(self._form, value))
        if not isinstance(value, Pointer):
            return type(value), repr(value.dim) if isinstance(value, AtMost) else value
        region = self._region(value)
        grown = repr(value.byte_offset.dim) if isinstance(value.byte_offset, AtMost) else ""
        return region or value, grown

    def _region(self, pointer: Pointer) -> str:
        """The name of the memory that it points into, "" for an input, an output or the fault."""
        if pointer.tensor == FAULT:
            return ""
        region = self._planned.addresses[pointer.tensor].region
        return "arena" if region.startswith("arena") else region if region in ("weights", "state") else ""

    def stretch(self, stretch: _Stretch) -> str:
        """The C of it."""
        first = self._planned.steps[stretch.begin : stretch.begin + stretch.period]
        if stretch.times == 1:
            return f"  if (*stop) return;\n{self._step(stretch, 0, '  ', [])}"
        table: list[list[int]] = []
        body = "".join(self._step(stretch, place, "      ", table) for place in range(len(first)))
        rows = ["{" + ", ".join(str(column[i]) for column in table) + "}" for i in range(stretch.times)]
        lines = "".join(wrapped([f"{row},"], " ", " " * 6) + "\n" for row in rows)
        places = (
            f"    static const int64_t places[{stretch.times}][{len(table)}] = {{\n{lines}    }};\n" if table else ""
        )
        last = stretch.begin + stretch.period * stretch.times - 1
        return f"""\
  /* Steps {stretch.begin} to {last}: {stretch.times} times the same {stretch.period}, over other weights. */
  {{
{places}    for (int64_t layer = 0; layer < {stretch.times}; layer++) {{
      if (*stop) return;
{body}    }}
  }}
"""

    def _step(self, stretch: _Stretch, place: int, indent: str, table: list[list[int]]) -> str:
        """One step. table: columns of offsets that a loop looks up; this step's are added to it."""
        index = stretch.begin + place
        rows = [self._planned.steps[index + time * stretch.period] for time in range(stretch.times)]
        step = rows[0]
        results, operands = (", ".join(map(operand, views)) for views in (step.writes, step.reads))
        given = {}
        for name, value in step.fields.items():
            if not is_zero(value):
                given[name] = self._field(name, [row.fields[name] for row in rows], table)
        named = [f".{each.name} = {given[each.name]}" for each in abi.structs()[step.args_type] if each.name in given]
        words = [word for field in named for word in field.split(", ")]
        comment = wrapped(f"{index}: {results} from {operands}".split(" "), " ", f"{indent} * ")
        turns = f"for (int32_t turn = 0; turn < {step.turns}; turn++) " if step.turns > 1 else ""
        return f"""\
{indent}/* {comment[len(indent) + 3 :]} */
{indent}{{
{indent}  const {step.args_type} s = {{
{wrapped(words, ", ", indent + " " * 6)}
{indent}  }};
{indent}  {turns}K(step_{step.kernel})(&s, {"turn" if turns else "0"}, 1);
{indent}}}
"""

    def _field(self, name: str, values: list[Field], table: list[list[int]]) -> str:
        """A field of a step that is done several times with these values."""
        first = values[0]
        if isinstance(first, tuple):
            columns = zip(*values, strict=True)  # type: ignore[arg-type]
            return "{" + ", ".join(self._field(name, list(column), table) for column in columns) + "}"
        if isinstance(first, Pointer):
            return self._pointer(values, table)  # type: ignore[arg-type]
        return _size(first) if isinstance(first, AtMost) else field_text(name, first)

    def _pointer(self, pointers: list[Pointer], table: list[list[int]]) -> str:
        first = pointers[0]
        region = self._region(first)
        if first.tensor == FAULT:
            return "fault"
        more = f" + {_size(first.byte_offset)}" if isinstance(first.byte_offset, AtMost) else ""
        if not region:
            behind = more[3:] or first.byte_offset
            return f"(const void *)((const char *){first.tensor} + {behind})" if behind else first.tensor
        planned = (0 if more else pointer.byte_offset for pointer in pointers)
        offsets = [self._planned.addresses[p.tensor].offset + more for p, more in zip(pointers, planned, strict=True)]
        where = f"{region} + {_offset(offsets, table)}{more}"
        return f"(const void *)({where})" if region == "weights" else f"(void *)({where})"


def _offset(offsets: list[int], table: list[list[int]]) -> str:
    """The C of what an offset is each time: a number, one that grows evenly, or a column of the table."""
    strides = {after - before for before, after in pairwise(offsets)}
    if strides <= {0}:
        return str(offsets[0])
    if len(strides) == 1:
        return f"{offsets[0]} + layer * {strides.pop()}"
    if offsets not in table:
        table.append(offsets)
    return f"places[layer][{table.index(offsets)}]"


def _size(size: AtMost) -> str:
    """A size of a run, which C computes of its symbols."""
    if any(atom.args for monomial, _ in size.dim.terms for atom in monomial):
        raise UnsupportedError(f"emit: a size of a run, got {size.dim}, expected a polynomial")
    return str(size.dim).replace("*", " * ")
