"""Sequences of models with recurrent state: continued, cut, interrupted, saved and restored, to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ingot
from hf_case import Case
from hf_models import SIZES, expected_logits, parameters, save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot.emit.language.model import emit_language_model
from ingot.errors import LoadError, StoppedError, UnsupportedError
from ingot.llm.service import Counts, Service
from ingot.load.hf import load_dense, read_folder

pytestmark = pytest.mark.checked

CASES = {case.name: case for case in RECURRENT_CASES}
PROMPT = np.random.default_rng(1).integers(3, 99, 90).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LFM2: convolutions and attention."""
    folder = tmp_path_factory.mktemp("lfm2")
    save_model(CASES["lfm2"], folder)
    return folder


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LFM2 with a longer context."""
    folder = tmp_path_factory.mktemp("long")
    save_model(Case("long", "lfm2", CASES["lfm2"].config | {"max_position_embeddings": 512}), folder)
    return folder


def language_model(folder: Path, **options) -> ingot.LLM:
    return ingot.LLM(folder, precision="f32", threads=1, **options)


def drawn(llm: ingot.LLM, prompt: list[int], count: int = 6) -> list[int]:
    return list(llm.generate_tokens(prompt, max_tokens=count))


def served(llm: ingot.LLM, prompts: list[list[int]], count: int) -> tuple[list[list[int]], Counts]:
    """The answers of a service to prompts at once, so many tokens each, and its counts."""
    generations = [llm.generation(prompt, max_tokens=count, temperature=0) for prompt in prompts]
    ends: list[object] = []
    with Service(llm.engine) as service:
        for generation in generations:
            service.submit(generation, lambda g, is_token, error: None if is_token else ends.append(error))
        while len(ends) < len(prompts):
            service._thread.join(0.01)
    assert not any(ends)
    return [g.tokens[len(p) :] for g, p in zip(generations, prompts, strict=True)], service.counts


@pytest.mark.parametrize("case", parameters(RECURRENT_CASES))
def test_exact(case: Case, tmp_path: Path):
    """Logits in f32 are those of transformers, which computes recurrences in chunks, up to their rounding."""
    expected = expected_logits(save_model(case, tmp_path), np.array(PROMPT))
    found = language_model(tmp_path).logits(PROMPT)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_sequence_is_continued_whole_or_after_a_checkpoint(folder: Path):
    """A prompt that ends within a finished sequence is computed from the last block of the sequence's prompt."""
    llm = language_model(folder, sequences=2)
    first = drawn(llm, PROMPT)
    assert drawn(llm, PROMPT) == first and llm.usage.reused_tokens == 64
    longer = [*PROMPT, *first, 7]
    alone = drawn(language_model(folder), longer)
    assert drawn(llm, longer) == alone
    assert llm.usage.reused_tokens == len(PROMPT) + 5  # the last token drawn was not computed
    assert drawn(llm, PROMPT[:70]) == drawn(language_model(folder), PROMPT[:70])
    assert llm.usage.reused_tokens == 64
    assert drawn(llm, PROMPT[:60]) == drawn(language_model(folder), PROMPT[:60])
    assert llm.usage.reused_tokens == 0


@pytest.mark.parametrize("checkpoints, reused", [(0, [0, 0, 0]), (1, [0, 256, 256]), (4, [0, 256, 320])])
def test_prompts_that_begin_alike(long: Path, checkpoints: int, reused: list[int]):
    """The second prompt finds a regular checkpoint, and adds one where it parts from the first, for the third one."""
    llm, alone = (language_model(long, sequences=2, checkpoints=n) for n in (checkpoints, 0))
    begin = np.random.default_rng(2).integers(3, 99, 330).tolist()
    for i, count in enumerate(reused):
        prompt = [*begin, *[3 + i] * 100]
        assert drawn(llm, prompt) == drawn(alone, prompt)
        assert llm.usage.reused_tokens == count and alone.usage.reused_tokens == 0


