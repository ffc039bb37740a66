"""What a language model would take is what it then takes, to the byte, and is known without reading a weight."""

from pathlib import Path

import pytest

import ingot
from ingot.llm import memory_of
from tiny_language_models import random_llama

OPTIONS = [
    {},
    {"context": 100},
    {"context": 300, "sequences": 3},
    {"context": 300, "sequences": 3, "cache_positions": 400},
    {"precision": "bf16"},
    {"precision": "int8"},
    {"precision": "int4"},
    {"cache_dtype": "int8", "sequences": 2},
    {"cache_dtype": "int4", "sequences": 2},
    {"cache_dtype": "bf16", "context": 64, "threads": 1},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    random_llama(path)
    return path


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_planned_is_allocated(folder, options):
    llm = ingot.LLM(folder, **{"sequences": 1, "threads": 2, **options})
    expected = memory_of(folder, **{"threads": 2, **options})
    assert llm.memory == expected
    for generation in llm.run([llm.generation([5, 6, 7], max_tokens=3) for _ in range(llm.engine.sequences.count)]):
        assert generation.token >= 0
    assert llm.memory == expected


def test_weights_are_not_read(folder, tmp_path):
    """A file of the right length whose data cannot be numbers: only headers are looked at."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    content = (tmp_path / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(content[:header] + b"\xff" * (len(content) - header))
    assert memory_of(tmp_path, threads=2) == memory_of(folder, threads=2)


@pytest.mark.parametrize("spare", [0, 1, 100_000, 10_000_000])
def test_the_largest_context_that_fits(folder, spare):
    budget = memory_of(folder, context=128, threads=2).total + spare
    best = memory_of(folder, budget=budget, threads=2)
    assert best.total <= budget
    assert best.context == 512 or memory_of(folder, context=best.context + 64, threads=2).total > budget
    if spare < 2:
        assert best.context == 128


def test_nothing_fits(folder):
    with pytest.raises(ingot.LimitError, match=r"does not fit, got 1000 bytes, expected at least \d+"):
        memory_of(folder, budget=1000)
