"""ONNX Runtime's calls that have no effect here, and those that are refused: by class, "" for the module, with reasons.

Other calls are implemented in the modules of this package. `docs/from-onnxruntime.md` is generated from all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ingot.errors import UnsupportedError
from ingot.support.config import debug

Accepts = Callable[..., None]
Refuses = Callable[..., NoReturn]

_ONE_DEVICE = "there is one device, the CPU"
_BY_PROVIDERS = "`providers=` of a session chooses between the CPU and WebGPU"
_NO_LOG = "Ingot writes no log; INGOT_DEBUG=1..5 prints what it does"
_NO_TELEMETRY = "there is none"
_NO_PLUGINS = "add kernels with `ingot.register_op`, see docs/extending.md"
_SPARSE = "tensors are dense"
_NO_ADAPTERS = "merge an adapter into the weights before the export"
_NO_CONTEXT = "`session.save(folder)` saves a compiled program"
_NO_VECTOR = "use `run_with_ort_values`"
_WEIGHTS = "weights belong to the model; external data is read from the file's folder"

ACCEPTED: dict[str, dict[str, str]] = {
    "": {
        "disable_telemetry_events": _NO_TELEMETRY,
        "enable_telemetry_events": _NO_TELEMETRY,
        "preload_dlls": _ONE_DEVICE,
        "set_default_logger_severity": _NO_LOG,
        "set_default_logger_verbosity": _NO_LOG,
        "set_global_thread_pool_sizes": "all sessions share a pool of as many threads as the machine allows",
    },
    "InferenceSession": {
        "disable_fallback": _ONE_DEVICE,
        "enable_fallback": _ONE_DEVICE,
        "set_ep_dynamic_options": _ONE_DEVICE,
        "release_captured_graph": _ONE_DEVICE,
    },
    "SessionOptions": {
        "add_free_dimension_override_by_denotation": "dims are identified by their names",
        "add_provider": _BY_PROVIDERS,
        "add_provider_for_devices": _BY_PROVIDERS,
        "set_provider_selection_policy": _BY_PROVIDERS,
        "set_provider_selection_policy_delegate": _BY_PROVIDERS,
        "clear_ep_context_data_read_func": _NO_CONTEXT,
    },
    "IOBinding": {
        "synchronize_inputs": "inputs are read in place",
        "synchronize_outputs": "a run is complete when it returns",
    },
}

REFUSED: dict[str, dict[str, str]] = {
    "": {
        "AdapterFormat": _NO_ADAPTERS,
        "LoraAdapter": _NO_ADAPTERS,
        "ModelCompiler": _NO_CONTEXT,
        "OrtAllocatorType": _ONE_DEVICE,
        "OrtArenaCfg": "the arena is planned to the byte; `session.plan` shows it",
        "OrtCompileApiFlags": _NO_CONTEXT,
        "OrtDeviceMemoryType": _ONE_DEVICE,
        "OrtDeviceVendorId": _ONE_DEVICE,
        "OrtEpAssignedNode": "`session.explain()` names the kernel of each node",
        "OrtEpAssignedSubgraph": "`session.explain()` names the kernel of each node",
        "OrtEpContextData": _NO_CONTEXT,
        "OrtEpContextDataBuffer": _NO_CONTEXT,
        "OrtEpDevice": _ONE_DEVICE,
        "OrtExecutionProviderDevicePolicy": _ONE_DEVICE,
        "OrtExternalInitializerInfo": _WEIGHTS,
        "OrtHardwareDevice": _ONE_DEVICE,
        "OrtHardwareDeviceType": _ONE_DEVICE,
        "OrtMemType": _ONE_DEVICE,
        "OrtMemoryInfo": _ONE_DEVICE,
        "OrtMemoryInfoDeviceType": _ONE_DEVICE,
        "OrtSparseFormat": _SPARSE,
        "OrtSyncStream": _ONE_DEVICE,
        "OrtValueVector": _NO_VECTOR,
        "SessionIOBinding": "use `session.io_binding()`",
        "SparseTensor": _SPARSE,
        "copy_tensors": "copy the arrays of values",
        "create_and_register_allocator": _ONE_DEVICE,
        "create_and_register_allocator_v2": _ONE_DEVICE,
        "get_ep_devices": _ONE_DEVICE,
        "register_execution_provider_library": _NO_PLUGINS,
        "unregister_execution_provider_library": _NO_PLUGINS,
    },
    "InferenceSession": {
        "get_input_epdevices": _ONE_DEVICE,
        "get_input_memory_infos": _ONE_DEVICE,
        "get_output_memory_infos": _ONE_DEVICE,
        "get_provider_graph_assignment_info": "`session.explain()` names the kernel of each node",
        "get_tuning_results": "kernels are chosen by rules, not by tuning",
        "set_tuning_results": "kernels are chosen by rules, not by tuning",
        "run_with_ortvaluevector": _NO_VECTOR,
    },
    "SessionOptions": {
        "add_external_initializers": _WEIGHTS,
        "add_external_initializers_from_files_in_memory": _WEIGHTS,
        "add_initializer": _WEIGHTS,
        "register_custom_ops_library": _NO_PLUGINS,
        "set_ep_context_data_read_func": _NO_CONTEXT,
        "set_load_cancellation_flag": "a load that takes too long is interrupted by a signal",
    },
    "RunOptions": {"add_active_adapter": _NO_ADAPTERS},
    "OrtValue": {
        "as_sparse_tensor": _SPARSE,
        "ort_value_from_sparse_tensor": _SPARSE,
        "ortvalue_from_numpy_with_onnx_type": "use an array with a dtype of ml_dtypes",
    },
    "IOBinding": {"get_outputs_as_ortvaluevector": _NO_VECTOR},
    "OrtDevice": {"device_mem_type": _ONE_DEVICE, "device_vendor_id": _ONE_DEVICE},
}


class AbsentError(UnsupportedError, AttributeError):
    """An attribute of ONNX Runtime that Ingot does not have."""


def unused(call: str) -> None:
    """Print at INGOT_DEBUG=1 that a call has no effect."""
    if debug() >= 1:
        print(f"onnxruntime: {call} has no effect", file=sys.stderr)


def refusal(call: str, why: str) -> UnsupportedError:
    """Return the error of a refused call."""
    return UnsupportedError(f"onnxruntime: {call} is not supported: {why}")


class Refused(type):
    """Metaclass of refused classes of ONNX Runtime: they can be imported, but every use raises."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]):
        super().__init__(name, bases, namespace)
        cls.__doc__ = f"Refused: {REFUSED[''][name]}."

    def __call__(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise UnsupportedError."""
        raise refusal(cls.__name__, REFUSED[""][cls.__name__])

    def __getattr__(cls, name: str) -> NoReturn:
        raise AbsentError(f"onnxruntime: {cls.__name__}.{name} is not supported: {REFUSED[''][cls.__name__]}")


def accepted(name: str, scope: str = "") -> Accepts:
    """Return a function that accepts any arguments and has no effect. scope: its class, "" for the module."""
    call = f"{scope}.{name}" if scope else name

    def nothing(*arguments: Any, **options: Any) -> None:
        unused(call)

    nothing.__doc__ = f"Does nothing: {ACCEPTED[scope][name]}."
    return nothing


def refused(name: str, scope: str = "") -> Refuses:
    """A function that raises UnsupportedError, with a name in REFUSED. scope: its class, "" for the module."""
    call, why = f"{scope}.{name}" if scope else name, REFUSED[scope][name]

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise refusal(call, why)

    refuse.__doc__ = f"Refused: {why}."
    return refuse


C = TypeVar("C", bound=type)


def completed(cls: C) -> C:
    """Class decorator that adds the methods of the tables; the class declares each, for type checkers."""
    scope = cls.__name__
    for name in ACCEPTED.get(scope, {}):
        setattr(cls, name, accepted(name, scope))
    for name in REFUSED.get(scope, {}):
        setattr(cls, name, refused(name, scope))
    return cls
