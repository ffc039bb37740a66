"""Caches of layers with a window, and slots of states: none has another sequence's, bits and bytes are as promised."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from hf_case import Case
from hf_models import exact_logits, save_model
from ingot.llm import memory_of
from ingot.llm.generation import Generation
from ingot.llm.sequences import Sequence, Sequences
from ingot.llm.service import Service
from ingot.llm.speculation import Speculation
from ingot.load.hf import load_language_model, read_folder
from ingot.load.hf.windows import Windows, blocks_of
from ingot.ops.kv_cache import CACHE_BLOCK

SPAN, ROWS, EACH = 100, 150, 12  # positions that a row sees, rows of a run, blocks of a sequence
CONTEXT = 1024
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA = {
    "head_dim": 16, "sliding_window": 70, "num_hidden_layers": 3, "layer_types": PATTERN,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip


# -- sequences --------------------------------------------------------------------------------------------------


@dataclass
class Caches:
    """Two caches whose slots hold the tokens up to a position, recurrent states, and the answers that use them."""

    sequences: Sequences
    full: dict[tuple[int, int], int] = field(default_factory=dict)
    window: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    runs: dict[Sequence, Iterator[None]] = field(default_factory=dict)

    def start(self, tokens: list[int]) -> Sequence:
        run: Any = (None for _ in ())
        sequence = self.sequences.start(tokens, weakref.ref(run))
        self.runs[sequence] = run
        assert sequence.tokens == tokens[: len(sequence.tokens)] and len(sequence.tokens) < max(1, len(tokens))
        return sequence

    def finish(self, sequence: Sequence) -> None:
        self.sequences.finish(sequence)
        self.runs.pop(sequence).close()

    def step(self, parts: list[tuple[Sequence, list[int]]], is_interrupted: bool = False) -> None:
        """Append tokens to sequences in one run, whose rows see what was there and what the run writes."""
        tables = []
        for sequence, tokens in parts:
            self.sequences.reserve(sequence, len(sequence.tokens) + len(tokens))
            tables.append((sequence.blocks.copy(), sequence.window_blocks.copy()))
        for sequence, _ in parts:
            if sequence.tokens and self.sequences.has_state:
                assert self.states[sequence.slot] == prefixes(sequence.tokens)[-1]
            sequence.state_length = -1
            self.states[sequence.slot] = 0
        if is_interrupted and not self.sequences.has_state:
            return
        texts = [prefixes([*sequence.tokens, *tokens]) for sequence, tokens in parts]
        for (sequence, _), text, (blocks, window_blocks) in zip(parts, texts, tables, strict=True):
            for position in range(len(sequence.tokens), len(text)):
                block, slot = divmod(position, CACHE_BLOCK)
                self.full[blocks[block], slot] = self.window[window_blocks[block], slot] = text[position]
        for (sequence, tokens), text, (blocks, window_blocks) in zip(parts, texts, tables, strict=True):
            for position in {len(sequence.tokens), len(text) - 1}:
                for seen in range(position + 1):
                    block, slot = divmod(seen, CACHE_BLOCK)
                    assert self.full[blocks[block], slot] == text[seen]
                    if seen > position - SPAN and self.sequences.windows is not None:
                        assert self.window[window_blocks[block], slot] == text[seen]
            begin = len(sequence.tokens)
            sequence.tokens += tokens
            sequence.state_length = len(sequence.tokens)
            self.states[sequence.slot] = text[-1] if text else 0
            self.sequences.keep(sequence, begin)


def prefixes(tokens: list[int]) -> list[int]:
    """A number for the tokens up to each position."""
    found, last = [], 0
    for token in tokens:
        last = hash((last, token))
        found.append(last)
    return found


def drawn_prompt(rng: np.random.Generator) -> list[int]:
    """Some of few texts, then tokens of its own: prompts begin alike."""
    text = np.random.default_rng(rng.integers(3)).integers(0, 9, 400)
    return [*text[: rng.integers(1, 400)].tolist(), *rng.integers(0, 9, rng.integers(1, 60)).tolist()]


def act(caches: Caches, rng: np.random.Generator) -> None:
    """One step of a service: new answers, chunks of prompts, tokens, wrong drafts, interrupts, and answers that end."""
    sequences = caches.sequences
    active = list(caches.runs)
    if sequences.has_room and rng.random() < 0.3:
        prompt = drawn_prompt(rng)
        if sequences.can_start(prompt):
            sequence = caches.start(prompt)
            rest = prompt[len(sequence.tokens) :]
            while rest and sequences.can_grow([(sequence, count := sequences.piece(sequence, min(len(rest), ROWS)))]):
                caches.step([(sequence, rest[:count])])
                rest = rest[count:]
    parts, room = [], ROWS
    for sequence in active:
        count = int(min(rng.integers(1, 17) if rng.random() < 0.8 else rng.integers(1, ROWS), room))
        if len(sequence.tokens) + count > EACH * CACHE_BLOCK or rng.random() < 0.02:
            caches.finish(sequence)
        elif count:
            parts.append((sequence, rng.integers(0, 9, count).tolist()))
            room -= count
    while not sequences.can_grow([(sequence, len(tokens)) for sequence, tokens in parts]):
        caches.finish(parts.pop()[0])
    caches.step(parts, is_interrupted=rng.random() < 0.05)
    for sequence, tokens in parts:
        if rng.random() < 0.5 and not sequences.has_state:
            length = len(sequence.tokens) - int(rng.integers(0, min(17, len(tokens))))
            sequences.truncate(sequence, length)
            assert len(sequence.tokens) == length


@pytest.mark.parametrize("total", [None, 20], ids=["whole", "oversubscribed"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("checkpoints", [0, 2])
@pytest.mark.parametrize("kind", ["windows", "states", "both"])
def test_rows_see_their_own_sequence(
    rng: np.random.Generator, count: int, total: int | None, checkpoints: int, kind: str
) -> None:
    """Whatever answers share, cut, leave or interrupt, and the cache of the windows is never full before the other."""
    most = total or count * EACH
    windows = Windows(frozenset(), SPAN, min(most, blocks_of(SPAN, count, ROWS, checkpoints)))
    states: dict[int, int] = {}
    slots = 0 if kind == "windows" else count + checkpoints
    sequences = Sequences(
        count, EACH, total,
        slots=slots, copy_state=(lambda source, slot: states.update({slot: states[source]})) if slots else None,
        windows=None if kind == "states" else windows,
    )  # fmt: skip
    caches, reused = Caches(sequences, states=states), 0
    for _ in range(150):
        before = set(caches.runs)
        act(caches, rng)
        reused += sum(len(each.tokens) for each in set(caches.runs) - before)
        owned = [each.slot for each in sequences._owners if each.is_active]
        kept = [slot for each in sequences._owners for slot in each.checkpoints.values()]
        assert not slots or (len(set(owned)) == len(owned) and -1 not in owned and not set(owned) & set(kept))
    assert reused


def computed(sequences: Sequences, tokens: list[int], keep: list[object]) -> Sequence:
    """A finished sequence of these tokens."""
    run: Any = (None for _ in ())
    sequence = sequences.start(tokens, weakref.ref(run))
    while len(sequence.tokens) < len(tokens):
        part = tokens[len(sequence.tokens) :][:CACHE_BLOCK]
        sequences.reserve(sequence, len(sequence.tokens) + len(part))
        sequence.tokens += part
    keep.append(len(sequence.tokens))
    run.close()
    sequences.finish(sequence)
    return sequence


def test_prefixes_are_shared_where_their_window_is_cached() -> None:
    """A prompt shares the beginning of a sequence until its blocks are needed, then only what the window reaches."""
    sequences = Sequences(2, EACH, windows=Windows(frozenset(), SPAN, 12))
    keep: list[object] = []
    first = computed(sequences, list(range(600)), keep)
    assert np.count_nonzero(first.window_blocks >= 0) == 10
    branch = sequences.start([*range(320), -1])
    assert len(branch.tokens) == 320
    computed(sequences, [7] * 256, keep)  # needs four blocks, of which two are free
    assert np.flatnonzero(first.window_blocks >= 0).tolist() == list(range(2, 10))
    assert len(sequences.start([*range(320), -1]).tokens) == 320
    assert len(sequences.start([*range(200), -1]).tokens) == 0  # its window begins in a block that is gone
    assert len(sequences.start([*range(600), -1]).tokens) == 600


def test_tokens_can_be_taken_back() -> None:
    """As many as a draft has, although every block that is not needed was given up."""
    sequences = Sequences(1, EACH, windows=Windows(frozenset(), SPAN, blocks_of(SPAN, 1, CACHE_BLOCK)))
    for length in range(300, 364):
        sequences.forget_all()
        sequence = computed(sequences, list(range(length)), [])
        while sequences._take_behind(sequence, 1):
            pass
        sequences.truncate(sequence, length - 16)
        assert len(sequence.tokens) == length - 16


# -- language models --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 with two layers of three with a window."""
    folder = tmp_path_factory.mktemp("gemma3")
    save_model(Case("windows", "gemma3_text", GEMMA), folder)
    return folder


