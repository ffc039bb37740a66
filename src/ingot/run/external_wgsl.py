"""Kernels of registered ops in WGSL: a shader around the user's body, with buffers for operands and results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.errors import ExtensionError, LimitError
from ingot.ir.dtype import from_numpy
from ingot.ir.graph import Op, TensorType
from ingot.lower.wgpu.wgsl import LANES
from ingot.ops.custom import CUSTOM, WgslKernel
from ingot.run.device import READ, Device, mapped, open_device

_MOST_GROUPS = 65535  # of one axis of a grid


def bound_wgsl(op: Op, kernel: WgslKernel) -> Callable[..., tuple[np.ndarray, ...]]:
    """Return a WGSL body as a function with the signature of the op's reference.

    Raises the errors of `open_device`. A call raises ExtensionError for a body that WGSL rejects, LimitError for an
    array that the device cannot bind, ResourceError if the device fails.
    """
    device, operands, ready = open_device(), CUSTOM[op.name].operands, dict[tuple[Any, ...], _Call]()

    def call(*given: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
        types = [None if a is None else TensorType(from_numpy(a.dtype), a.shape) for a in given]
        key = (*map(str, types), *attributes.items())
        with device.lock.once(), device.guarded():
            if key not in ready:
                inferred = op.infer(*types, **attributes)
                results = inferred if isinstance(inferred, tuple) else (inferred,)
                named = dict(zip(operands, types, strict=False))
                ready[key] = _Call(device, op, _shader(kernel, op, named, results, attributes), named, results)
            return ready[key](given)

    return call


class _Call:
    """A shader and buffers for arrays of some types."""

    def __init__(
        self,
        device: Device,
        op: Op,
        text: str,
        operands: Mapping[str, TensorType | None],
        results: Sequence[TensorType],
    ):
        import wgpu

        sizes = [4 * max(_count(t), 1) for t in (*operands.values(), *results) if t is not None]
        most = min(device.adapter.limits["binding_bytes"], device.adapter.limits["buffer_bytes"])
        if max(sizes) > most or len(sizes) > device.adapter.limits["storage_buffers"]:
            expected = f"at most {most} in each of {device.adapter.limits['storage_buffers']}"
            raise LimitError(f"op {op.name!r}: its kernel in WGSL, got arrays of {sizes} bytes, expected {expected}")
        self._device, self._results = device, results
        try:
            module = device.gpu.create_shader_module(code=text)
            kinds = ["read-only-storage"] * (len(sizes) - len(results)) + ["storage"] * len(results)
            layout = device.gpu.create_bind_group_layout(
                entries=[
                    {"binding": i, "visibility": "COMPUTE", "buffer": {"type": kind}} for i, kind in enumerate(kinds)
                ]
            )
            self._pipeline = device.gpu.create_compute_pipeline(
                layout=device.gpu.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": "main"},
            )
        except wgpu.GPUError as error:
            raise ExtensionError(f"op {op.name!r}: its kernel in WGSL was refused: {error}") from error
        usages = ("STORAGE", "COPY_DST", "COPY_SRC")
        self._buffers = [device.buffer(size, *usages) for size in sizes]
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}}
            for i, buffer in enumerate(self._buffers)
        ]
        self._group = device.gpu.create_bind_group(layout=layout, entries=entries)
        groups = -(-_count(results[0]) // LANES)
        self._grid = min(groups, _MOST_GROUPS), -(-groups // _MOST_GROUPS)

    def __call__(self, given: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        arrays = [np.ascontiguousarray(array) for array in given if array is not None]
        for buffer, array in zip(self._buffers, arrays, strict=False):
            if array.size:
                self._device.gpu.queue.write_buffer(buffer, 0, array)
        encoder = self._device.gpu.create_command_encoder()
        created = self._buffers[len(arrays) :]
        for buffer in created:
            encoder.clear_buffer(buffer, 0, buffer.size)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, self._group)
        compute.dispatch_workgroups(*self._grid)
        compute.end()
        read = [self._device.buffer(buffer.size, *READ) for buffer in created]
        for source, target in zip(created, read, strict=True):
            encoder.copy_buffer_to_buffer(source, 0, target, 0, source.size)
        self._device.gpu.queue.submit([encoder.finish()])
        found = [mapped(buffer, buffer.size) for buffer in read]
        return tuple(
            data.view(type.dtype.numpy)[: _count(type)].reshape(type.dims)
            for data, type in zip(found, self._results, strict=True)
        )


def _count(type: TensorType) -> int:
    return math.prod(type.dims)


def _constant(where: str, kind: type, value: float) -> str:
    """Return an attribute as WGSL. Raises ExtensionError for a number that WGSL has no constant for."""
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        with np.errstate(over="ignore"):
            number = np.float32(value)
        if not np.isfinite(number):
            raise ExtensionError(f"{where}: cannot be given to a kernel in WGSL, got {value}, expected a finite f32")
        return f"{number!s}f"
    if not -(2**31) < value < 2**31:
        raise ExtensionError(f"{where}: cannot be given to a kernel in WGSL, got {value}, expected 32 bits")
    return f"i32({value})"


def _shader(
    kernel: WgslKernel,
    op: Op,
    operands: Mapping[str, TensorType | None],
    results: Sequence[TensorType],
    attributes: Mapping[str, Any],
) -> str:
    """Return the body after its declarations.

    For each operand and result: its elements, `count_<name>` and `shape_<name>`; for an optional operand also
    `has_<name>`; for each attribute a constant.
    """
    text, number = "", 0
    names = {**operands, **{f"out{i}": type for i, type in enumerate(results)}}
    for name, type in names.items():
        text += f"const has_{name} = {'false' if type is None else 'true'};\n"
        if type is None:
            continue
        access, element = ("read_write" if name not in operands else "read"), type.dtype.name
        text += f"@group(0) @binding({number}) var<storage, {access}> {name}: array<{element}>;\n"
        text += f"const count_{name} = {_count(type)};\n"
        dims = ", ".join(map(str, type.dims or (1,)))
        text += f"const shape_{name} = array<i32, {max(len(type.dims), 1)}>({dims});\n"
        number += 1
    for name, kind in op.attribute_types.items():
        text += f"const {name} = {_constant(f'op {op.name!r}: attribute {name!r}', kind, attributes[name])};\n"
    return f"""{text}
{kernel.source}

@compute @workgroup_size({LANES})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let i = i32(id.y * {_MOST_GROUPS * LANES}u + id.x);
  if (i < count_out0) {{ work(i); }}
}}
"""
