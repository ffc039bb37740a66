"""Steps by products of bf16, with parameters of f32; and frozen matrices, which both directions read where they lie."""

import numpy as np
import pytest
import torch
from test_trainer import ADAMW, made

import ingot
from ingot.dtype import DTYPES, bf16, f32
from ingot.errors import InputError
from ingot.ir import Graph, TensorType
from ingot.run.library import load

torch.set_num_threads(1)  # its threads spin, and the models are small


def test_rounded_steps_follow_those_of_f32(rng):
    module, batch = made("transformer")
    batches = [batch(rng) for _ in range(40)]
    options = {"example_inputs": batches[0], "optimizer": ADAMW}
    losses = {}
    there = load().dots(load().isa())
    dots = [name for name, apart in (("bf16", False), ("bf16amx", True)) if (bf16, apart) in there]
    for precision, threads in [("f32", 1), *((name, threads) for name in dots for threads in (1, 2))]:
        trainer = ingot.Trainer(module, precision=precision, threads=threads, **options)
        losses[precision, threads] = [trainer.step(*each) for each in batches]
        kernels = [step.kernel for step in trainer.compiled.native[1].steps]
        # All but the one that has rows of 19 elements, which are no pairs.
        assert kernels.count("gemm_bf16_packed") == (0 if precision == "f32" else 3 * 9 - 1)
        assert all(value.dtype == np.float32 for value in trainer.state_dict().values())
    for name in dots:
        assert losses[name, 1] == losses[name, 2] != losses["f32", 1]
        np.testing.assert_allclose(losses[name, 1], losses["f32", 1], rtol=0.02)
        with pytest.raises(InputError, match=r"emit_c: steps of f32 are written, got 'bf16"):
            trainer.emit_c("nowhere", *batches[0])
    with pytest.raises(InputError, match=r"option precision: unknown value, got 'int8', expected one of \['f32', "):
        ingot.Trainer(module, precision="int8", **options)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_frozen_matrix_lies_once(dtype, rng):
    """For all rows that it is multiplied with, either way; with the bits of one whose elements are stored as f32."""
    shapes = {"up": (160, 96), "down": (96, 160)}
    data = {name: rng.standard_normal(dims).astype(bf16.numpy) for name, dims in shapes.items()}
    x, target = rng.standard_normal((80, 96), np.float32), rng.standard_normal((80, 96), np.float32)
    states = []
    for stored in ("f32", dtype):
        graph = Graph("frozen")
        value = graph.add_input("x", TensorType(f32, (80, 96)))
        for name, array in data.items():
            matrix = graph.add_weight(f"{name}.weight", array.astype(DTYPES[stored].numpy))
            matrix = graph.add("cast", [matrix], dtype=f32).output
            value = graph.add("matmul", [value, matrix], transpose_b=True, scale=0.1).output
            value = graph.add("tanh", [value]).output
        graph.set_output("y", value)
        options = {"trainable": ingot.lora(r=2), "threads": 1, "loss": "mse", "optimizer": ADAMW}
        trainer = ingot.Trainer(graph, example_inputs=(x, target), **options)
        for _ in range(3):
            trainer.step(x, target)
        states.append({name: array.tobytes() for name, array in trainer.state_dict().items()})
        tensors = trainer.compiled.native[0].tensors.values()
        frozen = sum(tensor.nbytes for tensor in tensors if tensor.kind == "weight")
        assert frozen < 2 * 96 * 160 * DTYPES[stored].itemsize + 1024
    assert states[0] == states[1]
