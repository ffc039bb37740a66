"""Recurrent layers in the kernel that takes a turn for each step of time: the same bits however they are cut."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from ingot import InferenceSession, InputError, UnsupportedError
from ingot.ir import text
from ingot.ir.dim import AtMost
from ingot.ir.dtype import DType, bf16, f16, f32, f64
from ingot.ir.graph import OPS, Graph
from ingot.ops.define import sample
from ingot.run.interpret import interpret
from kernel_calls import DOT_ISAS, ISAS, SPLIT_ISAS
from op_cases import build, one_node, run
from products import summed

pytestmark = [pytest.mark.native, pytest.mark.checked]

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
ACTIVATIONS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
LAYERS = [("lstm", {}), ("gru", {}), ("gru", {"linear_before_reset": True}), ("rnn", {})]
# Steps, batch and hidden: units in one panel and several, with and without a rest; rows of one tile and of more.
SIZES = [(5, 1, 1), (3, 4, 31), (4, 1, 32), (3, 13, 33), (2, 3, 64), (3, 8, 65), (3, 30, 70), (2, 2, 300), (2, 8, 300)]
EAGER = {"task_nanoseconds": 1, "run_nanoseconds": 0}  # one nanosecond of work is worth a part


def layer(
    op: str, steps: int, batch: int, hidden: int, lengths: bool = False, dtype: DType = f32, **options: Any
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A layer whose weights are fixed, and what it is fed."""
    count = len(ACTIVATIONS[op])
    numbers = {"activations": ACTIVATIONS[op], "alphas": (0.0,) * count, "betas": (0.0,) * count}
    columns, scale = GATES[op] * hidden, 1 / max(1, hidden) ** 0.5
    states = f"h:{dtype}[{batch},{hidden}]" + (f" c:{dtype}[{batch},{hidden}]" if op == "lstm" else "")
    text = f"g:{dtype}[{steps},{batch},{columns}] r:{dtype}>-{scale}<{scale}[{columns},{hidden}]"
    text += (f" b:{dtype}[{columns}]" if op == "gru" else "") + f" {states}" + (" none" if op == "lstm" else "")
    text += f" n:i64<{steps + 1}[{batch}]" if lengths else ""
    return one_node(OPS[op], sample(text, **numbers | options), static=(1,))


def rows(op: str, feeds: dict[str, np.ndarray], first: int, last: int) -> dict[str, np.ndarray]:
    """Some of the sequences: all operands have one dim for them but a bias, the last of fixed size."""
    axes = {"x0": 1, "x2": None if op == "gru" else 0}
    return {
        name: array if (axis := axes.get(name, 0)) is None else array.take(range(first, last), axis)
        for name, array in feeds.items()
    }


@pytest.mark.parametrize("size, dtype", [*product(SIZES, [f32]), *product(SIZES[:5], [f64])], ids=str)
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("op, options", LAYERS, ids=str)
def test_bits_do_not_depend_on_parts_sets_or_batch(op, options, lengths, size, dtype):
    steps, batch, hidden = size
    graph, feeds = layer(op, *size, lengths, dtype, reverse=lengths, **options)
    expected = run(build(graph, isa=ISAS[0], threads=1), feeds)
    for name, got in zip(graph.outputs, expected, strict=True):
        exact = interpret(graph, feeds, float64=True)[name]
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 if dtype is f32 else 1e-13)
    for isa in ISAS:
        for threads in (1, 2, 3, 7):
            program = build(graph, isa=isa, threads=threads, **EAGER)
            (step,) = program.native[0].plan.steps
            assert step.parts > 1 or threads == 1 or hidden == 1
            for got, wanted in zip(run(program, feeds), expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=f"{isa}, {threads} parts")
    first, last = batch // 2, batch // 2 + 1
    alone = layer(op, steps, 1, hidden, lengths, dtype, reverse=lengths, **options)[0]
    alone.values["w1"].data = graph.values["w1"].data
    for got, wanted in zip(run(build(alone), rows(op, feeds, first, last)), expected, strict=True):
        np.testing.assert_array_equal(got, wanted.take(range(first, last), wanted.ndim - 2))