def language_model(folder: Path, **options: Any) -> ingot.LLM:
    return ingot.LLM(folder, **{"precision": "f32", "threads": 1, "sequences": 1} | options)


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 99, count).tolist()


def all_at_once(folder: Path, ids: list[int]) -> np.ndarray:
    """The logits of a run of all tokens, in which every layer caches all positions."""
    model = load_language_model(read_folder(folder), context=CONTEXT)
    assert model.windows is None and "window_blocks" not in model.graph.inputs
    count = len(ids)
    session = ingot.InferenceSession(model.graph, strict=True, dims={"rows": count, "taken": count, "sequences": 1})
    feeds = {"ids": ids, "positions": range(count), "owners": [0] * count, "take": range(count)}
    feeds["blocks"] = [range(model.blocks_per_sequence)]
    (logits,) = session.run(["logits"], {name: np.asarray(array, np.int32) for name, array in feeds.items()})
    return logits


def test_same_bits(folder: Path) -> None:
    """Logits are those of a cache of the whole context, in chunks and by single tokens that use blocks many times."""
    ids = tokens(1, CONTEXT)
    llm = language_model(folder)
    windows = llm.model.windows
    assert windows is not None and windows.layers == {0, 1} and windows.blocks < llm.model.cache_blocks
    expected = all_at_once(folder, ids)
    assert llm.logits(ids).tobytes() == expected.tobytes()
    drawn = list(llm.generate_tokens(ids[:30]))
    ids = [*ids[:30], *drawn]
    assert len(ids) == CONTEXT + 1
    assert drawn == all_at_once(folder, ids[:-1])[29:].argmax(1).tolist()


