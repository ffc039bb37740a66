"""A cache that is smaller than all contexts: answers wait, are put back and computed again, with the tokens of answers
alone."""

import threading
import time
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.llm.generation import Generation
from ingot.llm.sequences import CacheFullError, Sequences
from ingot.llm.service import Service

CONTEXT = 192  # three blocks
SHARED = "import os\n" * 24


def prompts(count: int) -> list[list[int]]:
    """Some with the same first block, of many lengths."""
    rng = np.random.default_rng(5)
    llm = opened(1)
    beginning = llm.encode(SHARED)[:70]
    return [
        [*(beginning if i % 3 == 0 else ()), *rng.integers(4, 4000, 1 + 11 * i % 97).tolist()] for i in range(count)
    ]


def opened(sequences: int, **options: Any) -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32", context=CONTEXT, threads=1, sequences=sequences, **options)


def options(i: int) -> dict[str, Any]:
    drawn = {"temperature": 0.9, "seed": i, "repetition_penalty": 1.1}
    return {"max_tokens": 20 + 7 * i % 60, "logit_bias": {0: -100}} | (drawn if i % 2 else {"temperature": 0})


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    one = opened(1)
    return [list(one.generate_tokens(ids, **options(i))) for i, ids in enumerate(prompts(24))]


@pytest.mark.parametrize("settings", [{}, {"lookup": True}], ids=str)
@pytest.mark.parametrize("positions", [1, 320, 640])
def test_answers_that_are_put_back_keep_their_tokens(alone, positions, settings):
    """positions: of the whole cache; the least is one context."""
    llm = opened(8, cache_positions=positions, **settings)
    assert llm.engine.sequences.used_blocks == (0, max(3, positions // 64))
    found: dict[Generation, list[int]] = {}
    done = threading.Semaphore(0)

    def notify(generation: Generation, is_token: bool, error: ingot.IngotError | None) -> None:
        if is_token:
            found[generation].append(generation.token)
        else:
            done.release()

    with Service(llm.engine, decode=llm.decode) as service:
        with llm.engine.lock:  # all are there before the first one starts
            for i, ids in enumerate(prompts(24)):
                generation = llm.generation(ids, **options(i))
                found[generation] = []
                service.submit(generation, notify)
        for _ in range(24):
            assert done.acquire(timeout=240)
        assert list(found.values()) == alone
        assert service.counts.preempted > 0 or positions > 320
        assert (service.active, service.waiting) == (0, 0)


def test_the_youngest_answer_of_the_lowest_priority_is_put_back(alone):
    llm = opened(3, cache_positions=CONTEXT)
    ended: list[int] = []
    with Service(llm.engine) as service:
        done = threading.Semaphore(0)

        def submit(name: int, priority: int) -> None:
            def notify(generation: Generation, is_token: bool, error: ingot.IngotError | None) -> None:
                if not is_token:
                    ended.append(name)
                    done.release()

            ids = [50 + name] * 50
            service.submit(llm.generation(ids, max_tokens=60, temperature=0, logit_bias={0: -100}), notify, priority)

        with llm.engine.lock:
            for name, priority in enumerate((1, 0, 1)):
                submit(name, priority)
        for _ in range(3):
            assert done.acquire(timeout=120)
        assert service.counts.preempted > 0
    assert ended == [1, 0, 2]


def test_scores_and_batches_wait_for_blocks(alone):
    llm, ids = opened(4, cache_positions=CONTEXT), prompts(24)
    want = opened(1).logits(ids[3])
    thread = threading.Thread(target=lambda: list(llm.generate_tokens(ids[5], **options(5))))
    thread.start()
    assert llm.logits(ids[3]).tobytes() == want.tobytes()
    thread.join()
    texts = llm.generate(["x = 1", "y = 2", "z = 3", "import", "def f("], max_tokens=60, temperature=0)
    assert texts == opened(5).generate(["x = 1", "y = 2", "z = 3", "import", "def f("], max_tokens=60, temperature=0)
    full = [llm.generation([7 + i] * 150, temperature=0) for i in range(2)]
    with pytest.raises(CacheFullError, match="cache: full"):
        list(llm.run(full))
    assert list(llm.generate_tokens(ids[0], **options(0))) == alone[0]


def test_cached_sequences_shrink_from_their_ends():
    sequences = Sequences(count=2, blocks_per_sequence=4, total=5)
    assert sequences.is_oversubscribed and not Sequences(2, 4).is_oversubscribed
    first = sequences.start(())
    sequences.reserve(first, 200)
    first.tokens += range(200)
    sequences.finish(first)
    assert sequences.can_start([9] * 250) and sequences.can_start(list(range(200)))
    other = sequences.start([9] * 100, None)
    sequences.reserve(other, 100)
    assert first.tokens == list(range(192)) and first.block_count == 3
    assert sequences.used_blocks == (3, 5)


@pytest.mark.parametrize("begins", [True, False], ids=["begun", "waiting"])
def test_an_answer_ends_at_its_deadline(begins):
    llm = opened(1)
    want = llm.complete("x", max_tokens=CONTEXT, logit_bias={0: -100}, temperature=0)
    drawn: list[int] = []
    ended = threading.Event()
    generation = llm.generation(llm.encode("x"), logit_bias={0: -100}, temperature=0, timeout=60)

    def notify(generation: Generation, is_token: bool, error: ingot.IngotError | None) -> None:
        if is_token:
            drawn.append(generation.token)
            generation.deadline = time.perf_counter() - 1
        else:
            ended.set()

    with Service(llm.engine) as service:
        if not begins:
            generation.deadline = time.perf_counter() - 1
        service.submit(generation, notify)
        assert ended.wait(120)
    assert generation.finish_reason == "timeout" and drawn == want.tokens[: len(drawn)] and len(drawn) == begins
    late = llm.complete("x", timeout=1e-9, logit_bias={0: -100})
    assert late.finish_reason == "timeout" and len(late.tokens) < 2
    for wrong in (0, -1, "1"):
        with pytest.raises(ingot.InputError, match="timeout: out of range"):
            llm.generate("x", timeout=wrong)
