"""Devices of WebGPU: which adapters there are, the one that INGOT_WGPU_ADAPTER names, and what is made on it once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ingot.config import knob
from ingot.errors import InputError, LimitError, ResourceError
from ingot.locks import OwnedLock
from ingot.lower.wgpu.wgsl import PARAMETER_WORDS, is_read_only

_LIMITS = {
    "binding_bytes": "max-storage-buffer-binding-size",
    "buffer_bytes": "max-buffer-size",
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "workgroup_bytes": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "alignment": "min-storage-buffer-offset-alignment",
}
_BACKENDS = ("Vulkan", "Metal", "DX12")  # not OpenGL, under which limits are lower than WebGPU's
PARAMETER_BYTES = 4 * PARAMETER_WORDS


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a device may be opened of. kind: such as "CPU", "IntegratedGPU". limits: in bytes, or how many."""

    name: str
    kind: str
    backend: str
    limits: dict[str, int]


def adapters() -> list[Adapter]:
    """All adapters of this machine. Raises ResourceError where the package wgpu is not installed."""
    return [_described(adapter) for adapter in _enumerate()]


@dataclass
class Device:
    """An open device; runs on it take turns. Pipelines, by the text of their shaders, stay as long as the process.

    weights: what programs share, by the store that made it. states: their buffers, by the arena that they belong to.
    """

    adapter: Adapter
    gpu: Any
    turn: OwnedLock = field(default_factory=lambda: OwnedLock("run"))
    weights: WeakKeyDictionary[Any, WeakSet[Any]] = field(default_factory=WeakKeyDictionary)
    states: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary)
    _layouts: dict[tuple[bool, ...], Any] = field(default_factory=dict)
    _pipelines: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def bind_layout(self, bindings: Sequence[str]) -> Any:
        """The layout of a bind group of these regions behind the parameters."""
        key = tuple(map(is_read_only, bindings))
        if key in self._layouts:
            return self._layouts[key]
        parameters = {"type": "uniform", "has_dynamic_offset": True, "min_binding_size": PARAMETER_BYTES}
        entries: list[dict[str, Any]] = [{"binding": 0, "visibility": "COMPUTE", "buffer": parameters}]
        for number, is_read in enumerate(key, 1):
            kind = "read-only-storage" if is_read else "storage"
            entries.append({"binding": number, "visibility": "COMPUTE", "buffer": {"type": kind}})
        self._layouts[key] = self.gpu.create_bind_group_layout(entries=entries)
        return self._layouts[key]

    def pipeline(self, text: str, bindings: Sequence[str]) -> Any:
        """The pipeline of a shader. bindings: as it has them."""
        key = text, *map(is_read_only, bindings)
        if key not in self._pipelines:
            module = self.gpu.create_shader_module(code=text)
            compute = {"module": module, "entry_point": "main"}
            layout = self.gpu.create_pipeline_layout(bind_group_layouts=[self.bind_layout(bindings)])
            self._pipelines[key] = self.gpu.create_compute_pipeline(layout=layout, compute=compute)
        return self._pipelines[key]

    def expect_room(self, regions: Mapping[str, int]) -> None:
        """Raises LimitError for a region that the device cannot bind."""
        most = min(self.adapter.limits["binding_bytes"], self.adapter.limits["buffer_bytes"])
        for region, nbytes in regions.items():
            if nbytes > most:
                where = f"expected at most the {most} of {self.adapter.name!r}"
                raise LimitError(f"{region}: too large, got {nbytes} bytes, {where}; see INGOT_WGPU_BINDING_BYTES")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Gives the errors of the device in a block their type. Raises ResourceError."""
        import wgpu

        try:
            yield
        except wgpu.GPUError as error:
            raise ResourceError(f"webgpu: {self.adapter.name!r} failed: {error}") from error

    def buffer(self, nbytes: int, *usages: str) -> Any:
        """A buffer of zeros. Raises ResourceError where the device has no memory for it."""
        import wgpu

        try:
            return self.gpu.create_buffer(size=nbytes, usage="|".join(usages))
        except (wgpu.GPUOutOfMemoryError, wgpu.GPUValidationError) as error:
            most = self.adapter.limits["buffer_bytes"]
            raise ResourceError(f"webgpu: no buffer, got {nbytes} bytes, expected at most {most}: {error}") from error


def open_device() -> Device:
    """The device of the adapter that INGOT_WGPU_ADAPTER names, or of the first; opened once.

    Raises ResourceError where the package wgpu, or any adapter, is missing, InputError for a name that none has.
    """
    return _opened(str(knob("INGOT_WGPU_ADAPTER")))


@functools.cache
def _opened(wanted: str) -> Device:
    found = _enumerate()
    if not found:
        raise ResourceError("webgpu: no adapter, got none, expected a driver of Vulkan such as Mesa's lavapipe")
    names = [_described(adapter).name for adapter in found]
    chosen = [adapter for adapter, name in zip(found, names, strict=True) if wanted.lower() in name.lower()]
    if not chosen:
        raise InputError(f"INGOT_WGPU_ADAPTER: no such adapter, got {wanted!r}, expected part of one of {names}")
    import wgpu

    adapter = _described(chosen[0])
    try:
        limits = {_LIMITS[name]: adapter.limits[name] for name in ("binding_bytes", "buffer_bytes")}
        return Device(adapter, chosen[0].request_device_sync(required_limits=limits))
    except (RuntimeError, wgpu.GPUError) as error:
        raise ResourceError(f"webgpu: {adapter.name!r} gives no device: {error}") from error


@functools.cache
def _enumerate() -> list[Any]:
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except ImportError as error:
        raise ResourceError(f"webgpu: no package wgpu, got {error}; install ingot[gpu]") from error
    set_instance_extras(backends=_BACKENDS)
    return list(wgpu.gpu.enumerate_adapters_sync())


def _described(adapter: Any) -> Adapter:
    info = adapter.info
    limits = {name: int(adapter.limits[limit]) for name, limit in _LIMITS.items()}
    return Adapter(info["device"], info["adapter_type"], info["backend_type"], limits)
