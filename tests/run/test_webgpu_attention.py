"""Attention on WebGPU over few keys and many, for few rows and many, compared with the reference in float64."""

import numpy as np
import pytest

import ingot.ops
from adapters import adapter
from attention_cases import ATTENTION, TILES
from ingot.ir.dtype import f32
from ingot.ir.graph import OPS, Graph, Sample, TensorType
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from op_cases import one_node

assert ingot.ops and adapter

pytestmark = pytest.mark.usefixtures("adapter")
CASES = [(op, bodies, case) for op, cases in ATTENTION.items() for bodies, case in cases]


@pytest.mark.parametrize(("op", "bodies", "case"), CASES)
def test_attention_is_the_reference_s(op: str, bodies: list[str], case: Sample) -> None:
    graph, feeds = one_node(OPS[op], case)
    session = InferenceSession(graph, executor="webgpu", strict=True, passes=())
    (found,) = session.run(None, feeds)
    (exact,) = interpret(graph, feeds, float64=True).values()
    np.testing.assert_allclose(found, exact, rtol=5e-6, atol=5e-6)
    dispatches = session.program.only.dispatches
    assert len(dispatches.steps) == len(bodies)
    assert ("fn tile_seen" in dispatches.shaders[0]) == (bodies is TILES)


def test_tiles_have_a_workgroup_s_memory_for_themselves() -> None:
    graph = Graph("two")
    for name in ("x", "y"):
        graph.add_input(name, TensorType(f32, (1, 2, 20, 8)))
        graph.set_output(f"{name}.out", graph.add("attention", [name] * 3, scale=0.4).output)
    session = InferenceSession(graph, executor="webgpu", strict=True, passes=())
    assert len(session.program.only.dispatches.steps) == 2
