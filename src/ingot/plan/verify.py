"""The independent plan verifier: it shares no code with the planner and runs on every plan.

It replays the steps with a map from bytes to the tensors that own them, and asserts; a failure is a bug of Ingot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import product as cartesian
from math import prod
from typing import Any

from ingot.lower.lowered import FAULT, Lowered, Pointer, Step, Tensor
from ingot.lower.view import View
from ingot.plan.memory import Plan


class PlanError(AssertionError):
    """A plan that would compute wrong results or touch foreign memory."""


def verify(lowered: Lowered, plan: Plan) -> None:
    """Check a plan against its steps. Raises PlanError that names the wrong step or tensor."""
    if sorted(map(id, plan.steps)) != sorted(map(id, lowered.steps)):
        _fail(f"the plan has {len(plan.steps)} steps, which differ from the {len(lowered.steps)} lowered steps")
    reaches = _reaches(plan)
    _verify_places(lowered, plan)
    _verify_views(lowered, plan, reaches)
    _verify_pointers(lowered, plan, reaches)
    _verify_lifetimes(lowered, plan)
    _verify_outputs(lowered, plan)
    _verify_barriers(lowered, plan)


def _fail(what: str) -> None:
    raise PlanError(what)


def _verify_places(lowered: Lowered, plan: Plan) -> None:
    """Check that tensors are aligned inside regions of their kind, that regions fit the target, and `_verify_apart`."""
    ports = [view.tensor for views in (lowered.inputs, lowered.outputs, lowered.states) for view in views.values()]
    for tensor_id in dict.fromkeys([*ports, *(tensor for step in plan.steps for tensor in _touched(step))]):
        tensor = lowered.tensors[tensor_id]
        if tensor_id not in plan.addresses:
            _fail(f"{tensor_id} has no address")
        address = plan.addresses[tensor_id]
        if address.offset % lowered.target.alignment:
            _fail(f"{tensor_id} is at {address.offset}, not a multiple of {lowered.target.alignment}")
        if address.offset < 0 or address.offset + tensor.nbytes > plan.regions[address.region]:
            _fail(f"{tensor_id} does not fit in {address.region}")
        wanted = _REGIONS.get(tensor.kind, f"{tensor.kind}:{tensor.name}")
        number = address.region.removeprefix(wanted)
        if not address.region.startswith(wanted) or (number and not (":" not in wanted and number.isdecimal())):
            _fail(f"{tensor_id} is a {tensor.kind} in {address.region}")
        if tensor.replaces is not None:
            old = lowered.tensors[tensor.replaces]
            if old.kind != "state" or plan.addresses[old.id] != address or old.nbytes != tensor.nbytes:
                _fail(f"{tensor_id} is the update of {old.id} at another address")
    for region, size in plan.regions.items():
        if size > lowered.target.region_bytes:
            _fail(f"{region} has {size} bytes, more than the target's {lowered.target.region_bytes}")
    _verify_apart(lowered, plan)


_REGIONS = {"activation": "arena", "scratch": "arena", "weight": "weights", "state": "state", "update": "state"}


def _verify_apart(lowered: Lowered, plan: Plan) -> None:
    """Check that weights, states, inputs and outputs keep their bytes for the complete run: no two of them overlap."""
    end: dict[str, tuple[int, str]] = {}
    state_invariant = [
        t for t in lowered.tensors.values() if t.kind in ("input", "output", "weight", "state") and t.nbytes
    ]
    placed = [(plan.addresses[t.id], t) for t in state_invariant if t.id in plan.addresses]
    for address, tensor in sorted(placed, key=lambda each: (each[0].region, each[0].offset)):
        before, other = end.get(address.region, (0, ""))
        if address.offset < before:
            _fail(f"{tensor.id} and {other} share bytes of {address.region}")
        end[address.region] = address.offset + tensor.nbytes, tensor.id


# The half-open range of elements that each view of a plan covers, by the view's id.
_Reaches = Mapping[int, tuple[int, int]]


def _reaches(plan: Plan) -> _Reaches:
    found = {}
    for step in plan.steps:
        for view in (*step.reads, *step.writes):
            low, high = _elements(view.shape, view.strides)
            found[id(view)] = view.offset + low, view.offset + high
    return found


def _verify_views(lowered: Lowered, plan: Plan, reaches: _Reaches) -> None:
    """Check that views stay inside their roots (packed weights: inside their bytes); no step writes constant data."""
    for index, step in enumerate(plan.steps):
        for view in (*step.reads, *step.writes):
            tensor = lowered.tensors[view.tensor]
            low, high = reaches[id(view)]
            if low != high and (low < 0 or view.dtype.nbytes(high) > tensor.nbytes):
                _fail(f"step {index} {step.kernel}: {view} leaves its tensor of {tensor.nbytes} bytes")
        for view in step.writes:
            if lowered.tensors[view.tensor].kind in ("input", "weight", "state"):
                _fail(f"step {index} {step.kernel} writes {lowered.tensors[view.tensor].kind} {view.tensor}")
            if any(s == 0 and d > 1 for d, s in zip(view.shape, view.strides, strict=True)):
                _fail(f"step {index} {step.kernel} writes through a broadcast view")
        if not step.writes:
            _fail(f"step {index} {step.kernel} writes nothing")


def _elements(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the half-open range of element offsets that a loop nest touches, relative to its first element."""
    low = high = 0
    for dim, stride in zip(shape, strides, strict=True):
        if dim == 0:
            return 0, 0
        if stride > 0:
            high += (int(dim) - 1) * stride
        elif stride:
            low += (int(dim) - 1) * stride
    return low, high + 1


