"""Models of integers whose sums ONNX Runtime makes exactly on every CPU.

Its kernels for uint8 times int8 add pairs of products in 16 bits where a CPU has no VNNI, and saturate. Its kernels for
uint8 times uint8 do not: weights and their zero points that are raised by 128 say the same.
"""

import numpy as np
import onnx
from onnx import numpy_helper

_RAISED = 128
_INT8, _UINT8 = onnx.TensorProto.INT8, onnx.TensorProto.UINT8
# Among the inputs of an op: its weights, each with its zero point, and the attribute with the dtype of the other
# operand.
_PLACES: dict[str, tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = {
    "QLinearConv": (((3, 5),), (0, 2)), "QLinearMatMul": (((3, 5),), (0, 2)), "QGemm": (((3, 5),), (0, 2)),
    "ConvInteger": (((1, 3),), (0, 2)), "MatMulInteger": (((1, 3),), (0, 2)),
    "MatMulIntegerToFloat": (((1, 5),), (0, 4)), "QAttention": (((1, 7),), (0, 6)),
    "DynamicQuantizeMatMul": (((1, 3),), ()), "DynamicQuantizeLSTM": (((1, 9), (2, 11)), ()),
}  # fmt: skip


def unsigned_weights(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The same model and its inputs, whose products with int8 weights have uint8 ones, but for those of int8 with int8.

    Weights are stored or fed, perhaps transposed, and nothing else reads them.
    """
    if all(node.op_type not in _PLACES for node in proto.graph.node):
        return proto, feeds
    made, fed = onnx.ModelProto(), dict(feeds)
    made.CopyFrom(proto)
    graph = made.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name: value.type.tensor_type for value in graph.input}
    dtypes = {name: type.elem_type for name, type in inputs.items()}
    dtypes |= {name: tensor.data_type for name, tensor in stored.items()}
    transposed = {node.output[0]: node for node in graph.node if node.op_type == "Transpose"}
    for number, node in enumerate(graph.node):
        weights, beside = _PLACES.get(node.op_type, ((), ()))
        if _INT8 in (dtypes.get(node.input[i]) for i in beside if i < len(node.input)):
            continue
        for weight, zero in weights:
            turned = transposed.get(node.input[weight])
            reader, at = (node, weight) if turned is None else (turned, 0)
            if dtypes.get(reader.input[at]) != _INT8:
                continue
            node.input.extend([""] * (zero + 1 - len(node.input)))
            for reads, place in ((reader, at), (node, zero)):
                name = reads.input[place]
                if name in fed:
                    fed[name] = _raised(fed[name])
                    inputs[name].elem_type = _UINT8
                    continue
                array = numpy_helper.to_array(stored[name]) if name else np.zeros((), np.int8)
                reads.input[place] = f"raised.{number}.{weight}.{place}"
                graph.initializer.append(numpy_helper.from_array(_raised(array), reads.input[place]))
    return made, fed


def _raised(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.int16) + _RAISED).astype(np.uint8)
