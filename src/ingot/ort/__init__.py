"""ONNX Runtime's API on Ingot: `import ingot as ort`, or for other code `sys.modules["onnxruntime"] = ingot.ort`.

`docs/from-onnxruntime.md` lists every name and the differences.
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

# Tools shipped with ONNX Runtime, such as `onnxruntime.quantization`, are imported from it if it is installed.
_installed = PathFinder.find_spec("onnxruntime")
if _installed is not None:
    __path__ += _installed.submodule_search_locations or []

__version__ = "1.31.1"  # the version of ONNX Runtime's API
version = __version__
package_name = "onnxruntime"
cuda_version = ""

# Names that are imported on first use -> their module.
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
    """Return the CPU's provider, the default, and WebGPU's if the package wgpu is installed and finds an adapter."""
    from ingot.run.device import has_adapter

    return [PROVIDERS["native"]] + [PROVIDERS["webgpu"]] * has_adapter()


def get_all_providers() -> list[str]:
    """Return the providers of CPU and WebGPU, even if this machine has no adapter."""
    return [*PROVIDERS.values()]


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of ONNX Runtime's API; `ingot.__version__` is the version of Ingot."""
    return __version__


def get_build_info() -> str:
    """Return Ingot's version and the instruction set."""
    import ingot
    from ingot.run.library import load

    return f"Ingot {ingot.__version__}, {load().isa()}"


def has_collective_ops() -> bool:
    """Return False."""
    return False


def print_debug_info() -> None:
    """Print `get_build_info()`; `ingot doctor` prints more."""
    print(get_build_info())


# Type checkers see the imports above instead.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module 'ingot.ort' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return found
