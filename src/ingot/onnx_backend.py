"""ONNX's backend interface, `onnx.backend.base`: what `onnx.backend.test.BackendTest` and others run models through.

    import ingot.onnx_backend
    results = ingot.onnx_backend.prepare(model).run(inputs)

The package does not import this file, which is the only one that needs `onnx` to be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from ingot.errors import InputError
from ingot.session import InferenceSession


class IngotRep(BackendRep):
    """A model ready to run."""

    def __init__(self, session: InferenceSession):
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs by name, in order, or one alone, as a named tuple.

        Raises InputError for inputs that do not fit the model, and for options.
        """
        _expect_no_options("run", kwargs)
        names = [each.name for each in self.session.get_inputs()]
        if not isinstance(inputs, Mapping):
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(names):
                raise InputError(f"run: wrong number of inputs, got {len(given)}, expected {names}")
            inputs = dict(zip(names, given, strict=True))
        results = self.session.run(None, {name: as_array(value) for name, value in inputs.items()})
        return namedtupledict("Outputs", [each.name for each in self.session.get_outputs()])(*results)


class IngotBackend(Backend):
    """Ingot as ONNX's backend interface asks."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> IngotRep:
        """The model, ready to run; options are those of a session. Raises what `InferenceSession` raises."""
        if not cls.supports_device(device):
            raise InputError(f"device: not supported, got {device!r}, expected 'CPU'")
        return IngotRep(InferenceSession(model.SerializeToString(), **kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepares a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node on arrays, those of inputs that are not left out. outputs_info: dtypes and shapes of outputs.

        Without it they are what ONNX infers. `opset_version` is the one that the node is of; the newest unless given.
        """
        super().run_node(node, inputs, device, outputs_info, **kwargs)  # checks the node
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = list(dict.fromkeys(name for name in node.input if name))
        given = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        feeds = dict(zip(names, map(as_array, given), strict=True))
        declared = [_value_info(name, array.dtype, array.shape) for name, array in feeds.items()]
        infos = zip(node.output, outputs_info or [], strict=False)
        results = [_value_info(name, np.dtype(dtype), shape) for name, (dtype, shape) in infos]
        results = results or [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], node.op_type, declared, results)
        imports = [onnx.helper.make_opsetid("", opset)]
        if node.domain not in ("", "ai.onnx"):
            imports.append(onnx.helper.make_opsetid(node.domain, 1))
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=onnx.IR_VERSION)
        return cls.run_model(model, feeds, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is a CPU."""
        return Device(device).type == DeviceType.CPU


def _expect_no_options(where: str, options: Mapping[str, Any]) -> None:
    if options:
        raise InputError(f"{where}: unknown options, got {sorted(options)}, expected none")


def _value_info(name: str, dtype: np.dtype, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), shape)


def as_array(value: Any) -> Any:
    """A value as sessions take it: numbers and ONNX tensors are arrays, a list is a sequence, text is `str`."""
    if isinstance(value, list):
        return [as_array(each) for each in value]
    if value is None:
        return None
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array if array.dtype.kind not in "SU" else array.astype(object)


prepare = IngotBackend.prepare
run_model = IngotBackend.run_model
run_node = IngotBackend.run_node
supports_device = IngotBackend.supports_device
is_compatible = IngotBackend.is_compatible
