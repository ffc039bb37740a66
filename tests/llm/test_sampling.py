"""Choosing tokens: what may be drawn against transformers in float64, draws against their exact distribution, and the
same tokens on every machine."""

import ctypes
import math
import random

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ingot.errors import InputError, LimitError
from ingot.llm.sampling import Sampler, Sampling
from ingot.run.library import load
from philox import philox

pytestmark = pytest.mark.native

VOCABS = (1, 2, 15, 16, 17, 1000, 4097, 32000)
ISAS = load().isas()


def drawn(options: dict, logits: np.ndarray, count: int, **more) -> list[int]:
    sampler = Sampler(Sampling(**options), logits.size, **more)
    return [sampler.sample(logits) for _ in range(count)]


def on_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_ISA", isa)


def expected(options: dict, logits: np.ndarray, prompt: list[int], output: list[int]) -> np.ndarray:
    """Probabilities float64[vocab] by transformers, with OpenAI's bias and penalties where it has none."""
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    for token, bias in (options.get("logit_bias") or {}).items():
        scores[0, token] += bias
    seen = torch.tensor([[*prompt, *output]], dtype=torch.int64)
    if seen.numel():
        scores = RepetitionPenaltyLogitsProcessor(options.get("repetition_penalty", 1.0))(seen, scores)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=logits.size)
    scores = scores - options.get("frequency_penalty", 0.0) * counts
    scores = scores - options.get("presence_penalty", 0.0) * (counts > 0)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(options.get("temperature", 1.0))])
    if options.get("top_k"):
        warpers.append(TopKLogitsWarper(options["top_k"]))
    if options.get("top_p", 1.0) < 1:
        warpers.append(TopPLogitsWarper(options["top_p"]))
    if options.get("min_p"):
        warpers.append(MinPLogitsWarper(options["min_p"]))
    return torch.softmax(warpers(seen, scores), -1)[0].numpy()