def _verify_pointers(lowered: Lowered, plan: Plan, reaches: _Reaches) -> None:
    """Check that a kernel's pointers stay inside the reads and writes of its step, as far as its struct shows."""
    known: dict[tuple[Any, ...], list[tuple[int, int]]] = {}  # shared by steps that differ only in addresses
    for index, step in enumerate(plan.steps):
        read, written = _spans(lowered, step, reaches)
        pointers, numbers = _split_fields(step)
        form = (step.kernel, *step.fields, *numbers)
        if (found := known.get(form)) is None:
            extents = _extents(step.args_type, step.kernel)
            found = known[form] = [
                _elements(*extents[name](step.fields, i)) if name in extents else (0, 1) for name, i, _ in pointers
            ]
        for (name, _, pointer), (first, last) in zip(pointers, found, strict=True):
            low, high = _bytes(lowered.tensors[pointer.tensor], first, last)
            low, high = pointer.byte_offset + low, pointer.byte_offset + high
            for begin, end in (read.get(pointer.tensor, _NOWHERE), written.get(pointer.tensor, _NOWHERE)):
                if (begin <= low and high <= end) or (begin <= end and (low == high or begin == end)):
                    break
            else:
                _fail(f"step {index} {step.kernel}: {name} covers {low}..{high} of {pointer.tensor}, not its views")


def _split_fields(step: Step) -> tuple[list[tuple[str, int, Pointer]], list[Any]]:
    """Return the pointers of a step into tensors, each with its field and its index, and the values of other fields."""
    pointers: list[tuple[str, int, Pointer]] = []
    numbers: list[Any] = []
    for name, value in step.fields.items():
        kind = value.__class__
        if kind is int or kind is float:  # the most common case
            numbers.append(value)
            continue
        for i, each in enumerate(value if kind is tuple else (value,)):  # type: ignore[arg-type]
            if each.__class__ is not Pointer:
                numbers.append(each)
            elif each.tensor != FAULT:  # type: ignore[union-attr]
                pointers.append((name, i, each))  # type: ignore[arg-type]
                numbers.append(Pointer)
    return pointers, numbers


@functools.cache
def _extents(args_type: str, kernel: str) -> Mapping[str, _Extent]:
    """Return the extents of the pointers of a struct in a kernel, by field."""
    return _EXTENTS.get(args_type, {}) | _EXTENTS.get(kernel, {})


