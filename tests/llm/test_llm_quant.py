"""Language models with matrices quantized to 8 or 4 bits, on the model that ships."""

import functools
import math
import textwrap
from pathlib import Path

import numpy as np
import pytest

import hf_models
import ingot
from ingot.cli.demo_language import FOLDER
from ingot.quantize import Plan, quantize_folder
from kernel_calls import ISAS

pytestmark = pytest.mark.native

PRECISIONS = ["int8", "int4", "int8w", "int4w"]
FORMATS = {"int8": "int8_row", "int4": "int4", "int8w": "int8_row", "int4w": "int4"}
TABLES = "int8_row"  # the format of tokens and logits
TOKENS = 1536
WINDOW = 384
# How much more perplexity a model may have than in f32: rounding to the nearest code, without calibration.
LOSS = {"int8": 0.002, "int4": 0.06, "int8w": 0.002, "int4w": 0.06}


@functools.cache
def text() -> list[int]:
    """Tokens of a module of Python's library, which the model is made for."""
    source = Path(str(textwrap.__file__)).read_text(encoding="utf-8")
    return ingot.LLM(FOLDER, precision="f32").tokenizer.encode(source)[: TOKENS + 1]


@functools.cache
def perplexity(precision: str) -> float:
    """Of the text in windows that begin without a context."""
    llm, ids, total = ingot.LLM(FOLDER, precision=precision, cache_dtype="f32"), text(), 0.0
    for begin in range(0, TOKENS, WINDOW):
        logits = llm.logits(ids[begin : begin + WINDOW]).astype(np.float64)
        wanted = logits[np.arange(WINDOW), ids[begin + 1 : begin + WINDOW + 1]]
        total += float((np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - wanted).sum())
    return math.exp(total / TOKENS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_little_is_lost(precision: str) -> None:
    assert abs(perplexity(precision) / perplexity("f32") - 1) <= LOSS[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_token_alone_and_with_others(precision: str) -> None:
    """The logits after a token are the same to the bit whether it came alone or with others, on every set and any
    threads."""
    ids, found = text()[:90], set()
    for isa, threads in [*((isa, 1) for isa in ISAS), (ISAS[-1], 2)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("INGOT_ISA", isa)
            llm = ingot.LLM(FOLDER, precision=precision, threads=threads)
        together = llm.logits(ids)
        engine = llm.engine
        engine.sequences.forget_all()
        sequence = engine.sequences.start(ids[:80])
        rows = [engine.prefill(sequence, ids[:80]).output[0].copy()]
        rows += [engine.decode([(sequence, token, None)]).output[0].copy() for token in ids[80:]]
        engine.sequences.finish(sequence)
        assert np.stack(rows).tobytes() == together[79:].tobytes()
        found.add(together.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_product_reads_quantized_weights(precision: str) -> None:
    """Every product reads quantized weights, in each mode, logits in 8 bits; a separate step rounds the rows."""
    llm = ingot.LLM(FOLDER, precision=precision)
    for name in ("prefill", "decode"):
        kernels = [step.kernel for step in llm.engine.mode(name).native.lowered.steps]
        products = {kernel for kernel in kernels if kernel.startswith("gem")}
        rows, prefix = ("i24", "gemm_i24_") if precision.endswith("w") else ("i8", "gemm_")
        layers, logits = f"{prefix}{FORMATS[precision]}", f"{prefix}{TABLES}"
        assert products == {f"{layers}_packed", f"{layers}_gated", f"{logits}_packed"}
        assert f"round_rows_{rows}" in kernels and f"gather_{TABLES}_panels" in kernels
    llm = ingot.LLM(FOLDER, precision="f32")
    (choice,) = llm.explain("model.layers.0.residual", "prefill").choices
    assert f"gemm_{FORMATS[precision]}_packed" in [kernel for kernel, _ in choice.candidates[:-1]]


def products(llm: ingot.LLM) -> set[str]:
    """The kernels of the products of a prompt."""
    kernels = [step.kernel for step in llm.engine.mode("prefill").native.lowered.steps]
    return {kernel for kernel in kernels if kernel.startswith("gem")}


def test_a_quantized_folder_stays_quantized(tmp_path: Path) -> None:
    """Its own codes are what products read, and they are those of its floats, unless a precision asks for these."""
    quantize_folder(FOLDER, tmp_path / "few", Plan("int4"))
    llm = ingot.LLM(tmp_path / "few")
    assert llm.options.precision == "int8"
    assert products(llm) == {"gemm_int4_packed", "gemm_int4_gated", "gemm_int8_row_packed"}  # the vocabulary has 8 bits
    decoded = ingot.LLM(tmp_path / "few", precision="f32")
    assert all("_f32_" in kernel for kernel in products(decoded))
    ids = text()[:60]
    found, expected = llm.logits(ids), decoded.logits(ids)
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    assert products(ingot.LLM(tmp_path / "few", precision="int4")) == products(llm)


_WIDE = {"hidden_size": 64, "intermediate_size": 96}
KINDS = {
    "gpt2": hf_models.Case("gpt2", "gpt2", {"n_positions": 128, "n_embd": 64, "n_head": 4, "n_layer": 2}),
    "gpt2, bf16": hf_models.Case(
        "gpt2", "gpt2", {"n_positions": 128, "n_embd": 64, "n_head": 4, "n_layer": 2}, hf_models.torch.bfloat16
    ),
    "mixtral": hf_models.Case("mixtral", "mixtral", _WIDE | {"num_local_experts": 5}),
    "qwen3_moe": hf_models.Case(
        "qwen3_moe",
        "qwen3_moe",
        _WIDE | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "head_dim": 16},
    ),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_experts_and_transposed_matrices_are_quantized(kind: str, precision: str, tmp_path: Path) -> None:
    """Every product except a router's reads quantized weights, for any layout of the file; batches change no bit."""
    hf_models.save_model(KINDS[kind], tmp_path)
    exact = ingot.LLM(tmp_path, precision="f32", cache_dtype="f32")
    llm = ingot.LLM(tmp_path, precision=precision, cache_dtype="f32")
    families = {f"gemm_{'i24_' if precision.endswith('w') else ''}{format}" for format in (FORMATS[precision], TABLES)}
    kernels = [step.kernel for step in llm.engine.mode("prefill").native.lowered.steps]
    found = {kernel for kernel in kernels if kernel.startswith(("gem", "expert_matmul"))}
    products = {kernel.rpartition("_")[0].replace("expert_matmul", "gemm") for kernel in found}
    assert products == families | ({"gemm_f32"} if "gpt2" not in kind else set())
    assert any(kernel.startswith("expert_matmul") for kernel in found) == ("gpt2" not in kind)
    assert llm.memory.weights < (0.9 if "bf16" in kind else 0.45) * exact.memory.weights
    ids = [int(token) for token in np.random.default_rng(3).integers(3, 99, 60)]
    together = llm.logits(ids)
    sequence = llm.engine.sequences.start(ids[:50])
    rows = [llm.engine.prefill(sequence, ids[:50]).output[0].copy()]
    rows += [llm.engine.decode([(sequence, token, None)]).output[0].copy() for token in ids[50:]]
    assert np.stack(rows).tobytes() == together[49:].tobytes()
    if "8" in precision and "gpt2" in kind:  # a router that decides otherwise is no rounding
        logits = exact.logits(ids)
        assert np.linalg.norm(together - logits) < 0.03 * np.linalg.norm(logits)
