"""WebGPU on a software adapter: every sample of every op, whole models, and what a machine or a model may lack."""

import subprocess
import sys

import numpy as np
import pytest

import ingot
import ingot.ops
from ingot import abi
from ingot.compile import compile_mode
from ingot.dtype import f32, from_numpy, i64
from ingot.errors import InputError, LimitError, ResourceError, UnsupportedError
from ingot.ir import OPS, Graph, Op, Sample, TensorType
from ingot.lower.wgpu import WEBGPU
from ingot.lower.wgpu.wgsl import functions
from ingot.ops.define import draw
from ingot.run.interpret import interpret
from op_cases import case_id, one_node

assert ingot.ops


def is_whole(op: Op, sample: Sample) -> bool:
    """Whether a sample is one segment of kernels."""
    compiled = compile_mode(one_node(op, sample)[0], WEBGPU)
    return len(compiled.segments) == 1 and compiled.segments[0].native is not None


def beside(cases: list[tuple[Op, Sample]]) -> tuple[Graph, dict[str, np.ndarray]]:
    """Samples of an op in one graph, and what it is fed."""
    graph, feeds = Graph("samples"), {}
    for number, (op, sample) in enumerate(cases):
        names: list[str | None] = []
        for i, array in enumerate(draw(sample.operands, np.random.default_rng(7), op.domain)):
            name = f"x{number}.{i}"
            names.append(None if array is None else name)
            if array is not None:
                feeds[graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))] = array
        node = graph.add(op.name, names, **sample.attributes)
        for i, output in enumerate(node.outputs):
            graph.set_output(f"y{number}.{i}", output)
    return graph, feeds


def error_of(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest error relative to max(1, |expected|); equal infinities and NaNs agree."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.max(np.where(same, 0, error), initial=0))
