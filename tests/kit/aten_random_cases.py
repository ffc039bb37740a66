"""All of torch's random ops that there are rules for, in one module."""

from __future__ import annotations

import functools
import math

import torch

COUNT = 20_000


class Draws(torch.nn.Module):
    """What each result draws has the mean and standard deviation of its row of MOMENTS, where x is 0.5 everywhere."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.rand(COUNT), torch.rand_like(x), torch.empty(COUNT).uniform_(1, 3), torch.randn(COUNT),
            torch.randn_like(x), x.clone().normal_(2, 3), torch.normal(x, 1.0), torch.normal(0.0, x),
            torch.normal(x, x),
            torch.bernoulli(x), torch.bernoulli(x, 0.2), torch.randint(4, (COUNT,)), torch.randint(2, 6, (COUNT,)),
            torch.randint_like(x, 4), torch.randint_like(x, 2, 6), torch.empty(COUNT).exponential_(2.0),
            torch.multinomial(torch.ones(3), COUNT, replacement=True), torch.ops.aten.bernoulli.Tensor(x, x * 0.4),
            torch.normal(2.0, 3.0, (COUNT,)), x.clone().log_normal_(0.5, 0.25), torch.atan(x.clone().cauchy_(0.0, 2.0)),
            x.clone().geometric_(0.25), torch.randperm(COUNT), torch.nn.functional.rrelu(-x, training=True),
            torch.multinomial(torch.tensor([0.0, 1.0, 3.0]).expand(COUNT, 3), 2)[:, 0],
        )  # fmt: skip


MOMENTS = [
    (0.5, 12**-0.5), (0.5, 12**-0.5), (2, 3**-0.5), (0, 1), (0, 1), (2, 3), (0.5, 1), (0, 0.5), (0.5, 0.5),
    (0.5, 0.5), (0.2, 0.4), (1.5, 1.25**0.5), (3.5, 1.25**0.5), (1.5, 1.25**0.5), (3.5, 1.25**0.5), (0.5, 0.5),
    (1, (2 / 3) ** 0.5), (0.2, 0.4), (2, 3), (math.exp(0.53125), math.exp(0.53125) * math.expm1(0.0625) ** 0.5),
    (0, 1.09027), (4, 12**0.5), ((COUNT - 1) / 2, (COUNT**2 / 12) ** 0.5), (-11 / 96, 5 / 48 / 12**0.5),
    (1.75, 0.1875**0.5),
]  # fmt: skip


@functools.cache
def exported_draws(decomposed: bool) -> torch.export.ExportedProgram:
    """The module, in training IR or in core ATen."""
    program = torch.export.export(Draws(), (torch.full((COUNT,), 0.5),))
    return program.run_decompositions({}) if decomposed else program
