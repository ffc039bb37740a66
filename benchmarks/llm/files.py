"""The files of the model, written once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness import packages
from benchmarks.llm import model

FOLDER = ROOT / "build" / "llm"


def written(folder: Path, precision: str, engines: list[str]) -> None:
    """Writes the model's files, in processes of their own that give their memory back, unless they are there."""
    hf, gguf = model.paths(folder, precision)
    writers = []
    if not ((hf.is_file() or (hf / "config.json").exists()) and gguf.exists()):
        packages.require("gguf", *(["llama.cpp"] if precision in model.MIXTURES else []))
        writers.append("benchmarks.llm.model")
    if "openvino" in engines and not model.openvino_path(folder, precision).exists():
        packages.require("nncf", "openvino")
        writers.append("benchmarks.llm.openvino_model")
    for writer in writers:
        subprocess.run([sys.executable, "-m", writer, str(folder), precision], check=True)
