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
from torch_oracles import torch_dropout

torch.set_num_threads(1)  # its threads spin, and the models are small


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 40), nn.GELU(), nn.Dropout(0.4), nn.Linear(40, 40), nn.ReLU(), nn.Dropout(0.25), nn.Linear(40, 5)
    )


class Attending(nn.Module):
    """Causal attention of 4 heads over 2 of keys, whose weights are dropped as they are anywhere: while it trains."""

    def __init__(self):
        super().__init__()
        # No bias of keys: it changes no weight, so that Adam would take steps by what is rounded.
        self.queries, self.keys, self.values = nn.Linear(12, 32), nn.Linear(12, 16, bias=False), nn.Linear(12, 16)
        self.rate, self.head = 0.3, nn.Linear(32, 5)

    def forward(self, x):
        x = x.unflatten(0, (-1, 32))
        q, k, v = (f(x).unflatten(2, (-1, 8)).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        rate = self.rate if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, dropout_p=rate)
        return self.head(x.transpose(1, 2).flatten(2).flatten(0, 1))


def attention_net():
    torch.manual_seed(0)
    return Attending()


class Eager(Attending):
    """The same, written by hand: as transformers do it, with a mask that is added."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(self.rate)

    def forward(self, x):
        x = x.unflatten(0, (-1, 32))
        q, k, v = (f(x).unflatten(2, (-1, 8)).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        seen = torch.full((32, 32), torch.finfo(x.dtype).min).triu(1)
        weights = F.softmax(q @ k.transpose(2, 3) * 8**-0.5 + seen, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.head((self.drop(weights) @ v).transpose(1, 2).flatten(2).flatten(0, 1))


def eager_net():
    torch.manual_seed(0)
    return Eager()


class Own(nn.Module):
    """Attention as torch's own modules call it."""

    def __init__(self, needs_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, dropout=0.3, batch_first=True)
        self.needs_weights, self.head = needs_weights, nn.Linear(12, 5)

    def forward(self, x):
        x = x[None]
        return self.head(self.attention(x, x, x, need_weights=self.needs_weights)[0])[0]


def batches(rng, rows=512):
    return [(rng.standard_normal((rows, 12), np.float32), rng.integers(0, 5, rows)) for _ in range(2)]


def trained(make, given, **options):
    trainer = ingot.Trainer(make(), example_inputs=given[0], optimizer=ADAMW, **({"threads": 1} | options))
    losses = [trainer.step(*each) for each in given]
    return losses, {name: value.tobytes() for name, value in trainer.state_dict().items()}


@pytest.mark.parametrize("make", [net, attention_net, eager_net])
def test_masks_depend_on_seed_step_node_and_element_alone(make, rng, monkeypatch):
    given = batches(rng)
    losses, states = trained(make, given)
    for isa in load().isas():
        monkeypatch.setenv("INGOT_ISA", isa)
        assert trained(make, given, threads=2) == (losses, states), isa
    assert trained(make, given, accumulate=2)[1] == states, "a part has the mask that it has in the whole"
    assert trained(make, given, memory=10**9)[1] == states
    assert trained(make, given, seed=1)[1] != states


@pytest.mark.parametrize("make", [net, attention_net, eager_net])
def test_a_step_is_what_the_reference_computes_and_others_drop_nothing(make, rng):
    x, labels = batches(rng, 64)[0]
    module = make()
    trainer = ingot.Trainer(module, example_inputs=(x, labels), optimizer=ADAMW)
    feeds = dict(zip(trainer.graph.inputs, (x, labels, np.array(ADAMW.lr)), strict=True))
    expected = interpret(trainer.graph, feeds, float64=True)
    at_rest = F.cross_entropy(module.eval()(torch.from_numpy(x)), torch.from_numpy(labels)).item()
    assert trainer.evaluate(x, labels) == pytest.approx(at_rest, rel=1e-6)
    with torch.no_grad():
        logits = module(torch.from_numpy(x)).numpy()
    found = trainer.session().run(None, {next(iter(trainer.graph.inputs)): x})[0]
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5)
    assert trainer.step(x, labels) == pytest.approx(expected["loss"], rel=1e-6) != pytest.approx(at_rest, rel=1e-3)
    for name, value in trainer.state_dict().items():
        np.testing.assert_allclose(value, expected[f"state:{name}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("needs_weights", [False, True])
def test_attention_of_torch_is_dropped_where_it_trains(needs_weights, rng):
    module, batch = Own(needs_weights), batches(rng, 9)[0]
    for trains in (True, False):
        module.attention.train(trains)
        trainer = ingot.Trainer(module, example_inputs=batch, optimizer=ADAMW, threads=1)
        ops = [node.op.name for node in trainer.graph.nodes]
        assert ("attention_dropout" in ops or "dropout" in ops) == trains == module.attention.training


def test_attention_by_hand_stores_no_weights(rng):
    given = batches(rng, 64)
    trainers = [ingot.Trainer(make(), example_inputs=given[0], optimizer=ADAMW) for make in (attention_net, eager_net)]
    ops = [sorted(node.op.name for node in trainer.graph.nodes) for trainer in trainers]
    assert ops[0] == ops[1] and {"attention_dropout", "attention_dropout_gradient"} < set(ops[0])
    # Neither has another dropout, so that both draw the same numbers.
    losses = [[trainer.step(*each) for each in given] for trainer in trainers]
    np.testing.assert_allclose(*losses, rtol=1e-6)


class Recurrent(nn.Module):
    """Two layers, between which elements are dropped."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.LSTM(6, 5, 2, dropout=0.4, bidirectional=True, batch_first=True), nn.Linear(10, 5)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


def test_recurrent_layers_drop_between_them(rng):
    torch.manual_seed(0)
    module = Recurrent()
    x, labels = rng.standard_normal((8, 4, 6), np.float32), rng.integers(0, 5, 8)
    trainer = ingot.Trainer(module, example_inputs=(x, labels), optimizer=ADAMW, threads=1)
    at_rest = F.cross_entropy(module.eval()(torch.from_numpy(x)), torch.from_numpy(labels)).item()
    assert trainer.evaluate(x, labels) == pytest.approx(at_rest, rel=1e-6)
    halves = [nn.LSTM(size, 5, bidirectional=True, batch_first=True) for size in (6, 10)]
    for i, half in enumerate(halves):
        for name, parameter in half.named_parameters():
            parameter.data = getattr(module.layers, name.replace("_l0", f"_l{i}")).data
    between = torch_dropout(halves[0](torch.from_numpy(x))[0], 0, rate=0.4)
    expected = F.cross_entropy(module.head(halves[1](between.float())[0][:, -1]), torch.from_numpy(labels))
    assert trainer.step(x, labels) == pytest.approx(expected.item(), rel=1e-6) != pytest.approx(at_rest, rel=1e-3)


def test_each_part_drops_in_its_own_mode(rng):
    batch = batches(rng, 16)[0]
    for modes, expected in (((True, True), [0.4, 0.25]), ((False, True), [0.25]), ((False, False), [])):
        module = net()
        for place, mode in zip((2, 5), modes, strict=True):
            module[place].train(mode)
        program = torch.export.export(module, (torch.from_numpy(batch[0]),))
        for source in (module, program):
            trainer = ingot.Trainer(source, example_inputs=batch, optimizer=ADAMW, threads=1)
            found = {node.rate for node in trainer.graph.nodes if node.op.name == "dropout"}
            assert sorted(found, reverse=True) == expected


def test_a_share_of_the_elements_becomes_zero():
    graph = ingot.ir.text.parse(
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
