"""Attention on WebGPU over few keys and many, for few rows and many, beside the reference in float64."""

import numpy as np
import pytest

import ingot.ops
from ingot.dispatch import dispatches
from ingot.ir import OPS
from ingot.ops.define import sample
from ingot.run.interpret import interpret
from ingot.session import InferenceSession
from op_cases import one_node

assert ingot.ops

ROWS, TILES, PARTS = ["attention_rows"], ["attention_tiles"], ["attention_rows", "attention_join"]
# Heads in groups, dims and keys that leave a rest, masks, windows, and rows that see nothing.
DENSE = [
    (ROWS, sample("q[1,6,2,40] k[1,2,70,40] v[1,2,70,72]", scale=0.2)),
    (TILES, sample("q[2,6,17,40] k[2,2,130,40] v[2,2,130,72]", scale=0.2)),
    (TILES, sample("q[1,2,70,8] k[1,2,70,8] v[1,2,70,5]", scale=0.4, causal=True)),
    (TILES, sample("q[1,2,66,8] k[1,1,65,8] v[1,1,65,9] m[1,2,66,65]", scale=0.4, causal=True, causal_offset=-3)),
    (TILES, sample("q[1,1,40,8] k[1,1,33,8] v[1,1,33,9] m:bool[40,33]", scale=0.4, safe=False)),
    (PARTS, sample("q[2,3,2,8] k[2,3,1030,8] v[2,3,1030,70]", scale=0.4)),
    (PARTS, sample("q[1,4,1,16] k[1,2,1100,16] v[1,2,1100,16] m:bool[1,1100]", scale=0.4)),
]
_CACHE = "k[{0},2,24,64] v[{0},2,64,72]"
CACHED = [
    (TILES, sample(f"q[40,4,24] {_CACHE.format(5)} p:i32<320[40] o:i32<1[40] b:i32<5[1,5]", scale=0.3)),
    (TILES, sample(f"q[40,4,24] {_CACHE.format(5)} p:i32<320[40] o:i32<1[40] b:i32<5[1,5]", scale=0.3, window=70)),
    (PARTS, sample(f"q[1,4,24] {_CACHE.format(30)} p:i32>1000<1280[1] o:i32<1[1] b:i32<30[1,20]", scale=0.3)),
    (PARTS, sample(f"q[5,2,24] {_CACHE.format(30)} p:i32<1280[5] o:i32<3[5] b:i32<30[3,20]", scale=0.3, softcap=2.0)),
    (PARTS, sample(f"q[3,2,24] {_CACHE.format(30)} p:i32<2560[3] o:i32<2[3] b:i32<30[2,40]", scale=0.3, window=1030)),
    (ROWS, sample(f"q[3,2,24] {_CACHE.format(30)} p:i32<2560[3] o:i32<2[3] b:i32<30[2,40]", scale=0.3, window=80)),
]


@pytest.mark.parametrize(
    ("bodies", "op", "case"),
    [(bodies, op, case) for op, cases in (("attention", DENSE), ("cached_attention", CACHED)) for bodies, case in cases],
)
def test_attention_is_the_reference_s(bodies, op, case):
    graph, feeds = one_node(OPS[op], case)
    session = InferenceSession(graph, executor="webgpu", strict=True, passes=())
    (found,) = session.run(None, feeds)
    (exact,) = interpret(graph, feeds, float64=True).values()
    np.testing.assert_allclose(found, exact, rtol=5e-6, atol=5e-6)
    program = session.program.only
    assert len(dispatches(program.lowered, program.plan).steps) == len(bodies)
    assert ("row_seen" in program.places.shaders[0]) == (bodies is not TILES)