@pytest.mark.parametrize("name", ["mamba", "qwen3_5_text", "rwkv", "recurrent_gemma"])
def test_same_bits_after_a_checkpoint(name: str, tmp_path: Path):
    """Logits after a shared prefix are those of a model that computes the whole prompt."""
    save_model(CASES[name], tmp_path)
    llm, alone = (language_model(tmp_path, sequences=2, checkpoints=n) for n in (2, 0))
    for prompt in (PROMPT, [*PROMPT[:80], 5, 9], [*PROMPT[:70], 7]):
        expected = alone.logits(prompt)[-1]
        sequence = llm.engine.sequences.start(prompt)
        assert len(sequence.tokens) == (0 if prompt is PROMPT else 64)
        found = llm.engine.prefill(sequence, prompt[len(sequence.tokens) :]).output
        assert found[0].tobytes() == expected.tobytes()
        assert drawn(llm, prompt) == drawn(alone, prompt)


@pytest.mark.parametrize("checkpoints", [1, 5])
def test_answers_together(long: Path, checkpoints: int):
    """Answers that share and lose checkpoints, in a small cache: the tokens are those of each alone."""
    rng = np.random.default_rng(checkpoints)
    begin = rng.integers(3, 99, 300).tolist()
    prompts = [[*begin[: int(rng.integers(1, 300))], *rng.integers(3, 99, 9).tolist()] for _ in range(12)]
    single = language_model(long, sequences=1, checkpoints=0)
    alone = [drawn(single, prompt, 20) for prompt in prompts]
    llm = language_model(long, sequences=3, checkpoints=checkpoints, context=384, cache_positions=640)
    answers, counts = served(llm, prompts, 20)
    assert answers == alone and counts.reused_tokens > 0


def test_slots_are_given_up(folder: Path):
    """With more prompts than slots, the least recently used finished sequence gives its slot up."""
    llm = language_model(folder, sequences=2)
    prompts = [[i, *PROMPT[:20]] for i in range(3, 8)]
    alone = [drawn(language_model(folder), prompt) for prompt in prompts]
    for _ in range(2):
        assert [drawn(llm, prompt) for prompt in prompts] == alone
    generations = [llm.generation(prompt, max_tokens=6, temperature=0) for prompt in prompts]
    found: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    for generation in llm.run(generations):
        found[generations.index(generation)].append(generation.token)
    assert list(found.values()) == alone


def test_preempted(folder: Path):
    """An answer that was put back, because the blocks of the cache ran out, continues with the same tokens."""
    prompts = [[i, *PROMPT[:40]] for i in range(3, 7)]
    alone = [drawn(language_model(folder), prompt, 60) for prompt in prompts]
    llm = language_model(folder, sequences=4, cache_positions=320)
    answers, counts = served(llm, prompts, 60)
    assert answers == alone and counts.preempted


def test_an_interrupted_run_is_not_continued(folder: Path):
    """A run that was stopped may have changed the states of some layers: the sequence begins at its checkpoint."""
    llm = language_model(folder)
    first = drawn(llm, PROMPT)
    sequence = llm.engine.sequences.latest
    assert sequence is not None
    llm.engine.modes.is_stopping = True
    with pytest.raises(StoppedError):
        drawn(llm, [*PROMPT, *first, 7])
    llm.engine.modes.is_stopping = False
    assert drawn(llm, [*PROMPT, *first, 7]) == drawn(language_model(folder), [*PROMPT, *first, 7])
    assert llm.usage.reused_tokens == 64


