"""Measure both engines on each model, and compare their outputs."""

from __future__ import annotations

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
from benchmarks.harness import packages, page
from benchmarks.harness.report import table
from benchmarks.harness.worker import Worker

PROGRAM = "benchmarks.webgpu.worker"
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
_SOFTWARE = """These are two implementations of WebGPU, wgpu-native's and Dawn's, with the same CPU under them, which
runs the lanes of a workgroup one after another: they show how much work the engines leave to a device, and nothing of
how fast a GPU does it."""


def write(folder: Path, name: str) -> None:
    """A model as ONNX, and its inputs by name."""
    module, inputs = MODELS[name]()
    program = torch.onnx.export(module, inputs, folder / f"{name}.onnx", dynamo=True, verbose=False)
    names = [value.name for value in program.model.graph.inputs]
    np.savez(folder / f"{name}.npz", **{key: np.asarray(x) for key, x in zip(names, inputs, strict=True)})


def measure(folder: Path, name: str, pythons: dict[str, str], rounds: int) -> tuple[list[float], list[float], float]:
    """Least seconds of each engine, those of all CPUs together, and the largest difference of their outputs."""
    workers = {e: Worker(e, folder, 1, PROGRAM, python=python) for e, python in pythons.items()}
    try:
        for worker in workers.values():
            worker.request(build=name)
        ours, theirs = (list(np.load(folder / f"{engine}.npz").values()) for engine in ENGINES)
        runs = {engine: w.request(calibrate=BATCH_SECONDS)["runs"] for engine, w in workers.items()}
        found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        for number in range(rounds):
            for engine in ENGINES[:: 1 if number % 2 else -1]:
                found[engine].append(workers[engine].request(run=runs[engine]))
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
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, only=True)
    parser.add_argument("--python", required=True, help="that of the environment with onnxruntime-webgpu")
    parser.add_argument("--adapter", default=SWIFTSHADER_NAME)
    asked = parser.parse_args()
    packages.require("wgpu")
    is_software = asked.adapter == SWIFTSHADER_NAME
    if asked.write and not is_software:
        parser.error("--write is for the page of SwiftShader, without --adapter")
    os.environ["INGOT_WGPU_ADAPTER"] = asked.adapter
    if is_software:
        os.environ["VK_DRIVER_FILES"] = str(SWIFTSHADER)
    pythons = dict(zip(ENGINES, (sys.executable, asked.python), strict=True))
    version = "import onnxruntime; print(onnxruntime.__version__)"
    theirs = subprocess.check_output([asked.python, "-c", version], text=True).strip()
    where = f"{device(asked.adapter)}; onnxruntime-webgpu {theirs}."
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in page.chosen(MODELS, asked.only):
            write(Path(folder), name)
            *both, difference = measure(Path(folder), name, pythons, asked.rounds)
            cells = [[*(f"{1e3 * t:.2f}" for t in times), f"{times[0] / times[1]:.2f}"] for times in both]
            rows.append([name, *cells[0], *cells[1], f"{difference:.1e}"])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ["model", *ENGINES, "ratio", *(f"{engine}, CPUs" for engine in ENGINES), "ratio", "difference"]
    parts = [where, table(head, rows), *([_SOFTWARE] if is_software else [])]
    page.publish(__package__, asked, "WebGPU", ["ingot", "wgpu"], *parts)


if __name__ == "__main__":
    main()
