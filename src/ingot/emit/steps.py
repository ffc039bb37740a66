"""Emit the step functions; identical layers are rolled into a loop over an address table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

import numpy as np

from ingot.emit.branches import Guard
from ingot.emit.interface import C_TYPES, LINE, Entry, Interface, comment, declared, dims, run_sizes, wrapped
from ingot.emit.layout import offset
from ingot.emit.sizes import Sizes
from ingot.ir.dim import AtMost, dim_of, divides
from ingot.lower.lowered import FAULT, Field, Pointer, Step, Tensor
from ingot.lower.view import View
from ingot.support import abi

# Fields whose values are named constants of abi.h.
_NAMED = {
    "activation": "INGOT_ACT_", "mask_kind": "INGOT_MASK_", "code": "INGOT_FUSED_OP_", "merge": "INGOT_MERGE_",
    "from": "INGOT_DTYPE_", "to": "INGOT_DTYPE_", "rounding": "INGOT_ROUND_",
}  # fmt: skip
# Optional operands, and the constants that select the code for them.
_GIVEN = {
    "slopes": "INGOT_SLOPES", "residual": "INGOT_RESIDUAL", "rounded": "INGOT_ROUNDED", "rounds": "INGOT_ROUNDED",
    "means": "INGOT_MEANS",
}  # fmt: skip
_VECTORIZED = ("INGOT_ACT_none", "INGOT_ACT_relu", "INGOT_ACT_clip")  # activations of the vectorized epilogue
_MOST_PERIOD = 1 << 10  # most steps of a loop body
_LEAST_TIMES = 3
_LEAST_SAVED = 16  # fewest steps that a loop saves
_OPENED = "  run_call *const call = given;\n"
_STOP = "if (*call->state->stop) return;\n"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive steps: `period` steps, repeated `times` times, from `begin` on."""

    begin: int
    period: int
    times: int


@dataclass(frozen=True, slots=True)
class StepText:
    """The C of a step: its block, the opening of the loop around it, "" for a step of its own, and its iteration."""

    code: str
    loop: str
    iteration: int


def step_texts(entry: Entry, face: Interface) -> list[StepText]:
    """Return the C of each step of an entry, in order. The steps of a loop have the text of its body."""
    return _Writer(face, entry).texts()


def steps_text(face: Interface) -> str:
    """Return the functions of each entry's steps, and the dispatch between them."""
    about = "A kernel computes task 0 of 1: all of its work, or all of an iteration."
    if face.threads > 1:
        about = "Each thread computes its task of a step; thread 0 alone computes steps of one task."
    text = comment(
        f"The model's steps. {about} noinline keeps the arithmetic between the changes of floating-point mode around"
        " the call.",
        "",
    )
    if len(face.entries) == 1:
        return f"{text}\n{_Writer(face, face.entries[0]).function('steps')}"
    bodies = "\n".join(_Writer(face, entry).function(f"{entry.name}_steps") for entry in face.entries)
    calls, given = (_OPENED, "call, member") if face.threads > 1 else ("", "call")
    for number, entry in enumerate(face.entries):
        calls += f"  if (call->entry == {number}) K({entry.name}_steps)({given});\n"
    return f"{_shared(face)}{text}\n{bodies}\nstatic {_signature(face, 'steps')} {{\n{calls}}}\n"


def chosen(step: Step) -> Iterator[str]:
    """Yield the constants that select code of a kernel: the ops of a fused program, the operands of an epilogue."""
    for field, prefix in _NAMED.items():
        value = step.fields.get(field, ())
        numbers = value if isinstance(value, tuple) else (value,)
        yield from (abi.constant_names(prefix)[number] for number in numbers if isinstance(number, int))
    yield from (row for name, row in _GIVEN.items() if step.fields.get(name))
    activation = step.fields.get("activation")
    if isinstance(activation, int) and activation not in map(abi.constant, _VECTORIZED):
        yield "INGOT_ACTIVATED"


def float_text(value: float) -> str:
    """Return the shortest decimal of this float."""
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if np.isnan(rounded):
        return "NAN"
    if np.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!s}f"


def _shared(face: Interface) -> str:
    """Return wrappers of kernels for the steps of several entries."""
    names = sorted({step.kernel for entry in face.entries for step in entry.planned.steps})
    functions = "".join(
        f"""\
static __attribute__((noinline)) void K(step_{name})(const void *s, int32_t task, int32_t num_tasks) {{
  K({name})(s, task, num_tasks);
}}
"""
        for name in names
    )
    return f"/* Kernels as steps call them: compiled once, not inlined into the steps of each entry. */\n{functions}\n"


