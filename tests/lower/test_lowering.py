"""What lowering leaves as it is: the graph that it lowers."""

import functools

import pytest

import models
from ingot.ir import text
from ingot.ir.graph import Graph
from ingot.load.aten import load_module
from ingot.lower import Target, lower, segments
from ingot.passes import optimize

BUILDS = {
    "mlp": models.mlp,
    "block": models.block,
    "block manual causal": functools.partial(models.block, "manual", True),
    "conv net": models.convnet,
    "gpt2": models.gpt2,
    "bert": models.bert,
    "llama": models.llama,
    **{kind: functools.partial(models.image, kind) for kind in ("resnet", "vit")},
}

# The scalars that a fused program of a norm reads, in addition to a value that has the name of one of them; a padding
# that is filled with one; an expansion, because no kernel takes batch norm; and a state that is replaced.
SCALARS = """graph scalars
input scalar.0.0.f32: f32[4, 48]
input one: f32[50]
state kept: f32[4, 48] -> next
n = rms_norm(scalar.0.0.f32, eps=1e-05): f32[4, 48]
r = relu(n): f32[4, 48]
p = pad(r, low=[1, 0], high=[0, 2], value=3.0): f32[5, 50]
l = batch_norm(p, one, one, one, one, eps=1e-05): f32[5, 50]
next = sub(kept, r): f32[4, 48]
output r = r
output l = l
"""


def expect_untouched(graph: Graph) -> None:
    """By `segments`, and each of their graphs by `lower`."""
    target, before = Target(), text.dump(graph)
    parts = segments(graph, target)
    assert text.dump(graph) == before
    for part in parts:
        if part.native:
            before = text.dump(part.graph)
            assert lower(part.graph, target).steps
            assert text.dump(part.graph) == before


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_lowering_leaves_a_model_as_it_is(build) -> None:
    graph = load_module(*build())
    optimize(graph)
    expect_untouched(graph)


def test_lowering_leaves_a_graph_as_it_is() -> None:
    expect_untouched(text.parse(SCALARS))
