"""300 random graphs through every executor and setting, and the small graphs that earlier ones shrank to.

See differential.py for what is compared; `make soak` runs 10 000.
"""

import pytest

from differential import check
from ingot.ir.text import dump
from pass_case import random_array, read
from random_graphs import random_graph
from soak import report, run_seed

pytestmark = [pytest.mark.native, pytest.mark.threads, pytest.mark.checked]

COUNT, CHUNK = 300, 10

# What once went wrong -> the graph.
FOUND = {
    "a static output and a node that only the reference runs": """
        input x: f32[2, 3, 3]
        weight w: f32[4]
        y = pairwise_coupling(x)
        output y = y
        output w = w
        """,
    "a static output of 4 bits": """
        input x: f32[2]
        weight w: f32[4, 5]
        weight s: f32[]
        q = quantize(w, s, axis=0, block=0, precision=@f32, dtype=@f4e2m1)
        y = exp(x)
        output q = q
        output y = y
        """,
    "an output that is a view of another output": """
        input x: f32[2, 6]
        a = exp(x)
        b = reshape(a, shape=[3, 4])
        output b = b
        output a = a
        """,
    "outputs that are empty and whole views of one value": """
        input x: f32[0, 3]
        a = exp(x)
        b = slice(a, starts=[0, 0], stops=[0, 0], steps=[1, 1])
        c = slice(a, starts=[0, 0], stops=[0, 3], steps=[1, 1])
        output b = b
        output c = c
        """,
    "two static values of one node": """
        weight w: f32[5, 4]
        values, indices = topk(w, k=3, axis=0, largest=true)
        output values = values
        output indices = indices
        """,
    "the sum of two products": """
        input x: f32[B, 255]
        input z: f32[255, 8]
        weight w: f32[8, 255]
        p = matmul(x, w, transpose_b=true)
        q = matmul(x, z)
        y = add(p, q)
        output y = y
        """,
    "a packed weight that is folded too, once symbols have values": """
        input x: f32[B, 4]
        weight w: f32[6, 4]
        y = matmul(x, w, transpose_b=true)
        flat = reshape(w, shape=[B, 12])
        z = exp(flat)
        output y = y
        output z = z
        """,
    "a value of rank 0 from the reference": """
        input x: bool[]
        input z: bool[]
        y = less(x, z)
        output y = y
        """,
    "a weight of rank 0 that becomes a matrix": """
        weight w: f32[]
        y = reshape(w, shape=[1, 1])
        output y = y
        """,
    "parallel matmuls, of which only the second has a bias": """
        input x: f32[2, 3]
        weight w: f32[4, 3]
        weight v: f32[5, 3]
        weight b: f32[5]
        p = matmul(x, w, transpose_b=true)
        q = matmul(x, v, transpose_b=true)
        r = add(q, b)
        s = floor(p)
        output r = r
        output s = s
        """,
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_found(text: str, rng) -> None:
    graph = read(text)
    check(graph, {name: random_array(rng, graph, name) for name in graph.inputs}, saved=True)


@pytest.mark.parametrize("start", range(0, COUNT, CHUNK))
def test_random_graphs(start: int) -> None:
    for seed in range(start, start + CHUNK):
        if run_seed(seed):
            pytest.fail(report(seed), pytrace=False)


def test_seeds_repeat() -> None:
    assert dump(random_graph(3)[0]) == dump(random_graph(3)[0])
