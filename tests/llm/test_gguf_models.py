"""Language models in GGUF files, compared with the folders of their origin: the same logits, bit for bit."""

import io
import json
import re
import shutil
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import ingot
from gguf_families import FAMILIES
from gguf_models import TINY_LM, packed_bytes, stored_as, write_gguf
from hf_models import Case, save_model
from ingot.errors import InputError, LoadError
from ingot.llm import memory_of
from ingot.load.gguf import read_gguf
from ingot.load.gguf.rewritten import REWRITTEN
from ingot.load.hf.contents import fingerprint, nonfinite_tensors
from ingot.load.language import read_model
from ingot.ops.blocks import ALL_BLOCKS, BLOCKS
from tiny_language_models import random_llama

PROMPT = "def is_empty(self):\n"
IDS = [5, 17, 3, 96, 44, 8, 61, 20, 7, 7, 31, 90, 2]


@pytest.mark.parametrize(("case", "keys", "tensors"), FAMILIES, ids=lambda each: getattr(each, "name", ""))
def test_families(case: Case, keys, tensors, tmp_path: Path) -> None:
    save_model(case, tmp_path / "folder")
    write_gguf(tmp_path / "folder", tmp_path / "model.gguf", stored_as("f32"), keys=keys, tensors=tensors)
    expected = ingot.LLM(tmp_path / "folder", precision="f32", threads=1).logits(IDS)
    found = ingot.LLM(tmp_path / "model.gguf", threads=1).logits(IDS)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A folder, and the files of its model."""
    folder = tmp_path_factory.mktemp("parts")
    save_model(Case("llama", "llama"), folder / "folder")
    write_gguf(folder / "folder", folder / "model.gguf", stored_as("f32"), split=8)
    files = sorted(folder.glob("model-*.gguf"))
    assert [file.name for file in files] == [f"model-{i}-of-00003.gguf" for i in ("00001", "00002", "00003")]
    return folder / "folder", files


def test_several_files(parts: tuple[Path, list[Path]], tmp_path: Path) -> None:
    """The first names the model; links, as the hub's cache has them, are fine."""
    folder, files = parts
    expected = ingot.LLM(folder, precision="f32", threads=1).logits(IDS)
    np.testing.assert_array_equal(ingot.LLM(files[0], threads=1).logits(IDS), expected)
    for index, file in enumerate(files):
        (tmp_path / file.name).symlink_to(file.rename(file.with_name(f"blob{index}")))
    try:
        found = ingot.LLM(tmp_path / files[0].name, threads=1).logits(IDS)
    finally:
        for index, file in enumerate(files):
            file.with_name(f"blob{index}").rename(file)
    np.testing.assert_array_equal(found, expected)


