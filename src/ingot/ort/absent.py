"""ONNX Runtime's names that do nothing here or are refused, of its module; `tables` has the reason for each."""

from __future__ import annotations

from ingot.ort.tables import Refused, accepted, refused

disable_telemetry_events = accepted("disable_telemetry_events")
enable_telemetry_events = accepted("enable_telemetry_events")
preload_dlls = accepted("preload_dlls")
set_default_logger_severity = accepted("set_default_logger_severity")
set_default_logger_verbosity = accepted("set_default_logger_verbosity")
set_global_thread_pool_sizes = accepted("set_global_thread_pool_sizes")

copy_tensors = refused("copy_tensors")
create_and_register_allocator = refused("create_and_register_allocator")
create_and_register_allocator_v2 = refused("create_and_register_allocator_v2")
get_ep_devices = refused("get_ep_devices")
register_execution_provider_library = refused("register_execution_provider_library")
unregister_execution_provider_library = refused("unregister_execution_provider_library")


class AdapterFormat(metaclass=Refused): ...


class LoraAdapter(metaclass=Refused): ...


class ModelCompiler(metaclass=Refused): ...


class OrtAllocatorType(metaclass=Refused): ...


class OrtArenaCfg(metaclass=Refused): ...


class OrtCompileApiFlags(metaclass=Refused): ...


class OrtDeviceMemoryType(metaclass=Refused): ...


class OrtDeviceVendorId(metaclass=Refused): ...


class OrtEpAssignedNode(metaclass=Refused): ...


class OrtEpAssignedSubgraph(metaclass=Refused): ...


class OrtEpContextData(metaclass=Refused): ...


class OrtEpContextDataBuffer(metaclass=Refused): ...


class OrtEpDevice(metaclass=Refused): ...


class OrtExecutionProviderDevicePolicy(metaclass=Refused): ...


class OrtExternalInitializerInfo(metaclass=Refused): ...


class OrtHardwareDevice(metaclass=Refused): ...


class OrtHardwareDeviceType(metaclass=Refused): ...


class OrtMemType(metaclass=Refused): ...


class OrtMemoryInfo(metaclass=Refused): ...


class OrtMemoryInfoDeviceType(metaclass=Refused): ...


class OrtSparseFormat(metaclass=Refused): ...


class OrtSyncStream(metaclass=Refused): ...


class OrtValueVector(metaclass=Refused): ...


class SessionIOBinding(metaclass=Refused): ...


class SparseTensor(metaclass=Refused): ...
