"""Prefixes in files: later processes find them with the same bits; other models and damaged files change nothing."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from hf_case import Case
from hf_models import save_model
from hf_recurrent_cases import RECURRENT_CASES
from ingot.errors import InputError, OutputError
from ingot.llm.disk_cache import DiskCache

CONTEXT = 512
WINDOWS = {"head_dim": 16, "sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]}
CASES = {
    "full": Case("full", "llama", {"max_position_embeddings": CONTEXT}),
    "windows": Case("windows", "gemma3_text", WINDOWS | {"max_position_embeddings": CONTEXT}),
    "states": next(case for case in RECURRENT_CASES if case.name == "lfm2"),
}
CASES["states"] = Case("states", "lfm2", CASES["states"].config | {"max_position_embeddings": CONTEXT})
PROMPT = np.random.default_rng(1).integers(3, 99, 300).tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in CASES}
    for name, folder in found.items():
        save_model(CASES[name], folder)
    return found


def language_model(folder: Path, cache: Path | None, **options: Any) -> ingot.LLM:
    options = {"precision": "f32", "threads": 1, "sequences": 2} | options
    return ingot.LLM(folder, cache_dir=cache, **options)


def drawn(llm: ingot.LLM, prompt: list[int], count: int = 6) -> list[int]:
    return list(llm.generate_tokens(prompt, max_tokens=count))


def files(cache: Path, kind: str = "block") -> list[Path]:
    return sorted(cache.glob(f"*.{kind}"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("name, dtype", [(n, "f32") for n in CASES] + [("full", "bf16"), ("full", "int4")])
def test_a_later_process_finds_prefixes(folders: dict[str, Path], tmp_path: Path, name: str, dtype: str) -> None:
    """Its logits and tokens are those of a model without files, whatever part of the prompt the files have."""
    alone = language_model(folders[name], None, cache_dtype=dtype)
    first = language_model(folders[name], tmp_path, cache_dtype=dtype)
    assert drawn(first, PROMPT, 90) == drawn(alone, PROMPT, 90)
    assert len(files(tmp_path)) == (300 + 89) // 64
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    for prompt, expected in (
        ([*PROMPT, 7], 256),
        ([*PROMPT[:200], 5], 0 if name == "states" else 192),  # no checkpoint before 256
        (PROMPT[:40], 0),
    ):
        later = language_model(folders[name], tmp_path, cache_dtype=dtype)
        sequence = later.engine.start(prompt)
        assert len(sequence.tokens) == expected
        alone.engine.sequences.forget_all()
        found = later.engine.prefill(sequence, prompt[expected:]).output[0]
        whole = alone.engine.prefill(alone.engine.start(prompt), prompt).output[0]
        assert found.tobytes() == whole.tobytes()
        assert drawn(later, prompt) == drawn(alone, prompt)


def test_memory_and_files(folders: dict[str, Path], tmp_path: Path) -> None:
    """A prefix in memory is continued by the blocks of files, and hits are counted as those in memory."""
    expected = drawn(language_model(folders["full"], tmp_path), [*PROMPT, 9])
    llm = language_model(folders["full"], tmp_path)
    drawn(llm, PROMPT[:100])
    assert llm.usage.reused_tokens == 64
    assert drawn(llm, [*PROMPT, 9]) == expected
    assert llm.usage.reused_tokens == 256


def test_damage(folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged, cut, empty or exchanged block ends the prefix before it, and is written again."""
    expected = drawn(language_model(folders["full"], tmp_path), PROMPT)
    block = files(tmp_path)[1]  # the newest is the first of the prefix: this is the third
    content = block.read_bytes()
    other = files(tmp_path)[0].read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    for bad in (bytes(changed), content[:-1], content[:100], b"", b"x" * 40, other, content + b"\0"):
        block.write_bytes(bad)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            llm = language_model(folders["full"], tmp_path)
            assert drawn(llm, PROMPT) == expected
        assert llm.usage.reused_tokens == 128
        assert "ignored and removed" in caplog.text
        assert block.read_bytes() == content


def test_links_are_not_followed(folders: dict[str, Path], tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    expected = drawn(language_model(folders["full"], cache), PROMPT)
    block = files(cache)[-1]
    block.rename(other)
    block.symlink_to(other)
    llm = language_model(folders["full"], cache)
    assert drawn(llm, PROMPT) == expected
    assert llm.usage.reused_tokens == 0 and other.exists()


@pytest.mark.parametrize("options", [{"cache_dtype": "bf16"}, {"precision": "bf16"}, {"context": 448}], ids=str)
def test_files_of_other_options_are_not_used(folders: dict[str, Path], tmp_path: Path, options: dict[str, Any]) -> None:
    drawn(language_model(folders["full"], tmp_path), PROMPT)
    llm = language_model(folders["full"], tmp_path, **options)
    drawn(llm, PROMPT)
    assert llm.usage.reused_tokens == 0


def test_files_of_another_model_are_not_used(folders: dict[str, Path], tmp_path: Path) -> None:
    drawn(language_model(folders["full"], tmp_path), PROMPT)
    llm = language_model(folders["windows"], tmp_path)
    drawn(llm, PROMPT)
    assert llm.usage.reused_tokens == 0


def test_the_oldest_files_are_removed(folders: dict[str, Path], tmp_path: Path) -> None:
    """The folder stays below its limit; the prefix used last stays, and files with other names do, too."""
    (tmp_path / "notes.txt").write_text("x" * 100_000)
    llm = language_model(folders["full"], tmp_path)
    drawn(llm, PROMPT)
    each = files(tmp_path)[0].stat().st_size
    llm = language_model(folders["full"], tmp_path, cache_dir_bytes=10 * each)
    drawn(llm, [4, *PROMPT])
    drawn(llm, [*PROMPT, 6])  # used again
    drawn(llm, [5, *PROMPT])
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 10 * each
    assert (tmp_path / "notes.txt").exists()
    llm = language_model(folders["full"], tmp_path, cache_dir_bytes=10 * each)
    drawn(llm, [5, *PROMPT])
    assert llm.usage.reused_tokens == 256


def test_a_folder_that_cannot_be_written(
    folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in its place is an error; a folder that vanishes later is reported once, and answers go on."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cache_dir: not a folder"):
        language_model(folders["full"], tmp_path / "file")
    with pytest.raises(OutputError):
        DiskCache(tmp_path / "file" / "below", "key", 1)
    llm = language_model(folders["full"], tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    with caplog.at_level(logging.WARNING):
        assert drawn(llm, PROMPT) == drawn(language_model(folders["full"], None), PROMPT)
    assert caplog.text.count("no more blocks are written") == 1
