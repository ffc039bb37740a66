"""Indices of torch's ops, fed from outside of their range: an error, where torch has one too."""

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import InputError

# Of each operand: how the error calls it, and one past the largest index.
INDICES = {
    "ids": ("indices", 7), "selected": ("index", 5), "gathered": ("index", 5), "scattered": ("index", 5),
    "added": ("index", 5),
}  # fmt: skip


class Lookups(nn.Module):
    """One op for each operand of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, x, ids, selected, gathered, scattered, added):
        return (
            self.table(ids), torch.index_select(x, 0, selected), torch.gather(x, 0, gathered),
            torch.scatter(x, 0, scattered, x), torch.index_add(x, 0, added, x[:2]),
        )  # fmt: skip


def test_a_module_refuses_the_indices_that_torch_refuses() -> None:
    x = torch.randn(5, 3)
    feeds = {"x": x, "ids": torch.tensor([1, 2]), "selected": torch.tensor([0, 4])}
    feeds |= {name: torch.ones(5, 3, dtype=torch.long) for name in ("gathered", "scattered")}
    feeds["added"] = torch.tensor([3, 4])
    module = Lookups().eval()
    program = torch.export.export(module, tuple(feeds.values()))
    for executor in ("interpret", "native"):
        session = ingot.InferenceSession(program, executor=executor)
        session.run(None, {name: each.numpy() for name, each in feeds.items()})
        for name, (said, limit) in INDICES.items():
            for bad in (-1, limit, -(2**63), 2**63 - 1):
                wrong = {each: array.numpy().copy() for each, array in feeds.items()}
                wrong[name].flat[-1] = bad
                with pytest.raises(InputError, match=rf"{said} .*got {bad}, expected 0\.\.{limit - 1}( \(from .*\))?$"):
                    session.run(None, wrong)
                if abs(bad) < 100:
                    with pytest.raises((IndexError, RuntimeError)):
                        module(*(torch.from_numpy(np.asarray(array)) for array in wrong.values()))
