"""ONNX's own tests, and which of them fail.

`python tests/kit/onnx_backend_cases.py` writes the list of these anew.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase as Case
from onnx.backend.test.loader import load_model_tests

from ingot.errors import IngotError
from ingot.integrations.onnx_backend import as_array
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret

# By ONNX's word "for informational purpose": every implementation draws its own numbers, even from one seed.
RANDOM = ("test_bernoulli",)
TWO_BF16_ULPS = 2**-6  # what ONNX's own runner gives bf16, whose cases round after each step of attention
FAILING = Path(__file__).parents[1] / "load" / "onnx_backend_failing.txt"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

Data = tuple[list[Any], list[Any]]  # inputs and outputs: arrays, lists, None


def cases() -> Iterator[tuple[Case, bytes, list[Data]]]:
    """Every case of ONNX that has a model, with the bytes of its model and its data sets."""
    for case in chain.from_iterable(load_model_tests(kind=kind) for kind in KINDS):
        if case.model is not None:
            yield case, case.model.SerializeToString(), [(list(i), list(o)) for i, o in case.data_sets]
        elif case.model_dir is not None:
            folder = Path(case.model_dir)
            content = (folder / "model.onnx").read_bytes()
            graph = onnx.load_from_string(content).graph
            sets = sorted(folder.glob("test_data_set_*"))
            yield case, content, [(_stored(d, "input", graph.input), _stored(d, "output", graph.output)) for d in sets]


def _stored(folder: Path, kind: str, infos: Any) -> list[Any]:
    """What a data set holds for inputs or outputs: as many files as there are."""
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [
        _value((folder / f"{kind}_{i}.pb").read_bytes(), info.type)
        for i, info in zip(range(count), infos, strict=False)
    ]


def _value(content: bytes, type: onnx.TypeProto) -> Any:
    match type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def failure(case: Case, content: bytes, data: list[Data]) -> str:
    """Why a case fails: an error, or another dtype, shape or value than expected; "" where it passes."""
    try:
        graph = load_onnx(content)
        for inputs, expected in data:
            feeds = dict(zip(graph.inputs, map(as_array, inputs), strict=True))
            results = interpret(graph, feeds)
            named = [results[name] for name in graph.outputs]  # without the states of random ops
            if not all(same(got, want, case) for got, want in zip(named, expected, strict=True)):
                return "differs"
    except IngotError as error:
        return str(error).splitlines()[0]
    return ""


def same(got: Any, want: Any, case: Case) -> bool:
    """Equal in dtype and shape, and within the case's tolerance; of random numbers, 0 and 1. Lists one by one."""
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(same, got, want, [case] * len(got)))
    if want is None or got is None:
        return want is got
    want = as_array(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if case.name.startswith(RANDOM):
        return bool(np.isin(got, (0, 1)).all())
    if got.dtype == object:
        return got.tolist() == want.tolist()
    rtol = max(case.rtol, TWO_BF16_ULPS) if got.dtype.name == "bfloat16" else case.rtol
    return np.allclose(got.astype(np.float64), want.astype(np.float64), rtol, case.atol, equal_nan=True)


def failures() -> dict[str, str]:
    """The cases that fail, and why."""
    found = {case.name: failure(case, content, data) for case, content, data in cases()}
    failing = {name: why for name, why in sorted(found.items()) if why}
    print(f"{len(found) - len(failing)} of {len(found)} cases pass")
    return failing


def listed() -> dict[str, str]:
    """The cases that may fail, and why: a line has a name, a colon and the reason."""
    return dict(line.split(": ", 1) for line in FAILING.read_text().splitlines())


if __name__ == "__main__":
    known = listed()  # a reason that somebody wrote stays
    FAILING.write_text("".join(f"{name}: {known.get(name, why)}\n" for name, why in failures().items()))
