"""The service of a language model: answers of many threads have the bits of answers alone; none delays another."""

import dataclasses
import queue
import threading
import time

import numpy as np
import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.llm.generation import Generation
from ingot.llm.sequences import Sequences
from ingot.llm.service import BusyError, Counts, Service

SEQUENCES = 4
LONG = "import os\n" * 100
PROMPTS = [
    "def add(a, b):",
    "def fib(n):\n",
    LONG + "def files(path):",
    "x = [1,",
    LONG + "class A:",
    "for i in range(3):\n",
]


@pytest.fixture(scope="module")
def llm() -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32", sequences=SEQUENCES)


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    one = ingot.LLM(FOLDER, precision="f32", sequences=1)
    return [list(one.generate_tokens(one.encode(prompt), max_tokens=16)) for prompt in PROMPTS]


@dataclasses.dataclass
class Drawn:
    """An answer of a service: its tokens and how it ended."""

    generation: Generation
    tokens: list[int] = dataclasses.field(default_factory=list)
    ended: queue.SimpleQueue = dataclasses.field(default_factory=queue.SimpleQueue)

    def notify(self, generation: Generation, is_token: bool, error: ingot.IngotError | None) -> None:
        if is_token:
            self.tokens.append(generation.token)
        else:
            self.ended.put((generation.finish_reason, error))

    def end(self) -> tuple[str, ingot.IngotError | None]:
        return self.ended.get(timeout=120)


def submit(service: Service, llm: ingot.LLM, prompt: str, priority: int = 0, **options) -> Drawn:
    generation = llm.generation(llm.encode(prompt), **{"temperature": 0, "max_tokens": 16} | options)
    drawn = Drawn(generation)
    service.submit(generation, drawn.notify, priority)
    return drawn


