"""Emit a fused program as WGSL: the CPU's ops by number, its slots as variables.

Without reductions, a lane computes an element. With reductions, a workgroup computes a row and passes over it once per
segment; a segment recomputes the element values it needs from earlier segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.lower.lowered import Field, Pointer
from ingot.lower.wgpu.wgsl import LANES, Argument, floating, functions
from ingot.support import abi

_MEMORY = abi.constant("INGOT_FUSED_MEMORY")
_COLUMN = abi.constant("INGOT_FUSED_SLOT_COLUMN")
_LAST_REDUCTION = abi.constant("INGOT_FUSED_LAST_REDUCTION")
# Of reductions: the contribution of an element, the join of two values, the initial value, the join of lanes, the
# result.
_REDUCTIONS = {
    "sum": ("{0}", "{0} + {1}", "0.0f", "group_sum({0}, lane)", "{0}"),
    "mean": ("{0}", "{0} + {1}", "0.0f", "group_sum({0}, lane)", "{0} / f32(arg_cols())"),
    "max": ("{0}", "maximum_f32({0}, {1})", "-infinity()", "group_max({0}, lane)", "{0}"),
    "min": ("{0}", "minimum_f32({0}, {1})", "infinity()", "-group_max(-({0}), lane)", "{0}"),
    "squares": ("squared({0} - ({1} + {2}))", "{0} + {1}", "0.0f", "group_sum({0}, lane)", "{0}"),
    "offset": ("{0} - {1}", "{0} + {1}", "0.0f", "group_sum({0}, lane)", "{0} / f32(arg_cols())"),
}
_REDUCTIONS["pivot"] = _REDUCTIONS["mean"]  # closer to the mean of a row than an arbitrary element
_SQUARED = "fn squared(x: f32) -> f32 { return x * x; }"
_LOWEST = """// What is missing from the rounded sum (Knuth, "The Art of Computer Programming", volume 2, 4.2.2).
fn lost(x: f32, y: f32) -> f32 {
  let high = x + y;
  let shift = high - x;
  return (x - (high - shift)) + (y - shift);
}"""


@dataclass(frozen=True, slots=True)
class _Op:
    """An op of a program.

    operands: numbers of ops, or of tensors in memory as ~m, below zero. memory: the tensor that the op writes, or -1.
    """

    number: int
    name: str
    operands: tuple[int, ...]
    memory: int
    segment: int
    is_column: bool
    alpha: float
    beta: float

    @property
    def reduces(self) -> bool:
        return abi.constant(f"INGOT_FUSED_OP_{self.name}") <= _LAST_REDUCTION or self.name == "pivot"


def fused_arguments(fields: Mapping[str, Field]) -> list[Argument]:
    """Return the parameters of a fused step: its tensors, and where a row of each begins."""
    memory = fields["memory"]
    assert isinstance(memory, tuple)
    pointers = [pointer for pointer in memory if isinstance(pointer, Pointer)]
    tensors = [Argument(f"m{i}", pointer, is_pointer=True) for i, pointer in enumerate(pointers)]
    numbers = [Argument(name, fields[name]) for name in ("outer", "rows", "cols")]
    strides = [Argument(name, fields[name], count=len(memory)) for name in ("outer_strides", "row_strides")]
    return [*tensors, *numbers, *strides]


def fused_groups(fields: Mapping[str, Field]) -> int:
    """Return the number of workgroups of a fused step."""
    outer, rows, cols = (fields[name] for name in ("outer", "rows", "cols"))
    assert isinstance(outer, int) and isinstance(rows, int) and isinstance(cols, int)
    return outer * rows if _reduces(_ops(fields)) else -(-outer * rows * cols // LANES)


def fused_text(fields: Mapping[str, Field]) -> str:
    """Return `work` of a fused program, and the functions it needs in addition to those of shaders/."""
    ops = _ops(fields)
    steps = _numbers(fields, "col_steps")
    begins = [f"let p{m} = outer * arg_outer_strides({m}) + row * arg_row_strides({m});" for m in range(len(steps))]
    if not _reduces(ops):
        lines = [
            "let element = group * LANES + lane;",
            "let col = element % arg_cols();",
            "let row = element / arg_cols() % arg_rows();",
            "let outer = element / arg_cols() / arg_rows();",
            "if (outer >= arg_outer()) { return; }",
            *begins,
            *(line for op in ops for line in _statement(op, steps)),
        ]
    else:
        lines = ["let row = group % arg_rows();", "let outer = group / arg_rows();"]
        lines += ["if (outer >= arg_outer()) { return; }", *begins]
        for segment in range(ops[-1].segment + 1):
            lines += _segment(ops, segment, steps)
    body = "\n".join(f"  {line}" for line in lines)
    return f"{_SQUARED}\n\n{_LOWEST}\n\nfn work(group: i32, lane: i32) {{\n{body}\n}}"


def _ops(fields: Mapping[str, Field]) -> list[_Op]:
    """Return the program, with each operand resolved to the op that computes it."""
    kinds, steps = _numbers(fields, "slot_kinds"), _numbers(fields, "col_steps")
    names = abi.constant_names("INGOT_FUSED_OP_")
    columns = [_numbers(fields, name) for name in "abcdef"]
    alpha, beta = fields["alpha"], fields["beta"]
    segments, code, out = (_numbers(fields, name) for name in ("segment", "code", "out"))
    assert isinstance(alpha, tuple) and isinstance(beta, tuple)
    writer_of: dict[int, int] = {}  # slot -> the op whose result it contains
    written: dict[int, tuple[int, int]] = {}  # tensor -> the op that wrote it, and its segment
    ops = []
    for i, result in enumerate(out):
        operands = []
        for each in (column[i] for column in columns if column[i] >= 0):
            if each >= _MEMORY:
                operands.append(writer_of[each])
            else:  # a value written in this segment is still in a variable
                operands.append(written[each][0] if written.get(each, (0, -1))[1] == segments[i] else ~each)
        name = names[code[i]].removeprefix("INGOT_FUSED_OP_")
        is_column = kinds[result - _MEMORY] == _COLUMN if result >= _MEMORY else steps[result] == 0
        memory = result if result < _MEMORY else -1
        ops.append(
            _Op(i, name, tuple(operands), memory, segments[i], is_column, float(alpha[i]), float(beta[i]))  # type: ignore[arg-type]
        )
        if result >= _MEMORY:
            writer_of[result] = i
        else:
            written[result] = i, segments[i]
    return ops


def _reduces(ops: list[_Op]) -> bool:
    return any(op.reduces or op.is_column for op in ops)


def _segment(ops: list[_Op], segment: int, steps: tuple[int, ...]) -> list[str]:
    """Return the statements of a segment: column ops, then a pass over the row, then the results of its reductions."""
    own = [op for op in ops if op.segment == segment]
    pivots = [op for op in own if op.name == "pivot"]
    lines = [line for op in own if op.is_column and not op.reduces for line in _statement(op, steps)]
    # Within a segment, only reductions read its pivot.
    for some in (pivots, [op for op in own if op not in pivots and (op.reduces or not op.is_column)]):
        reductions = [op for op in some if op.reduces]
        if not some:
            continue
        lines += [f"var s{op.number} = {_REDUCTIONS[op.name][2]};" for op in reductions]
        lines.append("for (var col = lane; col < arg_cols(); col += LANES) {")
        for op in _needed(ops, some):
            if op in reductions:
                each, join, *_ = _REDUCTIONS[op.name]
                values = [*(_value(operand, ops, steps) for operand in op.operands), "0.0f"]
                lines.append(f"  s{op.number} = {join.format(f's{op.number}', each.format(*values))};")
            else:
                lines += [f"  {line}" for line in _statement(op, steps, again=op.segment < segment)]
        lines.append("}")
        for op in reductions:
            _, _, _, meet, result = _REDUCTIONS[op.name]
            lines.append(f"let v{op.number} = {result.format(meet.format(f's{op.number}'))};")
    return lines


def _needed(ops: list[_Op], some: list[_Op]) -> list[_Op]:
    """Return the given ops and the element ops that they depend on, in order."""
    found = {op.number for op in some}
    waiting = list(some)
    for op in waiting:
        for operand in op.operands:
            if operand >= 0 and operand not in found and not ops[operand].is_column:
                found.add(operand)
                waiting.append(ops[operand])
    return [op for op in ops if op.number in found]


def _statement(op: _Op, steps: tuple[int, ...], again: bool = False) -> list[str]:
    """Return the statements of an op that is no reduction; they also write memory unless it is recomputed (`again`)."""
    values = [_value(operand, [], steps) for operand in op.operands]
    lines = [f"let v{op.number} = {_expression(op, values)};"]
    if op.memory >= 0 and not again:
        write = f"set_m{op.memory}({_offset(op.memory, steps)}, v{op.number});"
        lines.append(f"if (lane == 0) {{ {write} }}" if op.is_column else write)
    return lines


def _value(operand: int, ops: list[_Op], steps: tuple[int, ...]) -> str:
    return f"v{operand}" if operand >= 0 else f"at_m{~operand}({_offset(~operand, steps)})"


def _offset(memory: int, steps: tuple[int, ...]) -> str:
    return f"p{memory} + col" if steps[memory] else f"p{memory}"


def _expression(op: _Op, values: list[str]) -> str:
    match op.name:
        case "copy":
            return values[0]
        case "norm_scale":
            low = f"squared(lost({values[1]}, {values[2]}))" if len(values) > 2 else "0.0f"
            variance = f"max(0.0f, {values[0]} / {floating(op.beta)} - {low})"
            return f"1.0f / sqrt({variance} + {floating(op.alpha)})"
        case "normalise":
            x, b, scale, weight, bias, *offset = values
            rest = f"(({x} - ({b} + {offset[0]})) - lost({b}, {offset[0]}))" if offset else f"({x} - {b})"
            return f"{rest} * {scale} * {weight} + {bias}"
    known = functions()[f"{op.name}_f32"]
    numbers = {"alpha": op.alpha, "beta": op.beta}
    given = [floating(numbers[name]) for name in known.parameters if name in numbers]
    return f"{op.name}_f32({', '.join([*values, *given])})"


def _numbers(fields: Mapping[str, Field], name: str) -> tuple[int, ...]:
    values = fields[name]
    assert isinstance(values, tuple)
    return tuple(int(value) for value in values if isinstance(value, int))
