"""Batch norm in training: statistics of the batch, updates of the running statistics, compared with torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_trainer import ADAMW, digits
from torch import nn

import ingot
from ingot.errors import InputError, UnsupportedError
from ingot.run.library import load

torch.set_num_threads(1)  # its threads spin, and the models are small


class Net(nn.Module):
    """One norm that is read twice, one without weights, one of rows."""

    def __init__(self):
        super().__init__()
        # No bias before a norm: it changes nothing, so that Adam would take steps by what is rounded.
        self.first, self.second = (nn.Conv2d(n, 6, 3, padding=1, bias=False) for n in (1, 6))
        self.norm, self.rows = nn.BatchNorm2d(6, momentum=0.2), nn.BatchNorm1d(12)
        self.plain, self.up = nn.BatchNorm1d(6, affine=False), nn.Linear(6, 12, bias=False)
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = self.norm(self.second(x)).relu().mean((2, 3))
        return self.head(self.rows(self.up(self.plain(x))).relu())


def net():
    torch.manual_seed(0)
    return Net()


def by_torch(module, batches, optimizer):
    losses = []
    for x, labels in batches:
        value = F.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def test_losses_and_statistics_are_those_of_torch(rng):
    module, batches = net(), [digits(rng) for _ in range(200)]
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, threads=1)
    losses = [trainer.step(*each) for each in batches]
    optimizer = torch.optim.AdamW(module.parameters(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    np.testing.assert_allclose(losses, by_torch(module, batches, optimizer), rtol=0, atol=1e-4)
    found, expected = trainer.state_dict(), module.state_dict()
    assert found.keys() == {name for name in expected if not name.endswith("num_batches_tracked")}
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name].numpy(), rtol=2e-3, atol=2e-3)
    x, labels = batches[0]
    module.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()}, strict=False)
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(x))
    assert trainer.evaluate(x, labels) == pytest.approx(F.cross_entropy(logits, torch.from_numpy(labels)).item(), 1e-5)
    np.testing.assert_allclose(trainer.session().run(None, {"x": x})[0], logits.numpy(), rtol=0, atol=1e-4)


def test_bits_are_the_same_for_every_isa_and_thread_and_from_a_checkpoint(rng, monkeypatch, tmp_path):
    batches, first = [digits(rng) for _ in range(4)], None
    for isa, threads in [*((isa, 1) for isa in load().isas()), (load().best_isa, 2)]:
        monkeypatch.setenv("INGOT_ISA", isa)
        trainer = ingot.Trainer(net(), example_inputs=batches[0], optimizer=ADAMW, threads=threads)
        for i, each in enumerate(batches):
            trainer.step(*each)
            if i == 1:
                trainer.save(tmp_path / "half")
        bits = {name: value.tobytes() for name, value in trainer.state_dict().items()}
        first = first or bits
        assert bits == first, (isa, threads)
    trainer.load(tmp_path / "half")
    for each in batches[2:]:
        loss, gradients = trainer.gradients(*each)
        assert np.isfinite(loss)
        trainer.apply(gradients)
    assert {name: value.tobytes() for name, value in trainer.state_dict().items()} == first


def test_each_norm_is_in_its_own_mode(rng):
    module, example = net(), digits(rng)
    module.norm.eval()
    trainer = ingot.Trainer(module, example_inputs=example, optimizer=ADAMW, threads=1)
    assert module.training and module.rows.training and not module.norm.training
    trainer.step(*example)
    assert not {"norm.running_mean", "norm.running_var"} & trainer.state_dict().keys()
    module.rows.momentum = None
    with pytest.raises(UnsupportedError, match=r"module 'rows': momentum of batch norm, got None, expected a number"):
        ingot.Trainer(module, example_inputs=example, optimizer=ADAMW)
    one = tuple(each[:1] for each in example)
    with pytest.raises(InputError, match=r"batch norm '.*': too small a batch, got f32\[1, 6\], expected 2 or more"):
        ingot.Trainer(net(), example_inputs=one, optimizer=ADAMW)


class Below(nn.Module):
    """The root of what may be below zero."""

    def forward(self, x):
        return x.sqrt()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_no_number_is_blamed_on_what_trains(accumulate, rng, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK", "1")
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.2), Below(), nn.Linear(4, 3))
    with torch.no_grad():
        module[0].running_mean.fill_(-100.0)  # by which no element is below zero
    x, labels = rng.standard_normal((16, 4), np.float32), rng.integers(0, 3, 16)
    options = {"optimizer": ADAMW, "accumulate": accumulate, "threads": 1}
    trainer = ingot.Trainer(module, example_inputs=(x, labels), **options)
    assert np.isfinite(trainer.evaluate(x, labels))
    with pytest.raises(InputError, match=r"step 1: the loss is nan, computed by sqrt '.*', expected a number"):
        trainer.step(x, labels)
    if accumulate == 1:
        for use in (trainer.state_dict, lambda: trainer.step(x, labels)):
            with pytest.raises(InputError, match=r"a step is incomplete, got a loss of nan in step 1"):
                use()


def test_statistics_move_with_gradients_by_all_parts_or_none(rng):
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.2), nn.Linear(4, 3))
    x, labels = rng.standard_normal((16, 4), np.float32), rng.integers(0, 3, 16)
    bad = np.where(np.arange(16)[:, None] < 8, x, np.float32(np.nan))  # the second part alone
    for accumulate in (1, 2):
        options = {"optimizer": ADAMW, "accumulate": accumulate, "threads": 1}
        trainer = ingot.Trainer(module, example_inputs=(x, labels), **options)
        before = trainer.state_dict()
        for use in (trainer.gradients, trainer.step)[:accumulate]:
            with pytest.raises(InputError, match=r"step 1: the loss is nan"):
                use(bad, labels)
        found = trainer.state_dict()
        assert all(np.array_equal(value, before[name]) for name, value in found.items()) and trainer.steps == 0
        trainer.gradients(x, labels)
        for part in np.split(x, accumulate):
            module(torch.from_numpy(part))
        for name, value in trainer.state_dict().items():
            np.testing.assert_allclose(value, module.state_dict()[name].detach().numpy(), rtol=1e-5, atol=1e-6)
        module[0].reset_running_stats()
