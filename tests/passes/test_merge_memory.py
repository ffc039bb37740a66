"""What merging products costs: the planner's bound with and without the pass, its bits, and what reports say of it."""

import numpy as np
import pytest

import ingot
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from ingot.passes import PASSES

pytestmark = pytest.mark.native

COUNT, WIDTH, HIDDEN = 8, 16, 64
UNMERGED = [name for name in PASSES if name != "merge_matmul"]


def branches(rows: str, activation: str, *, breadth_first: bool, read_together: bool) -> Graph:
    """Parallel networks of two layers and their sum; or, where the hidden rows are read together, one second layer."""
    weights: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(3)
    layers: list[list[str]] = []
    for i in range(COUNT):
        weights |= {f"v{i}": rng.standard_normal((WIDTH, HIDDEN)), f"w{i}": rng.standard_normal((HIDDEN, WIDTH))}
        layers.append([f"p{i} = matmul(x, v{i})", f"h{i} = {activation}(p{i})"])
        layers[-1] += [] if read_together else [f"y{i} = matmul(h{i}, w{i})"]
    order = [line for each in (zip(*layers, strict=True) if breadth_first else layers) for line in each]
    name = "h" if read_together else "y"
    order += [f"{name}s{i} = add({name if i == 1 else f'{name}s'}{i - 1}, {name}{i})" for i in range(1, COUNT)]
    last = f"{name}s{COUNT - 1}"
    order += [f"z = matmul({last}, w0)" if read_together else f"z = relu({last})", "output z = z"]
    declared = [f"weight {name}: f32[{', '.join(map(str, data.shape))}]" for name, data in weights.items()]
    arrays = {name: data.astype(np.float32) for name, data in weights.items()}
    return parse("\n".join([f"input x: f32[{rows}, {WIDTH}]", *declared, *order]), arrays)


@pytest.mark.parametrize("breadth_first", [False, True])
@pytest.mark.parametrize("read_together", [False, True])
@pytest.mark.parametrize("activation", ["relu", "neg", "erf"])
@pytest.mark.parametrize("rows", ["24", "B"])
def test_no_memory_is_given_away(breadth_first: bool, read_together: bool, activation: str, rows: str) -> None:
    graph = branches(rows, activation, breadth_first=breadth_first, read_together=read_together)
    x = {"x": np.random.default_rng(4).standard_normal((24, WIDTH)).astype(np.float32)}
    dims = {} if rows == "24" else {"B": 24}
    both = [ingot.InferenceSession(graph, threads=1, dims=dims, passes=passes) for passes in (None, UNMERGED)]
    merged, apart = both
    assert merged.run(None, x)[0].tobytes() == apart.run(None, x)[0].tobytes()
    assert merged.plan.unfused_bytes == apart.plan.unfused_bytes
    assert f"one node at a time {apart.plan.unfused_bytes} bytes" in str(apart.plan)
    explained = merged.explain().to_json()["trades"]
    assert any(values["choice"] in str(merged.explain()) for values in explained) and not apart.explain().trades
    if not read_together:
        assert merged.plan.lower_bound_bytes <= apart.plan.lower_bound_bytes
        assert [row["choice"].partition(":")[0] for row in explained] == ["not merged"]
        assert merged.plan.lower_bound_bytes < 0.5 * merged.plan.activation_bytes


def test_unfused_bytes_follow_sizes() -> None:
    graph = branches("B", "relu", breadth_first=False, read_together=False)
    session = ingot.InferenceSession(graph, threads=1, dims={"B": ingot.at_most(48)})
    assert session.plan.unfused_bytes == 48 * 4 * (HIDDEN + 2 * WIDTH)
    assert session.plan.layout()["unfused_bytes"] == session.plan.unfused_bytes
