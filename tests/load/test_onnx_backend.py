"""ONNX's own tests through the loader and the interpreter: all pass but those of a list. The backend interface."""

import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.backend.test import BackendTest

import ingot.integrations.onnx_backend
from ingot.errors import IngotError
from onnx_backend_cases import failures, listed
from onnx_models import text_model

F = np.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_suite() -> None:
    """Another version of onnx brings other cases; `python tests/kit/onnx_backend_cases.py` writes the list anew."""
    failing, known = failures(), listed()
    assert not failing.keys() - known.keys(), {name: why for name, why in failing.items() if name not in known}
    assert not known.keys() - failing.keys(), f"pass, or are gone, but are listed: {sorted(known.keys() - failing)}"
    assert all(known.values()), "a reason is missing"


OWN_NUMBERS = "every implementation draws its own numbers"
ROUNDED_ONCE = "computed in f32 and rounded once; the runner allows less than a step of f16"
UNFIT_FOR_THE_RUNNER = {
    **{f"test_bernoulli{kind}_cpu": OWN_NUMBERS for kind in ("", "_double", "_seed")},
    **{f"test_bernoulli{kind}_expanded_cpu": OWN_NUMBERS for kind in ("", "_double", "_seed")},
    "test_attention_4d_fp16_expanded_cpu": ROUNDED_ONCE,
    "test_attention_4d_gqa_with_past_and_present_fp16_expanded_cpu": ROUNDED_ONCE,
    "test_loop16_seq_none_cpu": "the runner asks for the length of what has no dims",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_suite_as_others_run_it() -> None:
    """By ONNX's runner, through sessions with kernels. Models that it would fetch are left out."""
    kinds = BackendTest(ingot.integrations.onnx_backend, __name__).exclude("_cuda$").test_cases
    result = unittest.TestResult()
    for name, kind in kinds.items():
        if "RealModel" not in name:
            unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    failing = {test.id().rpartition(".")[2] for test, _ in [*result.failures, *result.errors]}
    assert result.testsRun - len(result.skipped) >= 2024
    assert failing == set(UNFIT_FOR_THE_RUNNER)


def test_backend_interface() -> None:
    """What `onnx.backend.base` asks: models and nodes, inputs in order or by name, outputs by name."""
    backend = ingot.integrations.onnx_backend
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA")
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] a, float[2] b) => (c) { c = Sub(a, b) }'
    )
    a, b = np.array([3, 4], F), np.array([1, 1], F)
    prepared = backend.prepare(model)
    assert np.array_equal(prepared.run([a, b]).c, a - b) and np.array_equal(prepared.run({"a": b, "b": a})["c"], b - a)
    assert np.array_equal(backend.run_model(model, [a, b])[0], a - b)
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    (clipped,) = backend.run_node(node, [a, np.array(3.5, F)], outputs_info=[(np.dtype(F), (2,))])
    assert np.array_equal(clipped, np.array([3, 3.5], F))
    for call in (lambda: prepared.run([a]), lambda: backend.prepare(model, "CUDA"), lambda: prepared.run([a, b], x=1)):
        with pytest.raises(IngotError):
            call()


@pytest.mark.parametrize(("device", "supported"), [("CPU:0", True), ("GPU", False), ("ROCM:1", False), ("", False)])
def test_a_device_that_onnx_does_not_know_is_not_supported(device: str, supported: bool) -> None:
    assert ingot.integrations.onnx_backend.supports_device(device) == supported


def test_backend_takes_files_and_bytes(tmp_path: Path) -> None:
    content = text_model("g (float[2] x) => (y) { y = Relu(x) }")
    (tmp_path / "model.onnx").write_bytes(content)
    for source in (content, tmp_path / "model.onnx"):
        assert ingot.integrations.onnx_backend.prepare(source).run([np.array([1, -2], F)]).y.tolist() == [1, 0]


A, ONES = np.array([3, 4], F), np.array([1, 1], F)
# op, domain, inputs of the node, attributes, what is given, the first output
NODES: dict[str, tuple[str, str, list[str], dict[str, Any], Any, Any]] = {
    "by name": ("Sub", "", ["a", "b"], {}, {"b": ONES, "a": A}, A - ONES),
    "one array": ("Neg", "", ["x"], {}, A, -A),
    "read twice, given once": ("Add", "", ["x", "x"], {}, [A], A + A),
    "read twice, given twice": ("Add", "", ["x", "x"], {}, [A, A], A + A),
    "left out, given as None": ("Clip", "", ["x", "", "high"], {}, [A, None, np.array(3.5, F)], np.array([3, 3.5], F)),
    "a sequence": ("ConcatFromSequence", "", ["s"], {"axis": 0}, [[A, ONES]], np.concatenate([A, ONES])),
    "bytes": ("StringConcat", "", ["s", "t"], {}, [np.array(["ä".encode()]), np.array([b"b"])], ["äb"]),
    "of the newest ai.onnx.ml": (
        "LabelEncoder", "ai.onnx.ml", ["x"], {"keys_int64s": [7], "values_int64s": [3]}, [np.array([7, 8])], [3, -1]
    ),
    "of another domain": ("BiasGelu", "com.microsoft", ["x", "b"], {}, [A * 9, A * 9], A * 18),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")
@pytest.mark.parametrize("name", NODES)
def test_backend_runs_a_node(name: str) -> None:
    op, domain, names, attributes, given, expected = NODES[name]
    node = onnx.helper.make_node(op, names, ["y"], domain=domain, **attributes)
    assert ingot.integrations.onnx_backend.run_node(node, given)[0].tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["a", "b"], [A], "run_node: wrong number of inputs, got 1"),
        (["a"], [A, A], "run_node: wrong number of inputs, got 2"),
        (["a"], {"b": A}, "run_node: wrong inputs"),
        (["a"], [[]], "an empty sequence"),
        (["a"], [A], "No has no rule"),
    ],
)
def test_backend_names_what_is_wrong_with_a_node(names: list[str], given: Any, message: str) -> None:
    with pytest.raises(IngotError, match=message):
        ingot.integrations.onnx_backend.run_node(
            onnx.helper.make_node("No" if "rule" in message else "Add", names, ["y"]), given
        )
