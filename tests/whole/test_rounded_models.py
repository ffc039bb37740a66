"""Complete models in each precision that rounds, compared with torch in float64."""

import functools

import numpy as np
import pytest
import torch

import ingot
import models
from ingot.ir.dtype import bf16
from ingot.passes.precision import PRECISIONS
from kernel_calls import LIBRARY

pytestmark = pytest.mark.native

BUILDERS = {
    "mlp": models.mlp,
    "block": models.block,
    "causal block, spelled out": functools.partial(models.block, "manual", causal=True),
    "convnet": models.convnet,
    **{kind: functools.partial(models.tagger, kind) for kind in ("LSTM", "GRU", "RNN")},
    **{family: getattr(models, family) for family in ("gpt2", "bert", "llama")},
    **{kind: functools.partial(models.image, kind) for kind in ("resnet", "vit", "convnext", "regnet")},
}
ROUNDED = [name for name, precision in PRECISIONS.items() if precision.weights is bf16]
DOTS = [(None, False), *LIBRARY.dots(LIBRARY.isa())]
RUNNABLE = [name for name in ROUNDED if (PRECISIONS[name].rows, PRECISIONS[name].split_sums) in DOTS]
TOLERANCE = 2.5e-2  # of the root of the mean square: narrow random layers, tens of them, at 2^-9 an operand


@pytest.mark.parametrize("name", BUILDERS)
def test_near_float64(name: str) -> None:
    module, inputs = BUILDERS[name]()
    program = torch.export.export(module, inputs)
    f32 = ingot.InferenceSession(program, threads=2)
    feeds = {each.name: value.numpy() for each, value in zip(f32.get_inputs(), inputs, strict=True)}
    wide = [value.double() if value.is_floating_point() else value for value in inputs]
    sessions = {p: ingot.InferenceSession(program, threads=2, precision=p) for p in RUNNABLE}
    plain = f32.run(None, feeds)[0]
    with torch.inference_mode():
        exact = torch.utils._pytree.tree_leaves(module.double()(*wide))[0].numpy()
    size = np.sqrt((exact**2).mean())
    assert np.sqrt(((plain - exact) ** 2).mean()) < 1e-5 * size
    for precision, session in sessions.items():
        error = np.sqrt(((session.run(None, feeds)[0] - exact) ** 2).mean()) / size
        assert 1e-6 < error < TOLERANCE, f"{precision}: {error}"
