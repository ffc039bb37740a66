"""Steps by products of bf16, with parameters of f32; and frozen matrices, which both directions read where they lie."""

import numpy as np
import pytest
import torch
from test_trainer import ADAMW, made

import ingot
from ingot.errors import InputError
from ingot.ir.dtype import DTYPES, bf16, f32, i4, i8, u4, u8
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.run.interpret import interpret
from ingot.run.library import load
from op_cases import build, run

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
        with pytest.raises(InputError, match=r"emit_c: unsupported precision, got 'bf16"):
            trainer.emit_c("nowhere", *batches[0])
    with pytest.raises(InputError, match=r"option precision: unknown value, got 'int8', expected one of \['f32', "):
        ingot.Trainer(module, precision="int8", **options)


SHAPES = {"up": (160, 96), "down": (96, 160)}
# At most, of an element with its share of scales and of orders.
BYTES = {"f32": 4, "bf16": 2, "int8": 1.25, "int4": 0.6, "int4 ordered": 0.65}


def frozen(stored, data):
    """A graph of two products with frozen matrices, which are stored in a format."""
    graph = Graph("frozen")
    value = graph.add_input("x", TensorType(f32, (80, 96)))
    for name, array in data.items():
        if stored in DTYPES:
            matrix = graph.add_weight(f"{name}.weight", array.astype(DTYPES[stored].numpy))
            matrix = graph.add("cast", [matrix], dtype=f32).output
        else:
            dtype = i8 if stored == "int8" else i4
            coded = OPS["quantize_groups"].function(array, group=32, dtype=dtype)
            held = [graph.add_weight(f"{name}.weight{i}", part) for i, part in enumerate(coded)]
            order = np.random.default_rng(0).permutation(array.shape[1])
            if stored == "int4 ordered":
                held[0] = graph.add("gather", [held[0], graph.add_constant(f"{name}.order", order)], axis=1).output
            matrix = graph.add("dequantize", held, axis=1, block=32, dtype=f32).output
            if stored == "int4 ordered":
                places = graph.add_constant(f"{name}.places", np.argsort(order))
                matrix = graph.add("gather", [matrix, places], axis=1).output
        value = graph.add("matmul", [value, matrix], transpose_b=True, scale=0.1).output
        value = graph.add("tanh", [value]).output
    graph.set_output("y", value)
    return graph


@pytest.mark.parametrize("stored", BYTES)
def test_a_frozen_matrix_is_stored_once(stored, rng):
    """For all rows that it is multiplied with, either way and by any program of a trainer; with the bits of one whose
    elements are stored as f32, but for sums in the order of columns.
    """
    data = {name: rng.standard_normal(dims).astype(bf16.numpy).astype(np.float32) for name, dims in SHAPES.items()}
    x, target = rng.standard_normal((80, 96), np.float32), rng.standard_normal((80, 96), np.float32)
    coded = frozen(stored, data)
    products = [node for node in coded.nodes if node.op.name == "matmul"]
    decoded = {name: str(node.operands[1]) for name, node in zip(data, products, strict=True)}
    for name, value in decoded.items():
        coded.set_output(name, value)
    plain = interpret(coded, {"x": x})
    for name in decoded:
        coded.remove_output(name)
    states = []
    for graph in (frozen("f32", {name: plain[name] for name in data}), coded):
        options = {"trainable": ingot.lora(r=2), "threads": 1, "loss": "mse", "optimizer": ADAMW}
        trainer = ingot.Trainer(graph, example_inputs=(x, target), **options)
        for _ in range(3):
            trainer.step(x, target)
        states.append(list(trainer.state_dict().values()))
    trainer.evaluate(x, target)
    trainer.gradients(x, target)
    assert trainer._programs.placement.weight_bytes < 2 * 96 * 160 * BYTES[stored] + 1024
    for wide, narrow in zip(*states, strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=0, atol=1e-4 if stored == "int4 ordered" else 0)


@pytest.mark.parametrize("scale", [np.float16, np.float32])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("dtype", [i8, i4, u8, u4], ids=str)
def test_quantized_weights_in_both_directions_have_the_bits_of_floats(dtype, group, scale, rng):
    """The last group of a row is not whole, nor are the last panels; on every instruction set."""
    n, k = 300, 170
    low, high = (0, 1 << dtype.bits) if dtype in (u8, u4) else (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
    held = [rng.integers(low, high, (n, k)), rng.uniform(0.01, 0.1, (n, -(-k // group))).astype(scale)]
    held += [rng.integers(low, high, held[1].shape)] if low == 0 else []
    held = [array if i == 1 else array.astype(dtype.numpy) for i, array in enumerate(held)]

    def products(matrix=None):
        graph = Graph("both")
        x = graph.add_input("x", TensorType(f32, (5, k)))
        if matrix is None:
            stored = [graph.add_weight(f"w{i}", array) for i, array in enumerate(held)]
            weight = graph.add("dequantize", stored, "w", axis=1, block=group, dtype=f32).output
        else:
            weight = graph.add_weight("w", matrix)
        up = graph.add("matmul", [x, weight], transpose_b=True, scale=0.1).output
        graph.set_output("y", graph.add("matmul", [up, weight], scale=0.1).output)
        graph.set_output("w", weight)
        return graph

    x = rng.standard_normal((5, k), np.float32)
    coded, kernels = products(), set()
    matrix = interpret(coded, {"x": x})["w"]
    coded.remove_output("w")
    plain = products(matrix)
    plain.remove_output("w")
    for isa in load().isas():
        program, beside = (build(graph, isa=isa, threads=2) for graph in (coded, plain))
        kernels |= {step.kernel for step in program.single.plan.steps}
        np.testing.assert_array_equal(run(program, {"x": x})[0], run(beside, {"x": x})[0])
    assert any(kernel.endswith("_transposed") for kernel in kernels)
