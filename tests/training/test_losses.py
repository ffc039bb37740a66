"""Losses with settings, and the memory of a step, compared with torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.errors import InputError

torch.set_num_threads(1)  # its threads spin, and the models are small


class Tied(nn.Module):
    """A language model of which two layers have one table, by two names."""

    def __init__(self):
        super().__init__()
        self.tokens, self.up, self.down = nn.Embedding(23, 16), nn.Linear(16, 40), nn.Linear(40, 16)
        self.norm, self.head = nn.RMSNorm(16), nn.Linear(16, 23, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


def batches(rng, count):
    for _ in range(count):
        ids, labels = rng.integers(0, 23, (2, 3, 7))
        labels[rng.random((3, 7)) < 0.3] = -1
        yield ids, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_that_are_ignored_and_smoothed_are_those_of_torch(smoothing, rng):
    torch.manual_seed(0)
    module = Tied()
    steps = list(batches(rng, 10))
    optimizer = ingot.SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    loss = ingot.CrossEntropy(ignore_index=-1, label_smoothing=smoothing)
    trainer = ingot.Trainer(module, loss=loss, example_inputs=steps[0], optimizer=optimizer, threads=1)
    losses = [trainer.step(*each) for each in steps]
    other = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    expected = []
    for ids, labels in steps:
        logits = module(torch.from_numpy(ids)).flatten(0, 1)
        value = F.cross_entropy(logits, torch.from_numpy(labels).flatten(), ignore_index=-1, label_smoothing=smoothing)
        other.zero_grad()
        value.backward()
        other.step()
        expected.append(value.item())
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)
    assert len(trainer.parameters) == 6, "the table is trained, by whatever name"
    for label in (-100, 23):
        with pytest.raises(InputError, match=rf"input 'target': index out of range, got {label}, expected 0\.\.22"):
            trainer.step(steps[0][0], np.full((3, 7), label))
    before = trainer.state_dict()
    with pytest.raises(InputError, match=r"input 'target': every label is ignored, got only -1, expected another"):
        trainer.step(steps[0][0], np.full((3, 7), -1))
    assert all(np.array_equal(value, before[name]) for name, value in trainer.state_dict().items())
    with pytest.raises(InputError, match=r"label_smoothing: out of range, got 1\.5"):
        ingot.CrossEntropy(label_smoothing=1.5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_metrics_are_those_of_numpy(accumulate, rng):
    torch.manual_seed(0)
    module, x = nn.Linear(5, 4), rng.standard_normal((64, 5), np.float32)
    logits = module(torch.from_numpy(x)).detach().numpy()
    labels = rng.integers(0, 4, 64)
    labels[rng.permutation(64)[:20]] = -1
    real, sides = rng.uniform(-1, 1, (64, 4)).astype(np.float32), rng.integers(0, 2, (64, 4)).astype(np.float32)
    hits = [(part[0].argmax(-1) == part[1])[part[1] >= 0].mean() for part in parts(accumulate, logits, labels)]
    for loss, target, name, expected in (
        (ingot.CrossEntropy(ignore_index=-1), labels, "accuracy", np.mean(hits)),
        ("mse", real, "mean_absolute_error", np.abs(logits - real).mean()),
        ("bce", sides, "accuracy", ((logits > 0) == sides).mean()),
    ):
        options = {"loss": loss, "optimizer": ingot.SGD(lr=0.1), "accumulate": accumulate, "threads": 1}
        trainer = ingot.Trainer(module, example_inputs=(x, target), **options)
        found = trainer.metrics(x, target)
        assert found == {"loss": trainer.evaluate(x, target), name: pytest.approx(expected, rel=1e-6)}


def parts(count, *arrays):
    return zip(*(np.split(array, count) for array in arrays), strict=True)


def test_a_table_gets_its_gradients_where_the_head_has_left_its_own(rng):
    example = next(batches(rng, 1))
    options = {"loss": ingot.CrossEntropy(ignore_index=-1), "optimizer": ingot.AdamW(), "threads": 1}
    trainer = ingot.Trainer(Tied(), example_inputs=example, **options)
    steps = trainer.compiled.native[1].steps
    (at,) = (i for i, step in enumerate(steps) if step.kernel == "scatter_f32")
    made = next(step for step in steps if step.writes[0].tensor == steps[at].writes[0].tensor)
    assert made.kernel == "matmul_tn_f32" and not any(step.kernel.startswith("copy") for step in steps[at - 1 : at])


def test_a_step_keeps_no_second_copy_of_what_it_trains(rng):
    module = Tied()
    example = next(batches(rng, 1))
    loss = ingot.CrossEntropy(ignore_index=-1)
    trainer = ingot.Trainer(module, loss=loss, example_inputs=example, optimizer=ingot.AdamW(), threads=1)
    lowered, plan = trainer.compiled.native
    trained = sum(4 * parameter.numel() for parameter in module.parameters())
    assert plan.regions["state"] < 3 * (trained + 6 * 64) + 64
    assert sum(tensor.nbytes for tensor in lowered.tensors.values() if tensor.kind == "weight") < 256
    updated = {v.tensor for s in plan.steps for v in s.writes if lowered.tensors[v.tensor].kind == "update"}
    assert len(updated) == 3 * 6 + 1
    assert not any(s.kernel.startswith("copy") and s.writes[0].tensor in updated for s in plan.steps[:-1])
    classes = [t for t in lowered.tensors.values() if t.kind == "activation" and t.nbytes >= 21 * 23 * 4]
    places = {plan.addresses[t.id] for t in classes if t.shape[-1] == 23 and t.shape != (23, 16)}
    assert len(places) == 1, "the gradient of the logits takes their place"
