"""Integers that address something, fed from outside of their range: to each op, on each executor, in each dtype.

The record of an op says which of its operands those are. `tests/load/test_onnx_addresses.py` does the same with models.
"""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest

import ingot.ops
from ingot.errors import InputError, ShapeError
from ingot.ir.graph import OPS, Op, Sample
from ingot.ops.define import draw
from ingot.run.interpret import interpret
from ingot.run.library import load
from op_cases import build, one_node, run

assert ingot.ops
INTEGERS = {"i32", "i64"}
CASES = [(op, name) for op in OPS.values() for name in op.indices if op.samples]


def in_other_floats(op: Op, sample: Sample) -> Iterator[Sample]:
    """The sample, and the same in f64 and f16 where the op takes these: such are widened, expanded or left to the
    reference.
    """
    yield sample
    for dtype in ("f64", "f16"):
        parts = sample.operands.split()
        wide = [part if ":" in part or part == "none" else re.sub(r"^\w+", rf"\g<0>:{dtype}", part) for part in parts]
        other = dataclasses.replace(sample, operands=" ".join(wide))
        try:
            one_node(op, other)
        except ShapeError:
            continue
        if wide != parts:
            yield other


def outside(allowed: range, dtype: np.dtype) -> list[int]:
    """The nearest and the farthest integers outside of a range."""
    limits = np.iinfo(dtype)
    numbers = (allowed.start - 1, allowed.stop, int(limits.min), int(limits.max))
    return [n for n in dict.fromkeys(numbers) if n not in allowed and limits.min <= n <= limits.max]


def wrong_feeds(op: Op, name: str, sample: Sample) -> Iterator[tuple[dict[str, np.ndarray], int, range]]:
    """Feeds with an element outside of its range, or with all of them so where the op may not read each."""
    place, index = op.operand_names.index(name), op.indices[name]
    operands = draw(sample.operands, np.random.default_rng(7), op.domain)
    array = operands[place] if place < len(operands) else None
    if array is None or not array.size or any(each is not None and not each.size for each in operands):
        return
    allowed = index.range(*operands, **sample.attributes)
    for bad in outside(allowed, array.dtype):
        if bad == sample.attributes.get("ignored", -100) and name == "labels":
            continue
        wrong = array.copy()
        wrong[... if index.own else np.unravel_index(array.size - 1, array.shape)] = bad
        feeds = {f"x{i}": each for i, each in enumerate(operands) if each is not None}
        yield feeds | {f"x{place}": wrong}, bad, allowed


def programs(op: Op, sample: Sample):  # type: ignore[no-untyped-def]
    """Native on each instruction set, alone and with each call cut into parts."""
    graph, _ = one_node(op, sample)
    for isa in load().isas():
        yield build(graph, isa=isa)
        yield build(graph, isa=isa, threads=3, task_nanoseconds=1, run_nanoseconds=1)


@pytest.mark.parametrize(("op", "name"), CASES, ids=[f"{op.name}-{name}" for op, name in CASES])
def test_every_executor_refuses_indices_out_of_range(op: Op, name: str) -> None:
    tried = 0
    for first in op.samples:
        for sample in in_other_floats(op, first):
            wrong = list(wrong_feeds(op, name, sample))
            graph, _ = one_node(op, sample) if wrong else (None, None)
            natives = list(programs(op, sample)) if wrong else []
            for feeds, bad, allowed in wrong:
                expected = rf"node '.*\b{name if name != 'x' else sample.attributes['what']}\b.* out of range, "
                expected += rf"got \[?{bad}\b.*, expected {allowed.start}( or more|\.\.{allowed.stop - 1})"
                with pytest.raises(InputError, match=expected):
                    interpret(graph, feeds)
                for native in natives:
                    with pytest.raises(InputError, match=expected):
                        run(native, feeds)
                tried += 1
    assert tried >= 2, f"{op.name}: no sample gives {name}"


def test_every_integer_operand_declares_what_it_addresses() -> None:
    """Those that samples give i32 or i64 alone, but for ops that compute each element of the elements at its place."""
    for op in OPS.values():
        seen: dict[str, set[str]] = {}
        for sample in op.samples if op.acts_on != "element" else ():
            for i, part in enumerate(sample.operands.split()):
                if part != "none":
                    dtype = re.match(r"\w+(?::(\w+))?", part)[1] or "f32"  # type: ignore[index]
                    seen.setdefault(op.operand_names[min(i, len(op.operand_names) - 1)], set()).add(dtype)
        wanted = {name for name, dtypes in seen.items() if dtypes <= INTEGERS}
        said = set(op.addresses) if op.samples and op.acts_on != "element" else wanted
        assert said == wanted, op.name
        assert all(isinstance(each, str) for name, each in op.addresses.items() if name not in op.indices)
