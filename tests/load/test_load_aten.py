"""The torch loader against torch itself: every rule, whole models, names, symbols, states and refusals."""

import functools
import io
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import ingot
from aten_cases import CASES, Function, export, exported, unsupported_op
from built_by_rules import REWRITE, ops_of_aten
from ingot import InferenceSession
from ingot.errors import InputError, LoadError, UnsupportedError
from ingot.ir.dim import symbol
from ingot.ir.graph import Graph
from ingot.ir.text import dump, parse
from ingot.load.aten import load_any, load_exported, load_module, load_pt2
from ingot.load.aten.registry import REFUSED, RULES
from ingot.load.aten.writes import without_writes, writes
from ingot.load.built_ops import read_table
from ingot.run.interpret import interpret
from models import bert, block, convnet, gpt2, minilm, mlp, seeded

# Overloads that no case calls, but decompositions of other ops do, and AOT Autograd.
UNSEEN = {"aten.lift_fresh.default", "aten.max_pool2d_with_indices_backward.default"}

SPELLINGS = ("sdpa", "functional", "manual")
MODELS = {
    "mlp": mlp,
    "convnet": convnet,
    **{f"block-{s}-{c}": functools.partial(block, s, c) for s in SPELLINGS for c in (False, True)},
    "gpt2-sdpa": gpt2,
    "gpt2-eager": functools.partial(gpt2, "eager"),
    "bert-sdpa": bert,
    "bert-eager": functools.partial(bert, "eager"),
    "encoder": lambda: (
        seeded(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)),
        (torch.randn(2, 5, 16),),
    ),
}


Pair = namedtuple("Pair", ["first", "second"])


def run(graph: Graph, *inputs: torch.Tensor) -> dict[str, np.ndarray]:
    graph.validate()
    return interpret(graph, {name: x.numpy() for name, x in zip(graph.inputs, inputs, strict=True)})


