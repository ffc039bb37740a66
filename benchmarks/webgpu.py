"""`make bench-webgpu`: models on WebGPU, Ingot beside onnxruntime-webgpu; writes benchmarks/webgpu.md.

That is on SwiftShader, a device on the CPU; of another, `--adapter NAME`, the table is only printed. Each engine lives
in a process of its own, and onnxruntime-webgpu among packages of its own, because its module has onnxruntime's name;
each is stopped while the other is measured, and rounds are interleaved.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import models
from adapters import SWIFTSHADER, SWIFTSHADER_NAME
from benchmarks.report import machine, table
from benchmarks.side_by_side import Worker

ENGINES = ("ingot", "onnxruntime-webgpu")
ROUNDS = 25
BATCH_SECONDS = 0.05
MODELS: dict[str, Callable[[], models.Built]] = {
    "mlp 32x256": lambda: models.mlp(32, (256, 512, 512, 64)),
    "bert 2x32": lambda: models.bert(batch=1, rows=32),
    "gpt2 2x32": lambda: models.gpt2(batch=1, rows=32),
    "vit": lambda: models.image("vit", 1),
    "resnet": lambda: models.image("resnet", 1),
    "mobilenet_v2": lambda: models.image("mobilenet_v2", 1),
}
_ABOUT = """Milliseconds of one run through the engine's Python interface, inputs and outputs in the host's memory: the
shortest time of interleaved rounds, each engine in a process of its own that is stopped while the other is measured.
CPUs: the CPU time of all threads of the engine, which depends less on other load. The models are the small ones of
`tests/kit/models.py`, from the same ONNX files. Differences are relative to the largest output or 1."""
_SOFTWARE = """These are two implementations of WebGPU, wgpu-native's and Dawn's, on the same CPU, which runs the lanes
of a workgroup one after another: the figures show how much work the engines give to a device, not how fast a GPU is.

## GPUs

No GPU was available, so there are no claims about GPUs. On a machine with a GPU, `python -m benchmarks.webgpu_device`
prints the fractions of its copy bandwidth, its fastest f32 product and its peak that a language model of
Qwen2.5-0.5B's size in bf16 reaches, and
`python -m benchmarks.webgpu --adapter NAME --python PYTHON` prints the table above."""


def write(folder: Path, name: str) -> None:
    """A model as ONNX, and its inputs by name."""
    module, inputs = MODELS[name]()
    program = torch.onnx.export(module, inputs, folder / f"{name}.onnx", dynamo=True, verbose=False)
    names = [value.name for value in program.model.graph.inputs]
    np.savez(folder / f"{name}.npz", **{key: np.asarray(x) for key, x in zip(names, inputs, strict=True)})


def measure(folder: Path, name: str, pythons: dict[str, str], rounds: int) -> tuple[list[float], list[float], float]:
    """Least seconds of each engine, those of all CPUs together, and the largest difference of their outputs."""
    workers = {e: Worker(e, folder, 1, "benchmarks.webgpu_worker", python=python) for e, python in pythons.items()}
    try:
        for worker in workers.values():
            worker.told(build=name)
        ours, theirs = (list(np.load(folder / f"{engine}.npz").values()) for engine in ENGINES)
        runs = {engine: w.told(calibrate=BATCH_SECONDS)["runs"] for engine, w in workers.items()}
        found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        for number in range(rounds):
            for engine in ENGINES[:: 1 if number % 2 else -1]:
                found[engine].append(workers[engine].told(run=runs[engine]))
    finally:
        for worker in workers.values():
            worker.close()
    differences = (np.abs(a - b).max() / max(1, np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    elapsed, used = ([min(each[key] for each in found[e]) for e in ENGINES] for key in ("seconds", "cpu_seconds"))
    return elapsed, used, float(max(differences))


def device(adapter: str) -> str:
    """The adapter and its driver."""
    code = "import wgpu; print(*(a.summary for a in wgpu.gpu.enumerate_adapters_sync()), sep='\\n')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return next(line for line in found.splitlines() if adapter in line and "Vulkan" in line)


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True, help="that of the environment with onnxruntime-webgpu")
    parser.add_argument("--adapter", default=SWIFTSHADER_NAME)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    os.environ["INGOT_WGPU_ADAPTER"] = asked.adapter
    if asked.adapter == SWIFTSHADER_NAME:
        os.environ["VK_DRIVER_FILES"] = str(SWIFTSHADER)
    pythons = dict(zip(ENGINES, (sys.executable, asked.python), strict=True))
    theirs = subprocess.check_output(
        [asked.python, "-c", "import onnxruntime; print(onnxruntime.__version__)"], text=True
    )
    versions = f"wgpu {importlib.metadata.version('wgpu')}, onnxruntime-webgpu {theirs.strip()}"
    where = f"{device(asked.adapter)}, on {machine()}. {versions}."
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in MODELS if asked.only in name):
            write(Path(folder), name)
            *both, difference = measure(Path(folder), name, pythons, asked.rounds)
            cells = [[*(f"{1e3 * t:.2f}" for t in times), f"{times[0] / times[1]:.2f}"] for times in both]
            rows.append([name, *cells[0], *cells[1], f"{difference:.1e}"])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["model", *ENGINES, "ratio", *(f"{engine}, CPUs" for engine in ENGINES), "ratio", "difference"]
    text = f"# WebGPU\n\n{where}\n\n{_ABOUT}\n\n{table(head, rows)}"
    if asked.adapter == SWIFTSHADER_NAME:
        text += f"\n\n{_SOFTWARE}"
    if asked.adapter == SWIFTSHADER_NAME and not asked.only:
        (Path(__file__).parent / "webgpu.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
