"""Emit, compile and run each model on an emulated board."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import cpus
import ingot
import models
from benchmarks.harness import page
from benchmarks.harness.report import table
from ingot.emit.c import Vector, emit
from ingot.emit.platform import Platform

HERE = Path(__file__).parent
KIT = Path(cpus.__file__).parent
CC = "arm-none-eabi-gcc"
CPU = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard")
LEVELS = ("-Os", "-O2")
BOARD = (
    "qemu-system-arm -M mps2-an386 -icount shift=0 -display none -monitor none -serial none"
    " -semihosting-config enable=on,target=native"
)
TICK = 40  # instructions between two looks at the clock
TOLERANCE = 1e-6  # of emx-onnx-cgen's answers, none of which is above 1; Ingot's are native's to the bit
HEAD = ("model", "compiled with", "", "code", "weights", "memory", "stack", "instructions")
VERSION = "from importlib.metadata import version as v; print('emx-onnx-cgen', v('emx-onnx-cgen'))"


class Example(NamedTuple):
    """A model of one input and one output, and an input for it."""

    model: Path
    dims: dict[str, int]
    given: np.ndarray


def digits(_: Path) -> Example:
    with np.load(cpus.DIGITS.with_suffix(".npz"), allow_pickle=False) as held_out:
        return Example(cpus.DIGITS, {"batch": 1}, held_out["images"][:1, None].astype(np.float32))


def exported(built: Callable[[], models.Built]) -> Callable[[Path], Example]:
    """By the exporter that keeps biases which are zero, as those of random weights are and trained ones are not."""

    def example(folder: Path) -> Example:
        module, inputs = built()
        torch.onnx.export(module, inputs, str(folder / "model.onnx"), dynamo=False)
        return Example(folder / "model.onnx", {}, inputs[0].numpy())

    return example


MODELS: dict[str, Callable[[Path], Example]] = {
    "digits": digits, "keywords": exported(cpus.keywords), "MLP": exported(lambda: models.mlp(1)),
}  # fmt: skip


def run_tool(folder: Path, *words: str) -> str:
    """What a program prints, on either stream. Raises CalledProcessError."""
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout


def text_section(folder: Path, name: str) -> int:
    return int(run_tool(folder, "arm-none-eabi-size", name).split()[6])


def run(folder: Path, *words: str) -> dict[str, int]:
    """Compile a program with these options, run it, and return the numbers that start.c prints.

    Raises CalledProcessError for a wrong answer too.
    """
    script, start = str(KIT / "cortex_m/link.ld"), str(KIT / "cortex_m/start.c")
    run_tool(folder, CC, *CPU, "-nostartfiles", "-T", script, start, *words, "-o", "image.elf")
    out = run_tool(folder, *BOARD.split(), "-kernel", "image.elf")
    return {name: int(value) for name, value in map(str.split, out.splitlines())}


def of_ingot(folder: Path, level: str) -> list[str]:
    """From code on, the cells of a row: of the model whose C is in a folder."""
    run_tool(folder, "make", "clean")
    run_tool(folder, "make", f"CC={CC}", "AR=arm-none-eabi-ar", f"CFLAGS={' '.join((*CPU, level))}")
    figures = run(folder, level, "--specs=nosys.specs", "-DMODEL_check=model_check", "libmodel.a")
    (memory,) = (line.split()[2] for line in (folder / "model.h").read_text().splitlines() if "STATE_BYTES " in line)
    sizes = (text_section(folder, name) for name in ("model.o", "weights.o"))
    return [*map(str, sizes), memory, str(figures["stack"]), str(TICK * figures["ticks"])]


def of_emx(folder: Path, level: str) -> list[str]:
    """The same of emx-onnx-cgen's, which has weights beyond a size in a file that it reads into memory."""
    run_tool(folder, CC, *CPU, level, "-c", "model.c")
    constant = read = 0
    for line in run_tool(folder, "arm-none-eabi-nm", "-S", "model.o").splitlines():
        match line.split():
            case [_, size, "R", name] if name.startswith("weight"):
                constant += int(size, 16)
            case [_, size, "B", name] if name.startswith("weight"):
                read += int(size, 16)
    wrapped = ("-Wl,--wrap=malloc", "-Wl,--wrap=free")
    figures = run(folder, level, "--specs=rdimon.specs", *wrapped, "-I.", str(HERE / "emx.c"), "model.o", "-lm")
    code, memory = text_section(folder, "model.o") - constant, figures["allocated"] + read
    weights = f"{constant} and a file of {read}" if read else str(constant)
    return [str(code), weights, str(memory), str(figures["stack"]), str(TICK * figures["ticks"])]


def vector_h(given: np.ndarray, expected: np.ndarray) -> str:
    """What emx.c includes."""
    lines = []
    for name, array in (("input", given), ("output", expected)):
        lines.append(f"typedef float {name}{''.join(f'[{size}]' for size in array.shape)};")
    for name, array in (("GIVEN", given), ("EXPECTED", expected)):
        lines.append(f"#define {name} {{{', '.join(f'{float(x).hex()}f' for x in array.flat)}}}")
    return "\n".join([*lines, f"#define TOLERANCE {TOLERANCE}f", ""])


def rows_of(name: str, python: str, folder: Path) -> list[list[str]]:
    """The rows of a model; a folder for its files."""
    model, dims, given = MODELS[name](folder)
    session = ingot.InferenceSession(str(model), dims=dims)
    feeds = {session.get_inputs()[0].name: given}
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    mine, others = folder / "ingot", folder / "emx"
    emit(session.graph, session.weights, mine, prefix="model", vector=Vector(feeds, outputs),
         platform=Platform(freestanding=True))  # fmt: skip
    if not python:
        return [[name, level, "Ingot", *of_ingot(mine, level)] for level in LEVELS]
    others.mkdir()
    version = run_tool(others, python, "-I", "-c", VERSION).strip()
    pinned = [word for dim, size in dims.items() for word in ("--input-dim", f"{dim}={size}")]
    run_tool(others, python, "-I", "-m", "emx_onnx_cgen", "compile", *pinned, str(model), "model.c")
    (others / "vector.h").write_text(vector_h(given, *outputs.values()))
    rows = []
    for level in LEVELS:
        rows += [[name, level, "Ingot", *of_ingot(mine, level)], [name, level, version, *of_emx(others, level)]]
    return rows


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, only=True)
    parser.add_argument("--emx", type=Path, metavar="PYTHON", help="of an environment with emx-onnx-cgen==1.4.0")
    asked = parser.parse_args()
    for program in (CC, BOARD.split()[0]):
        if not shutil.which(program):
            sys.exit(f"not installed: {program}; `make test-cpus` installs it")
    python = str(asked.emx.absolute()) if asked.emx else ""
    rows = []
    for name in page.chosen(MODELS, asked.only):
        with tempfile.TemporaryDirectory() as folder:
            rows += rows_of(name, python, Path(folder))
    page.publish(__package__, asked, "Microcontrollers", ["ingot", "eager"], table(HEAD, rows))


if __name__ == "__main__":
    main()