def test_answers_of_many_threads_have_the_tokens_of_answers_alone(llm, alone):
    drawn = {}

    def client(index: int) -> None:
        drawn[index] = submit(service, llm, PROMPTS[index % len(PROMPTS)])

    with Service(llm.engine) as service:
        threads = [threading.Thread(target=client, args=(index,)) for index in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(answer.end() == ("length", None) for answer in drawn.values())
        assert (service.active, service.waiting) == (0, 0)
        assert service.counts.completion_tokens == 24 * 16 and service.counts.finished == 24
        assert service.counts.reused_tokens > 0
    for index, answer in drawn.items():
        assert answer.tokens == alone[index % len(PROMPTS)]


def test_sampled_answers_have_the_tokens_of_their_seed(llm):
    options = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
    want = list(llm.generate_tokens(llm.encode(PROMPTS[0]), **options))
    with Service(llm.engine) as service:
        drawn = [submit(service, llm, PROMPTS[0], **options) for _ in range(SEQUENCES)]
        assert all(answer.end() == ("length", None) and answer.tokens == want for answer in drawn)


def test_a_prompt_runs_in_chunks_beside_an_answer(llm):
    """While a long prompt is computed, a short answer goes on: the step's time bounds the chunk."""
    with Service(llm.engine) as service:
        service._seconds_per_token = 1.0  # as on a very slow machine: the least chunks
        first = submit(service, llm, PROMPTS[0], max_tokens=200)
        while not first.tokens:
            time.sleep(0.001)
        second = submit(service, llm, "# another\n" + LONG, max_tokens=1)
        second.end()
        first.generation.stop()
        first.end()
    assert len(first.tokens) >= len(second.generation.prompt) // 16


def test_the_progress_of_a_prompt(llm):
    """It counts the tokens that the cache had, and those of each chunk."""
    text = "# progress\n" + LONG
    with Service(llm.engine) as service:
        first, seen = submit(service, llm, PROMPTS[0], max_tokens=200), []
        while not first.tokens:
            time.sleep(0.001)
        service._seconds_per_token = 1.0
        second = Drawn(llm.generation(llm.encode(text), max_tokens=1))
        service.submit(second.generation, second.notify)
        while not second.tokens:
            seen.append(second.generation.computed)
        for answer in (first, second):
            answer.generation.stop()
            answer.end()
    assert seen == sorted(seen) and len(set(seen)) > 2
    assert seen[-1] <= len(second.generation.prompt) and second.generation.usage.reused_tokens <= seen[-1]


def test_a_stopped_answer_frees_its_sequence_even_during_its_prompt(llm):
    llm.engine.sequences.forget_all()
    with Service(llm.engine) as service:
        service._seconds_per_token = 1.0
        answers = [submit(service, llm, "# stop\n" + LONG, max_tokens=100) for _ in range(2 * SEQUENCES)]
        for answer in answers:
            answer.generation.stop("cancelled")
        assert {answer.end() for answer in answers} == {("cancelled", None)}
        assert service.counts.cancelled == len(answers)
        assert submit(service, llm, PROMPTS[0]).end() == ("length", None)


def test_a_full_queue_refuses_and_priorities_go_first(llm):
    with Service(llm.engine, max_waiting=2) as service:
        with llm.engine.lock:  # no answer gets a sequence while the lock is held
            late, early = (submit(service, llm, PROMPTS[1], priority, max_tokens=3) for priority in (1, 0))
            with pytest.raises(BusyError, match="service: busy, got 1 more and 2 waiting, expected at most 2"):
                submit(service, llm, PROMPTS[2])
            assert [request.generation for request in sorted(service._waiting)] == [early.generation, late.generation]
        assert late.end() == early.end() == ("length", None)


def test_one_answers_fault_ends_no_other(llm, alone):
    bias = dict.fromkeys(range(1000), -100.0)
    with Service(llm.engine) as service:
        good = submit(service, llm, PROMPTS[0])
        bad = submit(service, llm, PROMPTS[1], logit_bias=bias)
        bad.generation.sampler._arrays["biases"][:] = np.nan  # as logits that overflow
        reason, error = bad.end()
        assert reason == "error" and isinstance(error, ingot.InputError)
        assert good.end() == ("length", None) and good.tokens == alone[0]


def test_closing_ends_every_answer(llm):
    service = Service(llm.engine)
    answers = [submit(service, llm, PROMPTS[0], max_tokens=400) for _ in range(3 * SEQUENCES)]
    service.close()
    assert {answer.end()[0] for answer in answers} <= {"closed", "length"}
    with pytest.raises(ingot.StoppedError, match="closed"):
        submit(service, llm, PROMPTS[0])
    assert dataclasses.asdict(service.counts).keys() == dataclasses.asdict(Counts()).keys()


def test_sequences_share_full_blocks_and_write_in_none_of_them():
    sequences = Sequences(count=2, blocks_per_sequence=4)
    first = sequences.start(())
    sequences.reserve(first, 200)
    first.tokens += range(200)
    sequences.finish(first)
    sequences.reserve(sequences.start([7]), 64)
    other = sequences.start([*range(130), 999])  # more than a block would be lost: the full blocks are shared
    assert other is not first and other.tokens == list(range(128))
    assert other.blocks[:2].tolist() == first.blocks[:2].tolist()
    sequences.reserve(other, 190)
    assert other.blocks[2] not in first.blocks[: first.block_count]
    sequences.finish(other)
    sequences.truncate(first, 100)  # block 1 is shared: it is given up
    assert first.tokens == list(range(64)) and first.block_count == 1
    assert sequences.used_blocks == (2, 8)


def test_cached_sequences_give_their_blocks_up_oldest_first():
    sequences = Sequences(count=2, blocks_per_sequence=2)
    for start in range(0, 4000, 1000):
        sequence = sequences.start(range(start, start + 60))
        sequences.reserve(sequence, 60)
        sequence.tokens += range(start + len(sequence.tokens), start + 60)
        sequences.finish(sequence)
    assert sequences.used_blocks == (4, 4)
    sequence = sequences.start(range(9000, 9100))
    sequences.reserve(sequence, 100)
    assert len(sequences.start([*range(3000, 3059), 1]).tokens) == 59
    assert len(sequences.start([*range(59), 1]).tokens) == 0


def test_prompts_that_arrive_together_share_their_beginning():
    """Each starts when its tokens are computed: the common beginning of those before it is in the cache then."""
    wide = ingot.LLM(FOLDER, precision="f32", sequences=SEQUENCES, context=512)
    beginning = wide.tokenizer.decode(wide.encode(LONG)[:400])
    with Service(wide.engine) as service:
        answers = [submit(service, wide, f"{beginning}\nx{index} =", max_tokens=2) for index in range(SEQUENCES)]
        for drawn in answers:
            assert drawn.end()[0] == "length"
        counts = service.counts
    assert counts.reused_tokens > (SEQUENCES - 2) * (counts.prompt_tokens // SEQUENCES) // 2