_NOWHERE = (0, -1)  # no span: empty ranges are in none


def _bytes(tensor: Tensor, low: int, high: int) -> tuple[int, int]:
    """Return the bytes of elements from `low` to `high`; in panels of blocks, an element is a fraction of a block."""
    packed_weight = tensor.packed_weight
    if packed_weight is None or packed_weight.layout == "raw" or packed_weight.panels.type is None:
        return tensor.dtype.span(low, high)
    block = packed_weight.panels.packed
    return low // block.elements * block.nbytes, block.size(high)


_Spans = dict[str, tuple[int, int]]  # bytes of tensors, by id


def _spans(lowered: Lowered, step: Step, reaches: _Reaches) -> tuple[_Spans, _Spans]:
    """Return the bytes of each tensor that a step's views read, and write."""
    read: _Spans = {}
    written: _Spans = {}
    for spans, views in ((read, step.reads), (written, step.writes)):
        for view in views:
            packed_weight = lowered.tensors[view.tensor].packed_weight
            # Views of packed weights describe the packed value, not its layout.
            if packed_weight is not None and packed_weight.layout != "raw":
                spans[view.tensor] = 0, packed_weight.nbytes
                continue
            low, high = view.dtype.span(*reaches[id(view)])
            known = spans.get(view.tensor)
            spans[view.tensor] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
    if step.scratch is not None:
        written[step.scratch] = 0, lowered.tensors[step.scratch].nbytes
    return read, written


def _verify_lifetimes(lowered: Lowered, plan: Plan) -> None:
    """Replay the steps: a read must find the bytes of its tensor, as the tensor's writer left them.

    States exist from the start; the old value of a state is gone after its update has been written over it.
    """
    last_use: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        for tensor in _touched(step):
            last_use[tensor] = index
    alive: dict[str, dict[str, tuple[int, int]]] = {region: {} for region in plan.regions}  # bytes by tensor
    for tensor in [t.id for t in lowered.tensors.values() if t.kind == "state"]:
        address = plan.addresses[tensor]
        alive[address.region][tensor] = (address.offset, address.offset + lowered.tensors[tensor].nbytes)
    for index, step in enumerate(plan.steps):
        for view in step.reads:
            if lowered.tensors[view.tensor].kind in ("input", "weight") or not view.size:
                continue
            if view.tensor not in alive[plan.addresses[view.tensor].region]:
                _fail(f"step {index} {step.kernel} reads {view.tensor}, not written or overwritten")
        for tensor in dict.fromkeys([v.tensor for v in step.writes] + ([step.scratch] if step.scratch else [])):
            address = plan.addresses[tensor]
            low, high = address.offset, address.offset + lowered.tensors[tensor].nbytes
            owners = alive[address.region]
            overlapped = [o for o, (begin, end) in owners.items() if begin < high and low < end and o != tensor]
            for other in overlapped:
                if lowered.tensors[other].kind == "state" and lowered.tensors[tensor].replaces != other:
                    _fail(f"step {index} {step.kernel} writes {tensor} over {other}, which must be retained")
                if last_use.get(other, -1) > index or (
                    last_use.get(other) == index and not _legal_inplace(step, other, tensor)
                ):
                    _fail(f"step {index} {step.kernel} writes {tensor} over {other}, which is still in use")
                del owners[other]
            owners[tensor] = low, high
    for name, view in lowered.states.items():
        if view.size and view.tensor not in alive[plan.addresses[view.tensor].region]:
            _fail(f"state {name} ends without its update {view.tensor}")


def _touched(step: Step) -> list[str]:
    tensors = [v.tensor for v in (*step.reads, *step.writes)] + ([step.scratch] if step.scratch else [])
    return list(dict.fromkeys(tensors))