def _signature(face: Interface, name: str) -> str:
    """Return the declaration of the steps, with threads as the body of a region of the thread pool."""
    parameters = "void *given, pool_member *member" if face.threads > 1 else "run_call *call"
    return f"__attribute__((noinline)) void K({name})({parameters})"


def _fields(fields: Iterable[str], indent: str) -> str:
    """Wrap the fields of a struct between fields; a field that is longer than a line has its own lines."""
    parts = []
    for is_long, group in groupby(fields, lambda field: len(indent + field) > LINE):
        if is_long:
            parts += [indent + wrapped(field.split(", "), ", ", indent + " " * 4).lstrip() for field in group]
        else:
            parts.append(wrapped(group, ", ", indent))
    return ",\n".join(parts)


def _commented(rows: list[tuple[str, str]]) -> str:
    """Join lines of code with comments after them, aligned where they fit; else above."""
    space = len("  /*  */")
    last = {code: code.rpartition("\n")[2] for code, _ in rows}
    fitting = [len(last[code]) for code, about in rows if about and len(last[code] + about) + space <= LINE]
    text = ""
    for code, about in rows:
        column = min(max(fitting, default=0), LINE - space - len(about))
        if about and len(last[code] + about) + space > LINE:
            text += f"{comment(about, '  ')}\n{code}\n"
        else:
            text += f"{code}{' ' * (column - len(last[code]))} /* {about} */\n" if about else f"{code}\n"
    return text


def _assigned(pointer: str, value: str, offset: str) -> str:
    """Return the assignment of a pointer as another plus an offset, wrapped at LINE columns."""
    if len(line := f"  {pointer} = {value} + {offset});") <= LINE:
        return line
    if len(line := f"      {value} + {offset});") <= LINE:
        return f"  {pointer} =\n{line}"
    return f"  {pointer} =\n      {value} +\n{' ' * 10}{offset});"


def _is_zero(value: Field) -> bool:
    """Return whether a field may be omitted, because all its bits are zero."""
    if isinstance(value, float):
        return value == 0 and math.copysign(1, value) > 0
    if isinstance(value, tuple):
        return all(map(_is_zero, value))
    return value is None or value == 0


