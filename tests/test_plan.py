"""Plans: deterministic, close to the lower bound, and the verifier finds every planted fault."""

import copy
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import ingot.ops
from ingot import order
from ingot.dtype import f32
from ingot.errors import LimitError
from ingot.lower import Lowered, Target, lower, segments
from ingot.lower.lowered import Step
from ingot.lower.view import View
from ingot.plan import Address, Plan, layout, plan
from ingot.text import parse
from ingot.verify import PlanError, verify

assert ingot.ops

BLOCK = """graph block
input x: f32[2, 16, 64]
weight wqkv: f32[192, 64]
weight bqkv: f32[192]
weight wo: f32[64, 64]
weight w1: f32[256, 64]
weight w2: f32[64, 256]
weight g: f32[64]
h = layer_norm(x, g, none, eps=1.0e-05): f32[2, 16, 64]
m = matmul(h, wqkv, transpose_b=true): f32[2, 16, 192]
mb = add(m, bqkv): f32[2, 16, 192]
q = slice(mb, starts=[0, 0, 0], stops=[2, 16, 64], steps=[1, 1, 1]): f32[2, 16, 64]
k = slice(mb, starts=[0, 0, 64], stops=[2, 16, 128], steps=[1, 1, 1]): f32[2, 16, 64]
v = slice(mb, starts=[0, 0, 128], stops=[2, 16, 192], steps=[1, 1, 1]): f32[2, 16, 64]
q4 = reshape(q, shape=[2, 16, 4, 16]): f32[2, 16, 4, 16]
k4 = reshape(k, shape=[2, 16, 4, 16]): f32[2, 16, 4, 16]
v4 = reshape(v, shape=[2, 16, 4, 16]): f32[2, 16, 4, 16]
qp = permute(q4, axes=[0, 2, 1, 3]): f32[2, 4, 16, 16]
kp = permute(k4, axes=[0, 2, 1, 3]): f32[2, 4, 16, 16]
vp = permute(v4, axes=[0, 2, 1, 3]): f32[2, 4, 16, 16]
o = attention(qp, kp, vp, scale=0.25): f32[2, 4, 16, 16]
op = permute(o, axes=[0, 2, 1, 3]): f32[2, 16, 4, 16]
or = reshape(op, shape=[2, 16, 64]): f32[2, 16, 64]
proj = matmul(or, wo, transpose_b=true): f32[2, 16, 64]
r1 = add(x, proj): f32[2, 16, 64]
f = matmul(r1, w1, transpose_b=true): f32[2, 16, 256]
fr = relu(f): f32[2, 16, 256]
f2 = matmul(fr, w2, transpose_b=true): f32[2, 16, 64]
y = add(f2, r1): f32[2, 16, 64]
output y = y
"""

CHAIN = """graph chain
input x: f32[64, 64]
a = exp(x): f32[64, 64]
b = relu(a): f32[64, 64]
c = add(a, b): f32[64, 64]
d = permute(c, axes=[1, 0]): f32[64, 64]
e = concat(d, c, axis=0): f32[128, 64]
s = reduce_sum(e, axes=[0], keepdims=false): f32[64]
output s = s
output e = e
output x = x
"""


def lowered_of(text: str, **target: object) -> Lowered:
    wanted = Target(**target)  # type: ignore[arg-type]
    (segment,) = segments(parse(text), wanted)
    return lower(segment.graph, wanted)


@pytest.mark.parametrize("text", [BLOCK, CHAIN])
@pytest.mark.parametrize("target", [{}, {"threads": 3}, {"inplace": False}, {"reuse": False}, {"alignment": 256}])
def test_plan_verifies_and_is_deterministic(text: str, target: dict[str, object]) -> None:
    first, second = lowered_of(text, **target), lowered_of(text, **target)
    one, two = plan(first), plan(second)
    verify(first, one)
    assert layout(first, one) == layout(second, two) and one.barriers == two.barriers
    if target.get("reuse", True):
        assert one.arena_bytes <= 1.1 * one.lower_bound_bytes
    else:
        assert one.arena_bytes >= one.activation_bytes


def test_block_is_six_steps_without_copies() -> None:
    """Heads are views of the fused projection, the attention output lies as the next projection wants it."""
    kernels = [step.kernel for step in lowered_of(BLOCK).steps]
    assert kernels == ["layer_norm_f32", "gemm_f32_packed", "attention_f32"] + ["gemm_f32_packed"] * 3


def test_layout_lists_every_byte() -> None:
    lowered = lowered_of(BLOCK)
    table = layout(lowered, plan(lowered))
    assert {row["name"] for row in table["tensors"] if row["kind"] == "weight"} == {
        "wqkv",
        "bqkv",
        "wo",
        "w1",
        "w2",
        "g",
    }
    for row in table["tensors"]:
        assert row["offset"] + row["bytes"] <= table["regions"][row["region"]]


def test_regions_are_limited() -> None:
    limited = lowered_of(CHAIN, region_bytes=20000)
    planned = plan(limited)
    verify(limited, planned)
    assert len([r for r in planned.regions if r.startswith("arena")]) > 1
    with pytest.raises(LimitError, match="too large"):
        plan(lowered_of(CHAIN, region_bytes=1000))


def test_brute_force_live_ranges() -> None:
    """At every step, tensors alive then lie apart, unless one was merged into the other in place."""
    lowered = lowered_of(BLOCK, inplace=False)
    planned = plan(lowered)
    for moment in range(len(lowered.steps)):
        bytes_used = np.zeros(planned.arena_bytes, int)
        for tensor, (birth, death) in planned.live.items():
            if birth <= moment <= death:
                start = planned.addresses[tensor].offset
                bytes_used[start : start + lowered.tensors[tensor].nbytes] += 1
        assert bytes_used.max(initial=0) <= 1


