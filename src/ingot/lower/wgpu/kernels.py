"""The kernels that a device of WebGPU has, one line each: a body of shaders/, how many workgroups run it, and what a
step adds to it. Their steps, argument structs and names are those of the CPU's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ingot import abi
from ingot.lower.cpu.formats import BF16, CODES, F32, PANEL
from ingot.lower.formats import Format
from ingot.lower.lowered import Field, Step
from ingot.lower.wgpu.strip import strip_arguments, strip_groups, strip_text
from ingot.lower.wgpu.wgsl import LANES, Argument, floating, functions

Numbers = Mapping[str, Field]

PANEL_FORMATS = (F32, BF16, *CODES)  # how products may have their matrices
_FAR = 1 << 30
_FEW_ROWS = 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a kernel of some name runs: by a body of shaders/ and what a step adds to it.

    groups: workgroups, of the fields of a step, and thus of the sizes of a run. text: functions that a step adds.
    baked: fields that are part of its text, because they decide what is computed. element: the type of what it reads
    and writes. more: numbers that a step may have beside its struct's. beside: a file of what the body asks for.
    is_alone: whether it needs all the memory that a workgroup has, so that no other runs in its dispatch.
    """

    body: str
    groups: Callable[[Numbers], int]
    text: Callable[[Numbers], str] = lambda fields: ""
    baked: tuple[str, ...] = ()
    element: str = "f32"
    more: tuple[str, ...] = ()
    beside: str = ""
    is_alone: bool = False

    @property
    def bodies(self) -> list[str]:
        """The files of shaders/ that are its own."""
        return [name for name in (self.body, self.beside) if name]

    def arguments(self, step: Step) -> list[Argument]:
        """The fields of a step's struct in order, those that it leaves out included."""
        if step.args_type == "strip_args":
            return strip_arguments(step.fields)
        extra = [Argument(name, step.fields.get(name, 0)) for name in self.more]
        return extra + [
            Argument(
                field.name,
                _near(step.fields.get(field.name)),
                is_pointer=field.is_pointer,
                is_float=field.type == "float" and not field.is_pointer,
                count=0 if field.count == 1 else field.count,
                is_baked=field.name in self.baked,
            )
            for field in abi.structs()[step.args_type]
        ]


def _near(field: Field) -> Field:
    """A number that no size comes near stands for any farther one, such as the offset of a mask that hides nothing."""
    return max(-_FAR, min(_FAR, field)) if isinstance(field, int) else field


def _number(fields: Numbers, name: str) -> int:
    value = fields.get(name, 0)
    assert isinstance(value, int), name
    return value


def _numbers(fields: Numbers, name: str) -> tuple[int, ...]:
    value = fields.get(name, ())
    assert isinstance(value, tuple), name
    return tuple(each for each in value if isinstance(each, int))


