"""Folders that are no models, files that cannot be read, places that cannot be written: each gets a line that says what
to do, and its exit code.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingot.load.hub import SHIPPED

DIGITS, TINY_LM = SHIPPED["digits"], SHIPPED["tiny-lm"]
TEXT = "x = 1\n" * 40
READERS = ("chat", "generate", "perplexity", "train", "emit-c")  # of the tokenizer too
OTHERS = ("quantize", "memory", "bench", "inspect", "list-nodes", "explain", "dot")
ARGUMENTS = {
    "generate": ("hi", "--max-tokens", "1"), "perplexity": ("text.txt",), "emit-c": ("-o", "out"),
    "quantize": ("--format", "int8", "-o", "out"), "train": ("text.txt", "--steps", "1", "--context", "8", "-o", "out"),
}  # fmt: skip


def without(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def shortened(name: str, nbytes: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, nbytes)


def configured(**entries: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | entries
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


# What is wrong with a folder -> the exit code, and what to do.
FOLDERS: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "empty": (empty, 65, "expected a folder as save_pretrained of transformers"),
    "no config": (without("config.json"), 65, "expected a folder as save_pretrained of transformers"),
    "config cut": (shortened("config.json", 30), 65, "config.json: not JSON"),
    "no weights": (without("model.safetensors"), 65, "no weights, expected model.safetensors or"),
    "weights cut": (shortened("model.safetensors", 1 << 20), 65, "it is cut short: copy or fetch it again"),
    "header cut": (shortened("model.safetensors", 5), 65, "too short for safetensors, got 5 bytes"),
    "pickled": (pickled, 65, "convert them to model.safetensors with save_pretrained"),
    "architecture": (configured(model_type="nonsense"), 69, "see docs/adding-an-architecture.md"),
    "absent": (shutil.rmtree, 66, "no such file"),
}
# The same where only what reads and writes text stops.
TOKENIZERS = {
    "no tokenizer": (without("tokenizer.json"), 65, "no tokenizer.json, so text cannot be encoded"),
    "tokenizer cut": (shortened("tokenizer.json", 40), 65, "tokenizer.json: not JSON"),
}


def expect_line(found: tuple[int, str, str], code: int, *texts: str) -> None:
    """Raises AssertionError unless a command printed one line to stderr, with the texts, and ended with the code."""
    got, out, err = found
    assert (got, out, err.count("\n")) == (code, "", 1), found
    assert err.startswith("ingot: ") and all(text in err for text in texts), err


@pytest.mark.parametrize("what", [*FOLDERS, *TOKENIZERS])
def test_a_folder_that_is_no_model(call, tmp_path, monkeypatch, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    shutil.copytree(TINY_LM, tmp_path / "folder")
    damage, code, text = (FOLDERS | TOKENIZERS)[what]
    damage(tmp_path / "folder")
    for word in (*READERS, *OTHERS) if what in FOLDERS else READERS:
        expect_line(call(word, "folder", *ARGUMENTS.get(word, ())), code, "folder", text)
    assert not (tmp_path / "out").exists()


def test_a_file_instead_of_a_model(call, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    for word in ("chat", "generate", "perplexity", "train", "memory"):
        found = call(word, "text.txt", *ARGUMENTS.get(word, ()))
        expect_line(found, 65, "text.txt: no language model, got a file, expected a model folder or a GGUF file")
    for word in ("emit-c", "bench", "inspect", "explain", "dot"):
        expect_line(call(word, "text.txt", *ARGUMENTS.get(word, ())), 65, "'text.txt': not an ONNX model, or truncated")


# Commands that write, with {} for the place.
WRITERS = {
    "run": ("run", DIGITS, "--input", "x.npy", "--output", "{}.npy"),
    "run folder": ("run", DIGITS, "--input", "x.npy", "--output", "{}"),
    "dot": ("dot", DIGITS, "-o", "{}"),
    "emit-onnx": ("emit-onnx", DIGITS, "-o", "{}"),
    "emit-c": ("emit-c", DIGITS, "--dim", "batch=1", "-o", "{}"),
    "quantize": ("quantize", TINY_LM, "--format", "int8", "-o", "{}"),
    "train": ("train", TINY_LM, "text.txt", "--steps", "1", "--context", "8", "-o", "{}"),
    "merge": ("train", TINY_LM, "text.txt", "--steps", "1", "--context", "8", "-o", "tuned", "--merge", "{}"),
}


def prepared(folder: Path) -> None:
    """What the commands read."""
    (folder / "text.txt").write_text(TEXT)
    np.save(folder / "x.npy", np.zeros((1, 1, 8, 8), np.float32))


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"train"}))
def test_a_path_below_a_file(call, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path)
    expect_line(call(*(word.format("text.txt/made") for word in WRITERS[name])), 73, "text.txt")
    assert (tmp_path / "text.txt").read_text() == TEXT


@pytest.mark.parametrize("name", ["run folder", "emit-c", "quantize", "train"])
def test_a_file_instead_of_a_folder(call, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    prepared(tmp_path)
    expect_line(call(*(word.format("text.txt") for word in WRITERS[name])), 73, "text.txt: ", "expected a free name")
    assert (tmp_path / "text.txt").read_text() == TEXT


@pytest.mark.parametrize("name", ["dot", "emit-onnx"])
def test_a_folder_instead_of_a_file(call, tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    expect_line(call(*(word.format("folder") for word in WRITERS[name])), 73, "folder: cannot be written")


# In one process that heeds permissions, though it be root's: it has lost the right to pass over them.
SCRIPT = """
import json, sys
from ingot.cli import main
for arguments in json.load(sys.stdin):
    code = 0
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code
    print(code, file=sys.stderr, flush=True)