def test_several_files_that_do_not_belong_together(parts: tuple[Path, list[Path]], tmp_path: Path) -> None:
    _, files = parts
    for file in files:
        shutil.copy(file, tmp_path / file.name)
    first, second, third = (tmp_path / file.name for file in files)
    with pytest.raises(LoadError, match=r"not the first of 3 files, expected .*model-00001-of-00003\.gguf"):
        read_gguf(second)
    shutil.copy(first, tmp_path / "other.gguf")
    with pytest.raises(LoadError, match=r"one of 3 files, expected a name such as model-00001-of-00003\.gguf"):
        read_gguf(tmp_path / "other.gguf")
    shutil.copy(third, second)
    with pytest.raises(LoadError, match=r"00002-of-00003\.gguf: part 2 of 3, expected part 1 of 3"):
        read_gguf(first)
    second.unlink()
    with pytest.raises(FileNotFoundError):
        read_gguf(first)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of whole blocks of every type."""
    folder = tmp_path_factory.mktemp("gguf") / "wide"
    random_llama(folder, hidden_size=256, intermediate_size=512, num_hidden_layers=1)
    return folder


@pytest.mark.parametrize(
    ("type", "precision"),
    [
        *((type, "f32") for type in ("f32", "f16", "bf16", *ALL_BLOCKS, *REWRITTEN)),
        *((t, "bf16") for t in ("bf16", "q4_0", "q4_k")),
    ],
)
def test_types(type: str, precision: str, wide: Path, tmp_path: Path) -> None:
    """As a folder with the numbers that gguf-py decodes."""
    folder = tmp_path / "folder"
    shutil.copytree(wide, folder)
    decoded = write_gguf(folder, tmp_path / "model.gguf", stored_as(type))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in decoded.items()}, folder / "model.safetensors")
    options = {"precision": precision, "threads": 2, "context": 16}
    found = ingot.LLM(tmp_path / "model.gguf", **options).logits(IDS)
    np.testing.assert_array_equal(found, ingot.LLM(folder, **options).logits(IDS))


@pytest.mark.parametrize("type", REWRITTEN)
def test_rewritten_types_have_the_numbers_of_the_package(type: str) -> None:
    """Blocks of any bits."""
    kind = gguf.GGMLQuantizationType[type.upper()]
    blocks = np.random.default_rng(3).integers(0, 256, (500, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    blocks[:, -2:] = np.random.default_rng(4).standard_normal((500, 1)).astype(np.float16).view(np.uint8)
    numbers = np.random.default_rng(5).standard_normal((500, 256), np.float32)
    blocks[:, :52] = gguf.quants.quantize(numbers, kind)[:, :52]
    row = REWRITTEN[type]
    found = BLOCKS[row.type].decode(row.rewrite(blocks))
    np.testing.assert_array_equal(found, gguf.quants.dequantize(blocks, kind))


def products(llm: ingot.LLM) -> set[str]:
    """The kernels of the products of a prompt, and of its table."""
    kernels = [step.kernel for step in llm.engine.mode("prefill").native.lowered.steps]
    return {kernel for kernel in kernels if kernel.startswith("gem") or kernel.endswith("_panels")}


def apart(llm: ingot.LLM, exact: ingot.LLM) -> float:
    """How far the logits of a token are from the exact ones, of their size; the median of several tokens."""
    found, expected = llm.logits(IDS), exact.logits(IDS)
    return float(np.median(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)))


@pytest.mark.native
@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("precision, rounds, error", [(None, "", 0.05), ("int8w", "i24_", 2e-6)])
def test_blocks_are_multiplied_as_they_are(
    precision: str | None, rounds: str, error: float, type: str, wide: Path, tmp_path: Path
) -> None:
    """Unless a precision differs: rows are rounded, and nothing else."""
    write_gguf(wide, tmp_path / "model.gguf", stored_as(type))
    options = {"threads": 2, "context": 16, "cache_dtype": "f32"}
    llm = ingot.LLM(tmp_path / "model.gguf", **options, precision=precision)
    exact = ingot.LLM(tmp_path / "model.gguf", **options, precision="f32")
    name = {"q4_0": "int4", "q8_0": "int8"}.get(type, type)
    assert llm.options.precision == (precision or "int8")
    assert products(llm) == {f"gemm_{rounds}{name}_packed", f"gemm_{rounds}{name}_gated", f"gather_{name}_panels"}
    assert 0 < apart(llm, exact) < error
    panels = sum(
        tensor.nbytes for tensor in llm.engine.mode("prefill").native.lowered.tensors.values() if tensor.packed_weight
    )
    stored = (tmp_path / "model.gguf").stat().st_size
    assert panels <= 1.1 * stored * packed_bytes(type) / BLOCKS[type].nbytes


@pytest.mark.native
@pytest.mark.parametrize("type", ["iq2_xxs", "iq1_m"])
def test_blocks_without_kernels_become_floats(type: str, wide: Path, tmp_path: Path) -> None:
    """Of bf16 by default; other precisions quantize them again, and blocks beside them stay as they are."""

    def encode(name: str, tensor: np.ndarray) -> tuple[np.ndarray, object]:
        return stored_as("q4_k" if "o_proj" in name else type)(name, tensor)

    path = tmp_path / "model.gguf"
    write_gguf(wide, path, encode)  # type: ignore[arg-type]
    llm, exact = ingot.LLM(path), ingot.LLM(path, precision="f32")
    assert llm.options.precision == "bf16" and 0 < apart(llm, exact) < 0.05
    llm = ingot.LLM(path, precision="int8")
    assert {"gemm_int8_row_packed", "gemm_q4_k_packed"} <= products(llm) and 0 < apart(llm, exact) < 0.05


@pytest.mark.native
def test_types_side_by_side(wide: Path, tmp_path: Path) -> None:
    """Matrices that read the same rows become one product where they are of one type."""

    def encode(name: str, tensor: np.ndarray) -> tuple[np.ndarray, object]:
        return stored_as("q6_k" if "v_proj" in name or "up_proj" in name else "q4_k")(name, tensor)

    write_gguf(wide, tmp_path / "model.gguf", encode)  # type: ignore[arg-type]
    llm, exact = ingot.LLM(tmp_path / "model.gguf"), ingot.LLM(tmp_path / "model.gguf", precision="f32")
    assert products(llm) == {"gemm_q4_k_packed", "gemm_q6_k_packed", "gather_q4_k_panels"}
    assert 0 < apart(llm, exact) < 0.05


@pytest.mark.native
@pytest.mark.parametrize(
    "precision, rounds, codes, error",
    [
        ("int8", "", "int8_row", 0.05),
        ("int4", "", "int4", 0.2),
        ("int8w", "i24_", "int8_row", 0.02),
        ("int4w", "i24_", "int4", 0.2),
    ],
)
def test_float_matrices_and_blocks(
    precision: str, rounds: str, codes: str, error: float, wide: Path, tmp_path: Path
) -> None:
    """Float matrices are quantized if a precision asks for it, and blocks do not change."""

    def encode(name: str, tensor: np.ndarray) -> tuple[np.ndarray, object]:
        return stored_as("f32" if "o_proj" in name or "down_proj" in name else "q5_k")(name, tensor)

    path = tmp_path / "model.gguf"
    write_gguf(wide, path, encode)  # type: ignore[arg-type]
    llm, exact = ingot.LLM(path, precision=precision), ingot.LLM(path, precision="f32")
    families = {f"gemm_{rounds}{codes}_packed", f"gemm_{rounds}q5_k_packed", f"gemm_{rounds}q5_k_gated"}
    assert products(llm) == {*families, "gather_q5_k_panels"}
    assert 0 < apart(llm, exact) < error


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model in bf16, as it is."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(TINY_LM, path, stored_as("bf16"))
    return path


def test_the_shipped_model(tiny: Path) -> None:
    """Text, tokens, chats and memory are those of its folder."""
    file, folder = ingot.LLM(tiny), ingot.LLM(TINY_LM)
    assert file.options == folder.options and file.options.precision == "bf16"
    assert file.generate(PROMPT, max_tokens=40) == folder.generate(PROMPT, max_tokens=40)
    messages = [{"role": "user", "content": "import os"}]
    assert file.chat(messages, max_tokens=20) == folder.chat(messages, max_tokens=20)
    assert memory_of(tiny) == memory_of(TINY_LM)


def test_pages_of_a_file_are_let_go(tmp_path: Path) -> None:
    """Those of rows that are put into another order, too: panels and file are not in memory together."""
    random_llama(tmp_path / "folder", hidden_size=1024, intermediate_size=256, num_hidden_layers=3)
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path / "folder", path, stored_as("q8_0"))
    llm = ingot.LLM(path, context=16)
    entries = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    (resident,) = (int(re.search(r"Rss: +(\d+)", entry)[1]) for entry in entries if f"{path}\n" in entry)  # type: ignore[index]
    assert path.stat().st_size > 5 << 20 and resident < 1024 and llm.context == 16


def test_a_context_beyond_what_can_be_planned(tmp_path: Path) -> None:
    """Tables are as long as the context that is asked for; a budget is not tried with all that the model has."""
    config = {"max_position_embeddings": 1 << 25}
    save_model(Case("llama", "llama", config), tmp_path / "folder")
    write_gguf(tmp_path / "folder", tmp_path / "model.gguf", stored_as("q8_0"))
    llm = ingot.LLM(tmp_path / "model.gguf", threads=1, sequences=1)
    assert llm.context == 4096
    budget = memory_of(tmp_path / "model.gguf", context=10_000, threads=1).total
    tracemalloc.start()
    best = memory_of(tmp_path / "model.gguf", budget=budget, threads=1)
    assert best.total <= budget and 9_000 <= best.context <= 11_000
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_ends_of_answers(tiny: Path) -> None:
    file, folder = ingot.LLM(tiny).tokenizer, ingot.LLM(TINY_LM).tokenizer
    for name in ("bos", "pad", "eos", "prefix", "suffix", "special", "added", "vocab_size"):
        expected = None if name == "pad" else getattr(folder, name)  # which the file does not name
        assert getattr(file, name) == expected, name


def test_contents_of_weights(wide: Path, tmp_path: Path) -> None:
    """Files are distinguished by content, and invalid numbers are found in blocks, too."""
    prints = set()
    for type in ("f32", "q8_0", "q4_k"):
        path = tmp_path / f"{type}.gguf"
        write_gguf(wide, path, stored_as(type))
        model = read_model(path)
        prints.add(fingerprint(model))
        assert not list(nonfinite_tensors(model))
        tensor = model.file.tensors["blk.0.ffn_down.weight"]
        content = bytearray(path.read_bytes())
        content[tensor.offset : tensor.offset + 4] = b"\x00\x7c\x80\x7f"  # f16's infinity, f32's too
        path.write_bytes(content)
        (found,) = nonfinite_tensors(read_model(path))
        assert found.name == "model.layers.0.mlp.down_proj.weight" and found.nans + found.infinities > 0
    assert len(prints) == 3


def test_a_file_is_no_session(tiny: Path) -> None:
    with pytest.raises(InputError, match="a language model keeps state between runs, got a GGUF file"):
        ingot.InferenceSession(tiny)


def test_commands(tiny: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = call("generate", tiny, PROMPT, "--max-tokens", 8)
    assert (code, out) == (0, ingot.LLM(TINY_LM).generate(PROMPT, max_tokens=8) + "\n")
    code, out, _ = call("inspect", tiny)
    assert code == 0 and "general.architecture" in out and "blk.4.ffn_down.weight" in out and "bf16" in out
    assert "16.01 bits per weight" in out
    code, out, _ = call("inspect", tiny, "--json")
    document = json.loads(out)
    assert (code, document["metadata"]["llama.block_count"], len(document["tensors"])) == (0, 5, 47)
    assert document["metadata"]["tokenizer.ggml.tokens"]["count"] == 4096
    code, out, _ = call("memory", tiny, "--json")
    assert (code, json.loads(out)["total"]) == (0, memory_of(TINY_LM).total)
    assert round(json.loads(out)["bits_per_weight"], 2) == 16.01
    code, out, _ = call("inspect", tiny, "--stage", "plan", "--mode", "decode", "--json")
    assert (code, json.loads(out)["memory"]["arena_bytes"]) == (0, memory_of(TINY_LM).modes["decode"].arena)
    code, out, _ = call("memory", tiny)
    assert code == 0 and "16.01 bits per weight, context 512" in out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"import os\n")))
    code, out, _ = call("chat", tiny, "--max-tokens", 8)
    messages = [{"role": "user", "content": "import os"}]
    assert (code, out) == (0, ingot.LLM(TINY_LM).chat(messages, max_tokens=8) + "\n")
