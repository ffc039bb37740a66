"""A model without a state as it is served: its inputs and outputs by the names of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.errors import UnsupportedError
from ingot.ir.dtype import DTYPES, DType, from_numpy
from ingot.llm.service import MAX_WAITING
from ingot.serve.batching import MAX_ROWS, Batcher
from ingot.serve.queues import Queued
from ingot.session.inference import InferenceSession
from ingot.session.source import NodeArg

VERSION = "1"  # of every model: a path has one
DATATYPES = {
    "bool": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64", "i8": "INT8", "i16": "INT16",
    "i32": "INT32", "i64": "INT64", "f16": "FP16", "f32": "FP32", "f64": "FP64", "bf16": "BF16", "string": "BYTES",
}  # fmt: skip
_BY_TYPE = {dtype.onnx: dtype for dtype in DTYPES.values() if dtype.name in DATATYPES}


class Plain(Queued):
    """A session with the queue of its runs. Raises UnsupportedError for an input that the protocol has no datatype for.

    rows, max_waiting: those of `Batcher`. inputs: the dtype and shape of each input by its name; a dim is None where it
    may change.
    """

    def __init__(self, name: str, session: InferenceSession, rows: int = MAX_ROWS, max_waiting: int = MAX_WAITING):
        self.name, self.session = name, session
        self.inputs: dict[str, tuple[DType, list[int | None]]] = {}
        for argument in session.get_inputs():
            if argument.type not in _BY_TYPE:
                raise UnsupportedError(
                    f"input {argument.name!r}: cannot be served, got {argument.type}, expected a tensor of "
                    f"{', '.join(DATATYPES)}"
                )
            shape = [dim if isinstance(dim, int) else None for dim in argument.shape]
            self.inputs[argument.name] = _BY_TYPE[argument.type], shape
        self.outputs = [argument.name for argument in session.get_outputs()]
        self.queue: Batcher = Batcher(session, rows, max_waiting)  # last: its thread keeps the session

    @property
    def nbytes(self) -> int:
        """Bytes of weights and activations."""
        report = self.session.bindings
        return report.weight_bytes + report.arena_bytes

    def metadata(self) -> dict[str, Any]:
        """Return the inputs and outputs as the protocol describes them; -1 is a dim that may change.

        An output whose type the model does not declare has the datatype "".
        """
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": "ingot",
            "inputs": [_described(argument) for argument in self.session.get_inputs()],
            "outputs": [_described(argument) for argument in self.session.get_outputs()],
        }


def datatype_of(array: np.ndarray) -> str | None:
    """Return the protocol's name of an array's dtype; None if it has none."""
    return "BYTES" if array.dtype == object else DATATYPES.get(from_numpy(array.dtype).name)


def _described(argument: NodeArg) -> Mapping[str, Any]:
    dtype = _BY_TYPE.get(argument.type)
    shape = [dim if isinstance(dim, int) else -1 for dim in argument.shape]
    return {"name": argument.name, "datatype": "" if dtype is None else DATATYPES[dtype.name], "shape": shape}