def move(tensor: str, region: str | None = None, by: int = 0) -> Callable[[Lowered, Plan], None]:
    def plant(lowered: Lowered, planned: Plan) -> None:
        old = planned.addresses[tensor]
        planned.addresses[tensor] = Address(region or old.region, old.offset + by)

    return plant


def onto(tensor: str, other: str) -> Callable[[Lowered, Plan], None]:
    return lambda lowered, planned: planned.addresses.update({tensor: planned.addresses[other]})


def drop_barriers(lowered: Lowered, planned: Plan) -> None:
    planned.barriers = [False] * len(planned.barriers)
    for step in lowered.steps:
        step.parts = 2


def write_input(lowered: Lowered, planned: Plan) -> None:
    step = lowered.steps[0]
    step.writes = (replace(step.writes[0], tensor=step.reads[0].tensor),)


def leave_root(lowered: Lowered, planned: Plan) -> None:
    step = lowered.steps[1]
    step.reads = (replace(step.reads[0], offset=64), *step.reads[1:])


def share_outputs(lowered: Lowered, planned: Plan) -> None:
    lowered.outputs["again"] = lowered.outputs["y"]


def ids(graph_value: str) -> str:
    lowered = lowered_of(BLOCK)
    return lowered.views[graph_value].tensor


FAULTS = {
    "unaligned": lambda: move(ids("h"), by=4),
    "outside its region": lambda: move(ids("mb"), by=1 << 20),
    "activation among weights": lambda: move(ids("h"), region="weights"),
    "two live tensors in one place": lambda: onto(ids("r1"), ids("or")),
    "overwritten before its last use": lambda: onto(ids("fr"), ids("r1")),
    "no barriers": lambda: drop_barriers,
    "writes an input": lambda: write_input,
    "view leaves its root": lambda: leave_root,
    "outputs share memory": lambda: share_outputs,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verifier_finds_a_planted_fault(fault: str) -> None:
    lowered = lowered_of(BLOCK)
    planned = plan(lowered)
    verify(lowered, planned)
    broken_lowered, broken = copy.deepcopy((lowered, planned))
    FAULTS[fault]()(broken_lowered, broken)
    with pytest.raises(PlanError):
        verify(broken_lowered, broken)


def test_graph_input_reshape_is_a_view() -> None:
    text = """graph g
input ids: i64[1, 6]
weight w: f32[9, 4]
r = reshape(ids, shape=[6]): i64[6]
y = gather(w, r, axis=0): f32[6, 4]
output y = y
"""
    assert [step.kernel for step in lowered_of(text).steps] == ["gather_i64"]


def test_tied_embeddings_gather_from_the_panels() -> None:
    text = """graph tied
input ids: i64[6]
weight w: f32[70, 8]
e = gather(w, ids, axis=0): f32[6, 8]
y = matmul(e, w, transpose_b=true): f32[6, 70]
output y = y
"""
    lowered = lowered_of(text)
    assert [step.kernel for step in lowered.steps] == ["gather_f32_panels", "gemm_f32_packed"]
    assert sum(t.kind == "weight" for t in lowered.tensors.values()) == 1


def test_a_matmul_whose_result_is_turned_makes_no_copy() -> None:
    """[batch, rows, 3, heads, width] permuted and unbound: attention reads the projection through strides."""
    text = """graph unbound
input x: f32[2, 16, 64]
weight w: f32[192, 64]
m = matmul(x, w, transpose_b=true): f32[2, 16, 192]
five = reshape(m, shape=[2, 16, 3, 4, 16]): f32[2, 16, 3, 4, 16]
turned = permute(five, axes=[2, 0, 3, 1, 4]): f32[3, 2, 4, 16, 16]
q = slice(turned, starts=[0, 0, 0, 0, 0], stops=[1, 2, 4, 16, 16], steps=[1, 1, 1, 1, 1]): f32[1, 2, 4, 16, 16]
k = slice(turned, starts=[1, 0, 0, 0, 0], stops=[2, 2, 4, 16, 16], steps=[1, 1, 1, 1, 1]): f32[1, 2, 4, 16, 16]
q4 = reshape(q, shape=[2, 4, 16, 16]): f32[2, 4, 16, 16]
k4 = reshape(k, shape=[2, 4, 16, 16]): f32[2, 4, 16, 16]
o = attention(q4, k4, k4, scale=0.25): f32[2, 4, 16, 16]
output o = o
"""
    assert [step.kernel for step in lowered_of(text).steps] == ["gemm_f32_packed", "attention_f32"]


@pytest.mark.parametrize("seed", range(40))
def test_steps_wait_for_exactly_the_accesses_that_overlap(seed):
    random = Random(seed)
    tensors = [f"t{i}" for i in range(random.randint(1, 4))]

    def views(count):
        starts = [random.randrange(16) for _ in range(count)]
        return tuple(View(random.choice(tensors), f32, s, (random.randint(0, 16 - s),), (1,)) for s in starts)

    steps = [Step("k", "a", {}, views(random.randint(0, 3)), views(1), f"n{i}") for i in range(30)]

    def touch(some, others):
        pairs = ((a, b) for a in some for b in others if a.tensor == b.tensor)
        return any(a.extent[0] < b.extent[1] and b.extent[0] < a.extent[1] for a, b in pairs)

    for index, needs in enumerate(order._dependencies(steps, {})):
        now = steps[index]
        assert needs == {
            i
            for i, before in enumerate(steps[:index])
            if touch(now.writes, (*before.reads, *before.writes)) or touch(now.reads, before.writes)
        }
