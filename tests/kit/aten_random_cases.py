"""All of torch's random ops that there are rules for, in one module."""

from __future__ import annotations

import functools

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
            torch.multinomial(torch.ones(3), COUNT, replacement=True),
        )  # fmt: skip


MOMENTS = [
    (0.5, 12**-0.5), (0.5, 12**-0.5), (2, 3**-0.5), (0, 1), (0, 1), (2, 3), (0.5, 1), (0, 0.5), (0.5, 0.5),
    (0.5, 0.5), (0.2, 0.4), (1.5, 1.25**0.5), (3.5, 1.25**0.5), (1.5, 1.25**0.5), (3.5, 1.25**0.5), (0.5, 0.5),
    (1, (2 / 3) ** 0.5),
]  # fmt: skip


@functools.cache
def exported_draws(decomposed: bool) -> torch.export.ExportedProgram:
    """The module, in training IR or in core ATen."""
    program = torch.export.export(Draws(), (torch.full((COUNT,), 0.5),))
    return program.run_decompositions({}) if decomposed else program
