"""Documents on plans: a tensor's memory, the difference of two plans, measured steps."""

import json

import pytest

import ingot
from ingot.errors import InputError
from ingot.inspect.model import InspectedModel
from ingot.inspect.plans import difference_document, memory_document
from inspect_models import DIGITS


@pytest.fixture(scope="module")
def digits() -> InspectedModel:
    return InspectedModel(str(DIGITS), dims={"batch": 2}, threads=1)


def test_a_tensor_is_where_the_plan_has_it(digits: InspectedModel) -> None:
    plan = digits.compiled.segments[0].plan
    lowered = digits.compiled.segments[0].lowered
    for tensor in lowered.tensors.values():
        if tensor.id not in plan.live:
            continue
        found = memory_document(digits, tensor.name)
        assert (found["offset"], found["bytes"]) == (plan.addresses[tensor.id].offset, tensor.nbytes)
        assert (found["birth"], found["death"]) == plan.live[tensor.id]
        assert not set(found["before"]) & set(found["after"])
        assert found["peak_bytes"] == plan.lower_bound_bytes  # of a plan without alignment gaps
    view = memory_document(digits, "max_pool2d")
    assert {value["name"] for value in view["values"]} == {"max_pool2d", "view"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("conv2d", "inside of a fused step"),
        ("no", "no such tensor"),
        ("gelu_3", r"no such tensor, got 'gelu_3', expected 'gelu"),
        ("val_10", "is not computed after the passes, got 'val_10'"),
    ],
)
def test_a_value_without_memory_is_an_error(digits: InspectedModel, name: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        memory_document(digits, name)


def test_a_plan_equals_itself_and_differs_by_precision(digits: InspectedModel) -> None:
    same = difference_document(digits, digits)
    assert not (same["kernels"] or same["changed"] or same["only_a"] or same["only_b"]) and same["a"] == same["b"]
    other = difference_document(digits, InspectedModel(str(DIGITS), dims={"batch": 2}, threads=1, precision="int8"))
    assert other["b"]["weight_bytes"] < other["a"]["weight_bytes"]
    assert {row["name"] for row in other["changed"]} >= {"gelu_1"}
    session = ingot.InferenceSession(DIGITS, dims={"batch": 2}, threads=1)
    assert other["a"]["arena_bytes"] == session.plan.arena_bytes and other["a"]["steps"] == len(session.profile(
        {"image": [[[[0.0] * 8] * 8]] * 2}).steps)  # fmt: skip


def test_a_condition_on_times_needs_a_run(call) -> None:
    code, _, err = call("explain", DIGITS, "--dim", "batch=1", "--assert", "of_limit>0")
    assert code == 2 and "--assert: of_limit needs --measure" in err


def test_commands_assert(call) -> None:
    dims = ("--dim", "batch=1")
    assert call("plan-diff", DIGITS, *dims, "--b-threads", "1", "--assert", "reference==0")[0] == 0
    assert call("plan-diff", DIGITS, DIGITS, *dims, "--assert", "changed==0", "--assert", "arena_bytes<=0")[0] == 0
    assert call("plan-diff", DIGITS, *dims, "--b-precision", "int8", "--assert", "changed==0")[0] == 1
    assert call("explain-tensor", DIGITS, "gelu", *dims, "--assert", "bytes==4096")[0] == 0
    assert call("explain", DIGITS, *dims, "--assert", "fallback==0")[0] == 0
    code, out, _ = call("explain", DIGITS, "gelu_1", *dims, "--measure", "--assert", "nanoseconds>0", "--json")
    (row,) = json.loads(out)["measured"]
    assert code == 0 and row["node"] == "gelu_1" and row["gflops"] > 0 and json.loads(out)["limits"]["gflops"] > 0