def random_options(rng: random.Random, vocab: int) -> dict:
    options: dict = {"temperature": rng.choice([0.1, 0.7, 1.0, 1.3, 5.0]), "seed": rng.randrange(2**64)}
    if rng.random() < 0.5:
        options["top_k"] = rng.choice([1, 2, 5, 40, vocab - 1 or 1, vocab, vocab + 5])
    if rng.random() < 0.5:
        options["top_p"] = rng.choice([1e-9, 0.1, 0.5, 0.9, 0.95, 0.999])
    if rng.random() < 0.5:
        options["min_p"] = rng.choice([1e-6, 0.01, 0.1, 0.5, 1.0])
    if rng.random() < 0.5:
        options["repetition_penalty"] = rng.choice([0.8, 1.1, 2.0])
    if rng.random() < 0.5:
        options["presence_penalty"], options["frequency_penalty"] = rng.choice([-0.5, 0.4]), rng.choice([0.0, 0.3])
    if rng.random() < 0.5:
        options["logit_bias"] = {rng.randrange(vocab): rng.choice([-100, -1.5, 2.0]) for _ in range(3)}
    return options


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("isa", ISAS)
def test_candidates_are_those_of_transformers(
    vocab: int, isa: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_isa(isa, monkeypatch)
    chooser = random.Random(vocab)
    for _ in range(40):
        options = random_options(chooser, vocab)
        sampler = Sampler(Sampling(**options), vocab)
        prompt, output = [int(i) for i in rng.integers(0, vocab, 5)], []
        sampler.accept(prompt)
        for _ in range(3):
            logits = rng.normal(0, chooser.choice([0.5, 3.0, 10.0]), vocab).astype(np.float32)
            token = sampler.sample(logits)
            exact = expected(options, logits, prompt, output)
            tokens, probabilities = sampler.probabilities()
            found = np.zeros(vocab)
            found[tokens] = probabilities
            survivors = np.nonzero(exact > 1e-37)[0]  # below, float32 has no weight
            if np.count_nonzero(found > 1e-37) != survivors.size:  # allowed where a sum is top_p but for f32's rounding
                sums = np.sort(expected(options | {"top_p": 1.0}, logits, prompt, output))[::-1].cumsum()
                assert np.abs(sums - options["top_p"]).min() < 1e-7, options
                output.append(token)
                continue
            np.testing.assert_array_equal(np.nonzero(found > 1e-37)[0], survivors, err_msg=str(options))
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6, err_msg=str(options))
            assert sampler.token == token and exact[token] > 0
            output.append(token)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.0, "top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"top_k": 30, "top_p": 0.95, "min_p": 0.01},
        {"logit_bias": {0: 2.0, 1: -100.0}},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(options: dict) -> None:
    """Chi-square of 20000 draws; a token expected fewer than 5 times joins the others like it."""
    logits = np.random.default_rng(3).normal(0, 2, 200).astype(np.float32)
    counts = np.bincount(drawn({**options, "seed": 11}, logits, 20000), minlength=logits.size)
    exact = expected(options, logits, [], []) * 20000
    assert not counts[exact == 0].any()
    rare = exact < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(exact[~rare], exact[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = len(seen) - 1
    chi = float(((seen - wanted) ** 2 / wanted).sum())
    # Wilson and Hilferty: (chi / freedom)^(1/3) is nearly normal; 4 deviations.
    spread = 2 / (9 * freedom)
    assert (chi / freedom) ** (1 / 3) < 1 - spread + 4 * math.sqrt(spread), f"chi-square {chi} of {freedom}"


def test_the_generator_is_philox() -> None:
    """The authors' known answers for the reference above; then, of 2^16 equal tokens, a draw shows 16 bits of it."""
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    )
    flat = np.zeros(1 << 16, np.float32)
    for seed in (0, 1, 2**32 + 5, 2**64 - 1, -1):
        key = (seed % 2**32, seed % 2**64 >> 32)
        assert drawn({"seed": seed}, flat, 5) == [philox((n, 0, 0, 0), key)[0] >> 16 for n in range(5)]


GOLDEN = [
    ({"seed": 0}, [38, 98, 5, 79, 92, 46, 69, 65]),
    ({"seed": 7, "temperature": 0.8, "top_k": 20, "top_p": 0.9}, [98, 46, 8, 38, 30, 30, 79, 30]),
    ({"seed": 7, "min_p": 0.05, "repetition_penalty": 1.3, "frequency_penalty": 0.5}, [95, 38, 2, 40, 30, 35, 81, 27]),
    ({"temperature": 0, "repetition_penalty": 2.0}, [30, 60, 90, 19, 49, 79, 8, 38]),
]


@pytest.mark.parametrize(("options", "tokens"), GOLDEN, ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_a_seed_gives_these_tokens(options: dict, tokens: list[int], isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_isa(isa, monkeypatch)
    logits = ((np.arange(100) * 37 % 101) / 16).astype(np.float32)
    assert drawn(options, logits, 8) == tokens


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01, "logprobs": 20}], ids=str)
def test_every_instruction_set_agrees_bit_for_bit(
    options: dict, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = rng.normal(0, 2, 152064).astype(np.float32)
    results = []
    for isa in ISAS:
        on_isa(isa, monkeypatch)
        sampler = Sampler(Sampling(seed=5, repetition_penalty=1.1, **options), logits.size)
        chosen = [(sampler.sample(logits), sampler.logprob, sampler.top) for _ in range(5)]
        tokens, probabilities = sampler.probabilities()
        results.append((chosen, tokens.tobytes(), probabilities.tobytes()))
    assert results.count(results[0]) == len(ISAS)


def test_equal_logits() -> None:
    """Greedy takes the lowest id; truncation keeps the lowest ids."""
    logits = np.array([1, 3, 2, 3, -0.0, 0.0, 3], np.float32)
    for options in (
        {"temperature": 0},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"top_p": 5e-324},
        {"temperature": 1e-30, "top_k": 1},
    ):
        assert drawn(options, logits, 3) == [1, 1, 1], options
    flat = np.zeros(5000, np.float32)
    for options, kept in (({"top_k": 3}, 3), ({"top_p": 0.5}, 2500), ({"top_k": 100, "top_p": 0.105}, 11)):
        sampler = Sampler(Sampling(**options), flat.size)
        sampler.sample(flat)
        np.testing.assert_array_equal(sampler.probabilities()[0], np.arange(kept))
    minus = np.array([-0.0, 0.0], np.float32)
    assert drawn({"top_k": 1}, minus, 1) == drawn({"temperature": 0}, minus, 1) == [0]


