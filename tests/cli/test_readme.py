"""The README's first example and every command in it work as they are written, in a checkout."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.emit.onnx import export_onnx
from ingot.ir.text import parse

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
EXAMPLE = next(text for language, text in BLOCKS if language == "python")
DIGITS = str(ROOT / "src" / "ingot" / "data" / "digits.onnx")

# What takes seconds here, in the place of minutes or of a verdict on a busy machine.
QUICKER = (
    ("bench model.onnx", "bench model.onnx --seconds 0.05"),
    (" --assert 5%", " --seconds 0.05"),
    ("make -C out check", "make -C out check CFLAGS=-O0"),
)


def ends_in_a_quotation(command: str) -> bool:
    """Whether a command goes on in the next line. An apostrophe in a comment opens no quotation."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def commands() -> list[str]:
    """Every line of the README's blocks that runs `ingot` or prepares for it, with the lines that it goes on in."""
    found = []
    for language, text in BLOCKS:
        lines = iter(text.splitlines() if not language else [])
        for line in lines:
            command = line.removeprefix("$ ")
            if not command.startswith(("ingot ", "cp ")):
                continue
            while ends_in_a_quotation(command):
                command += "\n" + next(lines)
            found.append(command)
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what a checkout has, `ingot` on the PATH in `bin`, and what the first example leaves."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "src").symlink_to(ROOT / "src")
    (folder / "bin").mkdir()
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from ingot.cli import main; main()" "$@"\n'
    (folder / "bin" / "ingot").write_text(program)
    (folder / "bin" / "ingot").chmod(0o755)
    (folder / "model.onnx").write_bytes(Path(DIGITS).read_bytes())
    done = subprocess.run([sys.executable, "-c", EXAMPLE], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "conv2d" in done.stdout and "lower bound" in done.stdout and (folder / "model.ingot").is_dir()
    return folder


def test_every_kind_of_command_is_there() -> None:
    words = {command.split()[1] for command in commands()}
    assert words >= {"run", "explain", "inspect", "emit-c", "bench", "generate", "memory"}


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.split("\n")[0][:40])
def test_a_command(command: str, checkout: Path) -> None:
    for written, quicker in QUICKER:
        command = command.replace(written, quicker)
    path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", f"set -o pipefail\n{command}"],
        cwd=checkout, capture_output=True, text=True, env=os.environ | {"PATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), command
    assert done.stdout or " -o " in command or "--output" in command or command.startswith("cp ")


def test_the_first_block_in_a_clean_shell(tmp_path: Path) -> None:
    """What follows `make demo` finds `ingot` by the README's own line, with nothing else in the environment."""
    block = next(text for _, text in BLOCKS if text.startswith("make demo"))
    activate = Path(sys.prefix) / "bin" / "activate"
    lines = block.replace(". .venv/bin/activate", f". {shlex.quote(str(activate))}").splitlines()[1:]
    (tmp_path / "src").symlink_to(ROOT / "src")
    script = "\n".join(lines)
    for written, quicker in QUICKER:
        script = script.replace(written, quicker)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "probabilities" in done.stdout and (tmp_path / "out" / "model").is_file()


@pytest.mark.parametrize("command", ["explain", "inspect --stage plan", "inspect --stage lowered", "emit-c -o out"])
def test_a_dim_without_a_value_is_named_with_what_to_write(call, tmp_path, command: str) -> None:
    word, *options = command.replace(" out", f" {tmp_path / 'out'}").split()
    code, _, err = call(word, DIGITS, *options)
    assert code == 65 and "expected dims={'batch': 1}, or --dim batch=1 at the command line" in err
    assert call(word, DIGITS, *options, "--dim", "batch=1")[0] == 0


def test_bench_prints_assumed_dims(call) -> None:
    code, out, _ = call("bench", DIGITS, "--seconds", 0.02)
    assert code == 0 and out.startswith("dims without a value are 1: --dim batch=1\n")
    assert "--dim" not in call("bench", DIGITS, "--seconds", 0.02, "--dim", "batch=1")[1]


def test_python_names_the_dim_too() -> None:
    session = ingot.InferenceSession(DIGITS)
    for ask in (session.explain, lambda: session.plan):
        with pytest.raises(ingot.InputError, match=r"expected dims=\{'batch': 1\}"):
            ask()


def test_a_warning_is_printed_in_a_line(call, tmp_path) -> None:
    export_onnx(parse("graph g\ninput x: f32[2, 3]\ny = nonzero(x)\noutput y = y\n"), tmp_path / "places.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    code, _, err = call("run", tmp_path / "places.onnx", "--input", tmp_path / "x.npy")
    assert code == 0 and re.fullmatch(
        r"ingot: warning: no kernel for nonzero 'y': the numpy reference took \d+% of the run; .*\n", err
    )
