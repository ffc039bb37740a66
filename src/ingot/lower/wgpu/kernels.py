"""The kernels of WebGPU devices: for each a body of shaders/, its number of workgroups, and the text a step adds to it.

Their steps, argument structs and names are those of the CPU's kernel rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ingot.ir.dtype import f32
from ingot.lower.cpu import fourier
from ingot.lower.cpu.formats import BF16, CODES, F16, F32, PANEL
from ingot.lower.formats import Format
from ingot.lower.lowered import Field, Step
from ingot.lower.wgpu.fused import fused_arguments, fused_groups, fused_text
from ingot.lower.wgpu.wgsl import LANES, Argument, floating, functions
from ingot.support import abi

Numbers = Mapping[str, Field]

PANEL_FORMATS = (F32, BF16, F16, *CODES)  # the weight formats of products
_FAR = 1 << 30
_FEW_ROWS = 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """A WGSL kernel: a body of shaders/ and the text that a step adds to it.

    groups: the number of workgroups, from the fields of a step, and thus from the sizes of a run. text: functions that
    a step adds. baked: fields that are compiled into the text as constants, because they select the computation.
    element: the type of the elements read and written. more: additional numbers of a step that its struct does not
    have. library: a file with functions that the body calls. is_alone: whether the kernel needs all workgroup memory,
    so that no other kernel shares its dispatch.
    """

    body: str
    groups: Callable[[Numbers], int]
    text: Callable[[Numbers], str] = lambda fields: ""
    baked: tuple[str, ...] = ()
    element: str = "f32"
    more: tuple[str, ...] = ()
    library: str = ""
    is_alone: bool = False

    @property
    def bodies(self) -> list[str]:
        """The kernel's files of shaders/."""
        return [name for name in (self.body, self.library) if name]

    def arguments(self, step: Step) -> list[Argument]:
        """Return the fields of a step's struct in order, including omitted ones."""
        if step.args_type == "fused_args":
            return fused_arguments(step.fields)
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
    """Clamp a number to beyond all sizes but within 32 bits, such as the offset of a mask that hides nothing."""
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
    """Return the workgroups with one lane for each of the product of these fields or arrays."""

    def groups(fields: Numbers) -> int:
        counts = [
            math.prod(_numbers(fields, name)) if isinstance(fields.get(name), tuple) else _number(fields, name)
            for name in names
        ]
        return -(-math.prod(counts) // LANES)

    return groups


def _by_rows(*names: str) -> Callable[[Numbers], int]:
    """Return one workgroup for each of the product of these fields."""
    return lambda fields: math.prod(_number(fields, name) for name in names)


def _tiles(fields: Numbers, columns: int, rows: int) -> int:
    """Return the tiles of a product of m rows and n columns, for all batches."""
    batch = math.prod(_numbers(fields, "batch_shape")) if "batch_shape" in fields else 1
    return batch * -(-_number(fields, "n") // columns) * -(-_number(fields, "m") // rows)


_MOST_ROWS = 8  # per lane, with four columns each: sums, factors and offsets fit in registers


def _lane_rows(fields: Numbers, rows: int) -> int:
    """Return the rows that a lane computes if a workgroup computes `rows` times as many: at most the existing rows."""
    count, m = 1, _number(fields, "m")
    while count < _MOST_ROWS * 8 // rows and count * rows < m:
        count *= 2
    return count


def _gemm_tiles(columns: int, rows: int) -> Callable[[Numbers], int]:
    return lambda fields: _tiles(fields, columns, rows * _lane_rows(fields, rows))


def _add_rows(rows: int, element: str, term: str = "Term") -> str:
    """Return the inner statement of a product: add element i of several rows, times four columns.

    element: the expression of a row's element at an offset. term: the type of the arithmetic. The loop over rows is
    unrolled, because drivers do not unroll loops over values that must stay in registers.
    """
    sums, offsets = f"ptr<function, array<vec4<{term}>, ROWS>>", "ptr<function, array<i32, ROWS>>"
    given = f"sum: {sums}, a: {offsets}, i: i32, those: vec4<f32>"
    lines = [f"  (*sum)[{r}] += {term}({element.format(f'(*a)[{r}]')}) * four;" for r in range(rows)]
    begin = f"const ROWS: i32 = {rows};\n\nfn add_rows({given}) {{\n  let four = vec4<{term}>(those);"
    return "\n".join((begin, *lines, "}"))


def _gemm_rows(rows: int) -> Callable[[Numbers], str]:
    """Return the inner statement of a product whose workgroups compute `rows` times the rows of a lane."""
    return lambda fields: _add_rows(_lane_rows(fields, rows), "at_a({0} + i)")


def _pixels(fields: Numbers) -> str:
    return _add_rows(4, "select(0.0f, at_x(max({0}, 0) + i), {0} >= 0)", "f32")


def _filter_tiles(fields: Numbers) -> int:
    pixels = math.prod(_number(fields, name) for name in ("batch", "out_height", "out_width"))
    groups = _number(fields, "groups")
    return groups * -(-(_number(fields, "out_channels") // groups) // 32) * -(-pixels // 32)


def _expert_panels(fields: Numbers) -> int:
    return _number(fields, "rows") * _number(fields, "slots") * -(-_number(fields, "n") // 32)


def _panel_lanes(fields: Numbers) -> int:
    """Return the workgroups with a lane for each element of panels."""
    return -(-(-(-_number(fields, "n") // PANEL) * _number(fields, "k") * PANEL) // LANES)


def _lines(fields: Numbers) -> int:
    """Return the workgroups with a lane for each line along an axis."""
    axis = _number(fields, "axis")
    return -(-math.prod(dim for d, dim in enumerate(_numbers(fields, "shape")) if d != axis) // LANES)


def _outer(fields: Numbers) -> int:
    return math.prod(_numbers(fields, "outer_shape"))


# -- text that steps add to bodies ------------------------------------------------------------------------------


def _nest(function: str) -> Callable[[Numbers], str]:
    """Emit the store of a loop nest that applies a function of elementwise.wgsl."""

    def text(fields: Numbers) -> str:
        known = functions()[function]
        operands = dict(zip(known.parameters, "abc", strict=False))
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
    """Emit a cast without a kernel of its own: from and to 8-bit integers, whose storage dtype is wider."""
    source, target = (
        abi.constant_names("INGOT_DTYPE_")[_number(fields, name)].removeprefix("INGOT_DTYPE_")
        for name in ("from", "to")
    )
    if target == "f32":
        return _store("set_out(out, f32(int_a(a)))")
    x = "select(i32(at_a(a)), 0, is_nan(at_a(a)))" if source == "f32" else "int_a(a)"
    if target == "bool":
        return _store(f"set_int_out(out, i32({x} != 0))")
    if limits := {"u8": (0, 255), "i8": (-128, 127)}.get(target):
        sign = "i32" if target == "i8" else "u32"
        wrapped = f"i32(extractBits({sign}({x}), 0u, 8u))"
        return _store(f"set_int_out(out, {f'clamp({x}, {limits[0]}, {limits[1]})' if source == 'f32' else wrapped})")
    return _store(f"set_int_out(out, {x})")


def _activation(function: str, number: int, values: Mapping[str, Field]) -> str:
    """Emit an activation function. number: its INGOT_ACT_*. values: its attributes."""
    name = abi.constant_names("INGOT_ACT_")[number].removeprefix("INGOT_ACT_")
    if name == "none":
        return f"fn {function}(x: f32) -> f32 {{ return x; }}"
    numbers = []
    for parameter in list(functions()[f"{name}_f32"].parameters)[1:]:
        value = values[parameter]
        assert isinstance(value, float)
        numbers.append(floating(value))
    return f"fn {function}(x: f32) -> f32 {{ return {name}_f32({', '.join(['x', *numbers])}); }}"


def _activate(fields: Numbers) -> str:
    """Emit the activation of an epilogue."""
    values = {name: fields[f"act_{name}"] for name in ("alpha", "beta") if f"act_{name}" in fields}
    return _activation("activate", _number(fields, "activation"), values)


def _cell(op: str) -> Callable[[Numbers], str]:
    """Emit the cell of a recurrent layer, and its activations."""
    given = "gates: i32, h: i32, unit: i32, own: i32"
    cell = f"fn cell({given}) -> f32 {{ return {op}_cell(gates, h, unit, own); }}"

    def text(fields: Numbers) -> str:
        alphas, betas = fields["act_alpha"], fields["act_beta"]
        assert isinstance(alphas, tuple) and isinstance(betas, tuple)
        activations = [
            _activation(f"activate_{i}", number, {"alpha": alphas[i], "beta": betas[i]})
            for i, number in enumerate(_numbers(fields, "activation"))
        ]
        return "\n\n".join((cell, *activations))

    return text


_FFT_ENDS = {
    "PLAIN": ("given(line, i)", "loaded(x, i)"),
    "SPLIT": ("given(line, i)", "parted(x, i)"),
    "JOIN": ("joined(line, i)", "loaded(x, i)"),
    "MIRROR": ("mirrored(line, i)", "loaded(x, i)"),
}


def _fft_load_store(fields: Numbers) -> str:
    """Emit the load of the first pass and the store of the last pass."""
    forms = {abi.constant(f"INGOT_FFT_{name}"): load_store for name, load_store in _FFT_ENDS.items()}
    first, last = forms[_number(fields, "form")]
    return (
        f"fn first(line: vec2<i32>, i: i32) -> vec2<f32> {{ return {first}; }}\n\n"
        f"fn last(x: i32, i: i32) -> vec2<f32> {{ return {last}; }}\n\n"
        f"const NARROW: i32 = {fourier.LANES[f32]};"
    )


def _merged(element: str) -> Callable[[Numbers], str]:
    """Emit how scatter combines an element with an update."""

    def text(fields: Numbers) -> str:
        merge = abi.constant_names("INGOT_MERGE_")[_number(fields, "merge")].removeprefix("INGOT_MERGE_")
        merged = "y" if merge == "none" else f"{_COMBINED[_SCATTERED[merge]][element][0]}(x, y)"
        return f"fn merged(x: T, y: T) -> T {{ return {merged}; }}"

    return text


def _is_better(fields: Numbers) -> str:
    """Emit the comparison of two votes of trees."""
    sign = "<" if fields.get("merge") == abi.constant("INGOT_MERGE_min") else ">"
    return f"fn is_better(x: f32, y: f32) -> bool {{ return x {sign} y; }}"


_SUMS, _FLOATS, _SIGNED = (abi.constant(f"INGOT_INTEGER_{name}") for name in ("I32", "F32", "I8"))


def _leave(pointer: str) -> Callable[[Numbers], str]:
    """Emit the integer epilogue (requantize, add residual); `pointer` is the destination."""

    def text(fields: Numbers) -> str:
        result, residual = _number(fields, "result"), _number(fields, "residual_type")
        quantized = f"set_int_{pointer}(offset, code_of_sum(y))"
        left = {_SUMS: f"set_int_{pointer}(offset, sum)", _FLOATS: f"set_{pointer}(offset, y)"}.get(result, quantized)
        kind = "float" if residual == _FLOATS else "quantized"
        return "\n\n".join(
            (
                f"fn leave(offset: i32, sum: i32, y: f32) {{ {left}; }}",
                f"const least: f32 = {'-128.0f' if result == _SIGNED else '0.0f'};",
                f"fn residual_of(offset: i32) -> f32 {{ return {kind}_residual(offset); }}",
                _activate(fields),
            )
        )

    return text


def _weight_of(kind: str) -> Callable[[Numbers], str]:
    given = "part: i32, channel: i32, ky: i32, kx: i32, c: i32"
    text = f"fn weight_of({given}) -> i32 {{ return {kind}_weight(part, channel, ky, kx, c); }}"
    return lambda fields: text


def _reduction(op: str, element: str, finish: str = "x") -> Callable[[Numbers], str]:
    combine, neutral = _COMBINED[op][element]

    def text(fields: Numbers) -> str:
        return "\n\n".join(
            (
                f"fn combine(x: T, y: T) -> T {{ return {combine}(x, y); }}",
                f"fn neutral() -> T {{ return {neutral}; }}",
                f"fn finish(x: T, count: i32) -> T {{ return {finish}; }}",
                f"fn of_subgroup(x: T) -> T {{ return {op}_of_subgroup_{element}(x); }}",
            )
        )

    return text


_SCATTERED = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_COMBINED = {
    "sum": {"f32": ("add_f32", "0.0f"), "i32": ("add_i64", "0")},
    "prod": {"f32": ("mul_f32", "1.0f"), "i32": ("mul_i64", "1")},
    "max": {"f32": ("maximum_f32", "-infinity()"), "i32": ("maximum_i64", "i32(-2147483647 - 1)")},
    "min": {"f32": ("minimum_f32", "infinity()"), "i32": ("minimum_i64", "2147483647")},
}


def _better(op: str, element: str) -> Callable[[Numbers], str]:
    """Emit whether one element is selected over another; the first NaN wins."""
    sign = ">" if op == "argmax" else "<"
    test = f"x {sign} y" if element == "i32" else f"select(x {sign} y && !is_nan(y), !is_nan(y), is_nan(x))"
    return lambda fields: f"fn better(x: T, y: T) -> bool {{ return {test}; }}"


def _element_of(kind: str) -> Callable[[Numbers], str]:
    """Emit how a table's row elements are read."""
    text = f"fn element_of(outer: i32, row: i32, i: i32) -> i32 {{ return {kind}_element(outer, row, i); }}"
    return lambda fields: text


def _panels(format: Format, matrix: str = "b", k: str = "k") -> Callable[[Numbers], str]:
    """Emit how elements of packed panels are read. matrix: the pointer. k: the field with the number of rows."""

    def four(offset: str) -> str:
        reads = ", ".join(f"int_{matrix}({offset} + {i})" for i in range(4))
        return f"bitcast<vec4<u32>>(vec4<i32>({reads}))"

    if format is F32:
        words = "k * 32"
        lines = [f"return bitcast<vec4<f32>>({four('panel + i * 32 + column')});"]
    elif format is BF16:
        words = "(k + 1) / 2 * 32"
        lines = [f"return bf16_of({four('panel + i / 2 * 32 + column')}, i);"]
    elif format is F16:
        words = "(k + 1) / 2 * 32"
        lines = [
            "let offset = panel + i * 16 + column / 2;",
            f"let two = unpack2x16float(u32(int_{matrix}(offset)));",
            f"return vec4<f32>(two, unpack2x16float(u32(int_{matrix}(offset + 1))));",
        ]
    else:
        bits, span = format.dtype.bits, format.shared.elements // format.packed.elements
        value_words, shared = format.packed.nbytes * PANEL // 4, format.shared.nbytes * PANEL // 4
        group = format.shared.elements
        words = f"(k + 31) / 32 * {value_words} + (k + {group - 1}) / {group} * {shared}"
        zero = f"{1 << bits - 1}.0f"
        if format.scales is f32:
            scales, scale_words = f"bitcast<vec4<f32>>({four('scales + column')})", PANEL
        else:
            halves = (f"unpack2x16float(u32(int_{matrix}(scales + column / 2 + {i})))" for i in range(2))
            scales, scale_words = f"vec4<f32>({', '.join(halves)})", PANEL // 2
        if format.zeros:
            zero = f"zeros_of(u32(int_{matrix}(scales + {scale_words} + column / 4))) / {256 >> bits}.0f"
        rows = f"i % {4 * value_words // 32}"
        lines = [
            "let block = i / 32;",
            f"let group = panel + block / {span} * {span * value_words + shared};",
            f"let scales = group + min({span}, (arg_{k}() + 31) / 32 - block / {span} * {span}) * {value_words};",
            f"let offset = group + block % {span} * {value_words} + {rows} / 4 * 32 + column;",
            f"let code = code_of({four('offset')}, i % 32, {bits});",
            f"return (code - {zero}) * {scales};",
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
    """Emit the key by which topk selects the largest elements."""
    text = f"fn key(x: T) -> i32 {{ let best = {key}; return select(~best, best, arg_largest() != 0); }}"
    return lambda fields: text


def _slot_offset(kind: str) -> Callable[[Numbers], str]:
    text = f"fn slot_offset(slot: i32, d: i32) -> i32 {{ return {kind}_offset(slot, d); }}"
    return lambda fields: text


def _share(value: str) -> Callable[[Numbers], str]:
    """Emit the output of softmax from an element's distance to the largest element, and from the sum."""
    return lambda fields: f"fn share(x: f32, total: f32) -> f32 {{ return {value}; }}"


def _is_centred(text: str) -> Callable[[Numbers], str]:
    return lambda fields: f"const is_centred: bool = {text};"


# -- the table --------------------------------------------------------------------------------------------------

_EPILOGUE = ("activation", "act_alpha", "act_beta", "residual_first")
_ELEMENTS = _by_lanes("shape")
_PIXELS = ("batch", "out_height", "out_width")

KERNELS: dict[str, Kernel] = {
    "fused_f32": Kernel("", fused_groups, fused_text),
    "matmul_f32": Kernel("matmul", _gemm_tiles(32, 8), _together(_activate, _gemm_rows(8)), (*_EPILOGUE, "batch_rank")),
    "softmax_f32": Kernel("softmax", _by_rows("rows"), _share("exp_f32(x) / total")),
    "log_softmax_f32": Kernel("softmax", _by_rows("rows"), _share("x - log_f32(total)")),
    "layer_norm_f32": Kernel("norm", _by_rows("rows"), _is_centred("true")),
    "rms_norm_f32": Kernel("norm", _by_rows("rows"), _is_centred("false")),
    "reduce_mean_f32": Kernel("reduce", _outer, _reduction("sum", "f32", "x / f32(count)")),
    "cumsum_f32": Kernel("running", _by_lanes("outer", "inner"), _reduction("sum", "f32")),
    "cumprod_f32": Kernel("running", _by_lanes("outer", "inner"), _reduction("prod", "f32")),
    "cumsum_i64": Kernel("running", _by_lanes("outer", "inner"), _reduction("sum", "i32"), element="i32"),
    "cumprod_i64": Kernel("running", _by_lanes("outer", "inner"), _reduction("prod", "i32"), element="i32"),
    "checked_index": Kernel("checked_index", _by_lanes("count"), element="i32"),
    "gather_elements_i64": Kernel("gather_elements", _ELEMENTS, baked=("rank", "axis")),
    "topk_f32": Kernel("topk", _by_rows("rows"), _key("float_key(x)")),
    "topk_i64": Kernel("topk", _by_rows("rows"), _key("x"), element="i32"),
    "topk_i32": Kernel("topk", _by_rows("rows"), _key("x"), element="i32"),
    "append_keys_f32": Kernel("append", _by_rows("rows", "kv_heads"), _slot_offset("keys")),
    "append_values_f32": Kernel("append", _by_rows("rows", "kv_heads"), _slot_offset("values")),
    "rotary_f32": Kernel("rotary", lambda f: -(-_by_rows("batch", "heads", "rows", "head_dim")(f) // (2 * LANES))),
    "conv2d_f32_packed": Kernel("conv_packed", _filter_tiles, _together(_activate, _pixels), _EPILOGUE),
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
    "pack_f32": Kernel("pack", _panel_lanes),
    "fft_f32": Kernel("fft", lambda f: math.prod(_numbers(f, "shape")), _fft_load_store, ("radices",)),
    "det_f32": Kernel("det", _by_lanes("count")),
    "product_i64": Kernel("product", _ELEMENTS, baked=("rank",), element="i32"),
    "tree_ensemble_f32": Kernel("trees", _by_lanes("rows"), _is_better),
    "scatter_b": Kernel("scatter", _lines, _merged("i32"), ("rank", "axis"), element="i32"),
    "scatter_f32": Kernel("scatter", _lines, _merged("f32"), ("rank", "axis")),
    "scatter_i64": Kernel("scatter", _lines, _merged("i32"), ("rank", "axis"), element="i32"),
    "integer_packed": Kernel(
        "integer_conv", _by_lanes(*_PIXELS, "out_channels"), _together(_leave("out"), _weight_of("packed"))
    ),
    "integer_depthwise": Kernel(
        "integer_conv", _by_lanes(*_PIXELS, "out_channels"), _together(_leave("out"), _weight_of("depthwise"))
    ),
    "integer_matmul": Kernel("integer_matmul", _by_lanes("batch_shape", "m", "n"), _leave("c"), ("batch_rank",)),
    "quantize_u8": Kernel("nest", _ELEMENTS, _nest("quantize_u8"), ("rank",)),
    "quantize_i8": Kernel("nest", _ELEMENTS, _nest("quantize_i8"), ("rank",)),
    "dequantize_u8": Kernel("nest", _ELEMENTS, _nest("dequantize"), ("rank",)),
    "dequantize_i8": Kernel("nest", _ELEMENTS, _nest("dequantize"), ("rank",)),
    "dequantize_i32": Kernel("nest", _ELEMENTS, _nest("dequantize"), ("rank",)),
    "dynamic_quantize_f32": Kernel("dynamic_quantize", lambda fields: 1),
    "convert": Kernel("nest", _ELEMENTS, _convert, ("rank", "from", "to", "saturate", "rounding")),
    "copy_b4": Kernel("nest", _ELEMENTS, _nest("copy_b"), ("rank",)),
}
_LOOKED_UP = _by_lanes("outer", "count", "inner")
for _name, _kind in (("i64", "rows"), ("i32", "rows"), ("bf16", "bf16_rows"), ("f16", "f16_rows")):
    KERNELS[f"gather_{_name}"] = Kernel("gather", _LOOKED_UP, _element_of(_kind), more=("begin", "end"))
for _format in PANEL_FORMATS:
    assert _format.products is not None
    _name, _own = _format.products, _together(_activate, _panels(_format))
    _wide, _halved = _together(_own, _gemm_rows(8)), _together(_own, _gemm_rows(16))
    KERNELS[f"gemm_{_name}_packed"] = Kernel("gemm_packed", _gemm_tiles(32, 8), _wide, _EPILOGUE)
    KERNELS[f"gemv_{_name}_packed"] = Kernel("gemv_packed", lambda f: _tiles(f, 32, 1), _own, _EPILOGUE)
    KERNELS[f"gemm_{_name}_gated"] = Kernel("gemm_gated", _gemm_tiles(16, 16), _halved, (*_EPILOGUE, "gate"))
    KERNELS[f"gemv_{_name}_gated"] = Kernel("gemv_gated", lambda f: _tiles(f, 16, 1), _own, (*_EPILOGUE, "gate"))
    KERNELS[f"expert_matmul_{_name}_packed"] = Kernel("experts", _expert_panels, _panels(_format, "experts"))
    for _op in ("lstm", "gru", "rnn") if _format.scales is None else ():
        _own = _together(_cell(_op), _panels(_format, "weights", "hidden"))
        KERNELS[f"{_op}_{_name}_packed"] = Kernel("recurrent", _by_rows("batch"), _own)
    _own = _together(_element_of("panels"), _panels(_format, "table", "inner"))
    KERNELS[f"gather_{_format.tables}_panels"] = Kernel("gather", _LOOKED_UP, _own, more=("begin", "end"))
for _op in ("sum", "prod", "max", "min"):
    KERNELS[f"reduce_{_op}_f32"] = Kernel("reduce", _outer, _reduction(_op, "f32"))
    KERNELS[f"reduce_{_op}_i64"] = Kernel("reduce", _outer, _reduction(_op, "i32"), element="i32")
for _name in [name for name, kernel in KERNELS.items() if kernel.body == "reduce"]:
    KERNELS[f"{_name}_few"] = replace(KERNELS[_name], body="reduce_few", groups=lambda f: -(-_outer(f) // LANES))
for _op in ("argmax", "argmin"):
    KERNELS[f"{_op}_f32"] = Kernel("arg_reduce", _outer, _better(_op, "f32"))
    KERNELS[f"{_op}_i64"] = Kernel("arg_reduce", _outer, _better(_op, "i32"), element="i32")
for _name in ("i64", "u8", "i8"):
    KERNELS[f"max_pool_{_name}"] = Kernel(
        "pool", _by_lanes(*_PIXELS, "channels"), _reduction("max", "i32"), element="i32"
    )
for _bytes in (1, 4, 8):  # stored in four bytes each
    KERNELS[f"where_b{_bytes}"] = Kernel("nest", _ELEMENTS, _where, ("rank",))
for _name in [*abi.elementwise(), *(name for name in abi.kernels() if name.startswith("cast_"))]:
    if _name in functions():
        KERNELS[_name] = Kernel("nest", _ELEMENTS, _nest(_name), ("rank",))


def kernel_of(step: Step) -> Kernel:
    """Return the kernel of a step.

    Some products have one name in lowering for few and many rows, and some reductions one name for few and many
    elements; this picks the kernel of few.
    """
    short = KERNELS.get(f"{step.kernel}_few")
    if short is not None and math.prod(_numbers(step.fields, "reduced_shape")) <= LANES:
        return short
    few = KERNELS.get(step.kernel.replace("gemm_", "gemv_", 1))
    return KERNELS[step.kernel] if few is None or _number(step.fields, "m") > _FEW_ROWS else few


def scratch_floats(kernel: str, fields: Numbers) -> int:
    """Return the f32 scratch that all workgroups of a step need together."""
    if kernel == "fft_f32":
        return math.prod(_numbers(fields, "shape")) * 4 * _number(fields, "length")
    return _number(fields, "count") * _number(fields, "n") ** 2 if kernel == "det_f32" else 0
