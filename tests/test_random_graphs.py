"""300 random graphs through every executor and setting; see differential.py. `make soak` runs 10 000."""

import pytest

from random_graphs import random_graph
from soak import report, run_seed
from ingot.text import dump

COUNT, CHUNK = 300, 10


@pytest.mark.parametrize("start", range(0, COUNT, CHUNK))
def test_random_graphs(start: int) -> None:
    for seed in range(start, start + CHUNK):
        if run_seed(seed):
            pytest.fail(report(seed), pytrace=False)


def test_seeds_repeat() -> None:
    assert dump(random_graph(3)[0]) == dump(random_graph(3)[0])