def check(got: dict[str, np.ndarray], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal for integers and bools, within `tolerance` of max(1, |expected|) for floats."""
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        array = tensor.detach().numpy()
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(got[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], array, err_msg=name)


def check_model(graph: Graph, module: nn.Module, inputs: tuple, tolerance: float = 1e-5) -> None:
    """The graph's outputs equal the module's, in order."""
    with torch.no_grad():
        expected = tree_leaves(module(*inputs))
    check(run(graph, *inputs), dict(zip(graph.outputs, expected, strict=True)), tolerance)


@pytest.mark.parametrize("decomposed", [False, True], ids=["training", "core"])
@pytest.mark.parametrize("name", CASES)
def test_rules(name, decomposed):
    function, inputs = CASES[name]
    graph = load_exported(exported(name, decomposed))
    check(run(graph, *inputs), function(*inputs))


def test_every_rule_is_tested_and_builds_the_ops_of_the_table():
    made = ops_of_aten()
    assert set(RULES) - set(made) == UNSEEN
    assert not RULES.keys() & REFUSED.keys()
    assert made == read_table("aten"), REWRITE


# -- whole models


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    module, inputs = MODELS[name]()
    program = export(module, inputs)
    check_model(load_exported(program), module, inputs)
    if name != "gpt2-sdpa":  # torch's decomposition of it fails: a view of what its CPU attention makes strided
        check_model(load_exported(program.run_decompositions()), module, inputs)


@pytest.mark.parametrize("build", [gpt2, bert])
def test_dynamic_batch_and_sequence(build):
    module, inputs = build()
    sizes = {0: Dim("batch"), 1: Dim("tokens", max=64)}
    graph = load_module(module, inputs, tuple(sizes for _ in inputs))
    assert graph.symbols == ["batch", "tokens"]
    assert graph.type(graph.inputs[0]).shape == (symbol("batch"), symbol("tokens"))
    for batch, rows in ((2, 7), (1, 12), (5, 3), (1, 1)):
        check_model(graph, module, build(batch=batch, rows=rows)[1])


@pytest.mark.parametrize("wanted", ["half", "more"])
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest"},
        {"mode": "nearest-exact"},
        *({"mode": mode, "align_corners": align} for mode in ("bilinear", "bicubic") for align in (False, True)),
        *({"mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")),
    ],
    ids=str,
)
def test_images_of_symbolic_size_are_resized(how, wanted):
    """Natively: a table that depends on sizes is made where they are bound."""

    def function(x):
        if wanted == "half":
            return functional.interpolate(x, scale_factor=(0.5, 2.0), **how)
        return functional.interpolate(x, (x.shape[2] + 3, x.shape[3] // 2), **how)

    x = torch.randn(2, 3, 12, 10)
    sizes = {2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    session = InferenceSession(export(Function(function), (x,), dynamic_shapes=((sizes,),)), threads=1, strict=True)
    for height, width in ((12, 10), (5, 17), (33, 8)):
        x = torch.randn(2, 3, height, width)
        (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        expected = function(x).numpy()
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)


def test_sizes_become_dims_and_data():
    def function(x):
        batch, rows = x.shape
        mask = torch.arange(rows)[None, :] <= torch.arange(rows)[:, None]
        padded = torch.cat([x, x.new_zeros(batch, 2 * rows)], 1)
        return {
            "sum": (x[:, None, :] * mask).sum(-1) / rows,
            "joined": x.reshape(batch * rows),
            "tail": x[:, 1:],
            "padded": padded[:, 1 : rows + 1] + torch.full((batch, 1), rows),
            "last": x[:, -1],
            "heads": x.repeat(1, 4).view(batch, 4, rows).transpose(0, 1),
            "held": (x * 9).clamp(-batch, rows - 1),
            "filled": nn.functional.pad(x, (rows - 1, (5 - rows % 5) % 5)),
            "indices": (x * 9).long().clamp(0, rows - 1),
        }

    x = torch.randn(3, 6)
    graph = load_module(Function(function), (x,), (({0: Dim("b"), 1: Dim("n", min=3)},),))
    for shape in ((3, 6), (1, 9), (4, 3)):
        x = torch.randn(shape)
        check(run(graph, x), function(x))


def test_a_program_without_names_gets_short_symbols():
    module, inputs = mlp()
    graph = load_exported(export(module, inputs, dynamic_shapes=({0: Dim.DYNAMIC},)))
    assert graph.symbols == ["s0"]


# -- names and storage


def test_names_follow_the_module_tree():
    graph = load_module(*gpt2())
    assert graph.inputs == ["input_ids"] and list(graph.outputs) == ["logits"]
    assert "transformer.h.0.attn.c_attn.addmm" in graph.values
    assert graph.values["transformer.h.0.attn.c_attn.weight"].kind == "weight"
    text = dump(graph)
    assert dump(parse(text, {n: v.data for n, v in graph.values.items() if v.kind == "weight"})) == text


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ["output"]),
        (lambda x: (x + 1, x * 2), ["output_0", "output_1"]),
        (lambda x: {"scores": x + 1}, ["scores"]),
        (lambda x: {"a": x + 1, "b": (x * 2, x * 3)}, ["a", "b.0", "b.1"]),
        (lambda x: [x + 1, {"c": x * 2}], ["output_0", "output_1.c"]),
        (lambda x: Pair(x + 1, x * 2), ["first", "second"]),
        (lambda x: (x, None, x), ["output_0", "output_2"]),
    ],
)
def test_output_names(function, names):
    assert list(load_module(Function(function), (torch.randn(3, 2),)).outputs) == names


def test_weights_share_memory_with_torch():
    module, inputs = gpt2()
    graph = load_module(module, inputs)
    parameters = {p.data_ptr() for p in module.parameters()}
    pointers = [v.data.ctypes.data for v in graph.values.values() if v.kind == "weight"]
    assert len(pointers) == len(set(pointers)) == len(parameters), "tied parameters are one weight"
    assert set(pointers) == parameters


def test_small_tensors_are_constants_and_large_ones_weights():
    small, large = torch.randn(4), torch.randn(200, 100)
    graph = load_module(Function(lambda x: (x + small) @ large[:4]), (torch.randn(2, 4),))
    kinds = {v.type.dims: v.kind for v in graph.values.values() if v.kind in ("weight", "constant")}
    assert kinds == {(4,): "constant", (200, 100): "weight"}


def test_bfloat16_weights_keep_their_bits():
    module = nn.Linear(4, 3).to(torch.bfloat16)
    graph = load_module(module, (torch.randn(2, 4).bfloat16(),))
    weight = graph.values["weight"].data
    np.testing.assert_array_equal(weight.view(np.int16), module.weight.detach().view(torch.int16).numpy())


def test_keyword_inputs():
    module, (ids, mask) = bert()
    graph = load_module(module, {"input_ids": ids, "attention_mask": mask})
    assert graph.inputs == ["input_ids", "attention_mask"]
    check_model(graph, module, (ids, mask))


def test_training_mode_is_left_as_it_was():
    module, inputs = convnet()
    module.train()
    load_module(module, inputs)
    assert module.training


class Turned(nn.Module):
    """Pairs of numbers turned by angles in a complex buffer, and mixed by a complex parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(7, 4), torch.randn(7, 4)))
        self.mix = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x):
        return torch.view_as_real((torch.view_as_complex(x) * self.turns) @ self.mix)