@pytest.mark.parametrize("order", ["rising", "falling", "flat", "peaked", "masked"])
def test_orders_that_are_hard_to_select_from(order: str) -> None:
    vocab = 20000
    logits = {
        "rising": np.linspace(-5, 5, vocab),
        "falling": np.linspace(5, -5, vocab),
        "flat": np.zeros(vocab),
        "peaked": np.where(np.arange(vocab) == 777, 500.0, 0.0),
        "masked": np.where(np.arange(vocab) % 100 == 0, 1.0, -np.inf),
    }[order].astype(np.float32)
    for options in ({"top_k": 300}, {"top_p": 0.37}, {"top_k": 19999, "top_p": 0.99}):
        sampler = Sampler(Sampling(**options), vocab)
        sampler.sample(logits)
        tokens, probabilities = sampler.probabilities()
        ranked = np.lexsort((np.arange(vocab), -logits))
        share = np.exp(logits[ranked].astype(np.float64) - logits.max())
        kept = min(options.get("top_k", vocab), int((logits > -np.inf).sum()))
        if "top_p" in options:
            before = np.cumsum(share[:kept]) - share[:kept]
            kept = int((before < options["top_p"] * share[:kept].sum()).sum())
        # Equal shares meet the border exactly: then rounding may put one token more or less.
        assert abs(len(tokens) - kept) <= (order in ("flat", "masked"))
        np.testing.assert_array_equal(tokens, np.sort(ranked[: len(tokens)]))
        assert probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 5}, {"logprobs": 3}], ids=str)
@pytest.mark.parametrize("place", [0, 17, 4999])
def test_no_token_is_chosen_from_bad_logits(options: dict, place: int) -> None:
    good = np.linspace(-1, 1, 5000).astype(np.float32)
    for bad, message in ((np.nan, "a logit is NaN"), (np.inf, "a logit is infinite")):
        logits = good.copy()
        logits[place] = bad
        sampler = Sampler(Sampling(**options), logits.size)
        for _ in range(2):
            with pytest.raises(InputError, match=message):
                sampler.sample(logits)
            assert sampler.token == -1
        assert 0 <= sampler.sample(good) < good.size
    with pytest.raises(InputError, match="no token is allowed"):
        Sampler(Sampling(**options), good.size).sample(np.full(good.size, -np.inf, np.float32))
    mask = np.zeros(-(-good.size // 32), np.uint32)
    with pytest.raises(InputError, match="no token is allowed"):
        Sampler(Sampling(**options), good.size, mask).sample(good)


def test_penalties_that_overflow_are_reported() -> None:
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=0.001), 2)
    sampler.accept([0])
    with pytest.raises(InputError, match="a logit is infinite"):
        sampler.sample(np.array([3e38, 0], np.float32))


