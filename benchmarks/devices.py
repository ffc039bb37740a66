"""Ingot's rows of benchmarks/devices.md: `PYTHONPATH=tests/kit python -m benchmarks.devices`, where arm-none-eabi-gcc
and qemu-system-arm are, as after `make test-cpus`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import cpus
import models
from benchmarks.report import table
from ingot.emit.platform import Platform

KIT = Path(cpus.__file__).parent
CPU = "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard"
BOARD = (
    "qemu-system-arm -M mps2-an386 -icount shift=0 -display none -monitor none -serial none"
    " -semihosting-config enable=on,target=native"
)
TICK = 40  # instructions between two looks at the clock
HEAD = ("model", "compiled with", "code", "weights", "memory", "stack", "instructions")
MODELS: dict[str, Callable[[Path, Platform, str], None]] = {
    "digits": cpus.digits, "keywords": cpus.of(cpus.keywords), "MLP": cpus.of(lambda: models.mlp(1)),
}  # fmt: skip


def said(folder: Path, *words: str) -> str:
    """What a program prints, on either stream. Raises CalledProcessError."""
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout


def measured(name: str, level: str, folder: Path) -> list[str]:
    """A row: of a model whose C is in a folder."""
    flags = [*CPU.split(), level]
    compiler = ("CC=arm-none-eabi-gcc", "AR=arm-none-eabi-ar", f"CFLAGS={' '.join(flags)}")
    said(folder, "make", "clean")
    said(folder, "make", *compiler)
    code, weights = (said(folder, "arm-none-eabi-size", f"{part}.o").split()[6] for part in ("model", "weights"))
    script, start = str(KIT / "cortex_m/link.ld"), str(KIT / "cortex_m/start.c")
    linked = [*flags, "-nostartfiles", "--specs=nosys.specs", "-DMODEL_check=model_check", "-T", script, start]
    said(folder, "arm-none-eabi-gcc", *linked, "libmodel.a", "-o", "image.elf")
    out = said(folder, *BOARD.split(), "-kernel", "image.elf")
    told = dict(line.split() for line in out.splitlines())
    if told["different"] != "0":
        raise ValueError(f"{name}: {told['different']} elements have other bits than native's")
    (memory,) = (line.split()[2] for line in (folder / "model.h").read_text().splitlines() if "STATE_BYTES " in line)
    return [name, level, code, weights, memory, told["stack"], str(TICK * int(told["ticks"]))]


def main() -> None:
    """Prints the table."""
    rows = []
    for name, emitted in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            emitted(Path(folder), Platform(freestanding=True), "model")
            rows += [measured(name, level, Path(folder)) for level in ("-Os", "-O2")]
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
