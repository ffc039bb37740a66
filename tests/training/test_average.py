"""The example of several processes, each with its share of a batch: gradients averaged by torch's gloo."""

import subprocess
import sys

import pytest

from places import ROOT

EXAMPLE = ROOT / "examples" / "ray_train" / "average.py"


@pytest.mark.slow
def test_processes_train_one_model():
    losses = []
    for workers in (1, 2):
        words = [sys.executable, EXAMPLE, "--workers", str(workers)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=200)
        losses.append([float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")])
    assert losses[0] == pytest.approx(losses[1], abs=2e-3) and losses[0][-1] < losses[0][0]