def _legal_inplace(step: Step, source: str, target: str) -> bool:
    """Return whether a result of a step may overlap an operand: the same elements, and no other read of the operand.

    This is allowed for the first result if the kernel permits it, and for every result that the kernel changes only
    partially.
    """
    writes = [i for i, view in enumerate(step.writes) if view.tensor == target]
    readers = [i for i, view in enumerate(step.reads) if view.tensor == source]
    if len(writes) != 1 or len(readers) != 1:
        return False
    partner = len(step.reads) - step.keeps + writes[0]
    if readers[0] != partner if step.keeps else writes[0] != 0 or readers[0] not in step.inplace:
        return False
    read, write = step.reads[readers[0]], step.writes[writes[0]]
    return (read.offset, read.shape, read.strides) == (write.offset, write.shape, write.strides)


def _verify_outputs(lowered: Lowered, plan: Plan) -> None:
    """Check that outputs are complete row-major tensors, and that all elements of outputs and updates are written."""
    roots = [view.tensor for view in lowered.outputs.values()]
    if len(set(roots)) != len(roots):
        _fail("two outputs share a tensor")
    written: dict[str, int] = {}
    for step in plan.steps:
        for view in step.writes:
            written[view.tensor] = written.get(view.tensor, 0) + view.size
    for name, view in lowered.outputs.items():
        tensor = lowered.tensors[view.tensor]
        if tensor.kind != "output" or not view.is_contiguous or view.offset:
            _fail(f"output {name} is not a root tensor of its own")
    results = [*lowered.outputs.items(), *((n, v) for n, v in lowered.states.items() if v.tensor in written)]
    for name, view in results:
        if written.get(view.tensor, 0) < view.size:
            _fail(f"output {name} has {view.size} elements, {written.get(view.tensor, 0)} are written")
    for tensor in lowered.tensors.values():
        if tensor.kind == "state" and tensor.name not in lowered.states:
            _fail(f"state {tensor.name} has no value after the run")


def _verify_barriers(lowered: Lowered, plan: Plan) -> None:
    """Check that two steps that touch the same bytes, one writing, have a barrier in between or run on one thread."""
    barriers = [i for i, barrier in enumerate(plan.barriers) if barrier]
    if len(plan.barriers) != len(plan.steps):
        _fail("barriers and steps differ in number")
    window: dict[bool, list[int]] = {True: [], False: []}  # steps since the last barrier: of one task, of several
    for index, step in enumerate(plan.steps):
        if plan.barriers[index]:
            window = {True: [], False: []}
        serial = step.parts == 1
        others = window[False] if serial else window[False] + window[True]
        window[serial].append(index)
        for earlier in others:
            if _collide(lowered, plan, plan.steps[earlier], step):
                _fail(f"steps {earlier} and {index} touch the same bytes without a barrier ({barriers[:5]}...)")


def _collide(lowered: Lowered, plan: Plan, a: Step, b: Step) -> bool:
    def spans(step: Step, views: tuple[View, ...], scratch: bool) -> list[tuple[str, int, int]]:
        found = []
        for view in views:
            start = plan.addresses[view.tensor]
            reach = [(int(d) - 1) * s for d, s in zip(view.shape, view.strides, strict=True)]
            if 0 in view.shape:
                continue
            below, above = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
            low, high = view.dtype.span(view.offset + below, view.offset + above + 1)
            found.append((start.region, start.offset + low, start.offset + high))
        if scratch and step.scratch:
            start = plan.addresses[step.scratch]
            found.append((start.region, start.offset, start.offset + lowered.tensors[step.scratch].nbytes))
        return found

    a_writes, b_writes = spans(a, a.writes, True), spans(b, b.writes, True)
    pairs = [
        *cartesian(a_writes, b_writes),
        *cartesian(a_writes, spans(b, b.reads, False)),
        *cartesian(spans(a, a.reads, False), b_writes),
    ]
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x, y in pairs)


# -- memory of kernels ---------------------------------------------------------------------------------------------

# The loop nest, (shape, strides), that a kernel runs over a pointer, from the fields of its argument struct and the
# pointer's index in its field. A struct or pointer that is missing here does not specify enough.
_Nest = tuple[Sequence[int], Sequence[int]]
_Extent = Callable[[Mapping[str, Any], int], _Nest]


