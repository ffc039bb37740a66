"""Gradients of the zoo: every weight's, of a random mean of the outputs, beside torch.autograd in f32 and f64.

`python tests/zoo/test_zoo_gradients.py [NAME...]` prints which networks train, and why others do not.
"""

import sys
import warnings

import numpy as np
import pytest
import torch
from architecture import Architecture
from marks import MARKS
from test_zoo import ZOO
from torch.utils._pytree import tree_leaves
from ways import export, inputs_of

import ingot
from ingot.errors import IngotError
from ingot.gradients import differentiate
from ingot.gradients.registry import Backward
from ingot.ir import Graph
from ingot.load import load_model

TOLERANCE = 1e-5  # of the largest gradient
QUICK = ("ViT", "GPT-2", "Conv1d net")

# What torch has no numbers for: gradients that are NaN, and modules that cannot be float64.
BESIDE_NOTHING = {"CANINE", "Mixtral", "diffusion U-Net block", "graph convolution"}
ROWS = [row for row in ZOO if row.name not in BESIDE_NOTHING and not MARKS.get(row.name, {}).get("static torch")]


def weighed(output: torch.Tensor, number: int) -> torch.Tensor:
    """The weights of an output's mean."""
    rng = torch.Generator().manual_seed(number)
    return torch.randn(output.shape, generator=rng, dtype=torch.float32).to(output.dtype)


def outputs_of(found: object) -> list[torch.Tensor]:
    return [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]


def by_torch(row: Architecture, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The gradients of all parameters."""
    module = row.build().to(dtype)
    feeds = {k: x.to(dtype) if x.is_floating_point() else x for k, x in inputs_of(row, 0).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = outputs_of(module(**feeds))
    loss = sum((y * weighed(y, i)).mean() for i, y in enumerate(outputs) if y.is_floating_point() and y.requires_grad)
    loss.backward()
    return {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}


def by_ingot(row: Architecture) -> dict[str, np.ndarray]:
    """As `by_torch`, natively."""
    module = row.build()
    feeds = inputs_of(row, 0)
    program = export(row, module, symbolic=False)
    graph = load_model(program).graph
    assert isinstance(graph, Graph)
    first = {p: name for name, p in reversed(list(module.named_parameters()))}
    names = {name: first[p] for name, p in module.named_parameters(remove_duplicate=False) if name in graph.values}
    write_loss(graph)
    gradients = differentiate(graph, graph.outputs["loss"], list(names))
    for name in list(graph.outputs):
        graph.remove_output(name)
    for name, gradient in gradients.items():
        graph.set_output(f"d {name}", gradient)
    session = ingot.InferenceSession(graph, threads=1, strict=True)
    found = session.run(None, {name: feeds[name].numpy() for name in session.graph.inputs})
    return {names[name]: gradient for name, gradient in zip(gradients, found, strict=True)}


def write_loss(graph: Graph) -> None:
    g, total = Backward(graph), None
    for i, name in enumerate(graph.outputs.values()):
        type = graph.type(name)
        if type.dtype.kind != "f":
            continue
        g.at(name)
        like = torch.empty(type.dims, dtype=torch.float32)
        product = g.mul(name, g.array(f"weights.{i}", weighed(like, i).numpy()))
        mean = g.reduce_mean(product, axes=tuple(range(type.rank)), keepdims=False)
        total = mean if total is None else g.add(total, mean)
    graph.set_output("loss", total)


def errors(row: Architecture) -> tuple[int, float, float, float]:
    """How many gradients there are; how far they are from torch's in f32 and f64, and how far torch's are apart."""
    found, narrow, wide = by_ingot(row), by_torch(row, torch.float32), by_torch(row, torch.float64)
    zeros = {name: np.zeros_like(array) for name, array in wide.items()}
    found, narrow = zeros | {name: found[name] for name in found if name in wide}, zeros | narrow
    largest = max(np.abs(array).max() for array in wide.values())

    def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
        return max(np.abs(a[name].astype(np.float64) - b[name]).max() for name in wide) / largest

    return len(wide), apart(found, narrow), apart(found, wide), apart(narrow, wide)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row.name in QUICK else pytest.mark.slow) for row in ROWS]
)
def test_gradients_are_those_of_torch(row: Architecture) -> None:
    _, beside, error, of_torch = errors(row)
    assert beside <= max(TOLERANCE, 3 * of_torch)  # the two errors together, where torch's own is larger
    assert error <= max(2 * of_torch, 1e-6)


def main(names: list[str]) -> None:
    for row in ZOO:
        if names and row.name not in names:
            continue
        try:
            count, beside, error, of_torch = errors(row)
            print(f"{row.name}: {count} gradients, {beside:.1e} from torch, {error:.1e} (torch {of_torch:.1e})")
        except (IngotError, RuntimeError, AssertionError) as error:
            print(f"{row.name}: {type(error).__name__}: {str(error)[:300]}")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
