"""Models of opsets before the oldest native one, through ONNX's version converter."""

from __future__ import annotations

import onnx
from onnx import checker, version_converter

from ingot.errors import LoadError, UnsupportedError

_KEPT_BYTES = 1024


def upgrade(proto: onnx.ModelProto, opset: int, where: str) -> onnx.ModelProto:
    """The model at a newer opset. Weights do not pass through the converter, which copies and may drop them.

    The checker goes first: the converter trusts what it is given. Raises LoadError or UnsupportedError.
    """
    stripped = onnx.ModelProto()
    stripped.CopyFrom(proto)
    declared = {i.name for i in proto.graph.input}
    weights = [t for t in proto.graph.initializer if t.ByteSize() > _KEPT_BYTES or t.external_data]
    kept = [t for t in proto.graph.initializer if t.ByteSize() <= _KEPT_BYTES and not t.external_data]
    added = [t for t in weights if t.name not in declared]
    del stripped.graph.initializer[:]
    stripped.graph.initializer.extend(kept)
    stripped.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in added)
    try:
        checker.check_model(stripped)
        converted = version_converter.convert_version(stripped, opset)
    except checker.ValidationError as error:
        raise LoadError(f"{where}: malformed, {str(error)[:300]}") from error
    except (RuntimeError, version_converter.ConvertError, ValueError) as error:
        raise UnsupportedError(f"{where}: cannot be converted to opset {opset}, {str(error)[:300]}") from error
    added_names = {t.name for t in added}
    inputs = [i for i in converted.graph.input if i.name not in added_names]
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.graph.initializer.extend(weights)
    return converted
