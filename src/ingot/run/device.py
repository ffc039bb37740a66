"""Devices of WebGPU: which adapters there are, the one that INGOT_WGPU_ADAPTER names, and what is made on it once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ingot.config import knob
from ingot.errors import InputError, ResourceError
from ingot.locks import OwnedLock
from ingot.lower.wgpu.wgsl import PARAMETER_WORDS, READ_ONLY, REGIONS

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
    """All adapters of this machine, which a process of its own looks for: drivers print to stderr as they please, and a
    broken one ends the process.

    Raises ResourceError where the package wgpu is not installed, and where that process failed.
    """
    child = subprocess.run([sys.executable, "-P", "-m", __name__], capture_output=True, text=True, errors="replace")
    if child.returncode == 1:
        raise ResourceError(child.stderr.strip().rpartition("\n")[2])
    if child.returncode:
        raise ResourceError(f"webgpu: a driver ended the process that looked for adapters, got {child.returncode}")
    return [Adapter(**found) for found in json.loads(child.stdout)]


@dataclass
class Device:
    """An open device; runs on it take turns. Pipelines, by the text of their shaders, stay as long as the process.

    weights: buffers that programs share, by the store that made what lies in them, and by what lies where.
    """

    adapter: Adapter
    gpu: Any
    turn: OwnedLock = field(default_factory=lambda: OwnedLock("run"))
    weights: WeakKeyDictionary[Any, WeakValueDictionary[Any, Any]] = field(default_factory=WeakKeyDictionary)
    bind_layout: Any = field(init=False)
    _layout: Any = field(init=False)
    _pipelines: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = {"type": "uniform", "has_dynamic_offset": True, "min_binding_size": PARAMETER_BYTES}
        entries: list[dict[str, Any]] = [{"binding": 0, "visibility": "COMPUTE", "buffer": parameters}]
        for number, region in enumerate(REGIONS, 1):
            kind = "read-only-storage" if region in READ_ONLY else "storage"
            entries.append({"binding": number, "visibility": "COMPUTE", "buffer": {"type": kind}})
        self.bind_layout = self.gpu.create_bind_group_layout(entries=entries)
        self._layout = self.gpu.create_pipeline_layout(bind_group_layouts=[self.bind_layout])

    def pipeline(self, text: str) -> Any:
        """The pipeline of a shader."""
        if text not in self._pipelines:
            module = self.gpu.create_shader_module(code=text)
            compute = {"module": module, "entry_point": "main"}
            self._pipelines[text] = self.gpu.create_compute_pipeline(layout=self._layout, compute=compute)
        return self._pipelines[text]

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
        return Device(adapter, chosen[0].request_device_sync())
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


if __name__ == "__main__":
    try:
        print(json.dumps([asdict(_described(adapter)) for adapter in _enumerate()]))
    except ResourceError as error:
        sys.exit(str(error))
