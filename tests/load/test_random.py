"""Random ops: what draws anew, what repeats, and the distribution of what is drawn."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ingot
from aten_random_cases import COUNT, MOMENTS, exported_draws
from ingot.compile import compile_mode
from ingot.ir.graph import OPS, Graph
from ingot.load import load_model
from ingot.lower import Target
from ingot.ops.source import DRAWS
from philox import philox

F, B, I32, I64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64
EXECUTORS = ["native", "interpret"]


def model_of(op: str, *, inputs: dict | None = None, dtype: int = F, subgraph: bool = False, **attributes) -> bytes:
    """One random op on what it is fed, or in the body of a loop of three trips."""
    feeds = {"x": [1, COUNT]} if inputs is None else inputs
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    taken = [helper.make_tensor_value_info(name, F, shape) for name, shape in feeds.items()]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    nodes = [node]
    if subgraph:
        body = helper.make_graph(
            [node, helper.make_node("Identity", ["c"], ["d"])],
            "body",
            [helper.make_tensor_value_info("i", I64, []), helper.make_tensor_value_info("c", B, [])],
            [helper.make_tensor_value_info("d", B, []), helper.make_tensor_value_info("y", F, [COUNT])],
        )
        nodes = [helper.make_node("Loop", ["n", ""], ["ys"], body=body)]
        outputs = [helper.make_tensor_value_info("ys", F, None)]
    graph = helper.make_graph(nodes, "g", taken, outputs)
    if subgraph:
        graph.initializer.append(helper.make_tensor("n", I64, [], [3]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def dropout() -> bytes:
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", F, [1, COUNT])], [helper.make_tensor_value_info("y", F, None)]
    )
    graph.initializer.extend([helper.make_tensor("r", F, [], [0.25]), helper.make_tensor("t", B, [], [True])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


# Each with the mean and standard deviation of what it draws where x is 0.5 everywhere.
MODELS = {
    "RandomUniform": (model_of("RandomUniform", inputs={}, shape=[COUNT], low=1.0, high=3.0), 2.0, 12**-0.5 * 2),
    "RandomUniformLike": (model_of("RandomUniformLike"), 0.5, 12**-0.5),
    "RandomNormal": (model_of("RandomNormal", inputs={}, shape=[COUNT], mean=2.0, scale=3.0), 2.0, 3.0),
    "RandomNormalLike": (model_of("RandomNormalLike"), 0.0, 1.0),
    "Bernoulli": (model_of("Bernoulli"), 0.5, 0.5),
    "Multinomial": (model_of("Multinomial", inputs={"x": [1, 3]}, dtype=I32, sample_size=COUNT), 1.0, (2 / 3) ** 0.5),
    "Dropout": (dropout(), 0.5, (0.25 / 3) ** 0.5),
    "in a loop": (model_of("RandomUniform", inputs={}, subgraph=True, shape=[COUNT]), 0.5, 12**-0.5),
}


def test_draws_are_counted() -> None:
    """Two words of 32 bits each make the 53 bits of a number."""
    seed, run, stream = 2**40 + 3, 2**33 + 7, 11
    found = OPS["draw_uniform"].function(np.array([seed, run]), shape=(3, 3), stream=stream).ravel()
    for place, number in enumerate(found):
        words = philox((place // 2, 0, run % 2**32, stream), (seed % 2**32, seed // 2**32))
        high, low = words[place % 2 * 2 :][:2]
        assert number == ((high >> 5) * 2**26 + (low >> 6)) / 2**53


def drawn(session: ingot.InferenceSession) -> np.ndarray:
    feeds = {each.name: np.full(each.shape, 0.5, np.float32) for each in session.get_inputs()}
    return session.run(None, feeds)[0].astype(np.float64)


@pytest.mark.filterwarnings("ignore::ingot.errors.ReferenceWarning")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_without_a_seed_each_run_draws_anew(name: str, executor: str) -> None:
    model, mean, deviation = MODELS[name]
    ingot.set_seed(1)
    session, other = (ingot.InferenceSession(model, executor=executor, threads=1) for _ in range(2))
    context = session.context()
    runs = [drawn(session), drawn(session), drawn(other), drawn(ContextOf(session, context))]
    for i, run in enumerate(runs):
        assert all(not np.array_equal(run, before) for before in runs[:i])
        error = deviation / run.size**0.5
        assert abs(run.mean() - mean) < 5 * error and abs(run.std() - deviation) < 5 * deviation / run.size**0.5 + 0.01
    assert abs(np.corrcoef(runs[0].ravel(), runs[1].ravel())[0, 1]) < 0.05
    if name == "in a loop":
        assert abs(np.corrcoef(runs[0])[0, 1]) < 0.05
    ingot.set_seed(1)
    session = ingot.InferenceSession(model, executor=executor, threads=2)
    assert np.array_equal(drawn(session), runs[0]) and np.array_equal(drawn(session), runs[1])


class ContextOf:
    """A context with the inputs of its session."""

    def __init__(self, session, context):
        self.get_inputs, self.run = session.get_inputs, context.run


@pytest.mark.parametrize("name", MODELS)
def test_executors_draw_the_same(name: str) -> None:
    runs = []
    for executor in EXECUTORS:
        ingot.set_seed(2)
        session = ingot.InferenceSession(MODELS[name][0], executor=executor)
        runs.append([drawn(session), drawn(session)])
    np.testing.assert_allclose(*runs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_a_seed_all_runs_are_the_same(executor: str) -> None:
    model = model_of("RandomUniform", inputs={}, shape=[3, 5], seed=4.0)
    expected = np.random.RandomState(4).random_sample((3, 5)).astype(np.float32)
    for session in [ingot.InferenceSession(model, executor=executor) for _ in range(2)]:
        for _ in range(2):
            np.testing.assert_array_equal(session.run(None, {})[0], expected)


def test_unseeded_ops_run_natively() -> None:
    for name, (model, *_) in MODELS.items():
        if name != "in a loop":
            ingot.InferenceSession(model, strict=True)


def test_a_saved_program_draws_anew(tmp_path) -> None:
    model = MODELS["RandomUniform"][0]
    session = ingot.InferenceSession(model)
    session.save(tmp_path / "program")
    ingot.set_seed(3)
    saved = [drawn(ingot.InferenceSession(tmp_path / "program")) for _ in range(2)]
    ingot.set_seed(3)
    assert np.array_equal(drawn(ingot.InferenceSession(model)), saved[0])
    assert not np.array_equal(*saved)


def test_an_exported_model_draws_anew() -> None:
    """By ONNX's reference: ONNX Runtime has no kernel of RandomUniform in the opset of exports."""
    exported = ingot.export_onnx(load_model(MODELS["RandomNormalLike"][0]).graph)
    onnx.checker.check_model(exported)
    assert [each.name for each in exported.graph.input] == ["x"] and len(exported.graph.output) == 1
    x = {"x": np.zeros((1, COUNT), np.float32)}
    first, second = (ReferenceEvaluator(exported).run(None, x)[0] for _ in range(2))
    assert not np.array_equal(first, second) and abs(first.std() - 1) < 0.05