@pytest.mark.slow
def test_logits_of_transformers_in_float64(folder: Path, tmp_path: Path) -> None:
    model = save_model(Case("windows", "gemma3_text", GEMMA), tmp_path)
    ids = tokens(2, CONTEXT)
    expected = exact_logits(model, np.array(ids))
    assert np.abs(language_model(tmp_path).logits(ids) - expected).max() <= 2e-6 * np.abs(expected).max()


class Eager(Speculation):
    """Drafts in every step, whatever it costs."""

    def _best_count(self, generations: list[Generation], sources: list[int]) -> int:
        return 16 // len(generations) - 1


PROMPTS = [[*tokens(3, 330)[: 330 - 40 * (i % 4)], *tokens(10 + i, 5 + 37 * i % 90)] for i in range(6)]


def answers_alone(folder: Path, **options: Any) -> list[list[int]]:
    """The answer to each prompt, each by an empty cache."""
    llm, answers = language_model(folder, **options), []
    for ids in PROMPTS:
        llm.engine.sequences.forget_all()
        answers.append(list(llm.generate_tokens(ids, max_tokens=100)))
    return answers


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    return answers_alone(folder)


@pytest.mark.parametrize("options", [{}, {"cache_positions": CONTEXT}, {"lookup": True}], ids=str)
def test_answers_together(folder: Path, alone: list[list[int]], options: dict[str, Any]) -> None:
    """Prompts that begin alike, wrong drafts and answers that are put back: the tokens are those of answers alone."""
    assert answers_together(folder, **options) == alone


@pytest.mark.slow
@pytest.mark.parametrize("cache_dtype", ["bf16", "int8", "int4"])
def test_narrow_caches(folder: Path, cache_dtype: str) -> None:
    assert answers_together(folder, cache_dtype=cache_dtype) == answers_alone(folder, cache_dtype=cache_dtype)


def answers_together(folder: Path, **options: Any) -> list[list[int]]:
    """The answers of a service, three at once."""
    llm = language_model(folder, sequences=3, **options)
    if llm.speculation is not None:
        llm.speculation = Eager(llm.engine, llm.speculation._drafter)
        llm.decode = llm.speculation.decode
    generations = [llm.generation(ids, max_tokens=100, temperature=0) for ids in PROMPTS]
    ends: list[object] = []
    with Service(llm.engine, decode=llm.decode) as service:
        for generation in generations:
            service.submit(generation, lambda g, is_token, error: None if is_token else ends.append(error))
        while len(ends) < len(PROMPTS):
            service._thread.join(0.01)
        assert not any(ends) and service.counts.reused_tokens > 0
        assert service.counts.preempted or "cache_positions" not in options
        assert service.counts.drafted_tokens > service.counts.accepted_tokens or "lookup" not in options
    return [generation.tokens[len(ids) :] for generation, ids in zip(generations, PROMPTS, strict=True)]


