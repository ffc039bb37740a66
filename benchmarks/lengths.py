"""`make bench-lengths`: lengths that change at every call, Ingot beside ONNX Runtime; writes benchmarks/lengths.md.

Each run is a process of its own, rounds are interleaved.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine, table

CALLS = 200
ROUNDS = 5
THREADS = (1, 2)
TOKENS, FRAMES = 512, 1000  # at most; ten seconds of sound
LAYERS = {
    "bert 4x256": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm 6x384": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
}
MODELS = (*LAYERS, "whisper-tiny encoder")
_INGOT = ("ingot.session.inference", "ingot.run.library", "cffi.cparser", "ingot.load.onnx")
_OURS = ("ingot", "ingot, by itself", "ingot, each length")
ENGINES = {"onnxruntime": ("onnxruntime",), **dict.fromkeys(_OURS, _INGOT)}  # and what they import

_ABOUT = f"""ONNX models with random weights and a dynamic length: a BERT of 4 layers of 256, one of MiniLM's shape, and
the encoder of Whisper's smallest model. Medians of seconds from the file to the last of {CALLS} outputs of random
lengths, so that loading, planning and first calls count; imports do not. Ingot once with `at_most` the largest length,
once without a word on lengths, and once with a program for each length. CPU seconds are those of all threads; ratios
are medians of the rounds' own."""

Run = Callable[[dict[str, np.ndarray]], Any]


def opened(engine: str, model: Path, threads: int) -> Run:
    """A run of a model by its file."""
    if engine == "onnxruntime":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        session: Any = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    else:
        import ingot

        limit = FRAMES if model.stem.startswith("whisper") else TOKENS
        dims = {"ingot": {"length": ingot.at_most(limit)}, "ingot, by itself": None}.get(engine, {})
        session = ingot.InferenceSession(model, threads=threads, dims=dims, cache=False)
    return lambda feeds: session.run(None, feeds)


def feeds(model: Path) -> list[dict[str, np.ndarray]]:
    """Inputs of random lengths, the same for every engine."""
    rng = np.random.default_rng(0)
    if model.stem.startswith("whisper"):
        return [{"x": rng.standard_normal((1, 80, n), np.float32)} for n in rng.integers(1, FRAMES + 1, CALLS)]
    lengths = rng.integers(1, TOKENS + 1, CALLS)
    return [{"ids": rng.integers(0, 30000, (1, n)), "mask": np.ones((1, n), np.int64)} for n in lengths]


def start(engine: str, model: Path, threads: int) -> dict[str, float]:
    """One engine on one model, in this process."""
    for module in ENGINES[engine]:
        importlib.import_module(module)
    given = feeds(model)
    used, begin = time.process_time(), time.perf_counter()
    run = opened(engine, model, threads)
    loaded = time.perf_counter()
    run(given[0])
    first = time.perf_counter()
    for each in given[1:]:
        run(each)
    end, all_used = time.perf_counter(), time.process_time()
    return {"load": loaded - begin, "first": first - loaded, "total": end - begin, "cpu": all_used - used}


def export(folder: Path) -> None:
    """The models as ONNX files."""
    import torch
    import transformers
    from torch.nn.functional import gelu

    class Bert(torch.nn.Module):
        def __init__(self, layers: dict[str, int]) -> None:
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig(**layers), add_pooling_layer=False)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    class Whisper(torch.nn.Module):
        """The encoder without the check that makes it refuse every length but one."""

        def __init__(self) -> None:
            super().__init__()
            config = transformers.WhisperConfig(
                d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1
            )
            self.encoder = transformers.WhisperModel(config).encoder

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            encoder = self.encoder
            x = gelu(encoder.conv2(gelu(encoder.conv1(x)))).permute(0, 2, 1)
            x = x + encoder.embed_positions.weight[: x.shape[1]]
            for layer in encoder.layers:
                x = layer(x, None)
            return encoder.layer_norm(x)

    tokens = torch.zeros(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)
    made: list[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...], list[str], int, int]] = [
        (name, Bert(layers), tokens, ["ids", "mask"], 1, TOKENS) for name, layers in LAYERS.items()
    ]
    made.append(("whisper-tiny encoder", Whisper(), (torch.randn(1, 80, 100),), ["x"], 2, FRAMES))
    for name, module, example, names, axis, most in made:
        torch.manual_seed(0)
        dims = tuple({axis: torch.export.Dim("length", min=2, max=most)} for _ in names)
        program = torch.onnx.export(
            module.eval(), example, input_names=names, dynamic_shapes=dims, dynamo=True, verbose=False
        )
        program.save(folder / f"{name}.onnx")


def measure(folder: Path, model: str, rounds: int, threads: int) -> dict[str, list[dict[str, float]]]:
    """Every engine once a round."""
    path = folder / f"{model}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.lengths", "--export", str(folder)], check=True)
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for engine in list(ENGINES)[:: 1 if number % 2 else -1]:
            command = [sys.executable, "-m", "benchmarks.lengths", "--start", engine, str(path)]
            done = subprocess.run([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True)
            found.setdefault(engine, []).append(json.loads(done.stdout.splitlines()[-1]))
    return found


def lengths_table(models: Iterable[str], rounds: int, threads: int, folder: Path) -> str:
    """The Markdown table of medians."""
    rows = []
    for model in models:
        found = measure(folder, model, rounds, threads)
        for engine in ENGINES:
            runs = found[engine]
            load, first, total, cpu = (
                statistics.median(r[key] for r in runs) for key in ("load", "first", "total", "cpu")
            )
            ratios = [
                statistics.median(
                    mine[key] / theirs[key] for mine, theirs in zip(runs, found["onnxruntime"], strict=True)
                )
                for key in ("total", "cpu")
            ]
            rows.append([f"{model}, {engine}", f"{load:.3f}", f"{first:.3f}", f"{total:.2f}", f"{ratios[0]:.2f}",
                         f"{cpu:.2f}", f"{ratios[1]:.2f}"])  # fmt: skip
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["model, engine", "load s", "first run s", f"all {CALLS} s", "/ ONNX Runtime", "CPU s", "/ ONNX Runtime"]
    return f"## Threads: {threads}\n\n{table(head, rows)}"


def main() -> None:
    """Writes the tables; or exports the models, or measures one engine, for a process that measures all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="a piece of the models' names; prints the tables")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--export", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--start", nargs=2, metavar=("ENGINE", "MODEL"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.export:
        export(asked.export)
        return
    if asked.start:
        print(json.dumps(start(asked.start[0], Path(asked.start[1]), asked.threads)))
        return
    models = [model for model in MODELS if asked.only in model]
    with tempfile.TemporaryDirectory() as folder:
        tables = [lengths_table(models, asked.rounds, threads, Path(folder)) for threads in THREADS]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ingot", "onnxruntime"))
    where = f"{machine()}. {versions}. {time.strftime('%Y-%m-%d')}, {asked.rounds} rounds."
    text = "\n\n".join(["# Lengths that change", where, _ABOUT, *tables]) + "\n"
    if asked.only:
        sys.stdout.write(text)
    else:
        (Path(__file__).parent / "lengths.md").write_text(text)


if __name__ == "__main__":
    main()