def test_cold_and_hot() -> None:
    logits = np.array([1.0, 1.0001, -3e38, -np.inf], np.float32)
    assert drawn({"temperature": 1e-30}, logits, 20) == [1] * 20
    assert set(drawn({"temperature": 1000}, logits, 200)) == {0, 1}
    assert drawn({}, np.array([-7.0], np.float32), 3) == [0, 0, 0]


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("temperature", [0, 1])
def test_mask(vocab: int, temperature: float, rng: np.random.Generator) -> None:
    """The mask is read at each call, and closed tokens are never drawn."""
    logits = rng.normal(0, 1, vocab).astype(np.float32)
    mask = np.zeros(-(-vocab // 32), np.uint32)
    sampler = Sampler(Sampling(temperature=temperature), vocab, mask)
    for _ in range(20):
        allowed = rng.random(vocab) < 0.3
        allowed[rng.integers(vocab)] = True
        bits = np.zeros(mask.size * 32, np.uint8)
        bits[:vocab] = allowed
        mask[:] = np.packbits(bits, bitorder="little").view(np.uint32)
        token = sampler.sample(logits)
        assert allowed[token]
        if temperature:
            tokens, probabilities = sampler.probabilities()
            np.testing.assert_array_equal(tokens[probabilities > 0], np.nonzero(allowed)[0])
        else:
            assert token == np.argmax(np.where(allowed, logits, -np.inf))


@pytest.mark.parametrize("temperature", [0, 1])
def test_logprobs_are_the_models_own(temperature: float, rng: np.random.Generator) -> None:
    """Before bias, penalties, temperature and truncation; more tokens than there are is no error."""
    for vocab, top in ((1, 20), (5, 0), (5, 20), (4000, 7)):
        logits = rng.normal(0, 4, vocab).astype(np.float32)
        options = {"logprobs": top, "top_k": 2, "logit_bias": {0: 50.0}, "repetition_penalty": 1.5}
        sampler = Sampler(Sampling(temperature=temperature, **options), vocab)
        exact = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1).numpy()
        for _ in range(3):
            token = sampler.sample(logits)
            assert sampler.logprob == pytest.approx(exact[token], abs=2e-6)
            ranked = np.argsort(-exact, kind="stable")[:top]
            assert [t for t, _ in sampler.top] == ranked.tolist()
            np.testing.assert_allclose([p for _, p in sampler.top], exact[ranked], atol=2e-6)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, 1001, math.nan, math.inf, "1", None, True]),
        ("top_k", [-1, 2**31, 1.0, None, True]),
        ("top_p", [0, -0.5, 1.01, math.nan, None]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0, -1, 1e9, math.nan]),
        ("presence_penalty", [-2.1, 2.1, "x"]),
        ("frequency_penalty", [-2.1, 2.1, math.inf]),
        ("seed", [2**64, -(2**63) - 1, 1.5, "7"]),
        ("logprobs", [-1, 21, 1.5, True]),
        ("logit_bias", [[(1, 2.0)], {"1": 2.0}, {1: math.nan}, {1: 101}, {1: None}, {1.5: 1.0}]),
    ],
)
def test_options_outside_their_range(name: str, values: list) -> None:
    for value in values:
        with pytest.raises(InputError, match=f"{name}: .*got .*expected"):
            Sampling(**{name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    options = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), logit_bias={np.int32(1): np.float64(2)})
    assert Sampler(options, 10).sample(np.zeros(10, np.float32)) in range(10)


def test_biases_have_limits() -> None:
    assert Sampling(logit_bias=dict.fromkeys(range(1024), 1.0))
    with pytest.raises(LimitError, match="got 1025, expected at most 1024"):
        Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))
    for token in (-1, 10):
        with pytest.raises(InputError, match=f"logit_bias: no such token, got {token}, expected 0 to 9"):
            Sampler(Sampling(logit_bias={token: 1.0}), 10)


def test_without_a_seed_samplers_differ() -> None:
    flat = np.zeros(1 << 16, np.float32)
    assert drawn({}, flat, 4) != drawn({}, flat, 4)


class HeapUse(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks used free".split()
    ]


def test_the_logits_stay_and_no_memory_is_allocated() -> None:
    """Ten thousand calls leave the heap as it is."""
    heap = ctypes.CDLL(None).mallinfo2
    heap.restype = HeapUse
    logits = np.random.default_rng(0).normal(0, 2, 5000).astype(np.float32)
    before = logits.copy()
    options = {"top_k": 500, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.1, "logprobs": 5}
    sampler, library = Sampler(Sampling(seed=1, **options), logits.size), load()
    row, sample = library.ffi.from_buffer("float[]", logits), library.entry.ingot_sample
    sample(sampler.native.struct, row)
    used = heap().used
    for _ in range(10000):
        sample(sampler.native.struct, row)
    assert heap().used - used < 10000
    np.testing.assert_array_equal(logits, before)


def test_no_share_at_all_is_refused_by_a_host_that_flushes_subnormals() -> None:
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(InputError, match="top_p: not allowed, got 0"):
            Sampling(top_p=0)
    finally:
        torch.set_flush_denormal(False)