def _by_lanes(*names: str) -> Callable[[Numbers], int]:
    """A lane for each of as many elements as numbers, or arrays of them, say."""

    def groups(fields: Numbers) -> int:
        counts = [
            math.prod(_numbers(fields, name)) if isinstance(fields.get(name), tuple) else _number(fields, name)
            for name in names
        ]
        return -(-math.prod(counts) // LANES)

    return groups


def _by_rows(*names: str) -> Callable[[Numbers], int]:
    """A workgroup for each of as many rows."""
    return lambda fields: math.prod(_number(fields, name) for name in names)


def _tiles(fields: Numbers, columns: int, rows: int) -> int:
    """The tiles of a product of m rows and n columns, a batch of them where there is one."""
    batch = math.prod(_numbers(fields, "batch_shape")) if "batch_shape" in fields else 1
    return batch * -(-_number(fields, "n") // columns) * -(-_number(fields, "m") // rows)


def _filter_tiles(fields: Numbers) -> int:
    pixels = math.prod(_number(fields, name) for name in ("batch", "out_height", "out_width"))
    groups = _number(fields, "groups")
    return groups * -(-(_number(fields, "out_channels") // groups) // 32) * -(-pixels // 32)


def _expert_panels(fields: Numbers) -> int:
    return _number(fields, "rows") * _number(fields, "slots") * -(-_number(fields, "n") // 32)


def _outer(fields: Numbers) -> int:
    return math.prod(_numbers(fields, "outer_shape"))


# -- what steps add to bodies -----------------------------------------------------------------------------------


def _nest(function: str) -> Callable[[Numbers], str]:
    """The store of a loop nest that applies a function of elementwise.wgsl."""

    def text(fields: Numbers) -> str:
        known = functions()[function]
        operands = dict(zip(known.parameters, "ab", strict=False))
        given = []
        for name, type in known.parameters.items():
            if name in ("alpha", "beta"):
                given.append(f"arg_{name}()")
            else:
                given.append(f"{'at' if type == 'f32' else 'int'}_{operands[name]}({operands[name]})")
        setter = "set_out" if known.result == "f32" else "set_int_out"
        return _store(f"{setter}(out, {function}({', '.join(given)}))")

    return text


def _store(statement: str) -> str:
    return f"fn store(a: i32, b: i32, c: i32, out: i32) {{ {statement}; }}"


def _where(fields: Numbers) -> str:
    return _store("set_int_out(out, select(int_c(c), int_b(b), int_a(a) != 0))")


def _convert(fields: Numbers) -> str:
    """A cast from one type of integers to another, which are all held alike but for bool."""
    to_bool = fields.get("to") == abi.constant("INGOT_DTYPE_bool")
    return _store(f"set_int_out(out, {'i32(int_a(a) != 0)' if to_bool else 'int_a(a)'})")


def _activate(fields: Numbers) -> str:
    """The activation of an epilogue."""
    name = abi.constant_names("INGOT_ACT_")[_number(fields, "activation")].removeprefix("INGOT_ACT_")
    if name == "none":
        return "fn activate(x: f32) -> f32 { return x; }"
    numbers = []
    for parameter in list(functions()[f"{name}_f32"].parameters)[1:]:
        value = fields[f"act_{parameter}"]
        assert isinstance(value, float)
        numbers.append(floating(value))
    return f"fn activate(x: f32) -> f32 {{ return {name}_f32({', '.join(['x', *numbers])}); }}"


def _reduction(op: str, element: str, finish: str = "x") -> Callable[[Numbers], str]:
    combine, neutral = _COMBINED[op][element]

    def text(fields: Numbers) -> str:
        return "\n\n".join(
            (
                f"fn combine(x: T, y: T) -> T {{ return {combine}(x, y); }}",
                f"fn neutral() -> T {{ return {neutral}; }}",
                f"fn finish(x: T, count: i32) -> T {{ return {finish}; }}",
            )
        )

    return text


_COMBINED = {
    "sum": {"f32": ("add_f32", "0.0f"), "i32": ("add_i64", "0")},
    "prod": {"f32": ("mul_f32", "1.0f"), "i32": ("mul_i64", "1")},
    "max": {"f32": ("maximum_f32", "-infinity()"), "i32": ("maximum_i64", "i32(-2147483647 - 1)")},
    "min": {"f32": ("minimum_f32", "infinity()"), "i32": ("minimum_i64", "2147483647")},
}


def _better(op: str, element: str) -> Callable[[Numbers], str]:
    """Whether an element is the one to choose, and not another; the first NaN is."""
    sign = ">" if op == "argmax" else "<"
    test = f"x {sign} y" if element == "i32" else f"select(x {sign} y && !is_nan(y), !is_nan(y), is_nan(x))"
    return lambda fields: f"fn better(x: T, y: T) -> bool {{ return {test}; }}"


def _element_of(kind: str) -> Callable[[Numbers], str]:
    """How a table holds the elements of a row."""
    text = f"fn element_of(outer: i32, row: i32, i: i32) -> i32 {{ return {kind}_element(outer, row, i); }}"
    return lambda fields: text


def _panels(format: Format, matrix: str = "b", k: str = "k") -> Callable[[Numbers], str]:
    """How a matrix holds its elements in panels. matrix: its pointer. k: the field that says how many rows it has."""

    def four(place: str) -> str:
        reads = ", ".join(f"int_{matrix}({place} + {i})" for i in range(4))
        return f"bitcast<vec4<u32>>(vec4<i32>({reads}))"

    if format is F32:
        words = "k * 32"
        lines = [f"return bitcast<vec4<f32>>({four('panel + i * 32 + column')});"]
    elif format is BF16:
        words = "(k + 1) / 2 * 32"
        lines = [f"return bf16_of({four('panel + i / 2 * 32 + column')}, i);"]
    else:
        bits, span = format.dtype.bits, format.shared.elements // format.packed.elements
        codes, beside = format.packed.nbytes * PANEL // 4, format.shared.nbytes * PANEL // 4
        words = f"(k + 31) / 32 * {codes} + (k + {format.shared.elements - 1}) / {format.shared.elements} * {beside}"
        zero = f"{1 << bits - 1}.0f"
        if format.zeros:
            zero = f"zeros_of(u32(int_{matrix}(scales + 16 + column / 4))) / {256 >> bits}.0f"
        rows = f"i % {4 * codes // 32}"
        lines = [
            "let block = i / 32;",
            f"let group = panel + block / {span} * {span * codes + beside};",
            f"let scales = group + min({span}, (arg_{k}() + 31) / 32 - block / {span} * {span}) * {codes};",
            f"let place = group + block % {span} * {codes} + {rows} / 4 * 32 + column;",
            f"let code = code_of({four('place')}, i % 32, {bits});",
            f"let two = unpack2x16float(u32(int_{matrix}(scales + column / 2)));",
            f"let more = unpack2x16float(u32(int_{matrix}(scales + column / 2 + 1)));",
            f"return (code - {zero}) * vec4<f32>(two, more);",
        ]
    body = "\n".join(f"  {line}" for line in lines)
    text = (
        f"fn panel_words(k: i32) -> i32 {{ return {words}; }}\n\n"
        f"fn panel_row(panel: i32, column: i32, i: i32) -> vec4<f32> {{\n{body}\n}}"
    )
    return lambda fields: text


def _together(*texts: Callable[[Numbers], str]) -> Callable[[Numbers], str]:
    return lambda fields: "\n\n".join(text(fields) for text in texts)


def _key(key: str) -> Callable[[Numbers], str]:
    """What topk looks for the largest of."""
    text = f"fn key(x: T) -> i32 {{ let best = {key}; return select(~best, best, arg_largest() != 0); }}"
    return lambda fields: text


def _slot_place(kind: str) -> Callable[[Numbers], str]:
    text = f"fn slot_place(slot: i32, d: i32) -> i32 {{ return {kind}_place(slot, d); }}"
    return lambda fields: text


def _share(value: str) -> Callable[[Numbers], str]:
    """What softmax makes of an element's distance to the largest, and of the sum."""
    return lambda fields: f"fn share(x: f32, total: f32) -> f32 {{ return {value}; }}"


def _is_centred(text: str) -> Callable[[Numbers], str]:
    return lambda fields: f"const is_centred: bool = {text};"


# -- the table --------------------------------------------------------------------------------------------------

_EPILOGUE = ("activation", "act_alpha", "act_beta", "residual_first")
_ELEMENTS = _by_lanes("shape")
_PIXELS = ("batch", "out_height", "out_width")

KERNELS: dict[str, Kernel] = {
    "strip_f32": Kernel("", strip_groups, strip_text),
    "matmul_f32": Kernel("matmul", lambda f: _tiles(f, 32, 32), _activate, (*_EPILOGUE, "batch_rank")),
    "softmax_f32": Kernel("softmax", _by_rows("rows"), _share("exp_f32(x) / total")),
    "log_softmax_f32": Kernel("softmax", _by_rows("rows"), _share("x - log_f32(total)")),
    "layer_norm_f32": Kernel("norm", _by_rows("rows"), _is_centred("true")),
    "rms_norm_f32": Kernel("norm", _by_rows("rows"), _is_centred("false")),
    "reduce_mean_f32": Kernel("reduce", _outer, _reduction("sum", "f32", "x / f32(count)")),
    "cumsum_f32": Kernel("running", _by_lanes("outer", "inner"), _reduction("sum", "f32")),
    "cumprod_f32": Kernel("running", _by_lanes("outer", "inner"), _reduction("prod", "f32")),
    "cumsum_i64": Kernel("running", _by_lanes("outer", "inner"), _reduction("sum", "i32"), element="i32"),
    "cumprod_i64": Kernel("running", _by_lanes("outer", "inner"), _reduction("prod", "i32"), element="i32"),
    "gather_elements_i64": Kernel("gather_elements", _ELEMENTS, baked=("rank", "axis")),
    "topk_f32": Kernel("topk", _by_rows("rows"), _key("float_key(x)")),
    "topk_i64": Kernel("topk", _by_rows("rows"), _key("x"), element="i32"),
    "topk_i32": Kernel("topk", _by_rows("rows"), _key("x"), element="i32"),
    "append_keys_f32": Kernel("append", _by_rows("rows", "kv_heads"), _slot_place("keys")),
    "append_values_f32": Kernel("append", _by_rows("rows", "kv_heads"), _slot_place("values")),
    "rotary_f32": Kernel("rotary", lambda f: -(-_by_rows("batch", "heads", "rows", "head_dim")(f) // (2 * LANES))),
    "conv2d_f32_packed": Kernel("conv_packed", _filter_tiles, _activate, _EPILOGUE),
    "conv2d_f32_depthwise": Kernel("conv_depthwise", _by_lanes(*_PIXELS, "channels"), _activate, _EPILOGUE),
    "conv2d_f32": Kernel("conv", _by_lanes(*_PIXELS, "out_channels"), _activate, _EPILOGUE),
    "max_pool_f32": Kernel("pool", _by_lanes(*_PIXELS, "channels"), _reduction("max", "f32")),
    "avg_pool_f32": Kernel(
        "pool",
        _by_lanes(*_PIXELS, "channels"),
        _reduction(
            "sum", "f32", "x / f32(select(count, arg_kernel_h() * arg_kernel_w(), arg_count_include_pad() != 0))"
        ),
    ),
    "convert": Kernel("nest", _ELEMENTS, _convert, ("rank", "from", "to", "saturate", "rounding")),
    "copy_b4": Kernel("nest", _ELEMENTS, _nest("copy_b"), ("rank",)),
}
_LOOKED_UP = _by_lanes("outer", "count", "inner")
for _name, _kind in (("i64", "rows"), ("i32", "rows"), ("bf16", "bf16_rows")):
    KERNELS[f"gather_{_name}"] = Kernel("gather", _LOOKED_UP, _element_of(_kind), more=("begin", "end"))
for _format in PANEL_FORMATS:
    assert _format.products is not None
    _name, _own = _format.products, _together(_activate, _panels(_format))
    KERNELS[f"gemm_{_name}_packed"] = Kernel("gemm_packed", lambda f: _tiles(f, 32, 32), _own, _EPILOGUE)
    KERNELS[f"gemv_{_name}_packed"] = Kernel("gemv_packed", lambda f: _tiles(f, 32, 1), _own, _EPILOGUE)
    KERNELS[f"gemm_{_name}_gated"] = Kernel("gemm_gated", lambda f: _tiles(f, 16, 32), _own, (*_EPILOGUE, "gate"))
    KERNELS[f"gemv_{_name}_gated"] = Kernel("gemv_gated", lambda f: _tiles(f, 16, 1), _own, (*_EPILOGUE, "gate"))
    KERNELS[f"expert_matmul_{_name}_packed"] = Kernel("experts", _expert_panels, _panels(_format, "experts"))
    _own = _together(_element_of("panels"), _panels(_format, "table", "inner"))
    KERNELS[f"gather_{_format.tables}_panels"] = Kernel("gather", _LOOKED_UP, _own, more=("begin", "end"))
for _op in ("sum", "prod", "max", "min"):
    KERNELS[f"reduce_{_op}_f32"] = Kernel("reduce", _outer, _reduction(_op, "f32"))
    KERNELS[f"reduce_{_op}_i64"] = Kernel("reduce", _outer, _reduction(_op, "i32"), element="i32")
for _op in ("argmax", "argmin"):
    KERNELS[f"{_op}_f32"] = Kernel("arg_reduce", _outer, _better(_op, "f32"))
    KERNELS[f"{_op}_i64"] = Kernel("arg_reduce", _outer, _better(_op, "i32"), element="i32")
for _bytes in (1, 4, 8):  # which all are held in four
    KERNELS[f"where_b{_bytes}"] = Kernel("nest", _ELEMENTS, _where, ("rank",))
for _name in [*abi.elementwise(), *(name for name in abi.kernels() if name.startswith("cast_"))]:
    if _name in functions():
        KERNELS[_name] = Kernel("nest", _ELEMENTS, _nest(_name), ("rank",))


def kernel_of(step: Step) -> Kernel:
    """The kernel of a step: that of few rows for products with codes or gates, too, which have one name in lowering."""
    few = KERNELS.get(step.kernel.replace("gemm_", "gemv_", 1))
    return KERNELS[step.kernel] if few is None or _number(step.fields, "m") > _FEW_ROWS else few