@pytest.mark.parametrize("length", [40, 400, 447])
def test_saved_and_restored(folder: Path, tmp_path: Path, length: int) -> None:
    """A file has the blocks that the next token sees, whatever the context and the number of sequences are."""
    llm = language_model(folder)
    first = list(llm.generate_tokens(tokens(4, length), max_tokens=4))
    llm.save_sequence(tmp_path / "state")
    other = language_model(folder, sequences=3, context=length + 200)
    list(other.generate_tokens(tokens(5, 170), max_tokens=3))
    ids = other.load_sequence(tmp_path / "state")
    assert ids == [*tokens(4, length), *first[:-1]]
    arrays = other.engine.cached_types(len(ids))
    blocks = -(-len(ids) // CACHE_BLOCK)
    assert arrays["keys.2"].dims[0] == blocks
    assert arrays["keys.0"].dims[0] == blocks - max(0, len(ids) - 69) // CACHE_BLOCK
    assert list(other.generate_tokens([*ids, 9], max_tokens=90)) == list(
        language_model(folder).generate_tokens([*ids, 9], max_tokens=90)
    )
    assert other.usage.reused_tokens == len(ids)


def test_recurrent_state_and_a_window(tmp_path: Path) -> None:
    """A sequence with both is saved, restored and continued; its slot and its blocks are used again."""
    save_model(KINDS["recurrent"][0], tmp_path)
    ids = tokens(7, 100)
    alone, llm = language_model(tmp_path, context=128), language_model(tmp_path, context=128, sequences=2)
    expected = list(alone.generate_tokens(ids, max_tokens=28))
    for seed in range(3):
        list(llm.generate_tokens(tokens(seed, 120), max_tokens=8))
    assert list(llm.generate_tokens(ids, max_tokens=11)) == expected[:11]
    llm.save_sequence(tmp_path / "state")
    other = language_model(tmp_path, context=128, sequences=2)
    assert other.load_sequence(tmp_path / "state") == [*ids, *expected[:10]]
    for each in (llm, other):
        assert list(each.generate_tokens([*ids, *expected[:11]], max_tokens=17)) == expected[11:]
        assert each.usage.reused_tokens == 110
        assert list(each.generate_tokens(ids[:90], max_tokens=2)) == list(alone.generate_tokens(ids[:90], max_tokens=2))
        assert each.usage.reused_tokens == (64 if each is llm else 0)  # a file has no checkpoint


GEMMA3N = GEMMA | {
    "num_hidden_layers": 6, "layer_types": PATTERN * 2, "num_kv_shared_layers": 3, "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 6,
}  # fmt: skip
# The case, and which layers have keys for the window, and for the whole context.
KINDS = {
    "full": (Case("full", "llama", {"max_position_embeddings": CONTEXT}), [], [0, 1]),
    "window": (Case("window", "mistral", {"sliding_window": 70, "max_position_embeddings": CONTEXT}), [0, 1], []),
    "both": (Case("both", "gemma3_text", GEMMA), [0, 1], [2]),
    "shared": (Case("shared", "gemma3n_text", GEMMA3N), [0, 1], [2]),
    "recurrent": (
        Case("recurrent", "recurrent_gemma", {"num_hidden_layers": 3, "attention_window_size": 70}), [2], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_memory(name: str, tmp_path: Path) -> None:
    """What is planned from headers is allocated, and is what the number of blocks says."""
    case, windowed, full = KINDS[name]
    save_model(case, tmp_path)
    options = {"precision": "f32", "threads": 1, "sequences": 2}
    context = 128 if name == "recurrent" else CONTEXT
    planned = memory_of(tmp_path, context=context, **options)
    llm = language_model(tmp_path, context=context, sequences=2)
    assert llm.memory == planned
    list(llm.generate_tokens(tokens(6, 100), max_tokens=20))
    assert llm.memory == planned
    states = dict(llm.engine.modes["decode"].states())
    blocks = {int(name.partition(".")[2]): len(array) for name, array in states.items() if name.startswith("keys.")}
    whole = 2 * context // CACHE_BLOCK
    kept = min(whole, blocks_of(70, 2, min(512, context) + 1, checkpoints=2))
    assert blocks == dict.fromkeys(windowed, kept) | dict.fromkeys(full, whole)
    assert planned.cache == sum(-(-array.nbytes // 64) * 64 for array in states.values())
