"""Models of opsets before the oldest native one, through ONNX's version converter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper, version_converter

from ingot.errors import LoadError, UnsupportedError

_KEPT_BYTES = 1024
_SLOPES_BROADCAST = 7  # the opset from which PRelu's slope broadcasts as numpy does; before, it was one per channel
_OPSET_OF_SCAN = 9  # until then Scan had a batch, which the converter leaves as it is

SCAN_WITH_BATCH = "ingot.opset8"  # the domain that such a node gets


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
    if _opset_of(proto) < _SLOPES_BROADCAST:
        _spread_slopes(converted.graph, "")
    if _opset_of(proto) < _OPSET_OF_SCAN:
        _mark_scans(converted.graph)
    added_names = {t.name for t in added}
    given = {i.name: i for i in proto.graph.input}  # the converter infers shapes anew, of Scan without its batch
    inputs = [given.get(i.name, i) for i in converted.graph.input if i.name not in added_names]
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.graph.initializer.extend(weights)
    return converted


def _spread_slopes(graph: onnx.GraphProto, prefix: str) -> None:
    """Gives each PRelu's slope [C] a dim of 1 for every dim of x after the channels, which the converter does not."""
    nodes = []
    for i, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _spread_slopes(attribute.g, f"{prefix}{i}.")
        if node.op_type == "PRelu" and len(node.input) == 2:
            spread = _spread_slope(node.input[0], node.input[1], f"spread slope {prefix}{i}")
            nodes += spread
            node.input[1] = spread[-1].output[0]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _spread_slope(x: str, slope: str, name: str) -> list[onnx.NodeProto]:
    """The nodes of Reshape(slope, [-1, 1, ...]), with as many ones as x has dims from the third on."""
    one = numpy_helper.from_array(np.ones(1, np.int64))
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Constant", [], {"value_ints": [2]}),
        ("Constant", [], {"value_ints": [2**31]}),
        ("Constant", [], {"value_ints": [-1]}),
        ("Shape", [x], {}),
        ("Slice", [f"{name}/3", f"{name}/0", f"{name}/1"], {}),
        ("Shape", [f"{name}/4"], {}),
        ("ConstantOfShape", [f"{name}/5"], {"value": one}),
        ("Concat", [f"{name}/2", f"{name}/6"], {"axis": 0}),
        ("Reshape", [slope, f"{name}/7"], {}),
    ]
    return [helper.make_node(op, inputs, [f"{name}/{i}"], **given) for i, (op, inputs, given) in enumerate(steps)]


def _opset_of(proto: onnx.ModelProto) -> int:
    """The opset of the default domain."""
    return next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))


def _mark_scans(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.op_type == "Scan" and node.domain in ("", "ai.onnx"):
            node.domain = SCAN_WITH_BATCH
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _mark_scans(attribute.g)
