"""Ctrl-C in the midst of a step, of loading and of compiling: what is saved then is what was before or is after."""

import contextlib
import signal
import threading

import numpy as np
import pytest
from torch import nn

import ingot
import training_interrupts
from ingot.errors import InputError
from interrupts import interrupt, places

STRIDES = {"line": 211, "normed": 13}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("call", "make", "is_first"), training_interrupts.CALLS)
def test_states_are_those_before_or_after(call, make, is_first, accumulate):
    struck = list(training_interrupts.check(call, make, is_first, accumulate, STRIDES[make.__name__]))
    assert len(struck) > 2 and any(struck)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_signal_while_c_runs_leaves_a_step_whole(accumulate, tmp_path):
    """A step of tens of milliseconds, struck at times spread over it."""
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    x = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    options = {"loss": "mse", "example_inputs": (x, x), "optimizer": ingot.SGD(lr=0.1), "threads": 1}
    trainer = ingot.Trainer(module, accumulate=accumulate, **options)
    trainer.save(tmp_path / "before")
    trainer.step(x, x)
    trainer.save(tmp_path / "after")
    whole = [(tmp_path / name).read_bytes() for name in ("before", "after")]
    struck = 0
    for delay in np.linspace(0.001, 0.03, 6):
        trainer.load(tmp_path / "before")
        timer = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        try:
            timer.start()  # a busy machine may resume this thread after the delay
            trainer.step(x, x)
            timer.join()
        except KeyboardInterrupt:
            struck += 1
        trainer.save(tmp_path / "found")
        assert (tmp_path / "found").read_bytes() in whole
    assert struck


def test_a_step_without_a_loss_is_never_saved(tmp_path):
    """Ctrl-C strikes before Python has looked at the loss, which is no number."""
    x, bad = np.ones((4, 2), np.float32), np.full((4, 2), np.nan, np.float32)
    options = {"loss": "mse", "example_inputs": (x, x), "optimizer": ingot.SGD(lr=0.1), "threads": 1}
    trainer = ingot.Trainer(nn.Linear(2, 2), **options)
    trainer.save(tmp_path / "before")

    def step() -> None:
        with contextlib.suppress(InputError):
            trainer.step(bad, x)

    refused = 0
    for place in places(step):
        trainer.load(tmp_path / "before")
        if place[0].co_name in ("_run_noted", "call", "run_into", "_taken"):
            interrupt(step, place)
            try:
                trainer.save(tmp_path / "after")
                assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes(), place
            except InputError as error:
                assert "a step is incomplete, got a loss of nan in step 1, expected a checkpoint" in str(error)
                refused += 1
    assert refused
