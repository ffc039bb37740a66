"""Sizes by bits: what a type of half bytes takes in tensors, in an arena and in stored formats."""

from itertools import pairwise

import numpy as np
import pytest

from ingot.errors import LimitError
from ingot.ir.dim import MAX_BYTES
from ingot.ir.dtype import DTYPES, DType
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Lowered, Target
from ingot.lower.cost import view_bytes
from ingot.lower.formats import Block, Format
from ingot.lower.lowered import Pointer, Step, Tensor
from ingot.lower.packed_weight import make_packed_weight
from ingot.lower.view import View
from ingot.lower.weight_expr import weight_expr
from ingot.plan.memory import plan
from ingot.plan.verify import PlanError, verify

i4 = DType("i4", 4, "i", "tensor(int4)")
# As GGUF's Q4_0: 32 elements and their scale, 18 bytes, in files and in panels.
Q4 = Format("q4", i4, 32, Block(32, 18), Block(32, 18), "decode", frozenset(), "pack_q4", "f32_q4", "q4")


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.bits >= 8], ids=str)
def test_whole_bytes_are_those_of_numpy(dtype: DType) -> None:
    assert dtype.itemsize == dtype.numpy.itemsize
    assert [dtype.nbytes(n) for n in (0, 1, 7)] == [np.empty(n, dtype.numpy).nbytes for n in (0, 1, 7)]
    assert dtype.span(3, 5) == (3 * dtype.itemsize, 5 * dtype.itemsize)


def test_half_a_byte_is_no_size_of_an_item() -> None:
    assert [i4.nbytes(n) for n in range(6)] == [0, 1, 1, 2, 2, 3]
    assert (i4.span(3, 5), i4.span(2, 4)) == ((1, 3), (1, 2))
    with pytest.raises(AssertionError, match="4 bits, not whole bytes"):
        print(i4.itemsize)


def test_tensors_and_views() -> None:
    assert [TensorType(i4, shape).nbytes for shape in ((3, 5), (4,), (0, 9), ())] == [8, 2, 0, 1]
    assert view_bytes(View("t0", i4, 0, (3, 5), (5, 1))) == 8
    assert View("t0", i4, 6, (3,), (1,)).byte_offset == 3
    with pytest.raises(AssertionError, match="begins inside a byte"):
        print(View("t0", i4, 7, (3,), (1,)).byte_offset)
    graph = Graph()
    graph.add_input("largest", TensorType(i4, (2 * MAX_BYTES,)))
    with pytest.raises(LimitError, match="too large"):
        graph.add_input("larger", TensorType(i4, (2 * MAX_BYTES + 1,)))


def chain(*sizes: int, parts: int = 1) -> Lowered:
    """Tensors t0, t1, ... of so many elements, the first an input and the last an output; each is made of the last."""
    lowered = Lowered(Target(alignment=1, inplace=False), "infer")
    for i, size in enumerate(sizes):
        kind = "input" if i == 0 else "output" if i == len(sizes) - 1 else "activation"
        lowered.tensors[f"t{i}"] = Tensor(f"t{i}", f"t{i}", i4, (size,), kind, i4.nbytes(size))
    views = [View(f"t{i}", i4, 0, (size,), (1,)) for i, size in enumerate(sizes)]
    for i, (read, write) in enumerate(pairwise(views)):
        fields = {"a": Pointer(read.tensor), "out": Pointer(write.tensor)}
        lowered.steps.append(Step("some", "some_args", dict(fields), (read,), (write,), f"n{i}", parts=parts))
    lowered.inputs, lowered.outputs = {"t0": views[0]}, {views[-1].tensor: views[-1]}
    return lowered


def test_an_arena() -> None:
    lowered = chain(9, 5, 7, 3, 1)
    planned = plan(lowered)
    verify(lowered, planned)
    assert (planned.arena_bytes, planned.lower_bound_bytes, planned.activation_bytes) == (7, 7, 9)
    assert (planned.regions["input:t0"], planned.regions["output:t4"]) == (5, 1)
    lowered.steps[1].reads = (View("t1", i4, 0, (7,), (1,)),)  # five elements fill three bytes, seven do not
    with pytest.raises(PlanError, match="leaves its tensor of 3 bytes"):
        verify(lowered, planned)


@pytest.mark.parametrize("begin, waits", [(3, True), (4, False)])
def test_what_shares_a_byte_waits(begin: int, waits: bool) -> None:
    """Of two steps, the first writes elements 0, 1, 2 of a tensor and the second some that follow."""
    lowered = chain(8, 8, parts=2)
    first = lowered.steps[0]
    first.writes = (View("t1", i4, 0, (3,), (1,)),)
    second = Step("some", "some_args", {}, first.reads, (View("t1", i4, begin, (8 - begin,), (1,)),), "n1", parts=2)
    lowered.steps.append(second)
    planned = plan(lowered)
    assert planned.barriers == [False, waits]
    if waits:
        verify(lowered, planned)
        planned.barriers[1] = False
        with pytest.raises(PlanError, match="without a barrier"):
            verify(lowered, planned)


@pytest.mark.parametrize("dims, raw, plain, panels", [((3, 40), 108, 120, 1152), ((33, 64), 1188, 2112, 2304)])
def test_stored_formats(dims: tuple[int, int], raw: int, plain: int, panels: int) -> None:
    """Blocks lie along the rows of a file, and along the columns of panels; without a format there is an array."""
    graph = Graph()
    graph.add_weight("w", None, TensorType(i4, dims))
    value = weight_expr(graph, "w")
    assert make_packed_weight(value, "raw", format=Q4).nbytes == raw
    assert make_packed_weight(value).nbytes == plain == np.empty(dims, i4.numpy).nbytes
    assert make_packed_weight(value, "panels", True, Q4).nbytes == panels
    assert Q4.element_bytes == 18 / 32
