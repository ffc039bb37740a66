"""Emitted C on other CPUs and systems: native's bits wherever it runs. `make test-cpus` has the compilers and emulators
that this needs; pytest collects it by no other way."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import models
from emitted_on_aarch64 import tells_python_tokens
from ingot.emit.c import Vector, emit
from ingot.emit.platform import ByteOrder, Platform
from ingot.run.store import WeightStore
from op_cases import CASES, build, side_by_side

pytestmark = pytest.mark.timeout(3600)  # the first program for a system has its libc compiled
KIT = Path(__file__).parent
DIGITS = Path(ingot.__file__).parent / "data" / "digits.onnx"
ZIG = (sys.executable, "-m", "ziglang", "cc")


@dataclass(frozen=True)
class Cpu:
    """compiler: and its flags. emulator: what runs its programs."""

    compiler: tuple[str, ...]
    emulator: tuple[str, ...]
    byte_order: ByteOrder = "little"


CPUS = {
    "riscv64": Cpu(("riscv64-linux-gnu-gcc", "-static"), ("qemu-riscv64-static",)),
    "armhf": Cpu(("arm-linux-gnueabihf-gcc", "-mfpu=neon-vfpv4", "-static"), ("qemu-arm-static",)),
    "armhf without fma": Cpu(("arm-linux-gnueabihf-gcc", "-static"), ("qemu-arm-static",)),
    "s390x": Cpu(("s390x-linux-gnu-gcc", "-static"), ("qemu-s390x-static",), "big"),
    "wasm": Cpu((*ZIG, "-target", "wasm32-wasi"), (sys.executable, str(KIT / "wasi.py"), "--dir", ".")),
}


def from_torch(built: models.Built, folder: Path, platform: Platform, prefix: str) -> None:
    module, inputs = built
    session = ingot.InferenceSession(module, example_inputs=inputs)
    feeds = dict(zip((a.name for a in session.get_inputs()), (x.numpy() for x in inputs), strict=True))
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    emit(session.graph, session.weights, folder, prefix=prefix, vector=Vector(feeds, outputs), platform=platform)


def digits(folder: Path, platform: Platform, prefix: str) -> None:
    session = ingot.InferenceSession(str(DIGITS), dims={"batch": 1})
    with np.load(DIGITS.with_suffix(".npz"), allow_pickle=False) as held_out:
        feeds = {"image": held_out["images"][:1, None].astype(np.float32)}
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    emit(session.graph, session.weights, folder, prefix=prefix, vector=Vector(feeds, outputs), platform=platform)


def keywords() -> models.Built:
    """A DS-CNN as keyword spotting has them (Zhang, Suda, Lai and Chandra 2017), with random weights."""

    def net() -> nn.Module:
        separable = (
            layer
            for _ in range(4)
            for layer in (
                nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            )
        )  # fmt: skip
        first = nn.Conv2d(1, 64, (10, 4), (2, 2), (5, 1), bias=False), nn.BatchNorm2d(64), nn.ReLU()
        last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12), nn.Softmax(-1)
        return nn.Sequential(*first, *separable, *last)

    return models.seeded(net), (torch.randn(1, 1, 49, 10),)


def samples(folder: Path, platform: Platform, prefix: str) -> None:
    graph, feeds = side_by_side(CASES, 24)
    program = build(graph, isa="scalar", threads=1)
    outputs = dict(zip(graph.outputs, program.run([feeds[name] for name in graph.inputs]), strict=True))
    emit(graph, WeightStore(), folder, prefix=prefix, vector=Vector(feeds, outputs), platform=platform)


def of(built: Callable[[], models.Built]) -> Callable[[Path, Platform, str], None]:
    return lambda *arguments: from_torch(built(), *arguments)


MODELS: dict[str, Callable[[Path, Platform, str], None]] = {
    "mlp": of(models.mlp),
    "block": of(models.block),
    "gpt2": of(models.gpt2),
    "conv net": of(models.convnet),
    "LSTM": of(lambda: models.tagger("LSTM")),
    "digits": digits,
    "keywords": of(keywords),
    "samples": samples,
}


@pytest.fixture(scope="session")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Platform], Path]:
    """The folder of a model for a platform, written once."""
    done: dict[tuple[str, Platform], Path] = {}

    def get(name: str, platform: Platform) -> Path:
        if (name, platform) not in done:
            done[name, platform] = tmp_path_factory.mktemp("emitted")
            MODELS[name](done[name, platform], platform, "model")
        return done[name, platform]

    return get


def command(words: tuple[str, ...], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, f"{' '.join(words[:9])}\n{done.stdout[-2000:]}\n{done.stderr[:4000]}"
    return done.stdout + done.stderr


# Of many kernels, at the level that compilers are quick at.
def level(model: str) -> str:
    return "-O1" if model == "samples" else "-O2"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cpu", CPUS)
def test_same_bits_as_native(emitted, tmp_path: Path, cpu: str, model: str) -> None:
    """`--check` compares every element of every output with what native made."""
    folder = emitted(model, Platform(CPUS[cpu].byte_order))
    program = str(tmp_path / "program")
    command((*CPUS[cpu].compiler, level(model), "model.c", "main.c", "-lm", "-o", program), folder)
    out = command((*CPUS[cpu].emulator, program, "--weights", "weights.bin", "--check", "test"), folder)
    assert out.count(": the bits of test/") == len(out.splitlines()) > 0


@pytest.mark.parametrize("cpu, precision", [("riscv64", "f32"), ("armhf", "f32"), ("s390x", "f32"), ("s390x", "bf16w")])
def test_a_language_model_tells_the_tokens_of_python(tmp_path: Path, cpu: str, precision: str) -> None:
    found, compiler = CPUS[cpu], f"CC={' '.join(CPUS[cpu].compiler)}"
    order = found.byte_order
    assert tells_python_tokens(tmp_path, compiler, emulator=found.emulator, precision=precision, byte_order=order)


def test_a_machine_of_the_other_byte_order_is_refused(emitted) -> None:
    folder = emitted("mlp", Platform("big"))
    done = subprocess.run(["cc", "-c", "model.c"], cwd=folder, capture_output=True, text=True)
    assert done.returncode != 0 and "the weights are big-endian" in done.stderr


def test_a_model_beyond_the_addresses_of_a_machine_is_refused(emitted, tmp_path: Path) -> None:
    folder = emitted("mlp", Platform())
    header = (folder / "model.h").read_text()
    larger = re.sub(r"(STATE_BYTES) \d+", r"\1 2147483648", header)
    (tmp_path / "model.h").write_text(larger)
    words = ["arm-linux-gnueabihf-gcc", "-fsyntax-only", "-I", str(tmp_path), "-x", "c", "-"]
    text = (folder / "model.c").read_text()
    done = subprocess.run(words, input=text, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "larger than the memory" in done.stderr


# The first bytes of programs of other systems: Mach-O and its CPU, PE.
SYSTEMS = {
    "x86_64-macos": b"\xcf\xfa\xed\xfe\x07\x00\x00\x01",
    "aarch64-macos": b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01",
    "x86_64-windows-gnu": b"MZ",
    "aarch64-windows-gnu": b"MZ",
}
MACHINES = {"x86_64-windows-gnu": 0x8664, "aarch64-windows-gnu": 0xAA64}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("model", ["digits", "block"])
def test_other_systems_have_programs(emitted, tmp_path: Path, system: str, model: str) -> None:
    program = tmp_path / "program.exe"
    folder = emitted(model, Platform())
    command((*ZIG, "-target", system, "-O2", "-Wall", "-Werror", "model.c", "main.c", "-o", str(program)), folder)
    content = program.read_bytes()
    assert content.startswith(SYSTEMS[system])
    if system in MACHINES:
        at = int.from_bytes(content[0x3C:0x40], "little")
        assert content[at : at + 4] == b"PE\0\0"
        assert int.from_bytes(content[at + 4 : at + 6], "little") == MACHINES[system]


# -- microcontrollers -------------------------------------------------------------------------------------------

BOARDS = {
    "cortex-m4": ("mps2-an386", "-Os"),
    "cortex-m7": ("mps2-an500", "-O2"),
}
# In addition to the needs of every compiler: of gcc's own library, integers of 64 bits.
FOUND = {"memcpy", "memset", "memmove", "__aeabi_ldivmod", "__aeabi_uldivmod", "__aeabi_l2f", "__aeabi_ul2f"}
MOST_STACK = 20 << 10


@pytest.mark.parametrize("cpu", BOARDS)
@pytest.mark.parametrize("model", ["digits", "keywords"])
def test_a_microcontroller_gives_native_bits(emitted, tmp_path: Path, cpu: str, model: str) -> None:
    """Without a libc, the weights in read-only memory; what it leaves to the linker, and the stack that it takes."""
    board, optimised = BOARDS[cpu]
    flags = (f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", optimised)
    folder = emitted(model, Platform(freestanding=True))
    tools = ("CC=arm-none-eabi-gcc", "AR=arm-none-eabi-ar")
    command(("make", "clean"), folder)
    command(("make", *tools, f"CFLAGS={' '.join(flags)} -Wall -Wextra -Wpedantic -Werror"), folder)
    undefined = command(("arm-none-eabi-nm", "-u", "model.o"), folder).split()
    assert set(undefined) - {"U"} <= FOUND
    sizes = command(("arm-none-eabi-size", "-A", "model.o", "weights.o"), folder)
    assert not [line for line in sizes.splitlines() if line.startswith((".data", ".bss")) and line.split()[1] != "0"]
    image = str(tmp_path / "image.elf")
    script, start = str(KIT / "cortex_m/link.ld"), str(KIT / "cortex_m/start.c")
    command(("arm-none-eabi-gcc", *flags, "-nostartfiles", "--specs=nosys.specs", "-DMODEL_check=model_check",
             "-T", script, start, "libmodel.a", "-o", image), folder)  # fmt: skip
    out = command(("qemu-system-arm", "-M", board, "-display", "none", "-monitor", "none", "-serial", "none",
                   "-semihosting-config", "enable=on,target=native", "-kernel", image), folder)  # fmt: skip
    said = dict(line.split() for line in out.splitlines())
    assert said["different"] == "0" and 0 < int(said["stack"]) <= MOST_STACK
    assert "model.c" in command(("make", "stack", *tools, f"CFLAGS={' '.join(flags)}"), folder)


# -- the guide --------------------------------------------------------------------------------------------------

GUIDE = (KIT.parents[1] / "docs" / "emit-c.md").read_text().partition("## Other machines")[2].partition("\n## ")[0]


def commands(heading: str) -> str:
    section = GUIDE.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    return "\n".join(re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


@pytest.fixture
def guided(tmp_path: Path) -> Callable[[str], str]:
    """Runs the commands under a heading of the guide, in a folder with the model; what they print."""
    shutil.copy(DIGITS, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "wasmtime").write_text(f'#!/bin/sh\nexec {sys.executable} {KIT / "wasi.py"} "$@"\n')
    (tmp_path / "bin" / "wasmtime").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(heading: str) -> str:
        assert commands(heading)
        words = ["bash", "-euo", "pipefail", "-c", commands(heading)]
        done = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_guide_to_a_phone(guided) -> None:
    assert "probabilities f32[1, 10]: the bits of test/probabilities.npy" in guided("Phone")


def test_guide_to_a_microcontroller(guided, tmp_path: Path) -> None:
    assert "digits_run" in guided("Microcontroller")
    assert "digits_check" in command(("arm-none-eabi-nm", "device/libdigits.a"), tmp_path)


def test_guide_to_a_browser(guided, tmp_path: Path) -> None:
    from wasmtime import Engine, Instance, Module, Store

    guided("Browser")
    engine = Engine()
    module, store = Module.from_file(engine, str(tmp_path / "web" / "digits.wasm")), Store(engine)
    assert module.imports == []
    assert Instance(store, module, []).exports(store)["digits_check"](store) == 0


def test_guide_to_wasi(guided) -> None:
    """A language model goes on with a text as `LLM` does."""
    llm = ingot.LLM("tiny-lm", context=64, precision="f32", threads=1, sequences=1)
    said = llm.complete("def add(a, b):", max_tokens=24, temperature=0.8, seed=1).text
    assert guided("WASI").endswith(f"{said}\n")
