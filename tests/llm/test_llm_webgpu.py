"""Language models on WebGPU, on adapters in software: native's tokens, transformers' logits, and what a token takes."""

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ingot
from adapters import adapter, quick_on_each
from hf_models import CASES, Case, expected_logits, parameters, save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot.cli import commands
from ingot.cli.demo_language import FOLDER
from ingot.errors import InputError
from ingot.llm import Sampling, memory_of
from ingot.llm.sampling import Sampler
from ingot.run.device import open_device

assert adapter
pytestmark = pytest.mark.usefixtures("adapter")

FIRST_OF_TYPE = {case.type: case for case in reversed(CASES) if case.context is None}
PROMPTS = ["def fibonacci(n):\n", "import os\n", "class Stack:\n    def __init__(self):\n", "# This module "]


def shipped(executor: str) -> ingot.LLM:
    return opened(executor, os.environ["INGOT_WGPU_ADAPTER"] if executor == "webgpu" else "")


@functools.cache
def opened(executor: str, adapter: str) -> ingot.LLM:
    """adapter: the one that there is when it is opened."""
    return ingot.LLM(FOLDER, executor=executor, precision="f32")


def encoded(prompt: str) -> list[int]:
    tokenizer = shipped("native").tokenizer
    return [*tokenizer.prefix, *tokenizer.encode(prompt)]


def greedy(llm: ingot.LLM, prompts: list[list[int]], count: int) -> list[list[int]]:
    generations = [llm.generation(prompt, max_tokens=count, temperature=0) for prompt in prompts]
    drawn: list[list[int]] = [[] for _ in prompts]
    for generation in llm.run(generations):
        drawn[generations.index(generation)].append(generation.token)
    return drawn


@quick_on_each
def test_greedy_tokens_are_native_s() -> None:
    prompt = encoded(PROMPTS[0])
    (tokens,) = greedy(shipped("webgpu"), [prompt], 64)
    assert [tokens] == greedy(shipped("native"), [prompt], 64) and len(tokens) == 64
    assert len(shipped("webgpu").engine.mode("decode").native.dispatches.steps) <= 50


