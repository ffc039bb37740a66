"""torch.compile with the Ingot backend, against eager PyTorch."""

import copy
import tomllib
import warnings
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from aten_cases import unsupported_op
from ingot.errors import IngotWarning, InputError, LimitError, ShapeError, UnsupportedError
from ingot.integrations.dynamo import compile_backend
from ingot.load.aten.registry import RULES
from models import bert, block, convnet, gpt2, mlp
from places import ROOT


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def compiled(module, **options):
    return torch.compile(module, backend=compile_backend, options={"executor": "interpret"}, **options)


def agree(module, fast, *inputs) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="ingot")
        for got, expected in zip(tree_leaves(fast(*inputs)), tree_leaves(module(*inputs)), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", [mlp, block, convnet, gpt2, bert])
def test_models(build):
    module, inputs = build()
    agree(module, compiled(module), *inputs)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_other_shapes(dynamic):
    module, _ = mlp()
    fast = compiled(module, dynamic=dynamic)
    for batch in (3, 5, 2, 1, 5):
        agree(module, fast, torch.randn(batch, 16))


def test_changed_weights_are_seen():
    module, inputs = mlp()
    fast = compiled(module)
    agree(module, fast, *inputs)
    with torch.no_grad():
        module[0].weight.mul_(2)
    agree(module, fast, *inputs)
    module[0].bias = nn.Parameter(torch.ones(32))
    agree(module, fast, *inputs)
    module.load_state_dict({name: torch.zeros_like(p) for name, p in module.state_dict().items()})
    agree(module, fast, *inputs)


def test_written_buffers_and_inputs():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen += x.sum(0)
            x.mul_(2)
            return x + self.seen, x.shape[0], x[0]

    module, reference = Counter(), Counter()
    fast = compiled(module)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 2)
        y = x.clone()
        with torch.no_grad():
            got, expected = fast(x), reference(y)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(module.seen, reference.seen)


@pytest.mark.parametrize("build", [mlp, block, convnet, gpt2, bert])
def test_steps_are_those_of_torch(build):
    """Three, so that parameters that an optimiser wrote between runs are read."""
    module, inputs = build()
    reference = copy.deepcopy(module)
    losses = []
    for each, forward in ((module, compiled(module)), (reference, reference)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="ingot")
                loss = sum((y * y).mean() for y in tree_leaves(forward(*inputs)) if y.is_floating_point())
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[2] < losses[0] and losses[:3] == pytest.approx(losses[3:], rel=1e-4)


def test_unsupported_ops_run_in_torch_with_a_warning():
    op = unsupported_op("alone")

    def function(x):
        return op(x) + 1

    x = torch.rand(4)
    with pytest.warns(UserWarning, match=r"unsupported\.alone"), torch.no_grad():
        torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("error", [ShapeError, UnsupportedError, LimitError])
@pytest.mark.parametrize("trains", [False, True])
def test_a_graph_that_a_rule_is_wrong_about_runs_in_torch_with_a_warning(error, trains, monkeypatch):
    def wrong(b, x):
        raise error("sin: shapes contradict each other")

    monkeypatch.setitem(RULES, "aten.sin.default", wrong)
    x = torch.rand(4, requires_grad=trains)
    with pytest.warns(IngotWarning, match=r"this graph runs in PyTorch: .*sin: shapes contradict each other"):
        y = compiled(lambda x: x.sin() * 2)(x)
    torch.testing.assert_close(y, x.sin() * 2)


def test_sizes_that_cannot_be_compiled_run_in_torch_with_a_warning():
    """The graph of any size is compiled for each that comes: here, one has more elements than a tensor may have."""
    fast = compiled(lambda x: x.expand(x.shape[0], 2**40, 2**20)[:, -1, -1] * 2, dynamic=True)
    with torch.no_grad():
        x = torch.rand(3, 1, 1)
        with pytest.warns(IngotWarning, match="this graph runs in PyTorch"):
            torch.testing.assert_close(fast(x), x[:, 0, 0] * 2)
        torch.testing.assert_close(fast(x), x[:, 0, 0] * 2)


def test_a_wrong_number_that_a_run_is_given_is_its_own_error():
    fast = compiled(nn.Embedding(5, 2))
    with torch.no_grad(), pytest.raises(InputError, match=r"index out of range, got 7, expected 0\.\.4"):
        fast(torch.tensor([1, 7]))


def test_torch_finds_the_backend():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["torch_dynamo_backends"].items()
    assert EntryPoint(*entry, group="torch_dynamo_backends").load() is compile_backend