def test_complex_weights_are_pairs():
    module, inputs = Turned(), (torch.randn(3, 7, 4, 2),)
    graph = load_module(module, inputs)
    assert {name: v.type.dims for name, v in graph.values.items() if v.kind == "weight"} == {
        "turns": (7, 4, 2), "mix": (4, 4, 2)
    }  # fmt: skip
    check_model(graph, module, inputs)
    session = InferenceSession(export(module, inputs), threads=1, strict=True)
    (result,) = session.run(None, {session.get_inputs()[0].name: inputs[0].numpy()})
    np.testing.assert_allclose(result, module(*inputs).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["complex_arithmetic", "complex_moved", "spectra", "frames", "groups"])
def test_complex_numbers_and_groups_run_natively(name):
    function, inputs = CASES[name]
    session = InferenceSession(exported(name, False), threads=1, strict=True)
    feeds = {each.name: x.numpy() for each, x in zip(session.get_inputs(), inputs, strict=True)}
    names = [each.name for each in session.get_outputs()]
    check(dict(zip(names, session.run(None, feeds), strict=True)), function(*inputs))


# -- state


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.register_buffer("seen", torch.full((2,), start))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return x + self.seen


@pytest.mark.parametrize("start", [0.0, 1.5])
def test_a_written_buffer_is_a_state(start):
    module, x = Counter(start), torch.randn(3, 2)
    graph = load_module(module, (x,))
    assert list(graph.states) == ["seen"]
    state = np.full(2, start, np.float32)
    assert np.array_equal(graph.initial.get("seen", np.zeros(2)), state)
    reference = Counter(start)
    for _ in range(3):
        results = interpret(graph, {graph.inputs[0]: x.numpy(), "seen": state})
        state = results["state:seen"]
        np.testing.assert_allclose(results["output"], reference(x).numpy(), rtol=1e-5)
    np.testing.assert_allclose(state, reference.seen.numpy(), rtol=1e-5)


def _written_whole(input):
    y = input * 2
    z = functional.relu(y, inplace=True)
    y += input
    z.mul_(3)
    y[y < 0] = 1.0
    return y + z, y.view(-1)


def _written_behind_dropout(input):
    y = functional.dropout(input * 2, 0.5, training=False)
    y += input
    return y


def _written_behind_a_view(input):
    y = input + 1
    first = y[:, 0]
    y.mul_(2)
    return first, y


def _written_through_a_view(input):
    y = input + 1
    y[:, 0] += 2
    return y


def _written_through_a_whole_view(input):
    y = input + 1
    z = y.contiguous()
    z.copy_(input)
    return y.tanh_() * z


def _transposed_in_place(input):
    y = input.exp()
    z = y.clone()
    return y.t_(), z.add_(input.to(torch.float64))


def _compared_in_place(input):
    y = input + 1
    y.gt_(1).add_(input.to(torch.float64))
    return y / 2


@pytest.mark.parametrize(
    ("function", "is_whole"),
    [
        (_written_whole, True),
        (_compared_in_place, True),
        (_written_through_a_whole_view, True),
        (_written_behind_dropout, False),
        (_written_behind_a_view, False),
        (_written_through_a_view, False),
        (_transposed_in_place, False),
    ],
)
def test_what_is_written_into_is_what_reads_behind_it_find(function, is_whole):
    class Named(nn.Module):
        def forward(self, input):
            return function(input)

    x = torch.randn(3, 4)
    results = function(x)
    expected = [result.numpy() for result in (results if isinstance(results, tuple) else (results,))]
    program, file = export(Named(), (x,)), io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    stored = torch.export.load(file)  # its fake tensors share no memory
    assert (without_writes(program.graph_module) is not None) == is_whole
    assert without_writes(stored.graph_module) is None
    for source in (program, stored):
        found = run(load_exported(source), x)
        for got, want in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert list(load_exported(program).inputs) == ["input"]
    assert any(writes(node.target) for node in program.graph.nodes), "the program is another one now"


# -- refusals


def test_a_program_loads_again():
    """Loading leaves nothing with a program, whose tracing torch repeats."""
    for name in CASES:
        program = exported(name, False)
        assert dump(load_exported(program)) == dump(load_exported(program)), name


def test_everything_unsupported_is_listed_at_once():
    first, second, third = (unsupported_op(name) for name in ("first", "second", "third"))

    def function(x):
        a = first(x)
        b = second(third(a @ a.T))
        return nn.functional.dropout(b, training=True) + first(b), torch.fft.fft(x)

    with pytest.raises(UnsupportedError) as error:
        load_module(Function(function), (torch.randn(3, 3),))
    text = str(error.value)
    for part in (
        "unsupported.first.default (first, first_1)",
        "unsupported.second.default (second)",
        "unsupported.third.default (third)",
        "node 'dropout': dropout in training mode",
        "output 'output_1': complex numbers",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.fft.fft(x), "output 'output': complex numbers"),
        (lambda x: torch.fft.fft(x).abs() + torch.fft.rfft(x).tanh().abs().sum(), r"tanh.default \(complex\)"),
        (lambda x: torch.histc(x, 4), "between data's ends"),
        (lambda x: x.to_sparse().to_dense(), r"to_sparse.default \(to_sparse\), which makes a sparse tensor"),
        (lambda x: torch.linalg.eigvals(torch.complex(x, x)[:, :3]).abs(), "eigenvalues of a complex matrix"),
        (lambda x: nn.functional.batch_norm(x, x[0], x[1], training=True), "batch norm in training mode"),
        (lambda x: x[x[:, 0] > 0, torch.tensor([1])], "a mask with other indices"),
        (
            lambda x: nn.functional.layer_norm(x, (5,)) + torch.ops.aten._fused_rms_norm(x, (5,), None, 1e-5)[1],
            "result 1",
        ),
    ],
)
def test_refusals(function, message):
    with pytest.raises(UnsupportedError, match=message):
        load_module(Function(function), (torch.randn(3, 5),))


