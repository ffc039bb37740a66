"""What rules of the torch importer make of an op is trained as torch trains it: gradients against float64 autograd."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot

OTHERS = torch.linspace(-1, 1, 20).view(5, 4)
MATRIX = torch.linspace(-1, 1, 48).view(3, 4, 4)

# Of a parameter [6,4] of numbers apart from each other; its second row is 0 where that is to be tried.
FUNCTIONS = {
    "tan": lambda w: w.tan(),
    "hypot": lambda w: torch.hypot(w, w[:1] + 0.3),
    "cumprod": lambda w: w.cumprod(0),
    "logcumsumexp": lambda w: w.logcumsumexp(0),
    "cummax": lambda w: w.cummax(0)[0],
    "cummin": lambda w: w.cummin(1)[0],
    "median": lambda w: w.median(0)[0],
    "median_all": lambda w: w.median()[None],
    "kthvalue": lambda w: w.kthvalue(2, 1)[0],
    "bilinear": lambda w: F.bilinear(w, w, MATRIX.to(w.dtype)),
    "cdist": lambda w: torch.cdist(w, OTHERS.to(w.dtype)),
    "cdist_self": lambda w: torch.cdist(w, w),
    "cdist_1": lambda w: torch.cdist(w, OTHERS.to(w.dtype), p=1.0),
    "cdist_inf": lambda w: torch.cdist(w, OTHERS.to(w.dtype), p=float("inf")),
    "norm": lambda w: torch.linalg.vector_norm(w, dim=1),
    "normalize": lambda w: F.normalize(w, dim=1),
    "std": lambda w: w.std(1),
}
AT_ZERO = ("cumprod", "norm", "normalize", "std", "cdist_self")


class Through(nn.Module):
    """A function of a parameter times an input of ones."""

    def __init__(self, function, values):
        super().__init__()
        self.function, self.w = function, nn.Parameter(values)

    def forward(self, x):
        return self.function(self.w * x)


def agree(module, inputs, loss):
    """The gradients of a module's parameters, within 1e-5 of the largest, are those of autograd in float64."""
    target = torch.linspace(-1, 1, module(*inputs).numel()).view_as(module(*inputs)).detach()
    trainer = ingot.Trainer(
        module, loss="mse", example_inputs=(*inputs, target), optimizer=ingot.SGD(lr=0.1), threads=1
    )
    _, found = trainer.gradients(*inputs, target)
    wide = copy.deepcopy(module).double()
    loss(wide(*(x.double() for x in inputs)), target.double()).backward()
    for name, parameter in wide.named_parameters():
        expected = parameter.grad.numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * abs(expected).max(), err_msg=name)


@pytest.mark.parametrize(
    ("name", "has_zeros"), [*((name, False) for name in FUNCTIONS), *((name, True) for name in AT_ZERO)]
)
def test_functions(name, has_zeros):
    values = torch.linspace(-1.2, 1.3, 24)[torch.randperm(24, generator=torch.Generator().manual_seed(3))].view(6, 4)
    if has_zeros:
        values[1] = 0
    agree(Through(FUNCTIONS[name], values), (torch.ones(6, 4),), F.mse_loss)


class Last(nn.Module):
    """A projected LSTM of two layers and both directions."""

    def __init__(self, bias):
        super().__init__()
        self.layers = nn.LSTM(4, 6, 2, bias=bias, proj_size=3, bidirectional=True)

    def forward(self, x):
        y, (h, _) = self.layers(x)
        return y + h.sum()


@pytest.mark.parametrize("bias", [True, False])
def test_projected_layers(bias):
    torch.manual_seed(0)
    agree(Last(bias), (torch.randn(5, 2, 4),), F.mse_loss)
