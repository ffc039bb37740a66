"""What binding a graph to one more size does, and how often: each thing once, whatever the number of layers."""

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.ir.graph import Graph
from ingot.ir.text import parse
from ingot.passes import PASSES
from ingot.session import context

pytestmark = pytest.mark.native

PLACES, WIDTH, HIDDEN, LAYERS = 32, 16, 40, 6
SIZES = (3, 8, 1, 32, 5)
SHAPES = {
    "table": (11, WIDTH), "kinds": (2, WIDTH), "places": (PLACES, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,),
    "up": (WIDTH, HIDDEN), "bias": (HIDDEN,), "down": (HIDDEN, WIDTH),
}  # fmt: skip


def encoder(middle: str = "gelu({})") -> Graph:
    """Layers over embeddings as BERT has them: kinds of tokens are expanded to a length that only a binding tells."""
    few, rows = f"min({PLACES}, n)", f"broadcast(n, min({PLACES}, n))"
    lines = ["graph encoder", "input ids: i64[1, n]"]
    lines += [f"weight {name}: f32{list(shape)}" for name, shape in SHAPES.items()]
    lines += [
        f"tokens = gather(table, ids, axis=0): f32[1, n, {WIDTH}]",
        f"kind.row = slice(kinds, starts=[0, 0], stops=[1, {WIDTH}], steps=[1, 1]): f32[1, {WIDTH}]",
        f"kind.rows = reshape(kind.row, shape=[1, 1, {WIDTH}]): f32[1, 1, {WIDTH}]",
        f"kind = expand(kind.rows, shape=[1, {few}, {WIDTH}]): f32[1, {few}, {WIDTH}]",
        f"known = add(tokens, kind): f32[1, {rows}, {WIDTH}]",
        f"place.rows = slice(places, starts=[0, 0], stops=[{few}, {WIDTH}], steps=[1, 1]): f32[{few}, {WIDTH}]",
        f"place = reshape(place.rows, shape=[1, {few}, {WIDTH}]): f32[1, {few}, {WIDTH}]",
        f"x0 = add(known, place): f32[1, {rows}, {WIDTH}]",
    ]
    for i in range(LAYERS):
        lines += [
            f"n{i} = layer_norm(x{i}, scale, shift, eps=1e-05): f32[1, {rows}, {WIDTH}]",
            f"h{i} = matmul(n{i}, up): f32[1, {rows}, {HIDDEN}]",
            f"b{i} = add(h{i}, bias): f32[1, {rows}, {HIDDEN}]",
            f"r{i} = {middle.format(f'b{i}')}: f32[1, {rows}, {HIDDEN}]",
            f"m{i} = matmul(r{i}, down): f32[1, {rows}, {WIDTH}]",
            f"x{i + 1} = add(m{i}, x{i}): f32[1, {rows}, {WIDTH}]",
        ]
    rng = np.random.default_rng(0)
    weights = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}
    return parse("\n".join([*lines, f"output y = x{LAYERS}", ""]), weights)


def feed(size: int) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(size).integers(0, 11, (1, size))}


def calls(run: Callable[[], object]) -> Counter[str]:
    """How often each function of Ingot is called by a run: "file.function" -> calls."""
    profile = cProfile.Profile()
    profile.runcall(run)
    found: Counter[str] = Counter()
    for (file, _, name), (_, count, *_rest) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        found[f"{Path(file).parent.name}/{Path(file).stem}.{name}"] += count
    return found


def test_a_new_size_has_the_bits_of_a_session_bound_to_it() -> None:
    graph = encoder()
    session, reference = ingot.InferenceSession(graph, dims={}), ingot.InferenceSession(graph, executor="interpret")
    for size in SIZES:
        (found,) = session.run(None, feed(size))
        (alone,) = ingot.InferenceSession(graph, dims={"n": size}).run(None, feed(size))
        assert np.array_equal(found.view(np.int32), alone.view(np.int32))
        np.testing.assert_allclose(found, reference.run(None, feed(size))[0], rtol=1e-4, atol=1e-4)


def test_a_binding_does_each_thing_once() -> None:
    graph = encoder()
    session = ingot.InferenceSession(graph, threads=1)
    session.run(None, feed(SIZES[0]))
    done = calls(lambda: session.run(None, feed(SIZES[1])))
    assert session.bindings.misses == 2
    nodes = len(session.graph)
    # One graph in addition to the symbolic one, one lowering of it, and one question to the rows for each node.
    assert done["ir/graph.bind"] == 1 and done["ir/graph.copy"] == 0
    assert done["lower/lowering.__init__"] == 1
    assert LAYERS < done["lower/selection._ask"] <= nodes
    # The expand goes, and all passes look once more at what is left; nothing waits for a third round.
    assert len(PASSES) < done["passes/__init__.run"] < 2 * len(PASSES)


def test_a_bound_graph_infers_what_is_alike_in_layers_once() -> None:
    graph = encoder()
    done = calls(lambda: graph.bind({"n": SIZES[1]}))
    assert 0 < done["ir/graph._inferred"] < len(graph) - 4 * LAYERS
    assert 0 < done["ir/dim._bound"] <= done["ir/types.bind_type"] < len(graph)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("middle", ["gelu({})", "log_softmax({}, axis=2)"])
def test_nothing_is_tried_where_nothing_can_be_better(middle: str, size: int) -> None:
    """Layers in a row need, at their peak, what one step touches, and what a step behind it adds to what they make:
    other orders of steps are not looked for, nor other orders of placing once the arena is as small as it can be, nor
    barriers between steps of one part each.
    """
    session = ingot.InferenceSession(encoder(middle), threads=1)
    done = calls(lambda: session.run(None, feed(size)))
    assert done["plan/memory.plan"] == 1
    assert session.plan.arena_bytes == session.plan.lower_bound_bytes
    assert done["ir/liveness.greedy"] == done["plan/schedule._dependencies"] == 0
    assert done["plan/memory._place"] == 1
    assert done["plan/memory._byte_range"] == 0


def test_shapes_that_were_valid_before_are_accepted_at_once(monkeypatch):
    """However many there were; other mistakes raise their usual error."""
    monkeypatch.setattr(context, "MAX_CACHED_SHAPES", 2)
    graph = parse("""graph pairs
input x: f32[n, m]
input y: f32[n]
z = reduce_sum(x, axes=[1], keepdims=false): f32[n]
w = add(z, y): f32[n]
output w = w
""")
    session = ingot.InferenceSession(graph, threads=1)
    for n, m in [(2, 3), (2, 3), (4, 3), (3, 4), (2, 3), (3, 4)]:
        feeds = {"x": np.full((n, m), n, np.float32), "y": np.ones(n, np.float32)}
        for given in (feeds, {"x": np.asfortranarray(feeds["x"]), "y": feeds["y"].tolist()}, feeds):
            assert session.run(None, given)[0].tolist() == [n * m + 1] * n
        for wrong, message in (
            ({"y": np.ones(n + 1, np.float32)}, "contradicts input 'x'"),
            ({"y": np.ones(n)}, "wrong dtype"),
            ({"y": np.ones((n, 1), np.float32)}, "wrong rank"),
            ({"v": feeds["y"]}, "no such input|unknown|unexpected"),
        ):
            with pytest.raises(ingot.InputError, match=message):
                session.run(None, feeds | wrong)
    assert session.bindings.misses == 3
