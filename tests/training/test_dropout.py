"""Dropout: Philox by counter, the same for any threads, parts, budgets and instruction sets."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_trainer import ADAMW
from torch import nn

import ingot
from ingot.run.interpret import interpret
from ingot.run.library import load

torch.set_num_threads(1)  # its threads spin, and the models are small


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 40), nn.GELU(), nn.Dropout(0.4), nn.Linear(40, 40), nn.ReLU(), nn.Dropout(0.25), nn.Linear(40, 5)
    )


def batches(rng, rows=512):
    return [(rng.standard_normal((rows, 12), np.float32), rng.integers(0, 5, rows)) for _ in range(2)]


def trained(given, **options):
    trainer = ingot.Trainer(net(), example_inputs=given[0], optimizer=ADAMW, **({"threads": 1} | options))
    losses = [trainer.step(*each) for each in given]
    return losses, {name: value.tobytes() for name, value in trainer.state_dict().items()}


def test_masks_depend_on_seed_step_node_and_element_alone(rng, monkeypatch):
    given = batches(rng)
    losses, states = trained(given)
    for isa in load().isas():
        monkeypatch.setenv("INGOT_ISA", isa)
        assert trained(given, threads=2) == (losses, states), isa
    assert trained(given, accumulate=2)[1] == states, "a part has the mask that it has in the whole"
    assert trained(given, memory=10**9)[1] == states
    assert trained(given, seed=1)[1] != states


def test_a_step_is_what_the_reference_computes_and_others_drop_nothing(rng):
    x, labels = batches(rng, 20)[0]
    module = net()
    trainer = ingot.Trainer(module, example_inputs=(x, labels), optimizer=ADAMW)
    feeds = dict(zip(trainer.graph.inputs, (x, labels, np.array(ADAMW.lr)), strict=True))
    expected = interpret(trainer.graph, feeds, float64=True)
    at_rest = F.cross_entropy(module.eval()(torch.from_numpy(x)), torch.from_numpy(labels)).item()
    assert trainer.evaluate(x, labels) == pytest.approx(at_rest, rel=1e-6)
    with torch.no_grad():
        logits = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(trainer.session().run(None, {"input": x})[0], logits, rtol=0, atol=1e-5)
    assert trainer.step(x, labels) == pytest.approx(expected["loss"], rel=1e-6) != pytest.approx(at_rest, rel=1e-3)
    for name, value in trainer.state_dict().items():
        np.testing.assert_allclose(value, expected[f"state:{name}"], rtol=0, atol=1e-5)


def test_a_share_of_the_elements_becomes_zero():
    graph = ingot.text.parse(
        """graph g
        input x: f32[40000]
        input s: f64[]
        y = dropout(x, s, none, rate=0.3, seed=9, stream=1): f32[40000]
        output y = y
        """
    )
    session = ingot.InferenceSession(graph, strict=True)
    x = np.ones(40000, np.float32)
    first, second = (session.run(None, {"x": x, "s": np.array(float(step))})[0] for step in (0, 1))
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.7)}
    for mask in (first == 0, second == 0):
        assert abs(mask.mean() - 0.3) < 0.01
    assert abs(((first == 0) & (second == 0)).mean() - 0.09) < 0.01, "steps have nothing to do with each other"
