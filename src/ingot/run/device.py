"""WebGPU devices: list adapters, open the requested one, and cache its pipelines and buffers."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from ingot.errors import InputError, LimitError, ResourceError, UnsupportedError
from ingot.lower.wgpu import wanted_features
from ingot.lower.wgpu.wgsl import F16, FEATURES, PARAMETER_WORDS, SUBGROUPS, enabled, is_read_only
from ingot.support.config import knob
from ingot.support.locks import OwnedLock

_LIMITS = {
    "binding_bytes": "max-storage-buffer-binding-size",
    "buffer_bytes": "max-buffer-size",
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "workgroup_bytes": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "alignment": "min-storage-buffer-offset-alignment",
}
# The features' names in wgpu. It does not know WGSL's `subgroups` yet, and its own feature needs no directive.
_FEATURES = {SUBGROUPS: "subgroup", F16: "shader-f16"}
_ENABLED = (F16,)
_BACKENDS = ("Vulkan", "Metal", "DX12")  # not OpenGL, whose limits are below WebGPU's
PARAMETER_BYTES = 4 * PARAMETER_WORDS
READ = ("MAP_READ", "COPY_DST")  # usages of a buffer that the host reads
_CLOCK = "timestamp-query"
_TIMED = 1024  # dispatches at once: each uses two of a query set's at most 4096 entries
# The result of `encodable`: a pipeline, a bind group, and the offset of the parameters, as values of the library.
Encodable = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that a device can be opened on.

    kind: such as "CPU", "IntegratedGPU". limits: in bytes or counts. features: the FEATURES that it supports.
    """

    name: str
    kind: str
    backend: str
    limits: dict[str, int]
    features: list[str]


def adapters() -> list[Adapter]:
    """List all adapters of this machine in a separate process: drivers may print to stderr or crash the process.

    Raises ResourceError if the package wgpu is not installed or the process failed.
    """
    child = subprocess.run([sys.executable, "-P", "-m", __name__], capture_output=True, text=True, errors="replace")
    if child.returncode == 1:
        raise ResourceError(child.stderr.strip().rpartition("\n")[2])
    if child.returncode:
        raise ResourceError(
            f"webgpu: a driver crashed the process that lists adapters, got exit status {child.returncode}"
        )
    return [Adapter(**found) for found in json.loads(child.stdout)]


@functools.cache
def has_adapter() -> bool:
    """Return whether the package wgpu is installed and finds an adapter; cached in the process."""
    if importlib.util.find_spec("wgpu") is None:
        return False
    try:
        return bool(adapters())
    except ResourceError:
        return False


@dataclass
class Device:
    """An open device; runs on it are serialised by `lock`. Pipelines, by the text of their shaders, are cached for the
    process.

    features: the features that shaders may use. weights: shared by programs, by the store that packed them. states:
    their buffers, by the arena that they belong to.
    """

    adapter: Adapter
    gpu: Any
    features: tuple[str, ...] = ()
    lock: OwnedLock = field(default_factory=lambda: OwnedLock("run"))
    weights: WeakKeyDictionary[Any, WeakSet[Any]] = field(default_factory=WeakKeyDictionary)
    states: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary)
    _layouts: dict[tuple[bool, ...], Any] = field(default_factory=dict)
    _pipelines: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def bind_layout(self, bindings: Sequence[str]) -> Any:
        """Return the layout of a bind group with the parameters, then these regions."""
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
        """Return the pipeline of a shader, cached. bindings: the regions in the shader's order."""
        key = text, *map(is_read_only, bindings)
        if key not in self._pipelines:
            features = [feature for feature in self.features if feature in _ENABLED]
            module = self.gpu.create_shader_module(code=enabled(text, features))
            compute = {"module": module, "entry_point": "main"}
            layout = self.gpu.create_pipeline_layout(bind_group_layouts=[self.bind_layout(bindings)])
            self._pipelines[key] = self.gpu.create_compute_pipeline(layout=layout, compute=compute)
        return self._pipelines[key]

    def expect_bindable(self, regions: Mapping[str, int]) -> None:
        """Raise LimitError for a region that the device cannot bind."""
        most = min(self.adapter.limits["binding_bytes"], self.adapter.limits["buffer_bytes"])
        for region, nbytes in regions.items():
            if nbytes > most:
                where = f"expected at most the {most} of {self.adapter.name!r}"
                raise LimitError(f"{region}: too large, got {nbytes} bytes, {where}; see INGOT_WGPU_BINDING_BYTES")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Convert the device's errors in a block to ResourceError."""
        import wgpu

        try:
            yield
        except (wgpu.GPUError, RuntimeError) as error:  # RuntimeError if a buffer cannot be mapped
            raise ResourceError(f"webgpu: {self.adapter.name!r} failed: {error}") from error

    def buffer(self, nbytes: int, *usages: str) -> Any:
        """Return a buffer of zeros. Raises ResourceError if the device is out of memory."""
        import wgpu

        try:
            return self.gpu.create_buffer(size=nbytes, usage="|".join(usages))
        except (wgpu.GPUOutOfMemoryError, wgpu.GPUValidationError) as error:
            most = self.adapter.limits["buffer_bytes"]
            raise ResourceError(f"webgpu: no buffer, got {nbytes} bytes, expected at most {most}: {error}") from error

    def timed(self, steps: Sequence[Encodable], grids: Sequence[tuple[int, int]]) -> np.ndarray:
        """Run dispatches one after another; return the nanoseconds of each on the device's clock, int64[steps].

        Raises UnsupportedError for a device without one.
        """
        if _CLOCK not in self.gpu.features:
            raise UnsupportedError(f"profile: {self.adapter.name!r} has no clock, expected the feature {_CLOCK}")
        found = [np.zeros(0, np.int64)]
        for begin in range(0, len(steps), _TIMED):
            some = slice(begin, begin + _TIMED)
            found.append(self._timed(steps[some], grids[some]))
        return np.concatenate(found)

    def _timed(self, steps: Sequence[Encodable], grids: Sequence[tuple[int, int]]) -> np.ndarray:
        from wgpu.backends.wgpu_native import lib

        count = 2 * len(steps)
        queries = self.gpu.create_query_set(type="timestamp", count=count)
        ticks, read = self.buffer(8 * count, "QUERY_RESOLVE", "COPY_SRC"), self.buffer(8 * count, *READ)
        encoder = self.gpu.create_command_encoder()
        for number, (step, grid) in enumerate(zip(steps, grids, strict=True)):
            indices = {"beginning_of_pass_write_index": 2 * number, "end_of_pass_write_index": 2 * number + 1}
            compute = encoder.begin_compute_pass(timestamp_writes={"query_set": queries, **indices})
            encode(compute, [step], [grid])
            compute.end()
        encoder.resolve_query_set(queries, 0, count, ticks, 0)
        encoder.copy_buffer_to_buffer(ticks, 0, read, 0, 8 * count)
        self.gpu.queue.submit([encoder.finish()])
        begins, ends = mapped(read, 8 * count).view(np.int64).reshape(-1, 2).T
        return ((ends - begins) * lib.wgpuQueueGetTimestampPeriod(self.gpu.queue._internal)).astype(np.int64)


