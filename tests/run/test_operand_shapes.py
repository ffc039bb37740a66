"""Every op with operands that its samples do not have: inference refuses them, or kernels and reference agree.

One operand of a sample at a time loses a dim, gets one more, or has one of size 0 or 1; so scalars stand where rows are
meant, and single columns where whole rows are.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from test_native import assert_close

from ingot.errors import InputError, ShapeError
from ingot.ir.graph import OPS, Graph, Op, Sample
from ingot.ops.define import draw
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from op_cases import Operands, one_node


def other_shapes(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    around = {(), (1, *shape), (*shape, 1), (2, *shape)}
    for axis in range(len(shape)):
        around |= {(*shape[:axis], *middle, *shape[axis + 1 :]) for middle in ((), (0,), (1,))}
    return around - {shape}


def changed(op: Op, sample: Sample, rng: np.random.Generator) -> Iterator[Operands]:
    """The sample's operands, each in turn in another shape, of the same elements over and over."""
    operands = draw(sample.operands, rng, op.domain)
    for i, operand in enumerate(operands):
        for shape in sorted(other_shapes(operand.shape)) if operand is not None else ():
            assert operand is not None
            nothing = np.full(shape, "" if operand.dtype == object else 0, operand.dtype)
            other = np.resize(operand, shape) if operand.size else nothing
            yield [*operands[:i], other, *operands[i + 1 :]]


def compare(op: Op, graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    try:
        exact = interpret(graph, feeds, float64=True)
    except InputError:
        types = [graph.type(value) for value in graph.outputs.values()]
        if any(not type.is_static or type.size for type in types):  # or nothing is looked up
            with pytest.raises(InputError):
                InferenceSession(graph, threads=1).run(None, feeds)  # opening it computes what is constant
        return
    session = InferenceSession(graph, threads=1)
    for name, got in zip(graph.outputs, session.run(None, feeds), strict=True):
        assert got.shape == exact[name].shape
        assert_close(op, got, exact[name])


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_other_shapes_are_refused_or_agree(op: Op) -> None:
    rng = np.random.default_rng(0)
    for number, sample in enumerate(op.samples):
        for operands in changed(op, sample, rng):
            try:
                weights = range(1, len(operands)) if number % 2 else ()
                graph, feeds = one_node(op, sample, weights, operands)
            except ShapeError:
                continue
            shapes = [None if array is None else array.shape for array in operands]
            print(f"{op.name} of {shapes}, {sample.attributes}")  # the last line is shown with a failure
            compare(op, graph, feeds)
