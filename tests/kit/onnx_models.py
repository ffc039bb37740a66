"""ONNX models for the tests, made in code, and the oracles that run them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from ingot.ir.dtype import from_numpy
from ingot.load.onnx.tensors import DTYPES
from ingot.ops.define import draw
from unsaturated import unsigned_weights

NUMBERS = {dtype.name: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Case:
    """One node. operands: as in op samples, `none` leaves one out, `@name` is the constant of that name.

    version: of another domain's opset.
    """

    op: str
    operands: str
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    domain: str = ""
    version: int = 1
    outputs: int = 1
    low: float = -2.0
    high: float = 2.0
    oracle: str = "ort"

    def __str__(self) -> str:
        text = f"{self.op}-{self.opset} {self.operands} {self.attributes} {self.constants}"
        return "".join(c if c.isalnum() or c in "-_[],.@" else "_" for c in text)[:100]


def case(op: str, operands: str, outputs: int = 1, opset: int = 18, **rest: Any) -> Case:
    """A case; keyword arguments that are no field of it are attributes, arrays are constants."""
    options = {key: rest.pop(key) for key in ("domain", "version", "low", "high", "oracle") if key in rest}
    constants = {key: value for key, value in rest.items() if isinstance(value, np.ndarray)}
    attributes = {key: value for key, value in rest.items() if key not in constants}
    return Case(op, operands, attributes, constants, opset, outputs=outputs, **options)


def ints(*values: int) -> np.ndarray:
    """An int64 vector."""
    return np.array(values, np.int64)


def value_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """The declaration of an array."""
    return helper.make_tensor_value_info(name, NUMBERS[from_numpy(array.dtype).name], array.shape)


def model(graph: onnx.GraphProto, opset: int = 18, functions: Any = (), **domains: int) -> onnx.ModelProto:
    """A model of a graph; ir_version 10 is what ONNX Runtime reads."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    imports += [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def text_model(body: str, opset: int = 18) -> bytes:
    """A model in ONNX's text form."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>'
    return parser.parse_model(f"{head} {body}").SerializeToString()


def one_node(
    case: Case, rng: np.random.Generator, fed: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """The model of a case and its inputs; the constants among them when they are fed."""
    names, feeds = [], {}
    for i, part in enumerate(case.operands.split()):
        if part == "none":
            names.append("")
        elif part.startswith("@"):
            names.append(part[1:])
        else:
            names.append(f"{part.split('[')[0].split(':')[0]}{i}")
            (feeds[names[-1]],) = draw(part, rng, (case.low, case.high))
    results = [f"result{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, results, "tested", domain=case.domain, **case.attributes)
    constants = [numpy_helper.from_array(value, name) for name, value in case.constants.items() if not fed]
    feeds |= case.constants if fed else {}
    inputs = [value_info(name, array) for name, array in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    domains = {} if case.domain in ("", "com.microsoft") else {case.domain: case.version}
    return model(helper.make_graph([node], case.op, inputs, outputs, constants), case.opset, **domains), feeds


def run_oracle(oracle: str, proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs by ONNX Runtime without optimisation, or by ONNX's reference evaluator."""
    if oracle == "reference":
        return ReferenceEvaluator(proto).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    proto, feeds = unsigned_weights(proto, feeds)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
