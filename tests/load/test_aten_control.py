"""Programs of torch that run graphs, whose sizes data decide, that write into inputs, or that torch itself refuses."""

import io

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves

from aten_cases import Function, export, floats
from ingot import InferenceSession
from ingot.errors import UnsupportedError
from ingot.load.aten import load_exported, load_module, load_pt2
from ingot.run.interpret import interpret

CAUSAL = create_block_mask(lambda b, h, m, n: m >= n, None, None, 5, 5, device="cpu")
LOWER_RIGHT, UPPER_LEFT = causal_lower_right(5, 7), causal_upper_left(5, 7)
ROWS, ROW, COUNT = floats(4, 3), floats(3), torch.tensor(3)
QUERY, KEY, SHARED, LONG = floats(1, 4, 5, 8), floats(1, 4, 5, 8), floats(1, 2, 5, 8), floats(1, 4, 7, 8)
TABLE = floats(4, 9)


def _chosen(x):
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), x + 1), lambda x: (x.cos(), x * 2), (x,))


def _nested(x, count):
    def body(i, x):
        return i + 1, torch.cond(i > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    return while_loop(lambda i, x: i < count, body, (torch.zeros((), dtype=torch.int64), x))


def _by_table(q, k, table):
    return flex_attention(q, k, k, score_mod=lambda s, b, h, m, n: s + table[h, m - n + 4])


def _by_sums(q, k, table):
    return flex_attention(q, k, k, score_mod=lambda s, b, h, m, n: s + table[h].sum())


PROGRAMS = {
    "cond": (_chosen, (ROWS,)),
    "cond_other": (_chosen, (-ROWS.abs(),)),
    "while_loop": (_nested, (ROWS, COUNT)),
    "while_loop_never": (_nested, (ROWS, COUNT - 3)),
    "scan": (lambda x, c: scan(lambda c, x: (c + x, c * x), c, x), (ROWS, ROW)),
    "map": (lambda x, c: torch_map(lambda x, c: x * c, x, c), (ROWS, ROW)),
    "of_what_data_decide": (lambda x: (x[x > 0].sort()[0] * 2).cumsum(0), (ROWS,)),
    "bias_upper_left": (lambda q, k: F.scaled_dot_product_attention(q, k, k, attn_mask=UPPER_LEFT), (QUERY, LONG)),
    "bias_lower_right": (lambda q, k: F.scaled_dot_product_attention(q, k, k, attn_mask=LOWER_RIGHT), (QUERY, LONG)),
    "flex": (lambda q, k: flex_attention(q, k, k, score_mod=lambda s, b, h, m, n: s + (m - n)), (QUERY, KEY)),
    "flex_mask": (lambda q, k: flex_attention(q, k, k, block_mask=CAUSAL), (QUERY, KEY)),
    "flex_shared": (lambda q, k: flex_attention(q, k, k, enable_gqa=True), (QUERY, SHARED)),
    "flex_table": (_by_table, (QUERY, KEY, TABLE)),
}


def expect_both(program, inputs, expected):
    """That the interpreter and the native executor give what torch does."""
    graph = load_exported(program)
    graph.validate()
    arrays = [x.numpy() for x in inputs]
    found = [list(interpret(graph, dict(zip(graph.inputs, arrays, strict=True))).values())]
    session = InferenceSession(program, threads=1)
    found.append(session.run(None, {each.name: x for each, x in zip(session.get_inputs(), arrays, strict=True)}))
    for results in found:
        for got, want in zip(results, expected, strict=True):
            assert got.dtype == want.numpy().dtype
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_graphs(name):
    function, inputs = PROGRAMS[name]
    program = export(Function(function), inputs)
    with torch.no_grad():
        expect_both(program, inputs, tree_leaves(program.module()(*inputs)))


@pytest.mark.filterwarnings("ignore")
def test_a_size_of_data_is_another_one_in_each_run():
    session = InferenceSession(export(Function(lambda x: x[x > 0] * 2), (ROWS,)), threads=1)
    (name,) = (each.name for each in session.get_inputs())
    for x in (ROWS, -ROWS, ROWS.abs() + 1, -ROWS.abs() - 1):
        (got,) = session.run(None, {name: x.numpy()})
        np.testing.assert_array_equal(got, (x[x > 0] * 2).numpy())


def test_a_written_input_is_an_output():
    def function(given, other):
        given.copy_(other * 3)
        given[1] += 1
        return given * 2

    inputs = (ROW.clone(), floats(3))
    program = export(Function(function), tuple(x.clone() for x in inputs))
    graph = load_exported(program)
    assert list(graph.outputs) == ["output", f"{graph.inputs[0]}_mutated"]
    written = inputs[0].clone()
    result = function(written, inputs[1])
    expect_both(program, inputs, [result, written])


@pytest.mark.filterwarnings("ignore")
def test_a_stored_size_of_data_is_measured():
    file = io.BytesIO()
    torch.export.save(export(Function(lambda x: x[x > 0] * 2), (ROWS,)), file)
    file.seek(0)
    expect_both(torch.export.load(file), (ROWS,), [ROWS[ROWS > 0] * 2])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_with_weights_that_are_trained(mode):
    """torch's own functional form of it fails where gradients are on."""
    module, ids = nn.EmbeddingBag(20, 6, mode=mode), torch.randint(0, 20, (4, 5))
    with torch.no_grad():
        expect_both(torch.export.export(module, (ids,)), (ids,), [module(ids)])


def _branches(x):
    return x + 1 if x.sum() > 0 else x - 1


def _makes_a_bias(q, k):
    return F.scaled_dot_product_attention(q, k, k, attn_mask=causal_upper_left(5, 7))


def _wrong(x):
    return x @ x


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (_branches, (ROWS,), "guard on data-dependent expression"),
        (_makes_a_bias, (QUERY, LONG), "Creating a new Tensor subclass CausalBias"),
        (_wrong, (ROWS,), "same reduction dim"),
    ],
)
def test_what_torch_cannot_export_is_refused_with_its_message(function, inputs, message):
    with pytest.raises(UnsupportedError, match=f"(?is)module Function: torch.export fails: got .*{message}"):
        load_module(Function(function), inputs)


@pytest.mark.filterwarnings("ignore")
def test_a_score_of_more_than_elements_is_refused():
    program = export(Function(_by_sums), (QUERY, KEY, TABLE))
    with pytest.raises(UnsupportedError, match="function of a score calls aten"):
        load_exported(program)


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x) * 2


class Printed(nn.Module):
    def forward(self, x):
        torch.ops.aten._print("x")
        return x * 2


@pytest.mark.filterwarnings("ignore")
def test_checks_of_factors_are_left_out_and_other_effects_are_refused(tmp_path):
    """A decomposed program orders them by a token."""
    x = torch.eye(3) + ROWS[0, 0]
    programs = [export(module, (x,)).run_decompositions() for module in (Inverse(), Printed())]
    for name, program in zip(("inverse", "printed"), programs, strict=True):
        torch.export.save(program, tmp_path / f"{name}.pt2")
    expect_both(programs[0], (x,), [Inverse()(x)])
    assert load_pt2(tmp_path / "inverse.pt2").outputs
    with pytest.raises(UnsupportedError, match=r"a call with effects, got aten\._print"):
        load_exported(programs[1])
    with pytest.raises(UnsupportedError, match="argument of kind 'as_operator'"):
        load_pt2(tmp_path / "printed.pt2")
