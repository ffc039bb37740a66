"""Gradients of the zoo: every weight's, as a trainer gives them, of a random mean of the outputs, beside torch.autograd
in f32 and f64.

`python tests/zoo/test_zoo_gradients.py [NAME...]` prints which networks train, and why others do not.
"""

import re
import sys
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from architecture import Architecture
from marks import MARKS
from test_zoo import ZOO
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel
from ways import export, inputs_of

import ingot
from ingot.errors import IngotError
from ingot.gradients.registry import Backward
from ingot.ir.graph import Graph
from ingot.load.aten import load_any
from places import ROOT

TOLERANCE, OWN_TOLERANCE = 1e-5, 2e-5  # of the largest gradient, and of a weight's own largest
DRAWS = 8
QUICK = ("ViT", "GPT-2", "Mixtral", "Conv1d net")

ROWS = [row for row in ZOO if not MARKS.get(row.name, {}).get("static torch")]
FAR = 1e6  # what is so far below zero has a sigmoid of 0
GUIDE = ROOT / "docs" / "training.md"


class Wide(TorchFunctionMode):
    """Computes in f64 what asks for f32, as norms and routers do, whatever dtype their weights have."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args, kwargs = tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __enter__(self):
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *raised):
        torch.set_default_dtype(torch.float32)
        return super().__exit__(*raised)


def weighed(output: torch.Tensor, number: int, draw: int) -> torch.Tensor:
    """The weights of an output's mean."""
    rng = torch.Generator().manual_seed(1000 * draw + number)
    return torch.randn(output.shape, generator=rng, dtype=torch.float32).to(output.dtype)


def outputs_of(found: object) -> list[torch.Tensor]:
    return [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]


def by_torch(row: Architecture, dtype: torch.dtype, draw: int = 0) -> dict[str, np.ndarray]:
    """The gradients of all parameters."""
    module = row.build().to(dtype)
    if dtype is torch.float64 and isinstance(module, PreTrainedModel):
        module.config._experts_implementation = "eager"  # others have no f64
    feeds = {k: x.to(dtype) if x.is_floating_point() else x for k, x in inputs_of(row, 0).items()}
    with warnings.catch_warnings(), Wide() if dtype is torch.float64 else nullcontext():
        warnings.simplefilter("ignore")
        outputs = outputs_of(module(**feeds))
    trained = [(i, y) for i, y in enumerate(outputs) if y.is_floating_point() and y.requires_grad]
    sum((y * weighed(y, i, draw)).mean() for i, y in trained).backward()
    return {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}


def by_ingot(row: Architecture, draw: int = 0) -> dict[str, np.ndarray]:
    """The gradients that a trainer has, of a loss whose own is 1: -x * target for an x of no sigmoid."""
    module = row.build()
    program = export(row, module, symbolic=False)
    graph = load_any(program, None, is_trained=True)
    assert isinstance(graph, Graph)
    first = {p: name for name, p in reversed(list(module.named_parameters()))}
    every = module.named_parameters(remove_duplicate=False)
    names = {name: first[p] for name, p in every if name in graph.values and graph.values[name].users}
    feeds = inputs_of(row, 0)
    predict_mean(graph, draw)
    batch = [*(feeds[name].numpy() for name in graph.inputs), np.float32([-1])]
    options = {"loss": "bce", "optimizer": ingot.SGD(lr=0.0), "trainable": list(names), "threads": 1}
    _, found = ingot.Trainer(graph, example_inputs=batch, **options).gradients(*batch)
    return {names[name]: gradient for name, gradient in found.items()}


def predict_mean(graph: Graph, draw: int) -> None:
    """Makes the mean, less FAR, the only output, f32[1]."""
    g, total = Backward(graph), None
    for i, name in enumerate(graph.outputs.values()):
        type = graph.type(name)
        if type.dtype.kind != "f":
            continue
        g.at(name)
        like = torch.empty(type.dims, dtype=torch.float32)
        product = g.mul(name, g.array(f"weights.{i}", weighed(like, i, draw).numpy()))
        mean = g.reduce_mean(product, axes=tuple(range(type.rank)), keepdims=False)
        total = mean if total is None else g.add(total, mean)
    for name in list(graph.outputs):
        graph.remove_output(name)
    graph.set_output("mean", g.reshape(g.sub(total, FAR), shape=(1,)))


def errors(row: Architecture, draw: int = 0) -> tuple[int, float, float, float, list[str]]:
    """How many gradients there are; how far they are from torch's in f32 and f64, and how far torch's are apart, of the
    largest of all; and whose are far from f64 beside their own largest number, and further than torch's.
    """
    found, narrow, wide = by_ingot(row, draw), by_torch(row, torch.float32, draw), by_torch(row, torch.float64, draw)
    zeros = {name: np.zeros_like(array) for name, array in wide.items()}
    found, narrow = zeros | {name: found[name] for name in found if name in wide}, zeros | narrow
    largest = max(np.abs(array).max() for array in wide.values())

    def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
        return max(np.abs(a[name].astype(np.float64) - b[name]).max() for name in wide) / largest

    def own(a: dict[str, np.ndarray], name: str) -> float:
        return np.abs(a[name].astype(np.float64) - wide[name]).max()

    far = [
        name
        for name, array in wide.items()
        if own(found, name) > max(OWN_TOLERANCE * np.abs(array).max(), 3 * own(narrow, name), 1e-9 * largest)
    ]
    return len(wide), apart(found, narrow), apart(found, wide), apart(narrow, wide), far


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row.name in QUICK else pytest.mark.slow) for row in ROWS]
)
def test_gradients_are_those_of_torch(row: Architecture) -> None:
    _, beside, error, of_torch, far = errors(row)
    assert not far
    assert beside <= max(TOLERANCE, 3 * of_torch)  # the two errors together, where torch's own is larger
    if error > 2 * of_torch:  # of one draw, roundings may happen to cancel for one of the two
        drawn = [(error, of_torch), *(errors(row, draw)[2:4] for draw in range(1, DRAWS))]
        ours, theirs = np.sqrt(np.square(drawn).mean(axis=0))
        assert ours <= 2 * theirs


def test_the_guide_has_their_number() -> None:
    (count,) = re.findall(r"(\d+) networks of `tests/zoo`", GUIDE.read_text())
    assert int(count) == len(ROWS)


def main(names: list[str]) -> None:
    for row in ZOO:
        if names and row.name not in names:
            continue
        try:
            count, beside, error, of_torch, far = errors(row)
            print(f"{row.name}: {count} gradients, {beside:.1e} from torch, {error:.1e} (torch {of_torch:.1e}) {far}")
        except (IngotError, RuntimeError, AssertionError) as error:
            print(f"{row.name}: {type(error).__name__}: {str(error)[:300]}")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
