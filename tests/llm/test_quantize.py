"""Model folders with weights of 8 and 4 bits: the numbers, the files, and what is lost."""

import hashlib
import json
import os
import sysconfig
import tokenize
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

import hf_models
import ingot
from ingot.cli.demo_language import FOLDER
from ingot.errors import InputError, LoadError, OutputError
from ingot.llm.perplexity import perplexity
from ingot.load.hf import read_folder
from ingot.load.hf.quantized import CODES, SCALES
from ingot.quantize import Plan, quantize_folder, report
from ingot.quantize.feedback import quantize_with_feedback
from ingot.quantize.weights import Coding, assigned, code, fit
from tiny_language_models import random_llama

CODINGS = [Coding(8, 0, False), Coding(8, 32, False), Coding(4, 32, False), Coding(4, 64, True), Coding(4, 0, True)]
every_coding = pytest.mark.parametrize("coding", CODINGS, ids=str)


# -- numbers ----------------------------------------------------------------------------------------------------


def plainly_rounded(matrix: np.ndarray, coding: Coding) -> np.ndarray:
    """Quantize over the complete range of each group and decode, in float64."""
    low, high = coding.limits
    rows = matrix.astype(np.float64).reshape(len(matrix), coding.groups(matrix.shape[1]), -1)
    if coding.has_zeros:
        least, most = np.minimum(rows.min(-1), 0)[..., None], np.maximum(rows.max(-1), 0)[..., None]
        scale = (most - least) / (high - low)
        zero = np.rint(-least / scale)
    else:
        scale, zero = np.abs(rows).max(-1)[..., None] / high, 0
    return ((np.clip(np.rint(rows / scale) + zero, low, high) - zero) * scale).reshape(matrix.shape)


@every_coding
def test_fitted_scales_lose_no_more_than_plain_rounding(coding: Coding, rng: np.random.Generator) -> None:
    matrix = (rng.standard_normal((48, 128)) * rng.uniform(0.01, 1, (48, 1))).astype(np.float32)
    coded = code(matrix, coding)
    low, high = coding.limits
    assert coded.quantized.min() >= low and coded.quantized.max() <= high and coded.scales.dtype == np.float16
    error, plain = (np.linalg.norm(made - matrix) for made in (coded.decoded(), plainly_rounded(matrix, coding)))
    assert error <= 1.001 * plain


