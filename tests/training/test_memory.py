"""Steps within a budget of bytes: what they take, what it costs, and that nothing else changes."""

import ctypes
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from test_trainer import ADAMW, Block, made
from torch import nn

import ingot
from ingot.errors import InputError, LimitError
from ingot.load import load_model
from ingot.training.budget import TRAIN, step_bytes
from ingot.training.sources import state_bytes

torch.set_num_threads(1)  # its threads spin, and the models are small


class Deep(nn.Module):
    """A transformer of more layers than others of these tests."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(19, 16)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(4))
        self.head = nn.Linear(16, 19)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def model():
    """Its graph, for 8 windows of 64."""
    torch.manual_seed(0)
    return load_model(Deep().eval(), (torch.zeros((8, 64), dtype=torch.int64),)).graph


def test_a_smaller_budget_takes_no_more_and_changes_no_bits(model, rng, tmp_path):
    ids = rng.integers(0, 19, (2, 8, 65))
    batches = [(each[:, :-1], each[:, 1:]) for each in ids]
    options = {"example_inputs": batches[0], "optimizer": ADAMW, "threads": 1}
    whole = ingot.Trainer(model, **options)
    assert whole.trade is None
    losses = [whole.step(*each) for each in batches]
    whole.save(tmp_path / "whole")
    target = whole._programs.target
    kept = step_bytes({TRAIN: whole.graph}, target)
    taken = kept.total
    for share in (1.0, 0.8, 0.6, 0.5):
        budget = kept.total - int((1 - share) * kept.arena)
        trainer = ingot.Trainer(model, memory=budget, **options)
        planned = step_bytes({TRAIN: trainer.graph}, target)
        assert planned.total == trainer.trade.nbytes <= min(budget, taken)
        assert planned.states == kept.states and (trainer.trade.again > 0) == (share < 1)
        taken = planned.total
        assert [trainer.step(*each) for each in batches] == losses
        trainer.save(tmp_path / "less")
        assert (tmp_path / "less").read_bytes() == (tmp_path / "whole").read_bytes()
    assert "blocks are recomputed" in str(trainer.trade) and trainer.trade.work < 0.35
    with pytest.raises(LimitError, match=r"option memory: too little, got 1000 bytes, expected at least \d+"):
        ingot.Trainer(model, memory="1KB", **options)
    with pytest.raises(InputError, match=r"option memory: got '2 cats', expected bytes with a unit"):
        ingot.Trainer(model, memory="2 cats", **options)


def test_parts_of_a_batch_have_a_budget_too(rng):
    torch.manual_seed(0)
    ids = rng.integers(0, 19, (8, 65))
    example = ids[:, :-1], ids[:, 1:]
    graph = load_model(Deep().eval(), (torch.zeros((4, 64), dtype=torch.int64),)).graph
    options = {"example_inputs": example, "optimizer": ADAMW, "threads": 1, "accumulate": 2}
    whole = ingot.Trainer(graph, **options)
    programs = whole._programs
    nbytes = step_bytes({name: each.graph for name, each in programs.compiled.items()}, programs.target)
    trainer = ingot.Trainer(graph, memory=nbytes.total - nbytes.arena // 2, **options)
    assert trainer.trade.again > 0
    assert trainer.step(*example) == whole.step(*example)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(trainer.state_dict()[name], value)


def resident():
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_ten_thousand_steps_take_no_memory(rng):
    module, batch = made("transformer")
    batches = [batch(rng) for _ in range(8)]
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, clip=1.0, threads=2)
    for i in range(200):
        trainer.step(*batches[i % 8])
    begun, heap = resident(), used_heap()
    for i in range(10_000):
        trainer.step(*batches[i % 8])
    assert resident() - begun < 1 << 20
    assert used_heap() - heap < 1 << 16


def used_heap():
    """Bytes that C has given out."""
    heap = ctypes.CDLL(None).mallinfo2
    heap.restype = HeapUse
    return heap().used


class HeapUse(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks used free".split()
    ]


OPTIMIZERS = {"adamw": ADAMW, "sgd": ingot.SGD(lr=0.1), "momentum": ingot.SGD(lr=0.1, momentum=0.9)}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_what_states_take_is_known_before_anything_is_exported(name, optimizer, accumulate, rng):
    module, batch = made(name)
    module.train()
    x, target = batch(rng)
    even = len(x) // 2 * 2
    trainer = ingot.Trainer(
        module, example_inputs=(x[:even], target[:even]), optimizer=optimizer, accumulate=accumulate, threads=1
    )
    planned = max(compiled.native[1].regions["state"] for compiled in trainer._programs.compiled.values())
    told = state_bytes(module, optimizer.kept + (accumulate > 1), 64)
    assert planned <= told <= planned + 64


def test_memory_that_steps_do_not_write_is_not_prefaulted():
    module = nn.Linear(16, 16)
    module.register_buffer("mask", torch.zeros(1000, 1000))
    module.bias.requires_grad_(False)
    assert state_bytes(module, 3, 64) == 3 * 16 * 16 * 4 + 64


def test_what_is_no_module_has_no_states_that_are_known():
    assert state_bytes("model.onnx", 3, 64) == state_bytes(nn.Linear, 3, 64) == 0
