"""`python emitted_on_aarch64.py`: models as C, cross-compiled and run by an emulator with one thread and with several:
NEON's bodies and the pool give the bits that native gives here."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import ingot
import models
from ingot.cli.demo_language import FOLDER
from ingot.emit.c import Vector, emit
from ingot.emit.language.model import emit_language_model
from ingot.emit.platform import ByteOrder, Platform

MODELS: dict[str, Callable[[], models.Built]] = {
    "mlp": models.mlp,
    "block": lambda: models.block("sdpa", True, rows=29),
    "gpt2": models.gpt2,
    "conv net": models.convnet,
    "LSTM": lambda: models.tagger("LSTM"),
}
THREADS = 4


def written(built: models.Built, folder: Path) -> None:
    """The model's C, with inputs and what native makes of them."""
    module, inputs = built
    session = ingot.InferenceSession(module, example_inputs=inputs)
    feeds = dict(zip((a.name for a in session.get_inputs()), (x.numpy() for x in inputs), strict=True))
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    emit(session.graph, session.weights, folder, threads=THREADS, vector=Vector(feeds, outputs))


def checked(folder: Path, level: str) -> str:
    """Compile and run the program; return its report of the outputs."""
    files = sorted(path.name for path in folder.glob("*.c"))
    flags = [level, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-static", "-pthread"]
    subprocess.run(["aarch64-linux-gnu-gcc", *flags, *files, "-lm", "-o", "model"], cwd=folder, check=True)
    most = int(re.findall(r"MODEL_THREADS (\d+)", (folder / "model.h").read_text())[0])
    said = ""
    for threads in range(1, most + 1):
        words = ["qemu-aarch64-static", "./model", "--threads", str(threads), "--check", "test"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        said += done.stdout + done.stderr
    return said


def tells_python_tokens(
    folder: Path, *tools: str, emulator: Sequence[str], precision: str = "f32", byte_order: ByteOrder = "little"
) -> bool:
    """Whether the shipped language model, compiled with some tools, gives the tokens of `LLM` by an emulator."""
    prompt, given = "def add(a, b):", {"max_tokens": 24, "temperature": 0.8, "seed": 1}
    emit_language_model(FOLDER, folder, context=64, precision=precision, threads=2, platform=Platform(byte_order))
    subprocess.run(["make", "-s", "-C", str(folder), *tools, "generate"], check=True)
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = [*emulator, "./generate", *options, "--threads", "2", "--ids", prompt]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    llm = ingot.LLM(FOLDER, context=64, precision=precision, threads=1, sequences=1)
    return [int(word) for word in done.stdout.split()] == llm.complete(prompt, **given).tokens  # type: ignore[arg-type]


def main() -> int:
    """The exit code: whether an output differs."""
    wrong = 0
    for name, built in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            written(built(), Path(folder))
            said = checked(Path(folder), "-O2")
        equal = bool(said) and all("the bits of" in line for line in said.splitlines())
        print(f"emitted {name}: {'equal' if equal else said}", flush=True)
        wrong += not equal
    with tempfile.TemporaryDirectory() as folder:
        equal = tells_python_tokens(
            Path(folder), "CC=aarch64-linux-gnu-gcc", "LDFLAGS=-static", emulator=["qemu-aarch64-static"]
        )
    print(f"emitted language model: {'equal' if equal else 'other tokens'}", flush=True)
    return int(wrong > 0 or not equal)


if __name__ == "__main__":
    sys.exit(main())
