"""One language model for many threads, and for forked children: everyone gets the tokens that it gets alone, and waits
for a free sequence. Needs no torch: runs under the sanitizers too."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from attacks.hostile_configs import write_llama

pytestmark = [pytest.mark.native, pytest.mark.threads, pytest.mark.checked]

VOCAB_SIZE = 99
THREADS = 8
LENGTH = 24
DRAWN = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.2, "logprobs": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama", {"max_position_embeddings": 256}, VOCAB_SIZE)


def prompts() -> list[list[int]]:
    """Some begin alike, so that threads take over each other's kept sequences; one is longer than a block."""
    rng = np.random.default_rng(3)
    shared = rng.integers(0, VOCAB_SIZE, 40).tolist()
    return [[*shared[: 5 * (i % 4)], *rng.integers(0, VOCAB_SIZE, 3 + 9 * i).tolist()] for i in range(THREADS)]


def options(i: int) -> dict[str, Any]:
    return {"max_tokens": LENGTH, **(DRAWN | {"seed": i} if i % 2 else {})}


def expected(folder: Path, **settings: Any) -> list[list[int]]:
    """What each prompt gets from a model that does nothing else."""
    llm = ingot.LLM(folder, threads=1, sequences=1, **settings)
    return [list(llm.generate_tokens(ids, **options(i))) for i, ids in enumerate(prompts())]


def in_threads(work: Callable[[int], None]) -> None:
    """Calls work(i) in thread i; raises what the first of them raised, and fails when one hangs."""
    errors: list[BaseException] = []

    def call(i: int) -> None:
        try:
            work(i)
        except (AssertionError, ArithmeticError, LookupError, RuntimeError, ValueError, ingot.IngotError) as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize(
    "settings", [{}, {"cache_dtype": "int4"}, {"cache_dtype": "int8"}, {"precision": "bf16w"}], ids=str
)
def test_threads_get_what_they_get_alone(folder: Path, settings: dict[str, str]):
    alone = expected(folder, **settings)
    llm = ingot.LLM(folder, threads=2, sequences=3, **settings)

    def work(i: int) -> None:
        for _ in range(3):
            assert list(llm.generate_tokens(prompts()[i], **options(i))) == alone[i], i

    in_threads(work)


def test_more_threads_than_slots(folder: Path):
    """Answers of other threads wait until streams that were begun before have ended."""
    alone = expected(folder)
    llm = ingot.LLM(folder, threads=2, sequences=3)
    scores = [llm.logits(ids).tobytes() for ids in prompts()]
    first, begin = [llm.generate_tokens(prompts()[i], **options(i)) for i in range(3)], threading.Barrier(THREADS)
    begun = [[next(stream)] for stream in first]
    with pytest.raises(ingot.InputError, match="all are in use, expected at most 3 at once"):
        next(llm.generate_tokens([1], max_tokens=1))  # nobody else could end the streams of this thread

    def work(i: int) -> None:
        begin.wait(60)
        if i < 3:
            assert begun[i] + list(first[i]) == alone[i]
        elif i < 6:
            assert list(llm.generate_tokens(prompts()[i], **options(i))) == alone[i]
        assert llm.logits(prompts()[i]).tobytes() == scores[i]

    in_threads(work)
    together = [llm.generation(prompts()[i], **options(i)) for i in range(THREADS)]
    drawn: dict[int, list[int]] = {i: [] for i in range(THREADS)}
    for generation in llm.run(together):
        drawn[together.index(generation)].append(generation.token)
    assert list(drawn.values()) == alone


def test_batches_that_compete_for_slots(folder: Path):
    """A batch waits for slots of other sequences, at its beginning and later."""
    alone = expected(folder)
    llm = ingot.LLM(folder, threads=2, sequences=3)
    finished = [0] * THREADS

    def work(i: int) -> None:
        mine = [(i + step) % THREADS for step in range(3)]
        for _ in range(4):
            generations = [llm.generation(prompts()[j], **options(j)) for j in mine]
            drawn: list[list[int]] = [[] for _ in mine]
            for generation in llm.run(generations):
                drawn[generations.index(generation)].append(generation.token)
            assert drawn == [alone[j] for j in mine]
            finished[i] += 1

    in_threads(work)
    assert finished == [4] * THREADS
    assert list(llm.generate_tokens(prompts()[0], **options(0))) == alone[0]


def test_all_at_once(folder: Path, tmp_path: Path):
    """Generating, scoring, saving and restoring in turns."""
    alone = expected(folder)
    llm = ingot.LLM(folder, threads=2, sequences=3)
    scores = [llm.logits(ids).tobytes() for ids in prompts()]
    list(llm.generate_tokens(prompts()[0], **options(0)))

    def work(i: int) -> None:
        for turn in range(4):
            match (i + turn) % 4:
                case 0 | 1:
                    assert list(llm.generate_tokens(prompts()[i], **options(i))) == alone[i]
                case 2:
                    assert llm.logits(prompts()[i]).tobytes() == scores[i]
                case 3:
                    try:
                        llm.save_sequence(tmp_path / f"{i}")
                    except ingot.InputError as error:  # others may have taken over all that was kept
                        assert "none is cached" in str(error)
                        continue
                    assert llm.load_sequence(tmp_path / f"{i}")

    in_threads(work)


def test_forked_children_generate(folder: Path):
    """A child has no threads of its parent's pool; it makes its own, in the middle of an answer too."""
    alone = expected(folder)
    llm = ingot.LLM(folder, threads=2, sequences=3)
    stream = llm.generate_tokens(prompts()[1], **options(1))
    begun = [next(stream) for _ in range(5)]
    for _ in range(3):
        child = os.fork()
        if child == 0:
            right = begun + list(stream) == alone[1]
            right = right and list(llm.generate_tokens(prompts()[2], **options(2))) == alone[2]
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert begun + list(stream) == alone[1]


BUSY_FORKS = """
import os, signal, sys, threading
import ingot

llm = ingot.LLM(sys.argv[1], threads=2, sequences=3)
right = list(llm.generate_tokens([1, 2, 3], max_tokens=20))
done = threading.Event()

def keep_generating():
    while not done.is_set():
        list(llm.generate_tokens([4, 5], max_tokens=100))

threads = [threading.Thread(target=keep_generating) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        os._exit(0 if list(llm.generate_tokens([1, 2, 3], max_tokens=20)) == right else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
print(set(codes))
"""


def test_forks_while_other_threads_generate(folder: Path):
    """A forked child finds no lock held by a thread of its parent."""
    command = [sys.executable, "-c", BUSY_FORKS, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "{0}", result.stderr