def encodable(pipeline: Any, group: Any, offset: int) -> Encodable:
    """Return a dispatch for `encode`.

    group: the caller keeps it alive; the device does so for pipelines. offset: the byte offset of the dispatch's
    parameters.
    """
    from wgpu.backends.wgpu_native import ffi

    return pipeline._internal, group._internal, ffi.new("uint32_t[]", [offset])


def encode(compute: Any, steps: Sequence[Encodable], grids: Sequence[tuple[int, int]]) -> None:
    """Record dispatches by direct library calls: the package's overhead may exceed the time of a small dispatch."""
    from wgpu.backends.wgpu_native import lib

    encoder = compute._internal
    for (pipeline, group, offset), (width, height) in zip(steps, grids, strict=True):
        lib.wgpuComputePassEncoderSetPipeline(encoder, pipeline)
        lib.wgpuComputePassEncoderSetBindGroup(encoder, 0, group, 1, offset)
        lib.wgpuComputePassEncoderDispatchWorkgroups(encoder, width, height, 1)


def mapped(buffer: Any, nbytes: int) -> np.ndarray:
    """Return a copy of the first bytes of a buffer, after all submitted work is done."""
    buffer.map_sync("READ_NOSYNC", 0, nbytes)  # "READ" would submit once more to wait for it
    try:
        return np.frombuffer(buffer.read_mapped(0, nbytes), np.uint8)
    finally:
        buffer.unmap()


def open_device() -> Device:
    """Open the device of the adapter named by INGOT_WGPU_ADAPTER, or of the first, with INGOT_WGPU_FEATURES; cached.

    Raises ResourceError if the package wgpu or an adapter is missing, InputError for a name that no adapter has,
    UnsupportedError for a feature that the adapter lacks, and the errors of `wanted_features`.
    """
    return _opened(str(knob("INGOT_WGPU_ADAPTER")), wanted_features())


@functools.cache
def _opened(wanted: str, features: tuple[str, ...]) -> Device:
    found = _enumerate()
    if not found:
        raise ResourceError("webgpu: no adapter, got none, expected a driver of Vulkan such as Mesa's lavapipe")
    names = [_described(adapter).name for adapter in found]
    chosen = [adapter for adapter, name in zip(found, names, strict=True) if wanted.lower() in name.lower()]
    if not chosen:
        raise InputError(f"INGOT_WGPU_ADAPTER: no such adapter, got {wanted!r}, expected part of one of {names}")
    import wgpu

    adapter = _described(chosen[0])
    if missing := [feature for feature in features if feature not in adapter.features]:
        has = f"expected some of {', '.join(adapter.features) or 'none'}"
        raise UnsupportedError(f"INGOT_WGPU_FEATURES: not supported by {adapter.name!r}, got {missing[0]!r}, {has}")
    try:
        asked = [_FEATURES[feature] for feature in features]
        asked += [_CLOCK] if _CLOCK in chosen[0].features else []
        limits = {_LIMITS[name]: adapter.limits[name] for name in ("binding_bytes", "buffer_bytes")}
        gpu = chosen[0].request_device_sync(required_features=asked, required_limits=limits)
        return Device(adapter, gpu, features)
    except (RuntimeError, wgpu.GPUError) as error:
        raise ResourceError(f"webgpu: cannot open a device on {adapter.name!r}: {error}") from error


@functools.cache
def _enumerate() -> list[Any]:
    try:
        import wgpu
        from wgpu.backends.wgpu_native.extras import set_instance_extras
    except ImportError as error:
        raise ResourceError(f"webgpu: no package wgpu, got {error}; install 'ingot-compiler[gpu]'") from error
    set_instance_extras(backends=_BACKENDS)
    return list(wgpu.gpu.enumerate_adapters_sync())


def _described(adapter: Any) -> Adapter:
    info = adapter.info
    limits = {name: int(adapter.limits[limit]) for name, limit in _LIMITS.items()}
    features = [feature for feature in FEATURES if _FEATURES[feature] in adapter.features]
    return Adapter(info["device"], info["adapter_type"], info["backend_type"], limits, features)


if __name__ == "__main__":
    try:
        print(json.dumps([asdict(_described(adapter)) for adapter in _enumerate()]))
    except ResourceError as error:
        sys.exit(str(error))