def test_complex_inputs_are_refused():
    with pytest.raises(UnsupportedError, match="input 'inputs_0': complex numbers"):
        load_module(Function(torch.abs), (torch.randn(3, dtype=torch.complex64),))


def test_pt2_files(tmp_path):
    module, inputs = mlp()
    torch.export.save(export(module, inputs), tmp_path / "model.pt2")
    check_model(load_pt2(tmp_path / "model.pt2"), module, inputs)
    whole = (tmp_path / "model.pt2").read_bytes()
    for name, content in {"garbage": b"not a model", "empty": b"", "truncated": whole[: len(whole) // 2]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LoadError, match=name):
            load_pt2(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_pt2(tmp_path / "missing.pt2")


def test_any_source():
    module, inputs = mlp()
    assert dump(load_any(module, inputs)) == dump(load_any(export(module, inputs), None))
    assert load_any("text", None) is None
    with pytest.raises(InputError, match="example_inputs"):
        load_any(module, None)


# -- the real sizes


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [gpt2, bert])
def test_models_in_full(build, attention):
    module, inputs = build(attention, batch=1, rows=16, full=True)
    check_model(load_module(module, inputs), module, inputs, 1e-4)


@pytest.mark.slow
def test_trained_sentence_embeddings():
    module, inputs = minilm()
    graph = load_module(module, inputs)
    (got,) = run(graph, *inputs).values()
    with torch.no_grad():
        expected = module(*inputs).numpy()
    assert np.all(1 - (got * expected).sum(-1) < 1e-5)
    check_model(graph, module, inputs, 1e-4)


class Added(torch.nn.Module):
    def forward(self, a, b):
        return a + b.sum(0)


@pytest.mark.parametrize("decomposed", [False, True])
def test_dims_keep_the_names_that_torch_was_given(decomposed):
    dims = {"a": {0: Dim("batch", min=2, max=64)}, "b": {0: Dim("other")}}
    program = torch.export.export(Added(), (torch.rand(4, 3), torch.rand(5, 3)), dynamic_shapes=dims)
    session = ingot.InferenceSession(program.run_decompositions({}) if decomposed else program)
    assert [each.shape for each in session.get_inputs()] == [["batch", 3], ["other", 3]]
    assert [each.shape for each in session.get_outputs()] == [["batch", 3]]
    assert session(np.ones((6, 3), np.float32), np.ones((2, 3), np.float32)).tolist() == [[3.0] * 3] * 6


def test_example_inputs_are_the_arguments_of_forward():
    module, x = torch.nn.Linear(3, 2).eval(), torch.rand(4, 3)
    expected = module(x).detach().numpy()
    for given in (x, (x,), [x], {"input": x}):
        result = ingot.InferenceSession(module, example_inputs=given)(x)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"example_inputs missing, got none, .* InferenceSession\(module, example_inputs=\(x,\)\)"),
        (3, "example_inputs: got int, expected a tensor, a tuple of the arguments of forward, or a dict"),
        (np.ones(3, np.float32), "example_inputs: got an array of numpy, expected torch.from_numpy"),
        ({"input": np.ones(3, np.float32)}, "example_inputs: got an array of numpy, expected torch.from_numpy"),
        ((torch.rand(3), torch.rand(3)), "example_inputs: too many positional arguments, got 2, expected 1: input"),
    ],
)
def test_what_are_no_example_inputs(given, message):
    with pytest.raises(ingot.InputError, match=message):
        ingot.InferenceSession(torch.nn.Linear(3, 2), example_inputs=given)


@pytest.mark.parametrize("given", [(torch.rand(3),), torch.rand(3), {"input": torch.rand(3)}])
def test_example_inputs_have_to_be_named(given):
    with pytest.raises(
        ingot.InputError, match=r"sess_options: got .* InferenceSession\(module, example_inputs=\(x,\)\)"
    ):
        ingot.InferenceSession(torch.nn.Linear(3, 2), given)