@pytest.mark.parametrize("op, options", LAYERS, ids=str)
def test_weights_that_a_run_computes_are_packed_by_it(op, options):
    graph, feeds = layer(op, 3, 5, 40, **options)
    given = Graph("given")
    for name in ("x0", "w1", *list(feeds)[1:]):
        given.add_input(name, graph.type(name))
    (node,) = graph.nodes
    for i, output in enumerate(given.add(op, node.operands, **node.attributes).outputs):
        given.set_output(f"y{i}", output)
    program = build(given, threads=2, **EAGER)
    assert not program.fallback and "pack_f32" in [step.kernel for step in program.native[0].plan.steps]
    fed = {name: feeds.get(name, graph.values["w1"].data) for name in given.inputs}
    for got, wanted in zip(run(program, fed), run(build(graph), feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)


def narrowed(graph: Graph, stored_as: DType, **changed: Any) -> Graph:
    """A layer with its matrix stored in 16 bits, whose numbers take its place there, too. changed: attributes."""
    wide = graph.values["w1"].data
    assert wide is not None
    stored = wide.astype(stored_as.numpy)
    graph.values["w1"].data = stored.astype(np.float32)
    narrow, names = Graph("narrow"), {}
    for name in graph.inputs:
        names[name] = narrow.add_input(name, graph.type(name))
    names["w1"] = narrow.add("cast", [narrow.add_weight("w1", stored)], dtype=f32).output
    (node,) = graph.nodes
    operands = [None if operand is None else names[operand] for operand in node.operands]
    for i, output in enumerate(narrow.add(node.op.name, operands, **{**node.attributes, **changed}).outputs):
        narrow.set_output(f"y{i}", output)
    return narrow


@pytest.mark.parametrize("batch, hidden", [(5, 5), (5, 32), (8, 75)])
@pytest.mark.parametrize("stored_as", [bf16, f16], ids=str)
@pytest.mark.parametrize("op, options", LAYERS, ids=str)
def test_weights_of_16_bits_stay_so(op, options, stored_as, batch, hidden):
    """The bits are those of the same numbers as floats."""
    graph, feeds = layer(op, 3, batch, hidden, **options)
    narrow = narrowed(graph, stored_as)
    for isa in ISAS:
        program = build(narrow, isa=isa)
        assert [step.kernel for step in program.native[0].plan.steps] == [f"{op}_f32_{stored_as}_packed"]
        for got, wanted in zip(run(program, feeds), run(build(graph, isa=isa), feeds), strict=True):
            np.testing.assert_array_equal(got, wanted)


ROUNDED_WAYS = [("packed", False, DOT_ISAS), ("tiles", True, SPLIT_ISAS)]


@pytest.mark.parametrize("size", [(3, 1, 2), (3, 17, 70), (2, 34, 64)], ids=str)
@pytest.mark.parametrize("way, apart, isas", ROUNDED_WAYS)
@pytest.mark.parametrize("op, options", LAYERS, ids=str)
def test_rounded_states_have_one_definition(op, options, way, apart, isas, size):
    """Bits do not depend on sets, parts or batch; numbers are the reference's but for roundings near a half."""
    steps, batch, hidden = size
    whole, feeds = layer(op, *size, **options)
    graph = narrowed(whole, bf16, rounded=True)
    given = {"rounded": (bf16,), "split_sums": apart}
    expected = run(build(graph, isa=isas[0], **given), feeds)
    for name, got in zip(graph.outputs, expected, strict=True):
        np.testing.assert_allclose(got, interpret(graph, feeds, float64=True)[name], rtol=0, atol=4e-3)
    for isa, threads in product(isas, (1, 3)):
        program = build(graph, isa=isa, threads=threads, **given, **EAGER)
        assert f"{op}_bf16_{way}" in [step.kernel for step in program.native[0].plan.steps]
        for got, wanted in zip(run(program, feeds), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=f"{isa}, {threads} parts")
    one = layer(op, steps, 1, hidden, **options)[0]
    one.values["w1"].data = whole.values["w1"].data
    alone = run(build(narrowed(one, bf16, rounded=True), isa=isas[-1], **given), rows(op, feeds, batch - 1, batch))
    for got, wanted in zip(alone, expected, strict=True):
        np.testing.assert_array_equal(got, wanted.take([batch - 1], wanted.ndim - 2))


@pytest.mark.parametrize("isa", SPLIT_ISAS)
def test_the_sums_of_a_rounded_state_are_split(isa):
    """Those of a step's product, which nothing is added to, are summed as any product's."""
    numbers = {"activations": ("relu",), "alphas": (0.0,), "betas": (0.0,)}
    graph, feeds = one_node(OPS["rnn"], sample("g[1,5,98] r[98,98] h[5,98]", **numbers), static=(1,))
    feeds["x0"][:] = 0
    narrow = narrowed(graph, bf16, rounded=True)
    (y, last) = run(build(narrow, isa=isa, rounded=(bf16,), split_sums=True), feeds)
    sums = summed(feeds["x2"].astype(bf16.numpy), graph.values["w1"].data.T)
    np.testing.assert_array_equal(y[0], np.maximum(sums, 0))
    np.testing.assert_array_equal(last, y[0])


PLANNED = """graph g
input x: f32[T, 5, 160]
input h: f32[5, 40]
input c: f32[5, 40]
weight r: f32[160, 40]
y, last_h, last_c = lstm(x, r, h, c, activations=["sigmoid", "tanh", "tanh"], alphas=[0.0, 0.0, 0.0], betas=[0.0, 0.0, 0.0], REVERSE): f32[T, 5, 40], f32[5, 40], f32[5, 40]
output y = y
output h = last_h
output c = last_c
"""  # noqa: E501


@pytest.mark.parametrize("reverse", ["reverse=false", "reverse=true"])
def test_a_run_may_use_fewer_steps_than_planned(reverse, rng):
    weights = {"r": rng.standard_normal((160, 40), np.float32) / 9}
    graph = text.parse(PLANNED.replace("REVERSE", reverse), weights)
    program = build(graph.bind({"T": AtMost(6, "T")}), threads=2, **EAGER)
    x, h, c = (rng.standard_normal(shape, np.float32) for shape in ((6, 5, 160), (5, 40), (5, 40)))
    for steps in (6, 0, 1, 4, 5):
        got = program.run([x, h, c], {"T": steps})
        expected = run(build(graph.bind({"T": steps})), {"x": x[:steps], "h": h, "c": c})
        for result, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("steps, wrong", [(0, -1), (0, 1), (4, -1), (4, 5), (4, 1 << 40)])
def test_a_length_that_no_sequence_has_is_an_input_error(steps, wrong):
    graph, feeds = layer("gru", steps, 3, 5, lengths=True)
    name = list(feeds)[-1]
    feeds[name][1] = wrong
    with pytest.raises(InputError, match=rf"node 't': lengths: index out of range, got {wrong}, expected 0..{steps}$"):
        run(build(graph), feeds)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_an_activation_without_a_kernel_runs_on_the_reference(dtype):
    graph, feeds = layer("rnn", 3, 2, 5, dtype=dtype, activations=("softsign",))
    with pytest.raises(UnsupportedError, match="rnn 't'"):
        InferenceSession(graph, strict=True)
    np.testing.assert_array_equal(InferenceSession(graph).run(None, feeds)[0], interpret(graph, feeds)["y0"])


@pytest.mark.parametrize("made", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_layers_of_f64_are_torchs(made):
    """Of two layers in both directions; nothing of it runs on the reference."""
    torch.manual_seed(0)
    model = made(11, 23, num_layers=2, bidirectional=True).double().eval()
    x = torch.randn(7, 3, 11, dtype=torch.float64)
    session = InferenceSession(torch.export.export(model, (x,)), strict=True)
    with torch.no_grad():
        rows, _ = model(x)
    np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], rows.numpy(), rtol=0, atol=1e-14)