@every_coding
def test_quantized_values_are_the_nearest(coding: Coding, rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((8, 128)).astype(np.float32)
    scales, zeros = fit(matrix, coding)
    codes = assigned(matrix, scales, zeros, coding)
    low, high = coding.limits
    count = coding.groups(128)
    every = np.arange(low, high + 1)[:, None, None, None]
    steps = every - (0 if zeros is None else zeros.astype(np.int64)[..., None])
    errors = np.abs(steps * scales.astype(np.float64)[..., None] - matrix.reshape(8, count, -1))
    own = np.take_along_axis(errors, codes.reshape(1, 8, count, -1).astype(np.int64) - low, 0)[0]
    assert (own <= errors.min(0) * (1 + 1e-5) + 1e-7).all()


@every_coding
def test_quantized_zeros_and_small_values(coding: Coding) -> None:
    """Zeros stay zeros; what f16 cannot scale has scales in f32."""
    matrix = np.zeros((3, 128), np.float32)
    matrix[1] = np.linspace(-1, 1, 128) * 1e-7
    matrix[2] = 1e15
    coded = code(matrix, coding)
    assert coded.scales.dtype == np.float32
    np.testing.assert_array_equal(coded.decoded()[0], 0)
    np.testing.assert_allclose(coded.decoded()[1:], matrix[1:], rtol=1e-4, atol=1e-7 * 2.2 / (1 << coding.bits))


@every_coding
def test_feedback_is_rounding_where_columns_are_independent(coding: Coding, rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((8, 128)).astype(np.float32)
    coded = quantize_with_feedback(matrix, coding, np.diag(np.full(128, 3.0)))
    np.testing.assert_array_equal(coded.quantized, assigned(matrix, coded.scales, coded.zeros, coding))


@every_coding
def test_feedback_loses_less_of_the_outputs(coding: Coding, rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((32, 128)).astype(np.float32)
    rows = rng.standard_normal((1000, 16)) @ rng.standard_normal((16, 128)) + 0.1 * rng.standard_normal((1000, 128))
    errors = [
        np.linalg.norm(rows @ (coded.decoded().astype(np.float64) - matrix).T)
        for coded in (quantize_with_feedback(matrix, coding, rows.T @ rows), code(matrix, coding))
    ]
    assert errors[0] < 0.7 * errors[1]


def test_feedback_without_any_input() -> None:
    """A product that a text never reached."""
    coded = quantize_with_feedback(np.ones((2, 64), np.float32), CODINGS[2], np.zeros((64, 64)))
    np.testing.assert_allclose(coded.decoded(), 1, rtol=1e-3)


# -- files ------------------------------------------------------------------------------------------------------


def decoded_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a quantized folder, as another library reads them; values are decoded one by one."""
    stored = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors = {}
    for name, array in stored.items():
        path, _, part = name.rpartition(".")
        if part not in ("codes", "scales", "zeros"):
            tensors[name] = array
        if part != "codes":
            continue
        scales, zeros = stored[f"{path}.scales"].astype(np.float32), stored.get(f"{path}.zeros")
        codes = array.astype(np.int32)
        if array.dtype == np.uint8:
            codes = np.stack([array & 15, array >> 4], -1).reshape(len(array), -1).astype(np.int32)
            codes = codes if zeros is not None else (codes ^ 8) - 8
        group = codes.shape[1] // scales.shape[1]
        if zeros is not None:
            points = np.stack([zeros & 15, zeros >> 4], -1).reshape(len(zeros), -1)[:, : scales.shape[1]]
            codes = codes - np.repeat(points.astype(np.int32), group, 1)
        tensors[path] = codes.astype(np.float32) * np.repeat(scales, group, 1)
    return tensors


SHAPES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 99}
PLANS = {
    "int8": Plan("int8"),
    "int8 groups": Plan("int8", 32),
    "int4": Plan("int4"),
    "int4 zero points": Plan("int4", 32, zero_points=True),
    "int4 vocabulary": Plan("int4", 32, vocabulary="int4"),
    "some kept": Plan("int4", vocabulary="keep", int8=["*.down_proj.weight"], keep=["model.layers.0.*"]),
}


STORED = [(name, torch.float32) for name in PLANS] + [("int8", torch.bfloat16), ("int4", torch.float16)]


@pytest.mark.parametrize(("name", "dtype"), STORED)
def test_folder(name: str, dtype: torch.dtype, tmp_path: Path, rng: np.random.Generator) -> None:
    """Each weight is stored as planned, and the model is the one of the decoded weights."""
    plan = PLANS[name]
    model = random_llama(tmp_path / "plain", dtype, **SHAPES)
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    (tmp_path / "plain" / ".hidden.json").write_text("{}")
    (tmp_path / "plain" / "additional_chat_templates").mkdir()
    (tmp_path / "plain" / "additional_chat_templates" / "rag.jinja").write_text("{{ documents }}")
    (tmp_path / "plain" / "pytorch_model.bin").write_bytes(b"not copied")
    progress = []
    written = quantize_folder(
        tmp_path / "plain", tmp_path / "few", plan, on_progress=lambda done, total: progress.append((done, total))
    )
    assert progress == sorted(progress) and progress[-1] == (written.before, written.before)
    copied = "additional_chat_templates"
    assert (tmp_path / "few" / copied / "rag.jinja").read_text() == "{{ documents }}"
    names = {path.name for path in (tmp_path / "few").iterdir() if path.name != copied}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads((tmp_path / "few" / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "ingot", "version": 1}
    assert config == json.loads((tmp_path / "plain" / "config.json").read_text())
    assert sum(tensor.nbytes for tensor in read_folder(tmp_path / "few").tensors.values()) == written.after
    tensors, stored = decoded_tensors(tmp_path / "few"), read_folder(tmp_path / "few").tensors
    state = {}
    for name, weight in model.state_dict().items():
        expected, found = weight.numpy(), tensors[name]
        is_quantized = f"{name}.codes" in stored
        is_kept = weight.dim() == 1 or (plan.vocabulary == "keep" and len(weight) == 99) or name.startswith(
            tuple(pattern.removesuffix("*") for pattern in plan.keep) or "-"
        )  # fmt: skip
        assert is_quantized != is_kept
        if is_kept:
            assert stored[name].array().tobytes() == read_folder(tmp_path / "plain").tensors[name].array().tobytes()
        else:
            step = np.abs(expected).max() / (100 if stored[f"{name}.codes"].dtype.name == "i8" else 5)
            assert np.abs(found - expected).max() < step
        state[name] = torch.from_numpy(found.astype(np.float32))
    model.load_state_dict(state)
    ids = rng.integers(0, 99, 30).tolist()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    found = ingot.LLM(tmp_path / "few", precision="f32").logits(ids)
    np.testing.assert_allclose(found, logits, atol=2e-4 * np.abs(logits).max(), rtol=0)


KINDS = ["llama, biases and tied", "gpt2, untied and odd scales", "gpt2, bf16", "phi3", "qwen3_moe"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_matrix(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Transposed, fused, tied and experts' ones; what routes rows to experts stays."""
    (case,) = (case for case in hf_models.CASES if case.name == kind)
    model = hf_models.save_model(case, tmp_path / "plain")
    quantize_folder(tmp_path / "plain", tmp_path / "few", Plan("int8"))
    state, tensors = model.state_dict(), decoded_tensors(tmp_path / "few")
    coded = {name.removesuffix(".codes") for name in read_folder(tmp_path / "few").tensors if name.endswith(".codes")}
    plain = read_folder(tmp_path / "plain").tensors
    left = {name for name, tensor in plain.items() if len(tensor.shape) == 2} - coded
    assert all("wpe" in name or ".gate.weight" in name for name in left), left
    other = tmp_path / "decoded"
    other.mkdir()
    for name in coded:
        transposed = tensors[name] if tensors[name].shape == plain[name].shape else tensors[name].T.copy()
        tensors[name] = transposed
    if "gpt2" in kind:
        square = [name for name in coded if plain[name].shape[0] == plain[name].shape[1] and "wte" not in name]
        tensors |= {name: tensors[name].T.copy() for name in square}
    safetensors.numpy.save_file(tensors, other / "model.safetensors", {"format": "pt"})
    (other / "config.json").write_text((tmp_path / "plain" / "config.json").read_text())
    decoded = transformers.AutoModelForCausalLM.from_pretrained(
        other, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert set(decoded.state_dict()) == set(state)
    ids = rng.integers(0, 99, 30)
    expected = hf_models.expected_logits(decoded, ids)
    found = ingot.LLM(tmp_path / "few", precision="f32").logits(ids.tolist())
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max(), rtol=0)


def test_encoder(tmp_path: Path, rng: np.random.Generator) -> None:
    """With a text and without; the program that a session saves computes the same."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=4096, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "plain")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "plain" / name).write_bytes((Path(FOLDER) / name).read_bytes())
    feeds = {"input_ids": rng.integers(0, 4096, (2, 9)), "attention_mask": np.ones((2, 9), np.int64)}
    feeds["token_type_ids"] = np.zeros((2, 9), np.int64)
    (plain,) = ingot.InferenceSession(tmp_path / "plain").run(None, feeds)
    for name, text in (("few", None), ("calibrated", library(False)[:2000])):
        assert quantize_folder(tmp_path / "plain", tmp_path / name, Plan("int8"), text=text).coded == 7
        session = ingot.InferenceSession(tmp_path / name)
        (few,) = session.run(None, feeds)
        assert 0 < np.linalg.norm(few - plain) < 0.02 * np.linalg.norm(plain)
        session.save(tmp_path / f"{name}.ingot")
        np.testing.assert_array_equal(ingot.InferenceSession(tmp_path / f"{name}.ingot").run(None, feeds)[0], few)


def test_memory_is_less_than_a_matrix(tmp_path: Path) -> None:
    sizes = {"vocab_size": 40_000, "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 1}
    random_llama(tmp_path / "plain", torch.bfloat16, **sizes, tie_word_embeddings=True)
    tracemalloc.start()
    quantize_folder(tmp_path / "plain", tmp_path / "few", Plan("int8", 32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 40_000 * 256


def test_columns_that_32_does_not_divide_become_int8(tmp_path: Path) -> None:
    """Unless the user asks for a group; the model is the one of the decoded weights."""
    random_llama(tmp_path / "plain", intermediate_size=56)
    written = quantize_folder(tmp_path / "plain", tmp_path / "few", Plan("int4"))
    down = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(2)]
    assert sorted(written.widened) == down
    stored = safetensors.numpy.load_file(tmp_path / "few" / "model.safetensors")
    plain = safetensors.numpy.load_file(tmp_path / "plain" / "model.safetensors")
    for name in down:
        codes, scales = (stored[f"{name}.{part}"].astype(np.float32) for part in (CODES, SCALES))
        assert codes.shape == (32, 56) and scales.shape == (32, 1), "a byte an element, a scale a row"
        assert (np.abs(codes * scales - plain[name]) <= 0.51 * np.abs(scales)).all()
    assert np.isfinite(ingot.LLM(tmp_path / "few", threads=1).logits([5, 17, 3])).all()


# -- refusals ---------------------------------------------------------------------------------------------------

REFUSED = [
    (lambda: Plan("int5"), InputError, "option format: unknown value, got 'int5', expected int8 or int4"),
    (lambda: Plan("int4", 48), InputError, "option group: unknown value, got 48, expected 32 or 64 or 128"),
    (lambda: Plan("int4", vocabulary="f16"), InputError, "option vocabulary: unknown value, got 'f16'"),
    (lambda: Plan("int4", 64), InputError, "option group: does not divide the 96 columns of 'model.layers.0.mlp.down_"
     "proj.weight', got 64, expected 32, or --keep for this matrix"),
    (lambda: Plan("int4", int8=["*.nothing"]), InputError, "option int8: matches no matrix, got '*.nothing', expected"),
    (lambda: Plan("int4", keep=["*norm*"]), InputError, "option keep: matches no matrix, got '*norm*', expected"),
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    random_llama(folder, **SHAPES)
    return folder


@pytest.mark.parametrize(("plan", "error", "text"), REFUSED)
def test_refused_plan(plan: object, error: type[Exception], text: str, plain: Path, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        quantize_folder(plain, tmp_path / "out", plan())
    assert text in str(caught.value) and not (tmp_path / "out").exists()


def test_refused_folders(plain: Path, tmp_path: Path) -> None:
    """A name that is taken stays what it is; nothing is quantized twice; NaN has no code."""
    quantize_folder(plain, tmp_path / "few", Plan("int8"))
    before = (tmp_path / "few" / "model.safetensors").read_bytes()
    with pytest.raises(OutputError, match="few: exists, expected a free name"):
        quantize_folder(plain, tmp_path / "few", Plan("int4"))
    assert (tmp_path / "few" / "model.safetensors").read_bytes() == before
    with pytest.raises(InputError, match="few: quantized already"):
        quantize_folder(tmp_path / "few", tmp_path / "fewer", Plan("int4"))
    tensors = safetensors.numpy.load_file(plain / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text((plain / "config.json").read_text())
    safetensors.numpy.save_file(tensors, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(LoadError, match=r"'model.layers.1.mlp.up_proj.weight' contains NaN or infinity"):
        quantize_folder(tmp_path / "bad", tmp_path / "worse", Plan("int4"))
    assert sorted(os.listdir(tmp_path)) == ["bad", "few"]


# -- what is lost -----------------------------------------------------------------------------------------------


SKIPPED = {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data"}


@cache
def library(is_held_out: bool) -> str:
    """Pieces of the standard library that the model which ships has not seen, or has: files by the hash of their paths.

    As examples/tiny-lm/train.py chose them.
    """
    root, texts = Path(sysconfig.get_paths()["stdlib"]), []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = hashlib.sha256("/".join(parts).encode()).digest()
        if not SKIPPED & set(parts) and (int.from_bytes(name[:4], "big") % 25 == 0) == is_held_out:
            with tokenize.open(path) as file:
                texts.append(file.read())
    whole = "".join(texts)
    return "".join(whole[len(whole) * piece // 16 :][:1500] for piece in range(16))


@cache
def plain_loss() -> float:
    return perplexity(ingot.LLM(FOLDER, precision="f32"), library(True), stride=448).perplexity


@pytest.mark.parametrize(
    ("plan", "is_calibrated", "most"),
    [
        (Plan("int8"), False, 0.005),
        (Plan("int4"), False, 0.04),
        (Plan("int4", zero_points=True), False, 0.04),
        (Plan("int4"), True, 0.02),
    ],
    ids=["int8", "int4", "int4 zero points", "int4 calibrated"],
)
def test_perplexity_of_the_model_that_ships(plan: Plan, is_calibrated: bool, most: float, tmp_path: Path) -> None:
    quantize_folder(FOLDER, tmp_path / "few", plan, text=library(False) if is_calibrated else None)
    found = perplexity(ingot.LLM(tmp_path / "few", precision="f32"), library(True), stride=448).perplexity
    assert found < plain_loss() * (1 + most)


@pytest.mark.parametrize(("precision", "most"), [("int8", 0.005), ("int4", 0.04)])
def test_perplexity_of_weights_quantized_at_load(precision: str, most: float) -> None:
    found = perplexity(ingot.LLM(FOLDER, precision=precision), library(True), stride=448).perplexity
    assert found < plain_loss() * (1 + most)


def test_perplexity_is_that_of_the_logits() -> None:
    """Every token once, with as much before it as its window has."""
    llm = ingot.LLM(FOLDER, precision="f32", context=40)
    text = library(True)[:600]
    ids, prefix = llm.tokenizer.encode(text), llm.tokenizer.prefix
    room = 40 - len(prefix)
    assert len(ids) > 3 * room
    for stride in (7, room - 1, None):
        step = stride or room - room // 2
        losses = {}
        for begin in range(0, len(ids), step):
            window = [*prefix, *ids[begin : begin + room]]
            logits = llm.logits(window).astype(np.float64)
            logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            for place in range(1, len(window)):
                token = begin + place - len(prefix)
                if token > 0:
                    losses.setdefault(token, -logs[place - 1, window[place]])
        found = perplexity(llm, text, stride=stride)
        assert found.tokens == len(ids) - 1 == len(losses)
        assert found.nats == pytest.approx(np.mean(list(losses.values())), rel=1e-9)
        assert found.perplexity == pytest.approx(np.exp(found.nats))


def test_perplexity_refuses() -> None:
    llm = ingot.LLM(FOLDER, context=40)
    for text, stride, message in (("", None, "text: too short, got 0 tokens"), ("a b c", 40, "option stride: out of")):
        with pytest.raises(InputError, match=message):
            perplexity(llm, text, stride=stride)


def test_report(plain: Path) -> None:
    """Errors are those of the folder that would be written; a budget goes to the matrices that gain most for it."""
    found = report(FOLDER, Plan("int4"))
    stored, exact = {}, read_folder(FOLDER).tensors
    for loss in found.losses:
        matrix = exact[loss.name].array().astype(np.float32)
        coded = code(matrix, Coding(8, 0, False) if loss.format == "int8" else Coding(4, 32, False))
        lost = coded.decoded().astype(np.float64) - matrix
        stored[loss.name] = np.linalg.norm(lost) / np.linalg.norm(matrix.astype(np.float64))
        assert loss.weight_error == pytest.approx(stored[loss.name], rel=1e-9) and loss.output_error is None
        assert (loss.int8 is None) == (loss.format == "int8")
    assert len(found.losses) == 36 and len(found.layers()) == 6
    first = [loss for loss in found.losses if loss.layer == "model.layers.0"]
    assert found.layers()["model.layers.0"] == pytest.approx(np.sqrt(np.mean([loss.error**2 for loss in first])))
    assert found.raised(0) == []
    raised = found.raised(100_000)
    assert raised and sum(loss.int8[1] for loss in raised) <= 100_000
    everything = found.raised(1 << 30)
    assert {loss.name for loss in everything} == {loss.name for loss in found.losses if loss.format == "int4"}


def test_report_of_outputs() -> None:
    """With a text, errors are those of the products, and feedback keeps them below those of the elements."""
    found = report(FOLDER, Plan("int4", keep=["*.mlp.*", "*.[1-4].*"]), text=library(False)[:10_000])
    linear = [loss for loss in found.losses if loss.format == "int4"]
    assert len(linear) == 4
    for loss in linear:
        assert loss.error == loss.output_error and 0 < loss.output_error < 0.7 * loss.weight_error


def test_a_text_that_is_too_short(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text: too short to calibrate with, got \d tokens, expected at least 511"):
        quantize_folder(FOLDER, tmp_path / "out", Plan("int4"), text="a = 3")
    assert not (tmp_path / "out").exists()
