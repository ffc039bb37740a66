"""ONNX Runtime's API on Ingot: `import ingot as ort`, or for other code `sys.modules["onnxruntime"] = ingot.ort`.

`docs/from-onnxruntime.md` lists every name and the differences.
"""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder
from typing import Any

from ingot.ort.tables import ACCEPTED, REFUSED, of_module

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


_OWN = (
    "get_all_providers", "get_available_providers", "get_build_info", "get_device", "get_version_string",
    "has_collective_ops", "print_debug_info", "version", "package_name", "cuda_version",
)  # fmt: skip
__all__ = sorted({*_LATE, *_OWN, *ACCEPTED[""], *REFUSED[""]})


def __getattr__(name: str) -> Any:
    if name in _LATE:
        found = getattr(importlib.import_module(_LATE[name]), name)
    elif name in ACCEPTED[""] or name in REFUSED[""]:
        found = of_module(name)
    else:
        raise AttributeError(f"module 'ingot.ort' has no attribute {name!r}")
    globals()[name] = found
    return found