def _strided(shape: str, strides: str) -> _Extent:
    """Use fields of these names; one stride per dim, the last may be omitted if adjacent. Numbers are constants."""

    dim_names, stride_names = _names(shape), _names(strides)

    def nest(fields: Mapping[str, Any], _: int) -> _Nest:
        dims, steps = _numbers(fields, dim_names), _numbers(fields, stride_names)
        if len(steps) < len(dims):
            steps.append(1)
        return dims, steps

    return nest


def _names(text: str) -> list[str | int]:
    return [int(name) if name.isdecimal() else name for name in text.split()]


def _numbers(fields: Mapping[str, Any], names: Sequence[str | int]) -> list[int]:
    found: list[int] = []
    for name in names:
        value: Any = fields.get(name, 0) if name.__class__ is str else name
        if value.__class__ is tuple:
            found += value
        else:
            found.append(value)
    return found


def _dense(*names: str) -> _Extent:
    """Return consecutive elements, as many as the product of the fields."""
    each = _names(" ".join(names))
    return lambda fields, _: ([prod(_numbers(fields, each))], [1])


def _scales_and_mins(dim: str) -> _Extent:
    """Return the scales and mins of groups of 32 dims of a 4-bit cache."""
    return lambda fields, _: ([prod(_numbers(fields, ["total_blocks", "kv_heads"])) * -(-fields[dim] // 32) * 128], [1])


def _fused_memory(fields: Mapping[str, Any], i: int) -> _Nest:
    strides = [fields[name][i] for name in ("outer_strides", "row_strides", "col_steps")]
    return [fields["outer"], fields["rows"], fields["cols"]], strides


def _panels(fields: Mapping[str, Any], _: int) -> _Nest:
    columns = fields["n"] * (2 if fields.get("gate") else 1)
    return [-(-columns // 32) * 32 * fields["k"]], [1]


def _panels_transposed(fields: Mapping[str, Any], i: int) -> _Nest:
    return _panels({"n": fields["k"], "k": fields["n"]}, i)


def _bias(fields: Mapping[str, Any], _: int) -> _Nest:
    return [fields["n"] * (2 if fields.get("gate") else 1)], [1]


def _packed(fields: Mapping[str, Any], _: int) -> _Nest:
    return [-(-fields["n"] // 32) * 32 * fields["k"]], [1]


def _pixels(fields: Mapping[str, Any]) -> int:
    return prod(_numbers(fields, ["batch", "out_height", "out_width"]))


def _shared_state(whole: int, halves: int) -> _Extent:
    """Return `whole` or `halves` times [batch, hidden], for iterations of a time step or of half a step."""
    return lambda fields, _: (
        [(whole if fields["linear_before_reset"] else halves) * fields["batch"] * fields["hidden"]],
        [1],
    )


_ROWS = {"x": _strided("rows cols", "x_stride"), "out": _strided("rows cols", "out_stride")}
_SLOTS = {"positions": _dense("rows"), "owners": _dense("rows"), "slots": _dense("sequences")}
_PLACES = {"positions": _dense("rows"), "owners": _dense("rows"), "blocks": _dense("sequences", "blocks_each")}
_QUADS = {"cache": _dense("total_blocks", "kv_heads", "dim", "32"), "scales": _scales_and_mins("dim")}
# By argument struct; or by kernel name, if a kernel has another dtype.
_EXTENTS: dict[str, dict[str, _Extent]] = {
    "elementwise_args": {name: _strided("shape", f"{name}_strides") for name in ("a", "b", "c", "out")},
    "fused_args": {"memory": _fused_memory},
    "reduce_args": {
        "x": _strided("outer_shape reduced_shape", "outer_strides reduced_strides"),
        "out": _dense("outer_shape"),
    },
    "norm_args": _ROWS | {"weight": _dense("cols"), "bias": _dense("cols")},
    "softmax_args": _ROWS,
    "norm_gradient_args": {
        **{name: _strided("rows cols", f"{name}_stride") for name in ("x", "d", "dx")},
        **{name: _dense("cols") for name in ("weight", "dweight", "dbias")},
    },
    "cross_entropy_args": _ROWS | {"labels": _dense("rows"), "d": _dense("rows")},
    "cross_entropy_f32": {"out": _dense("rows")},
    "topk_args": {"x": _ROWS["x"], "out": _dense("rows", "k"), "indices": _dense("rows", "k")},
    "repeated_ngrams_args": {"tokens": _strided("rows length", "stride"), "out": _dense("rows", "vocab")},
    "gemm_args": {
        "a": _strided("m k", "a_stride"), "b": _panels, "bias": _bias,
        "residual": _strided("m n", "residual_stride"), "c": _strided("m n", "c_stride"),
        "rounded": _strided("m n", "rounded_stride"),
    },
    **{
        f"gemm_f32_{format}{group}{zeros}_transposed": {"b": _panels_transposed}
        for format, group, zeros in cartesian(("int8", "int4"), ("", "_128"), ("", "_zp"))
    },
    "gemm_f32_int8_row_transposed": {"b": _panels_transposed},
    "pack_args": {"src": _strided("n k", "n_stride k_stride"), "dst": _packed},
    "matmul_args": {
        "a": _strided("batch_shape m k", "a_batch_strides a_stride"),
        "b": _strided("batch_shape k n", "b_batch_strides b_k_stride b_n_stride"), "bias": _dense("n"),
        "residual": _strided("batch_shape m n", "residual_batch_strides residual_stride"),
        "c": _strided("batch_shape m n", "c_batch_strides c_stride"),
    },
    "matmul_tn_f32": {"a": _strided("batch_shape k m", "a_batch_strides a_stride")},
    "adamw_args": {name: _dense("count") for name in ("parameter", "mean", "square", "gradient")},
    "sgd_args": {name: _dense("count") for name in ("parameter", "velocity", "gradient")},
    "conv_filter_args": {
        "x": _strided("batch height width channels", "x_strides"),
        "d": lambda fields, _: ([_pixels(fields), fields["out_channels"]], [fields["d_stride"], 1]),
        "out": _dense("out_channels", "channels", "kernel_h", "kernel_w"),
    },
    "filter_points_args": {
        "weight": _strided("out_channels channels 3 3", "strides"),
        "out": lambda fields, _: ([16 * -(-fields["out_channels"] // 32) * 32 * fields["channels"]], [1]),
    },
    "max_pool_gradient_args": {
        "x": _strided("batch height width channels", "x_strides"),
        "d": _strided("batch out_height out_width channels", "d_strides"),
        "out": _strided("batch height width channels", "out_strides"),
    },
    "attention_args": {
        "q": _strided("batch heads q_len head_dim", "q_strides"),
        "k": _strided("batch kv_heads kv_len head_dim", "k_strides"),
        "v": _strided("batch kv_heads kv_len v_dim", "v_strides"),
        "out": _strided("batch heads q_len v_dim", "out_strides"),
        "mask": _strided("batch heads q_len kv_len", "mask_strides"),
    },
    "attention_gradient_args": {
        name: _strided(f"batch {shape}", f"{name}_strides")
        for shape, names in (
            ("heads q_len head_dim", ("q", "dq")), ("kv_heads kv_len head_dim", ("k", "dk")),
            ("kv_heads kv_len v_dim", ("v", "dv")), ("heads q_len v_dim", ("d",)),
        )
        for name in names
    },
    "append_args": _PLACES | {
        "x": _strided("rows kv_heads dim", "x_strides"), "cache": _dense("total_blocks", "kv_heads", "dim", "64"),
        "scales": _dense("total_blocks", "kv_heads", "64"),
    },
    "cached_attention_args": _PLACES | {
        "q": _strided("rows heads head_dim", "q_strides"), "out": _strided("rows heads v_dim", "out_strides"),
        "keys": _dense("total_blocks", "kv_heads", "head_dim", "64"),
        "values": _dense("total_blocks", "kv_heads", "v_dim", "64"),
        "key_scales": _dense("total_blocks", "kv_heads", "64"),
        "value_scales": _dense("total_blocks", "kv_heads", "64"), "sinks": _dense("heads"),
        "biases": _dense("heads", "blocks_each", "64"),
    },
    "append_keys_i4": _QUADS, "append_values_i4": _QUADS,
    "cached_attention_i4": {
        "keys": _dense("total_blocks", "kv_heads", "head_dim", "32"), "key_scales": _scales_and_mins("head_dim"),
        "values": _dense("total_blocks", "kv_heads", "v_dim", "32"), "value_scales": _scales_and_mins("v_dim"),
    },
    "rotary_args": {
        name: _strided("batch heads rows head_dim", f"{name}_strides") for name in ("x", "cos", "sin", "out")
    },
    "recurrent_args": {
        "gates": _strided("steps batch columns", "gates_strides"),
        "weights": lambda fields, i: _packed({"n": fields["columns"], "k": fields["hidden"]}, i),
        "out": _strided("steps batch hidden", "out_strides"),
        **{name: _dense("batch", "hidden") for name in ("h", "c", "last_h", "last_c", "rounded_h")},
        "bias": _dense("columns"), "peepholes": _dense("3", "hidden"), "lengths": _dense("batch"),
        "state": _shared_state(2, 4), "rounded": _shared_state(2, 3),
    },
    "recurrent_f64_args": {
        "gates": _strided("steps batch columns", "gates_strides"), "weights": _dense("columns", "hidden"),
        "out": _strided("steps batch hidden", "out_strides"),
        **{name: _dense("batch", "hidden") for name in ("h", "c", "last_h", "last_c")},
        "bias": _dense("columns"), "peepholes": _dense("3", "hidden"), "lengths": _dense("batch"),
        "state": _shared_state(2, 4),
    },
    "linear_attention_args": {
        **{name: _dense("batch", "steps", "heads", "k_dim") for name in ("q", "k")},
        **{name: _dense("batch", "steps", "heads", "v_dim") for name in ("v", "out")},
        **{name: _dense("batch", "heads", "k_dim", "v_dim") for name in ("state", "last")},
        "decay": _dense("batch", "steps", "heads", "decay_dim"), "beta": _dense("batch", "steps", "heads"),
    },
    "causal_conv_args": _SLOTS | {
        **{name: _strided("rows channels", f"{name}_stride") for name in ("x", "out")},
        "weight": _dense("taps", "channels"), "bias": _dense("channels"),
        "state": lambda fields, _: ([fields["total_slots"] * (fields["taps"] - 1) * fields["channels"]], [1]),
    },
    "selective_scan_args": _SLOTS | {
        **{name: _strided("rows channels", f"{name}_stride") for name in ("x", "steps", "out")},
        **{name: _strided("rows size", f"{name}_stride") for name in ("b", "c")},
        "decay": _dense("size", "channels"), "skip": _dense("channels"),
        "state": _dense("total_slots", "size", "channels"),
    },
    "linear_attention_of_rows_args": _SLOTS | {
        **{name: _dense("rows", "groups", "k_dim") for name in ("q", "k")},
        **{name: _dense("rows", "heads", "v_dim") for name in ("v", "out")},
        "state": _dense("total_slots", "heads", "k_dim", "v_dim"),
        "decay": _dense("rows", "heads", "decay_dim"), "beta": _dense("rows", "heads"),
    },
    "linear_recurrence_args": _SLOTS | {
        **{name: _strided("rows channels", f"{name}_stride") for name in ("x", "decay", "out")},
        "state": _dense("total_slots", "channels"),
    },
    "wkv_args": _SLOTS | {
        **{name: _strided("rows channels", f"{name}_stride") for name in ("k", "v", "out")},
        "decay": _dense("channels"), "first": _dense("channels"), "state": _dense("total_slots", "3", "channels"),
    },
    "expert_args": {
        "x": _strided("rows slots k", "x_strides"), "chosen": _dense("rows", "slots"),
        "out": _dense("rows", "slots", "n"),
    },
}  # fmt: skip
