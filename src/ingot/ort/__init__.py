"""ONNX Runtime's names over Ingot: `import ingot as ort`, or `sys.modules["onnxruntime"] = ingot.ort` for others' code.

`docs/from-onnxruntime.md` has every name, and what differs.
"""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from ingot.ort.absent import (
    AdapterFormat,
    LoraAdapter,
    ModelCompiler,
    OrtAllocatorType,
    OrtArenaCfg,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtEpDevice,
    OrtExecutionProviderDevicePolicy,
    OrtExternalInitializerInfo,
    OrtHardwareDevice,
    OrtHardwareDeviceType,
    OrtMemoryInfo,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
    OrtSyncStream,
    OrtValueVector,
    SessionIOBinding,
    SparseTensor,
    copy_tensors,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_ep_devices,
    preload_dlls,
    register_execution_provider_library,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    unregister_execution_provider_library,
)

if TYPE_CHECKING:
    from ingot.ort.binding import IOBinding
    from ingot.ort.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
    from ingot.ort.session import InferenceSession, ModelMetadata
    from ingot.ort.values import OrtDevice, OrtValue
    from ingot.session.seeds import set_seed
    from ingot.session.source import NodeArg

__all__: list[str] = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelCompiler",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpContextData",
    "OrtEpContextDataBuffer",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
    "version",
]

# Tools that ONNX Runtime ships beside itself, such as `onnxruntime.quantization`, are its own, where it is installed.
_installed = PathFinder.find_spec("onnxruntime")
if _installed is not None:
    __path__ += _installed.submodule_search_locations or []

__version__ = "1.31.1"  # whose calls these are
version = __version__
package_name = "onnxruntime"
cuda_version = ""

# Imported when it is first wanted: name -> its module.
_LATE = {
    "ExecutionMode": "ingot.ort.options",
    "ExecutionOrder": "ingot.ort.options",
    "GraphOptimizationLevel": "ingot.ort.options",
    "IOBinding": "ingot.ort.binding",
    "InferenceSession": "ingot.ort.session",
    "ModelMetadata": "ingot.ort.session",
    "NodeArg": "ingot.session.source",
    "OrtDevice": "ingot.ort.values",
    "OrtValue": "ingot.ort.values",
    "RunOptions": "ingot.ort.options",
    "SessionOptions": "ingot.ort.options",
    "set_seed": "ingot.session.seeds",
}


# Executors by the names that ONNX Runtime has for what they are.
PROVIDERS = {"native": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider"}


def get_available_providers() -> list[str]:
    """The CPU's, the default, and WebGPU's where the package wgpu is installed and finds an adapter."""
    from ingot.run.device import has_adapter

    return [PROVIDERS["native"]] + [PROVIDERS["webgpu"]] * has_adapter()


def get_all_providers() -> list[str]:
    """The CPU's and WebGPU's, whether or not this machine has an adapter."""
    return [*PROVIDERS.values()]


def get_device() -> str:
    """ "CPU"."""
    return "CPU"


def get_version_string() -> str:
    """The version of ONNX Runtime whose calls these are; `ingot.__version__` is Ingot's."""
    return __version__


def get_build_info() -> str:
    """Names Ingot, its version and the instruction set."""
    import ingot
    from ingot.run.library import load

    return f"Ingot {ingot.__version__}, {load().isa()}"


def has_collective_ops() -> bool:
    """False."""
    return False


def print_debug_info() -> None:
    """Prints `get_build_info()`; `ingot doctor` says more."""
    print(get_build_info())


# Type checkers see the imports above in its place.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module 'ingot.ort' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return found
