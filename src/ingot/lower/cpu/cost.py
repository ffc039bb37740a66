"""The minimum cost of a step on a CPU: the operations of its kernel, and the bytes of its views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from ingot.lower.cost import Cost, view_bytes
from ingot.lower.lowered import Field, Lowered, Step


def cost(lowered: Lowered, step: Step) -> Cost:
    """Return the cost of one step of a lowered program; for symbolic sizes, the cost of the largest run."""
    count = FLOPS.get(step.args_type)
    weights = [view for view in step.reads if lowered.tensors[view.tensor].kind == "weight"]
    rest = [view for view in (*step.reads, *step.writes) if lowered.tensors[view.tensor].kind != "weight"]
    weight_bytes = sum(map(view_bytes, weights))
    if step.args_type == "gather_args":  # a gather reads only as many bytes of its table as it writes
        weight_bytes = min(weight_bytes, sum(map(view_bytes, step.writes)))
    return Cost(count(step.fields) if count else 0, weight_bytes, sum(map(view_bytes, rest)))


Numbers = Mapping[str, Field]
FLOPS: dict[str, Callable[[Numbers], int]] = {}


def _flops(args_type: str) -> Callable[[Callable[[Numbers], int]], Callable[[Numbers], int]]:
    """Declare the operation count of every kernel with an argument struct, from the struct's fields."""

    def declare(count: Callable[[Numbers], int]) -> Callable[[Numbers], int]:
        FLOPS[args_type] = count
        return count

    return declare


def _number(fields: Numbers, name: str) -> int:
    value = fields.get(name, 0)
    assert isinstance(value, int), name
    return int(value)


def _product(fields: Numbers, *names: str) -> int:
    return prod(_number(fields, name) for name in names)


@_flops("gemm_args")
def _gemm(fields: Numbers) -> int:
    return (4 if fields.get("gate") else 2) * _product(fields, "m", "n", "k")


@_flops("recurrent_args")
def _recurrent(fields: Numbers) -> int:
    return 2 * _product(fields, "steps", "batch", "columns", "hidden")


@_flops("matmul_args")
@_flops("integer_matmul_args")
def _matmul(fields: Numbers) -> int:
    batch = fields["batch_shape"]
    assert isinstance(batch, tuple)
    return 2 * prod(int(dim) for dim in batch if isinstance(dim, int)) * _product(fields, "m", "n", "k")


@_flops("attention_args")
def _attention(fields: Numbers) -> int:
    """Count both products, over the keys that the causal mask leaves visible."""
    keys, rows = _number(fields, "kv_len"), _number(fields, "q_len")
    scores = keys * rows
    if _number(fields, "causal"):
        offset = _number(fields, "causal_offset")
        scores = sum(min(max(row + offset + 1, 0), keys) for row in range(rows))
    return 2 * _product(fields, "batch", "heads") * scores * (_number(fields, "head_dim") + _number(fields, "v_dim"))


@_flops("conv_args")
@_flops("conv_nchw_args")
@_flops("integer_args")
def _conv(fields: Numbers) -> int:
    outputs = _product(fields, "batch", "out_channels", "out_height", "out_width")
    return 2 * outputs * _product(fields, "channels", "kernel_h", "kernel_w") // _number(fields, "groups")


@_flops("conv_filter_args")
def _conv_filter(fields: Numbers) -> int:
    pixels = _product(fields, "batch", "out_height", "out_width")
    return 2 * pixels * _product(fields, "out_channels", "channels", "kernel_h", "kernel_w")
