"""States that a run overwrites where they lie: all that read one do so before, and what cannot wait has a copy."""

import numpy as np
import pytest

from ingot.compile import Mode, compile_mode
from ingot.ir import text
from ingot.lower import Target
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession

HEAD = "graph states\ninput x: f32[4, 4]\nstate s: f32[4, 4] = given -> next\n"
# What reads and replaces a state, and whether that is done in its place.
GRAPHS = {
    "read before": ("next = add(s, x): f32[4, 4]\ny = mul(x, s): f32[4, 4]\n", True),
    "read by a product": (
        "next = add(s, x): f32[4, 4]\n"
        "y = matmul(x, s, transpose_a=false, transpose_b=true, scale=1.0): f32[4, 4]\n",
        True,
    ),
    "read through a view": (
        "v = permute(s, axes=[1, 0]): f32[4, 4]\nnext = add(s, x): f32[4, 4]\n"
        "y = matmul(x, v, transpose_a=false, transpose_b=false, scale=1.0): f32[4, 4]\n",
        True,
    ),
    "read with its update": (
        "next = add(s, x): f32[4, 4]\n"
        "y = matmul(next, s, transpose_a=false, transpose_b=false, scale=1.0): f32[4, 4]\n",
        False,
    ),
    "an output": ("next = add(s, x): f32[4, 4]\ny = reshape(s, shape=[4, 4]): f32[4, 4]\n", False),
    "a residual": (
        "m = matmul(x, x, transpose_a=true, transpose_b=false, scale=1.0): f32[4, 4]\n"
        "next = add(s, m): f32[4, 4]\ny = neg(s): f32[4, 4]\n",
        True,
    ),
    "multiplied by itself": (
        "m = matmul(s, x, transpose_a=true, transpose_b=false, scale=1.0): f32[4, 4]\n"
        "next = add(s, m): f32[4, 4]\ny = neg(s): f32[4, 4]\n",
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_state_is_replaced_in_place_where_its_readers_can_run_before(name, fuses, rng):
    body, in_place = GRAPHS[name]
    source = f"{HEAD}{body}output y = y\n"
    held = rng.standard_normal((4, 4), np.float32)
    x = rng.standard_normal((4, 4), np.float32)
    session = InferenceSession(text.parse(source, {"s": held}))
    for _ in range(3):
        graph = text.parse(source, {"s": held})
        expected = interpret(graph, {"x": x})
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, expected["y"], rtol=1e-5, atol=1e-5)
        held = expected["state:s"]
    lowered, _ = compile_mode(graph, Target(fuses=fuses), Mode()).native
    copies = [step for step in lowered.steps if step.kernel.startswith("copy_")]
    updates = [s for s in lowered.steps if any(lowered.tensors[v.tensor].kind == "update" for v in s.writes)]
    assert len(updates) == 1
    assert (updates[0] not in copies) == in_place, [step.kernel for step in lowered.steps]


ADAMW = """graph step
input x: f32[40, 8]
input d: f32[40, 8]
state w: f32[8, 8] = given -> next
state mean: f32[8, 8] -> mean_next
state square: f32[8, 8] -> square_next
weight kept: f32[]
h = matmul(x, w, transpose_a=false, transpose_b=true, scale=1.0): f32[40, 8]
g = matmul(d, x, transpose_a=true, transpose_b=false, scale=1.0): f32[8, 8]
next, mean_next, square_next = adamw(w, mean, square, g, kept, kept, kept, beta1=0.9, beta2=0.99, eps=0.1): {types}
e = matmul(d, w, transpose_a=false, transpose_b=false, scale=1.0): f32[40, 8]
output h = h
output e = e
""".format(types=", ".join(["f32[8, 8]"] * 3))


def test_a_step_of_an_optimiser_copies_nothing_and_comes_when_all_have_read(rng):
    data = {"w": rng.standard_normal((8, 8), np.float32), "kept": np.array(0.5, np.float32)}
    graph = text.parse(ADAMW, data)
    lowered, plan = compile_mode(graph, Target(), Mode()).native
    kernels = [step.kernel for step in plan.steps]
    assert kernels.count("adamw_f32") == 1 and kernels[-1] == "adamw_f32" and "copy_b4" not in kernels
    assert "matmul_tn_f32" in kernels and not any(kernel.startswith("pack") for kernel in kernels)
    assert plan.regions["state"] == 3 * 8 * 8 * 4 and plan.arena_bytes <= 8 * 8 * 4 + _scratch(lowered)


def _scratch(lowered):
    return sum(tensor.nbytes for tensor in lowered.tensors.values() if tensor.kind == "scratch")
