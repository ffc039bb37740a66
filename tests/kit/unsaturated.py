"""Models of integers whose sums ONNX Runtime makes exactly on every CPU.

Its kernels for uint8 times int8 add pairs of products in 16 bits where a CPU has no VNNI, and saturate. Its kernels for
uint8 times uint8 do not: weights and their zero points that are raised by 128 say the same.
"""

import numpy as np
import onnx
from onnx import numpy_helper

_RAISED = 128
# Among the inputs of a product: its weight, that one's zero point, and what says of which dtype the other operand is.
_PLACES = {
    "QLinearConv": (3, 5, (0, 2)), "QLinearMatMul": (3, 5, (0, 2)), "QGemm": (3, 5, (0, 2)),
    "ConvInteger": (1, 3, (0, 2)), "MatMulInteger": (1, 3, (0, 2)), "MatMulIntegerToFloat": (1, 5, (0, 4)),
    "DynamicQuantizeMatMul": (1, 3, (0,)),
}  # fmt: skip


def with_unsigned_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, whose products with stored int8 weights have uint8 ones, but for those of int8 with int8."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    dtypes = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    dtypes |= {name: tensor.data_type for name, tensor in stored.items()}
    for number, node in enumerate(graph.node):
        weight, zero, beside = _PLACES.get(node.op_type, (0, 0, ()))
        if not beside or node.input[weight] not in stored or dtypes[node.input[weight]] != onnx.TensorProto.INT8:
            continue
        if onnx.TensorProto.INT8 in (dtypes.get(node.input[i]) for i in beside if i < len(node.input)):
            continue
        node.input.extend([""] * (zero + 1 - len(node.input)))
        for place in (weight, zero):
            name = node.input[place]
            array = numpy_helper.to_array(stored[name]).astype(np.int16) if name else np.zeros((), np.int16)
            node.input[place] = f"raised.{number}.{place}"
            graph.initializer.append(numpy_helper.from_array((array + _RAISED).astype(np.uint8), node.input[place]))
    return made
