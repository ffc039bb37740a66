"""Modes of one graph: bindings, outputs and rows, the shared placement, and the treatment of states."""

import numpy as np
import pytest

import ingot
from ingot.compile import Mode, compile_mode
from ingot.ir import text
from ingot.ir.dim import AtMost
from ingot.lower import Target
from ingot.passes import optimize
from ingot.plan.memory import Placement
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.run.modes import BoundModes

RUNNING = """graph running
input x: f32[rows, 4]
input take: i32[taken]
weight w: f32[4, 6]
weight b: f32[6]
state seen: f32[6] -> next
h = matmul(x, w): f32[rows, 6]
y = add(h, b): f32[rows, 6]
s = reduce_sum(y, axes=[0], keepdims=false): f32[6]
next = add(seen, s): f32[6]
chosen = gather(y, take, axis=0): f32[taken, 6]
output chosen = chosen
output total = next
"""


def graph():
    rng = np.random.default_rng(5)
    weights = {"w": rng.standard_normal((4, 6)).astype(np.float32), "b": rng.standard_normal(6).astype(np.float32)}
    made = text.parse(RUNNING, weights)
    optimize(made)
    return made


def test_modes_share_their_placement():
    """In whichever order they are compiled, and however many rows they have."""
    modes = [
        Mode("all", {"rows": AtMost(40, "rows"), "taken": AtMost(40, "rows")}, ("chosen",), ("take",)),
        Mode("one", {"rows": 1, "taken": 1}, ("total",)),
        Mode("some", {"rows": 7, "taken": 2}),
    ]
    for order in (modes, modes[::-1]):
        placement = Placement()
        for mode in order:
            lowered, plan = compile_mode(graph(), Target(), mode, placement=placement).native
            assert set(lowered.outputs) == set(mode.outputs or ("chosen", "total"))
            assert ("take" in {v.tensor for s in plan.steps for v in s.reads}) is False
            for tensor in lowered.tensors.values():
                if tensor.packed_weight is not None:
                    assert placement.weights[tensor.packed_weight.key].offset == plan.addresses[tensor.id].offset
                if tensor.kind == "state":
                    assert placement.states["seen"].offset == plan.addresses[tensor.id].offset
        assert list(placement.states) == ["seen"] and placement.states["seen"].nbytes == 24


def test_modes_run_over_one_state():
    made, placement = graph(), Placement()
    target = Target(load().isa(), threads=1)
    bound = BoundModes(target)
    sizes = {"one": 1, "three": 3, "many": 900}  # the last needs a larger arena than the others
    modes = [Mode(name, {"rows": rows, "taken": 1}, ("total",)) for name, rows in sizes.items()]
    bound.add(compile_mode(made, target, mode, placement=placement) for mode in modes)
    rng, seen = np.random.default_rng(3), np.zeros(6, np.float32)
    for name in ("one", "many", "three", "one", "many"):
        x = rng.standard_normal((sizes[name], 4)).astype(np.float32)
        bound[name].inputs["x"][:] = x
        bound[name].run({})
        feeds = {"x": x, "take": np.zeros(1, np.int32), "seen": seen}
        np.testing.assert_allclose(bound[name].output, interpret(made, feeds)["total"], rtol=1e-4, atol=1e-4)
        seen = bound[name].output.copy()
        assert np.array_equal(bound[name].states()["seen"], seen)


def test_a_session_keeps_its_state_over_all_its_bindings():
    """The second binding's arena is larger; the first comes back with what the second left behind."""
    session, seen = ingot.InferenceSession(graph(), threads=1), np.zeros(6, np.float32)
    rng = np.random.default_rng(4)
    for rows in (3, 2000, 3, 1, 2000):
        feeds = {"x": rng.standard_normal((rows, 4)).astype(np.float32), "take": np.zeros(1, np.int32)}
        expected = interpret(session.graph, feeds | {"seen": seen})["total"]
        (seen,) = session.run(["total"], feeds)
        np.testing.assert_allclose(seen, expected, rtol=1e-3, atol=1e-3)


def test_a_state_of_another_size_is_refused():
    made = text.parse(RUNNING.replace("seen: f32[6]", "seen: f32[rows, 6]").replace("add(seen, s)", "add(seen, y)")
                      .replace("next = add(seen, y): f32[6]", "next = add(seen, y): f32[rows, 6]"),
                      {"w": np.ones((4, 6), np.float32), "b": np.ones(6, np.float32)})  # fmt: skip
    placement = Placement()
    compile_mode(made, Target(), Mode("a", {"rows": 2, "taken": 1}), placement=placement)
    with pytest.raises(ingot.UnsupportedError, match="'seen': changes its size, got 120 bytes, expected 48"):
        compile_mode(made, Target(), Mode("b", {"rows": 5, "taken": 1}), placement=placement)


def test_an_update_that_takes_a_copy_is_refused_where_a_state_only_grows():
    source = "graph g\ninput x: f32[4]\nstate s: f32[4] -> x\ny = add(x, s): f32[4]\noutput y = y\n"
    made = text.parse(source)
    compile_mode(made, Target(), Mode())
    with pytest.raises(ingot.UnsupportedError, match="state 's' is copied"):
        compile_mode(made, Target(), Mode(state="append"))