def _stretches(forms: Sequence[object]) -> Iterator[_Stretch]:
    """Yield the repeated stretches from left to right, and the steps between them with period 1, once."""
    numbers = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    row, at = [numbers[form] for form in forms], 0
    while at < len(row):
        best = _Stretch(at, 1, 1)
        for period in range(1, min(_MOST_PERIOD, (len(row) - at) // _LEAST_TIMES) + 1):
            same = 0
            while at + same + period < len(row) and row[at + same] == row[at + same + period]:
                same += 1
            times = same // period + 1
            saved = (times - 1) * period
            if times >= _LEAST_TIMES and saved >= _LEAST_SAVED and saved > (best.times - 1) * best.period:
                best = _Stretch(at, period, times)
        yield best
        at += best.period * best.times


class _Writer:
    """Emit the steps of an entry."""

    def __init__(self, face: Interface, entry: Entry):
        self._face, self._entry, self._lowered, self._planned = face, entry, entry.lowered, entry.planned
        self._sizes, self._names = Sizes(entry.lowered), entry.names
        steps = entry.planned.steps
        self._stretches = list(_stretches([self._form(index, step) for index, step in enumerate(steps)]))
        self._table: list[list[int]] = []  # of the current loop: columns of offsets

    # -- the function -------------------------------------------------------------------------------------------

    def function(self, name: str) -> str:
        """Return the whole function."""
        alone = [self._planned.steps[each.begin] for each in self._stretches if each.times == 1]
        looped = [
            step
            for each in self._stretches
            if each.times > 1
            for step in self._planned.steps[each.begin : each.begin + each.period]
        ]
        asked = [Pointer(tensor) for guard in self._entry.guards for tensor, _ in guard]
        named = self._tensors([*asked, *(pointer for step in alone for pointer in step.pointers)])
        within = [pointer for step in looped for pointer in step.pointers]
        homes = {self._home(pointer) for pointer in within}
        used = self._tensors([*within, *asked, *(pointer for step in alone for pointer in step.pointers)])
        blocks = [
            self._opening(bool(used) or self._entry.can_fail),
            self._ports(used),
            self._pointers("Weights.", "weights", named, homes),
            self._pointers("The arena: tensors that are not needed at the same time share it.", "arena", named, homes)
            + (f"  CHECKED({self._entry.name}, -1)\n" if self._planned.live else ""),
            self._pointers("State that lives from run to run.", "kept", named, homes),
            *(self._guarded() if self._entry.guards else map(self._stretch, self._stretches)),
        ]
        body = "\n".join(filter(None, blocks))
        return f"static {_signature(self._face, name)} {{\n{body}}}\n"

    def texts(self) -> list[StepText]:
        """Return the text of each step."""
        found: list[StepText] = []
        for stretch in self._stretches:
            if stretch.times == 1:
                found.append(StepText(textwrap.dedent(self._step(stretch, stretch.begin, "  ")), "", 0))
                continue
            opening, body = self._loop(stretch)
            loop = textwrap.dedent(opening)
            code = [textwrap.dedent(each) for each in body]
            found += [StepText(each, loop, iteration) for iteration in range(stretch.times) for each in code]
        return found

    def _tensors(self, pointers: Sequence[Pointer]) -> list[Tensor]:
        """Return the tensors that are pointed to, in the order of their ids."""
        ids = {pointer.tensor for pointer in pointers}
        return [tensor for id, tensor in self._lowered.tensors.items() if id in ids]

    def _opening(self, has_call: bool) -> str:
        """Return the declarations of the arguments of steps. has_call: whether they use the call."""
        if self._face.threads == 1:
            return "" if has_call else "  (void)call;\n"
        text = _OPENED if has_call else "  (void)given;\n"
        declared_names = ["thread = member->thread"] if self._planned.steps else []
        declared_names += ["threads = member->threads"] if self._entry.threads > 1 else []
        return text + (f"  const int32_t {', '.join(declared_names)};\n" if declared_names else "  (void)member;\n")

    def _ports(self, used: list[Tensor]) -> str:
        """Return the declarations of inputs and outputs by the names that the steps use, and of run-time sizes."""
        rows = []
        sizes = self._sizes.declared(run_sizes(self._entry))
        for title, struct, ports in (
            ("inputs", self._face.inputs(self._entry), self._entry.inputs),
            ("outputs", self._face.outputs(self._entry), self._entry.outputs),
        ):
            named = [port for port in ports if port.tensor in used]
            if named or (title == "inputs" and sizes):
                rows.append((f"  const {struct} *const {title} = call->{title};", ""))
            for port in named:
                pointer = declared(port.tensor, self._names[port.tensor.id]).replace("*", "*const ")
                rows.append((f"  {pointer} = {title}->{port.identifier};", dims(port.tensor)))
            rows += sizes if title == "inputs" else []
        return _commented(rows)

    def _pointers(self, title: str, home: str, named: list[Tensor], homes: set[str]) -> str:
        """Return the declarations of tensors in the region `home` of the state. homes: the regions that loops use."""
        tensors = [tensor for tensor in named if self._home(Pointer(tensor.id)) == home]
        if not tensors and home not in homes:
            return ""
        const = "const " if home == "weights" else ""
        if any(tensor.packed_weight is not None and tensor.packed_weight.layout != "raw" for tensor in tensors):
            title += " rows / N or columns / N: packed in panels of so many."
        rows = []
        for tensor in tensors:
            at = offset(self._face, self._entry, tensor.id)
            about = dims(tensor)
            packed = tensor.packed_weight
            if packed is not None and packed.layout != "raw":
                about += f", {'rows' if packed.transposed else 'columns'} / {packed.panels.panel}"
                about += " of both halves" if packed.layout == "gate_panels" else ""
            if tensor.id in self._planned.live:
                birth, death = self._planned.live[tensor.id]
                about += f", step {birth}" if birth == death else f", steps {birth} to {death}"
            pointer = declared(tensor, self._names[tensor.id]).replace("*", "*const ")
            rows.append((_assigned(pointer, f"({const}void *)({home}", at), about))
        return f"  /* {title} */\n  {const}char *const {home} = call->state->{home};\n{_commented(rows)}"

    def _guarded(self) -> Iterator[str]:
        """Yield the steps of a model whose runs choose between branches, nested in `if` statements."""
        outer: Guard = ()
        for stretch, guard in zip(self._stretches, self._entry.guards, strict=True):
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(outer, guard, strict=False)))
            text = "".join("  " * (depth + 1) + "}\n" for depth in reversed(range(shared, len(outer))))
            for depth in range(shared, len(guard)):
                tensor, is_true = guard[depth]
                indent = "  " * (depth + 1)
                text += f"{indent}{self._face.prefix}_pool_barrier(member);\n" if self._face.threads > 1 else ""
                text += f"{indent}if ({'' if is_true else '!'}*{self._names[tensor]}) {{\n"
            yield text + textwrap.indent(self._stretch(stretch), "  " * len(guard))
            outer = guard
        yield "".join("  " * (depth + 1) + "}\n" for depth in reversed(range(len(outer))))

    # -- steps --------------------------------------------------------------------------------------------------

    def _form(self, index: int, step: Step) -> object:
        """Return a key, equal for steps that differ only in operand addresses. With branches, no two are equal."""
        if self._entry.guards:
            return index
        fields = tuple((name, self._field_form(value)) for name, value in step.fields.items())
        return step.kernel, step.parts, step.iterations, self._planned.barriers[index], fields

    def _field_form(self, value: Field) -> object:
        match value:
            case tuple():
                return tuple(map(self._field_form, value))
            case Pointer():
                offset = value.byte_offset
                grown = offset if isinstance(offset, AtMost) else None
                return (home, grown) if (home := self._home(value)) else value
        return type(value), repr(value) if isinstance(value, float) else value  # 0.0 is no -0.0

    def _home(self, pointer: Pointer) -> str:
        """Return the region that it points into; "" for an input, an output or the fault."""
        if pointer.tensor == FAULT:
            return ""
        region = self._planned.addresses[pointer.tensor].region
        return {"weights": "weights", "state": "kept"}.get(region, "arena" if region.startswith("arena") else "")

    def _stretch(self, stretch: _Stretch) -> str:
        if stretch.times == 1:
            return self._stop("  ") + self._step(stretch, stretch.begin, "  ")
        opening, body = self._loop(stretch)
        return f"{opening}{self._stop('      ')}{''.join(body)}    }}\n  }}\n"

    def _loop(self, stretch: _Stretch) -> tuple[str, list[str]]:
        """Return the opening of a loop, with its table of offsets, and the steps of its body."""
        self._table = []
        steps = range(stretch.begin, stretch.begin + stretch.period)
        body = [self._step(stretch, index, "      ") for index in steps]
        rows = ("{" + ", ".join(str(column[i]) for column in self._table) + "}" for i in range(stretch.times))
        table = ""
        if self._table:
            declared = f"static const int64_t offsets[{stretch.times}][{len(self._table)}]"
            table = f"    {declared} = {{\n{wrapped(rows, ', ', ' ' * 6)}\n    }};\n"
        last = stretch.begin + stretch.period * stretch.times - 1
        opening = f"""\
  /* Steps {stretch.begin} to {last}: the same {stretch.period} steps, {stretch.times} times over different memory. */
  {{
{table}    for (int64_t layer = 0; layer < {stretch.times}; layer++) {{
"""
        return opening, body

    def _stop(self, indent: str) -> str:
        """Return the statement at which a run of one thread may end."""
        return indent + _STOP if self._face.can_stop and self._entry.threads == 1 else ""

    def _step(self, stretch: _Stretch, index: int, indent: str) -> str:
        steps = self._planned.steps[index : index + stretch.times * stretch.period : stretch.period]
        step = steps[0]
        number = str(index) if stretch.times == 1 else f"{index} + layer * {stretch.period}"
        results, operands = (", ".join(map(self._operand, views)) for views in (step.writes, step.reads))
        named = (
            f".{field.name} = {self._field(field, [each.fields[field.name] for each in steps])}"
            for field in abi.structs()[step.args_type]
            if not _is_zero(step.fields.get(field.name))
        )
        checked = f" CHECKED({self._entry.name}, {number})" if self._planned.live else ""
        return f"""\
{comment(f"{index}: {results} from {operands}", indent)}
{self._barrier(index, number, indent)}{indent}{self._guard(step)}{{
{indent}  const {step.args_type} s = {{
{_fields(named, indent + " " * 6)}
{indent}  }};
{self._calls(step, indent)}
{indent}}}{checked}
"""

    def _operand(self, view: View) -> str:
        """Return a view for a comment."""
        return f"{self._names[view.tensor]}[{', '.join(str(dim_of(size)) for size in view.shape)}]"

    def _barrier(self, index: int, number: str, indent: str) -> str:
        if self._face.threads == 1 or not self._planned.barriers[index]:
            return ""
        if self._face.can_stop:
            return f"{indent}if (ends_at(call, member, {number})) return;\n"
        return f"{indent}{self._face.prefix}_pool_barrier(member);\n"

    def _guard(self, step: Step) -> str:
        """Return the condition for threads that have a task of a step, unless all threads need its barriers."""
        if self._face.threads == 1 or (step.parts > 1 and (step.iterations > 1 or step.parts == self._entry.threads)):
            return ""
        return f"if (thread < {step.parts}) " if step.parts > 1 else "if (thread == 0) "

    def _calls(self, step: Step, indent: str) -> str:
        """Return the calls of a step's kernel. A run with fewer threads than planned divides it into fewer tasks."""
        assert step.chunks == 1, "runs of emitted C end between steps"
        kernel = f"K({step.kernel})" if len(self._face.entries) == 1 else f"K(step_{step.kernel})"
        iterations = f"{indent}  for (int32_t iteration = 0; iteration < {step.iterations}; iteration++) "
        if step.parts == 1:
            return (
                f"{indent}  {kernel}(&s, 0, 1);" if step.iterations == 1 else f"{iterations}{kernel}(&s, iteration, 1);"
            )
        tasks = "threads"
        if step.parts < self._entry.threads:
            tasks = f"threads < {step.parts} ? threads : {step.parts}"
        if step.iterations == 1:
            return f"{indent}  {kernel}(&s, thread, {tasks});"
        return f"""\
{indent}  const int32_t num_tasks = {tasks};
{iterations}{{
{indent}    if (iteration > 0) {self._face.prefix}_pool_barrier(member);
{indent}    if (thread < num_tasks) {kernel}(&s, iteration * num_tasks + thread, num_tasks);
{indent}  }}"""

    # -- fields -------------------------------------------------------------------------------------------------

    def _field(self, field: abi.Field, values: Sequence[Field]) -> str:
        """Return a field of a step that is repeated for each of these values, which differ only in pointers."""
        match values[0]:
            case Pointer():
                return self._pointer(field, values)  # type: ignore[arg-type]
            case tuple():
                columns = zip(*values, strict=True)  # type: ignore[arg-type]
                return "{" + ", ".join(self._field(field, column) for column in columns) + "}"
            case AtMost() as size:
                text = self._sizes.text(size)
                return f"(int32_t)({text})" if field.type == "int32_t" else text
            case float() as number:
                return float_text(number)
            case int() as number if field.name in _NAMED:
                return abi.constant_names(_NAMED[field.name])[number]
            case int() as number if number == -(2**63):
                return "-9223372036854775807 - 1"  # C has no literal for it
        return str(values[0])

    def _pointer(self, field: abi.Field, pointers: Sequence[Pointer]) -> str:
        first = pointers[0]
        if first.tensor == FAULT:
            return "&call->fault"
        tensor = self._lowered.tensors[first.tensor]
        untyped = "const void *" if tensor.kind in ("input", "weight") else "void *"
        if len(pointers) > 1 and (home := self._home(first)):
            address = self._region_offset(pointers)
            return f"({untyped})({home} + {address})" if address != "0" else f"({untyped}){home}"
        elements = self._elements(tensor, first)
        name = self._names[first.tensor]
        address = f"{name} + {elements}" if elements else name
        if field.type in ("void", C_TYPES[tensor.dtype.name]):
            return address
        # A kernel of packed elements, such as pairs, has another element type.
        return f"({untyped})({address})" if elements else f"({untyped}){address}"

    def _elements(self, tensor: Tensor, pointer: Pointer) -> str:
        """Return the offset from a tensor's first element, in elements; "" for 0."""
        size, offset = -(-tensor.dtype.bits // 8), pointer.byte_offset
        assert divides(size, offset), f"{pointer} is between elements"
        if isinstance(offset, AtMost):
            return self._sizes.text(offset, size)
        return str(offset // size) if offset else ""

    def _region_offset(self, pointers: Sequence[Pointer]) -> str:
        """Return the byte offset in the region, as an expression of the loop's iteration."""
        offset = pointers[0].byte_offset
        grown = f" + {self._sizes.text(offset)}" if isinstance(offset, AtMost) else ""
        addresses = self._planned.addresses
        offsets = [addresses[p.tensor].offset + (0 if grown else p.byte_offset) for p in pointers]
        strides = {after - before for before, after in pairwise(offsets)}
        if strides == {0}:
            return f"{offsets[0]}{grown}"
        if len(strides) == 1:
            begin = f"{offsets[0]} + " if offsets[0] else ""
            return f"{begin}layer * {strides.pop()}{grown}"
        if offsets not in self._table:
            self._table.append(offsets)
        return f"offsets[layer][{self._table.index(offsets)}]{grown}"