def test_many_keys_are_read_in_parts(tmp_path: Path) -> None:
    """One dispatch more a layer, where contexts are long."""
    shutil.copytree(FOLDER, tmp_path / "long")
    config = json.loads((tmp_path / "long" / "config.json").read_text())
    (tmp_path / "long" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    llms = [ingot.LLM(tmp_path / "long", executor=each, precision="f32") for each in ("webgpu", "native")]
    prompt = (encoded(PROMPTS[0]) * 60)[:300]
    found, expected = (greedy(llm, [prompt], 8) for llm in llms)
    assert found == expected
    steps = [len(llm.engine.mode("decode").native.dispatches.steps) for llm in (llms[0], shipped("webgpu"))]
    assert steps[0] == steps[1] + config["num_hidden_layers"]


def test_a_batch_is_one_by_one() -> None:
    llm, prompts = shipped("webgpu"), [encoded(prompt) for prompt in PROMPTS]
    together = greedy(llm, prompts, 12)
    assert together == [greedy(llm, [prompt], 12)[0] for prompt in prompts]


def test_a_token_is_one_upload_one_submit_and_one_readback(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, gpu, done = shipped("webgpu"), open_device().gpu, []

    def noted(of: object, name: str) -> Callable[..., object]:
        call = getattr(of, name)
        return lambda *given, **named: done.append(name) or call(*given, **named)

    tokens = llm.generate_tokens(encoded(PROMPTS[0]), max_tokens=4, temperature=0)
    first = [next(tokens), next(tokens)]
    for name in ("create_buffer", "create_bind_group", "create_compute_pipeline", "create_shader_module"):
        monkeypatch.setattr(gpu, name, noted(gpu, name))
    for name in ("write_buffer", "submit"):
        monkeypatch.setattr(gpu.queue, name, noted(gpu.queue, name))
    read = llm.engine.mode("decode").native._found
    monkeypatch.setattr(read, "map_sync", noted(read, "map_sync"))
    assert [*first, *tokens] == greedy(shipped("native"), [encoded(PROMPTS[0])], 4)[0]
    assert done == ["write_buffer", "submit", "map_sync"] * 2


@quick_on_each
def test_small_regions_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices and the table of tokens are larger than a binding, all weights are many of them, and states several."""
    found = []
    for nbytes in (128 << 20, 256 << 10):
        monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", str(nbytes))
        engine = ingot.LLM(FOLDER, executor="webgpu", sequences=2, context=64).engine
        sequence, ids = engine.sequences.start(()), encoded(PROMPTS[0])
        logits = [engine.prefill(sequence, ids).output.copy(), engine.decode([(sequence, 5, None)]).output.copy()]
        found.append(np.concatenate(logits).tobytes())
        regions = engine.mode("decode").native.dispatches.regions
        assert max(regions.values()) <= nbytes and ({"weights20", "state1"} <= regions.keys()) == (len(found) == 2)
    assert found[0] == found[1]


def test_a_sampled_token_is_native_s() -> None:
    options = {"max_tokens": 8, "temperature": 0.8, "top_k": 40, "seed": 7, "logprobs": 3}
    found, expected = (shipped(executor).complete(PROMPTS[1], **options) for executor in ("webgpu", "native"))
    assert found.tokens == expected.tokens
    for mine, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert abs(mine.logprob - other.logprob) < 1e-3 and [t for t, _ in mine.top] == [t for t, _ in other.top]


def test_what_was_computed_is_reused_saved_and_restored(tmp_path: Path) -> None:
    ids = encoded(PROMPTS[2])
    llm, other = (ingot.LLM(FOLDER, executor="webgpu", sequences=1) for _ in range(2))
    answer = list(llm.generate_tokens(ids, max_tokens=8, temperature=0))
    llm.save_sequence(tmp_path / "saved")
    longer = [*ids, *answer, 5, 6]
    expected = list(llm.generate_tokens(longer, max_tokens=4, temperature=0))
    assert llm.usage.reused_tokens == len(ids) + len(answer) - 1
    assert other.load_sequence(tmp_path / "saved") == [*ids, *answer][:-1]
    assert list(other.generate_tokens(longer, max_tokens=4, temperature=0)) == expected
    assert other.usage.reused_tokens == llm.usage.reused_tokens
    native = ingot.LLM(FOLDER, precision="f32", sequences=1)
    native.load_sequence(tmp_path / "saved")
    assert list(native.generate_tokens(longer, max_tokens=4, temperature=0)) == expected


@pytest.mark.parametrize("precision", ["int8w", "int4w"])
def test_quantized_weights_give_native_logits(precision: str) -> None:
    options = {"precision": precision, "cache_dtype": "f32", "sequences": 1}
    llms = [ingot.LLM(FOLDER, executor=executor, **options) for executor in ("webgpu", "native")]
    found, expected = (llm.logits(encoded(PROMPTS[3])) for llm in llms)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert llms[0].memory.weights < 1.01 * llms[1].memory.weights


def test_recurrent_state_has_no_kernel(tmp_path: Path) -> None:
    save_model(RECURRENT_CASES[0], tmp_path)
    with pytest.raises(ingot.UnsupportedError, match=r"no kernel, got .*causal_conv"):
        ingot.LLM(tmp_path, executor="webgpu", sequences=1)


@pytest.mark.parametrize("case", parameters(case for case in FIRST_OF_TYPE.values() if case not in RECURRENT_CASES))
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = save_model(case, tmp_path)
    ids = np.random.default_rng(0).integers(3, 99, 70).astype(np.int32)
    llm = ingot.LLM(tmp_path, executor="webgpu", sequences=1)
    expected = expected_logits(model, ids)
    np.testing.assert_allclose(llm.logits(ids.tolist()), expected, atol=1e-3)
    assert next(llm.generate_tokens(ids.tolist())) == expected[-1].argmax()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_without_a_token_to_draw(value: float) -> None:
    here, there = (Sampler(Sampling(temperature=0), 5) for _ in range(2))
    here.native.take(2, value)
    there.native.draw(np.full(5, value, np.float32))
    messages = []
    for sampler in (here, there):
        with pytest.raises(InputError) as caught:
            sampler.check()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_what_a_language_model_does_not_do_there() -> None:
    with pytest.raises(InputError, match="precision: webgpu rounds no rows, got 'int8'"):
        ingot.LLM(FOLDER, executor="webgpu", precision="int8")
    with pytest.raises(InputError, match="cache_dtype: unknown value, got 'bf16', expected one of f32"):
        ingot.LLM(FOLDER, executor="webgpu", cache_dtype="bf16")
    with pytest.raises(InputError, match="executor: unknown value, got 'gpu', expected one of native, webgpu"):
        ingot.LLM(FOLDER, executor="gpu")


def test_memory_is_that_of_the_prediction() -> None:
    assert ingot.LLM(FOLDER, executor="webgpu", sequences=2).memory == memory_of(FOLDER, executor="webgpu", sequences=2)


def test_commands_take_the_executor() -> None:
    for command in (["generate", "tiny-lm", "import os", "--max-tokens", "3"], ["memory", "tiny-lm"]):
        done = CliRunner().invoke(commands, [*command, "--executor", "webgpu", "--json"])
        assert done.exit_code == 0 and json.loads(done.stdout), done.output
