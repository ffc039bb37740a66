"""ONNX's backend interface, `onnx.backend.base`, which `onnx.backend.test.BackendTest` and others use to run models.

    import ingot.integrations.onnx_backend
    results = ingot.integrations.onnx_backend.prepare(model).run(inputs)

The package does not import this module; it is the only one that needs the package `onnx` at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ingot.errors import InputError
from ingot.session.inference import InferenceSession


class IngotRep(BackendRep):
    """A model ready to run."""

    def __init__(self, session: InferenceSession):
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model; return the outputs as a named tuple. inputs: by name, in order, or a single input.

        Raises InputError for inputs that do not fit the model, and for any option.
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
    """Implementation of ONNX's backend interface."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> IngotRep:
        """Prepare a model, given as a message, bytes or file, to run; options are those of a session.

        Raises the errors of `InferenceSession`.
        """
        if not cls.supports_device(device):
            raise InputError(f"device: not supported, got {device!r}, expected 'CPU'")
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        return IngotRep(InferenceSession(source, **kwargs))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
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
        """Run one node on arrays, given by name, or in order without omitted inputs.

        outputs_info: dtypes and shapes of outputs; by default those that ONNX infers. `opset_version`: the version of
        ONNX's own domain, by default the newest. Raises the errors of `InferenceSession`.
        """
        imports = [onnx.helper.make_opsetid("", kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))]
        if node.domain not in ("", "ai.onnx"):
            imports.append(onnx.helper.make_opsetid(node.domain, _newest(node.domain)))
        feeds = {name: as_array(value) for name, value in _by_name(node, inputs).items()}
        declared = [onnx.helper.make_value_info(name, _type_of(value)) for name, value in feeds.items()]
        infos = dict(zip(node.output, outputs_info or (), strict=False))
        results = [_result(name, infos.get(name)) for name in node.output if name]
        graph = onnx.helper.make_graph([node], node.op_type, declared, results)
        model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=onnx.IR_VERSION)
        return cls.run_model(model, feeds, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether the device is a CPU. Unknown devices are not an error: callers may define their own."""
        return device.partition(":")[0] == "CPU"


def _expect_no_options(where: str, options: Mapping[str, Any]) -> None:
    if options:
        raise InputError(f"{where}: unknown options, got {sorted(options)}, expected none")


def _newest(domain: str) -> int:
    """Return the newest version of a domain known to ONNX; 1 for other domains."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return max((each.since_version for each in schemas if each.domain == domain), default=1)


def _by_name(node: onnx.NodeProto, inputs: Any) -> dict[str, Any]:
    """Return the inputs of a node by name. Inputs in order may repeat a value that the node reads twice."""
    read = [name for name in node.input if name]
    names = list(dict.fromkeys(read))
    if isinstance(inputs, Mapping):
        if set(inputs) != set(names):
            raise InputError(f"run_node: wrong inputs, got {sorted(inputs)}, expected {names}")
        return dict(inputs)
    given = [each for each in (inputs if isinstance(inputs, (list, tuple)) else [inputs]) if each is not None]
    if len(given) not in (len(read), len(names)):
        raise InputError(f"run_node: wrong number of inputs, got {len(given)}, expected {names}")
    return dict(zip(read if len(given) == len(read) else names, given, strict=True))


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        if not value:
            raise InputError("run_node: an empty sequence has no known type, got [], expected at least one array")
        return onnx.helper.make_sequence_type_proto(_type_of(value[0]))
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _result(name: str, info: tuple[Any, Sequence[int]] | None) -> onnx.ValueInfoProto:
    if info is None:
        return onnx.ValueInfoProto(name=name)
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(info[0])), info[1])


def as_array(value: Any) -> Any:
    """Return a value as sessions accept it: numbers and ONNX tensors become arrays, lists become sequences."""
    if isinstance(value, list):
        return [as_array(each) for each in value]
    if value is None:
        return None
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    return array if array.dtype.kind != "U" else array.astype(object)


prepare = IngotBackend.prepare
run_model = IngotBackend.run_model
run_node = IngotBackend.run_node
supports_device = IngotBackend.supports_device
is_compatible = IngotBackend.is_compatible