@pytest.mark.parametrize("cache_dtype", ["f32", "int8"])
def test_saved_and_restored(folder: Path, tmp_path: Path, cache_dtype: str):
    llm = language_model(folder, cache_dtype=cache_dtype)
    first = drawn(llm, PROMPT)
    llm.save_sequence(tmp_path / "state")
    other = language_model(folder, cache_dtype=cache_dtype, sequences=2)
    drawn(other, PROMPT[:5])
    tokens = other.load_sequence(tmp_path / "state")
    assert tokens == [*PROMPT, *first[:-1]]
    assert drawn(other, [*tokens, 9]) == drawn(language_model(folder, cache_dtype=cache_dtype), [*tokens, 9])
    assert other.usage.reused_tokens == len(tokens)


def test_damaged_and_foreign_files_are_refused(folder: Path, tmp_path: Path):
    """A file whose state was changed, and one of a model with other states, change nothing in the cache."""
    llm = language_model(folder)
    first = drawn(llm, PROMPT)
    llm.save_sequence(tmp_path / "state")
    content = bytearray((tmp_path / "state").read_bytes())
    content[-100] ^= 1  # of the last state
    (tmp_path / "damaged").write_bytes(content)
    save_model(CASES["mamba"], tmp_path / "mamba")
    with pytest.raises(LoadError, match="damaged"):
        llm.load_sequence(tmp_path / "damaged")
    with pytest.raises(LoadError, match="saved by another model"):
        language_model(tmp_path / "mamba").load_sequence(tmp_path / "state")
    assert drawn(llm, [*PROMPT, *first, 7]) == drawn(language_model(folder), [*PROMPT, *first, 7])
    assert llm.usage.reused_tokens == len(PROMPT) + 5


def test_no_drafts(folder: Path):
    for options in ({"lookup": True}, {"draft": folder}):
        with pytest.raises(UnsupportedError, match="drafts: not with recurrent state"):
            language_model(folder, **options)


def test_memory(folder: Path):
    """States are counted exactly: two layers of two rows of 32 channels for each sequence and checkpoint."""
    sizes = [ingot.llm.memory_of(folder, precision="f32", threads=1, context=64, sequences=n).cache for n in (1, 3)]
    llm = language_model(folder, context=64, sequences=3)
    assert llm.memory.cache == sizes[1]
    states = {name: array.nbytes for name, array in llm.engine.modes["decode"].states().items()}
    assert states["recurrent.0.conv"] == states["recurrent.2.conv"] == (3 + 3) * 2 * 32 * 4


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "bf16w", "int8", "int4", "int4w"])
@pytest.mark.parametrize("name", ["mamba", "bamba", "recurrent_gemma", "qwen3_5_text"])
def test_precisions(name: str, precision: str, tmp_path: Path):
    save_model(CASES[name], tmp_path)
    exact = ingot.LLM(tmp_path, precision="f32", threads=1).logits(PROMPT)
    found = ingot.LLM(tmp_path, precision=precision, threads=1).logits(PROMPT)
    assert np.isfinite(found).all() and np.abs(found - exact).mean() < 0.25 * np.abs(exact).mean()


def test_emitted_c_refuses(folder: Path, tmp_path: Path):
    with pytest.raises(UnsupportedError, match="emit: a language model with recurrent state"):
        emit_language_model(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_training_refuses(folder: Path):
    with pytest.raises(UnsupportedError, match="short_conv: no recurrent state outside of a language model"):
        load_dense(read_folder(folder), 64)


@pytest.mark.slow
def test_text_model_of_a_folder_with_images(tmp_path: Path):
    """Qwen 3.5 with a vision part has the config and the names of its text model one level deeper."""
    text = {name: value for name, value in SIZES.items() if name not in ("bos_token_id", "eos_token_id")}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    tokens = {f"{name}_token_id": 98 - i for i, name in enumerate(("image", "video", "vision_start", "vision_end"))}
    text_config = text | CASES["qwen3_5_text"].config
    config = transformers.AutoConfig.for_model("qwen3_5", text_config=text_config, vision_config=vision, **tokens)
    torch.manual_seed(0)
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = np.minimum(PROMPT, 90)
    expected = expected_logits(model, ids)
    found = language_model(tmp_path).logits(ids.tolist())
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
