"""Cold start: `python -m benchmarks.cold [--rounds N] [--threads N] [--folder DIR]`.

BERT-base with random weights, 440 MB, as one ONNX file and with external data: seconds from the file to the first
output of 128 tokens, and the peak of resident memory above what the imported modules take. Each start is a process of
its own, rounds are interleaved, files are in the page cache; imports are not counted, opening Ingot's library is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import table

TOKENS = 128
ROUNDS = 3
SETTLED_SECONDS = 2.5  # before a file is old enough for the cache

Start = Callable[[Path, int], Callable[[dict[str, np.ndarray]], Any]]


def onnxruntime(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """ONNX Runtime as it comes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def openvino(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """OpenVINO pinned to f32."""
    import openvino as ov

    properties = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    core = ov.Core()
    request = core.compile_model(core.read_model(model), "CPU", properties).create_infer_request()
    return lambda feeds: request.infer(feeds)


def ingot(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from the ONNX file alone."""
    from ingot import InferenceSession

    session = InferenceSession(model, threads=threads, cache=False)
    return lambda feeds: session.run(None, feeds)


def ingot_cached(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from the ONNX file, a second time."""
    from ingot import InferenceSession

    session = InferenceSession(model, threads=threads, cache=model.parent / "cache")
    return lambda feeds: session.run(None, feeds)


def ingot_saved(model: Path, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    """Ingot from a program that `session.save` wrote."""
    from ingot import InferenceSession

    session = InferenceSession(model.with_suffix(".saved"), threads=threads)
    return lambda feeds: session.run(None, feeds)


_INGOT = ("ingot.session.inference", "ingot.run.library", "cffi.cparser")
STARTS: dict[str, tuple[Start, tuple[str, ...]]] = {  # how, and the modules that it imports
    "onnxruntime": (onnxruntime, ("onnxruntime",)),
    "openvino": (openvino, ("openvino",)),
    "ingot": (ingot, (*_INGOT, "ingot.load.onnx")),
    "ingot, cached": (ingot_cached, _INGOT),
    "ingot, saved": (ingot_saved, _INGOT),
}


def peak_bytes() -> int:
    """The most resident memory that this process has had."""
    text = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


def start(name: str, model: Path, threads: int) -> dict[str, float]:
    """One start, in this process."""
    how, modules = STARTS[name]
    for module in modules:
        importlib.import_module(module)
    ids = np.random.default_rng(0).integers(0, 30000, (1, TOKENS))
    feeds = {"ids": ids, "mask": np.ones((1, TOKENS), np.int64)}
    imported, begin = peak_bytes(), time.perf_counter()
    run = how(model, threads)
    loaded = time.perf_counter()
    run(feeds)
    end = time.perf_counter()
    return {"load": loaded - begin, "run": end - loaded, "peak": peak_bytes() - imported, "imported": imported}


def export(folder: Path) -> list[Path]:
    """BERT-base twice: in one file, and with external data."""
    import torch
    import transformers

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig())

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    torch.manual_seed(0)
    example = torch.zeros(1, TOKENS, dtype=torch.long), torch.ones(1, TOKENS, dtype=torch.long)
    program = torch.onnx.export(Bert().eval(), example, input_names=["ids", "mask"], dynamo=True, verbose=False)
    models = [folder / "one_file.onnx", folder / "external.onnx"]
    for model in models:
        program.save(model, external_data=model.stem == "external")
    return models


def prepare(folder: Path, threads: int) -> tuple[list[Path], int]:
    """The models, their saved programs and their cache; bytes of packed weights and arena."""
    models = [folder / "one_file.onnx", folder / "external.onnx"]
    if not all(model.exists() for model in models):
        subprocess.run([sys.executable, "-m", "benchmarks.cold", "--export", str(folder)], check=True)
    time.sleep(SETTLED_SECONDS)
    from ingot import InferenceSession

    for model in models:
        session = InferenceSession(model, threads=threads, cache=folder / "cache")
        session.save(model.with_suffix(".saved"))
    return models, session.weight_bytes + session.plan.arena_bytes


def measure(folder: Path, rounds: int, threads: int) -> tuple[dict[tuple[str, str], list[dict[str, float]]], int]:
    """Every start of every model, once a round; and the bytes of weights and arena."""
    models, nbytes = prepare(folder, threads)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for model in models:
            for name in STARTS:
                command = [sys.executable, "-m", "benchmarks.cold", "--start", name, str(model)]
                done = subprocess.run(
                    [*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True
                )
                found.setdefault((model.stem, name), []).append(json.loads(done.stdout.splitlines()[-1]))
    return found, nbytes


def cold_table(rounds: int = ROUNDS, threads: int = 2, folder: Path | None = None) -> str:
    """The Markdown table: medians of seconds, with the bound of the project's goal, and peak memory."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return cold_table(rounds, threads, Path(made))
    found, nbytes = measure(folder, rounds, threads)
    rows = []
    for (model, name), starts in found.items():
        totals = [s["load"] + s["run"] for s in starts]
        low, total, high = statistics.quantiles(totals, n=4) if len(totals) > 1 else totals * 3
        theirs = statistics.median(s["load"] + s["run"] for s in found[model, "onnxruntime"])
        bound = {"ingot": theirs / 2 + 0.3, "ingot, cached": 0.2, "ingot, saved": 0.2}.get(name)
        load, run, peak, imported = (
            statistics.median(s[key] for s in starts) for key in ("load", "run", "peak", "imported")
        )
        rows.append(
            [f"{model}, {name}", f"{load:.3f}", f"{run:.3f}", f"{total:.3f}", f"{(high - low) / total:.0%}",
             "" if bound is None else f"{bound:.3f}", f"{total / theirs:.2f}", f"{peak / 2**20:.0f}",
             f"{peak / nbytes:.2f}", f"{imported / 2**20:.0f}"]
        )  # fmt: skip
    head = ["file, engine", "load s", "first run s", "both s", "IQR", "goal s", "/ ONNX Runtime", "peak MiB",
            "/ (weights + arena)", "imports MiB"]  # fmt: skip
    return f"{table(head, rows)}\n\nPacked weights and arena: {nbytes / 2**20:.0f} MiB. Peaks are above the imports'."


def main() -> None:
    """Prints the table; or exports the models, or makes one start, for a process that measures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where models are, or are exported to")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--start", nargs=2, metavar=("ENGINE", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.export:
        export(asked.export)
    elif asked.start:
        print(json.dumps(start(asked.start[0], Path(asked.start[1]), asked.threads)))
    else:
        print(cold_table(asked.rounds, asked.threads, asked.folder))


if __name__ == "__main__":
    main()