"""
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def heed_permissions() -> None:
    """Before a program is run: whoever is not root heeds them anyway."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def test_permissions(tmp_path: Path) -> None:
    prepared(tmp_path)
    for name in ("locked", "model"):
        shutil.copytree(TINY_LM, tmp_path / name)
    shutil.copy(DIGITS, tmp_path / "unreadable.onnx")
    (tmp_path / "closed").mkdir()
    shutil.copy(DIGITS, tmp_path / "closed" / "old.npy")
    expected: list[tuple[list[str], int, str]] = [
        (["inspect", "unreadable.onnx"], 66, "unreadable.onnx: Permission denied"),
        (["run", "unreadable.onnx"], 66, "unreadable.onnx: Permission denied"),
        (["generate", "model", "hi"], 65, "model.safetensors cannot be opened, Permission denied"),
        (["memory", "locked"], 66, "locked: Permission denied"),
        (["perplexity", "model", "unreadable.onnx"], 66, "unreadable.onnx: Permission denied"),
        *(([word.format("closed/made") for word in WRITERS[name]], 73, "closed") for name in ("dot", "quantize")),
        (["run", DIGITS, "--input", "x.npy", "--output", "closed/old.npy"], 73, "closed/old.npy"),
    ]
    modes = {"unreadable.onnx": 0, "model/model.safetensors": 0, "locked": 0, "closed": 0o555}
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], input=json.dumps([arguments for arguments, _, _ in expected]),
            capture_output=True, text=True, cwd=tmp_path, preexec_fn=heed_permissions,
        )  # fmt: skip
    finally:
        for name in modes:
            (tmp_path / name).chmod(0o755)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(expected), done.stderr
    for (arguments, code, text), said, got in zip(expected, lines[::2], lines[1::2], strict=True):
        assert (int(got), said[:7]) == (code, "ingot: ") and text in said, (arguments, said, got)
    assert [path.name for path in (tmp_path / "closed").iterdir()] == ["old.npy"]
    assert (tmp_path / "closed" / "old.npy").read_bytes() == Path(DIGITS).read_bytes()