def test_a_scan_needs_a_seed() -> None:
    body = helper.make_graph(
        [helper.make_node("RandomUniformLike", ["e"], ["y"])], "body",
        [helper.make_tensor_value_info("e", F, [2])], [helper.make_tensor_value_info("y", F, [2])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Scan", ["x"], ["ys"], body=body, num_scan_inputs=1)], "g",
        [helper.make_tensor_value_info("x", F, [3, 2])], [helper.make_tensor_value_info("ys", F, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(ingot.UnsupportedError, match="in the body of a Scan: no seed, expected the attribute seed"):
        ingot.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize("bad", [1.5, "7", None, True])
def test_what_is_no_seed(bad) -> None:
    with pytest.raises(ingot.IngotError, match="set_seed: not an integer"):
        ingot.set_seed(bad)


@pytest.mark.parametrize("decomposed", [False, True])
def test_torch_draws(decomposed: bool) -> None:
    draws = load_model(exported_draws(decomposed)).graph
    assert isinstance(draws, Graph) and DRAWS in draws.states
    x = {draws.inputs[0]: np.full(COUNT, 0.5, np.float32)}
    assert not compile_mode(draws.copy(), Target("scalar")).fallback
    ingot.set_seed(5)
    native = ingot.InferenceSession(draws)
    ingot.set_seed(5)
    reference = ingot.InferenceSession(draws, executor="interpret")
    first, second, exact = native.run(None, x), native.run(None, x), reference.run(None, x)
    for a, b, c, (mean, deviation) in zip(first, second, exact, MOMENTS, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-6, atol=1e-6)
        assert not np.array_equal(a, b)
        assert abs(a.mean() - mean) < 5 * deviation / COUNT**0.5 and abs(a.std() - deviation) < 0.05 * deviation


def test_torch_compile_draws_from_torch() -> None:
    compiled = torch.compile(lambda x: x + torch.rand(4), backend="ingot")
    with pytest.warns(ingot.IngotWarning, match="runs in PyTorch: .*random numbers"):
        torch.manual_seed(0)
        first = compiled(torch.zeros(4))
    torch.manual_seed(0)
    assert torch.equal(first, compiled(torch.zeros(4)))


def test_a_trainer_draws_from_its_seed() -> None:
    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x + torch.randn_like(x))

    module, x, target = Noisy(), torch.rand(8, 4), torch.zeros(8, dtype=torch.long)
    losses = []
    for seed in (3, 3, 4):
        trainer = ingot.Trainer(module, example_inputs=(x, target), optimizer=ingot.SGD(lr=0.0), seed=seed)
        losses.append([float(trainer.step(x, target)) for _ in range(2)])
    assert losses[0] == losses[1] != losses[2] and losses[0][0] != losses[0][1]
