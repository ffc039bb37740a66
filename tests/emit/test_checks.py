"""What emitted C checks of itself where it is told to: steps write what they make alone, nobody reads what is dead."""

import re
import subprocess
from pathlib import Path

import pytest

import ingot
import models
from emitted_together import by
from ingot.emit.c import Vector, emit

# Plain C with the one instruction that its sums want.
FLAGS = "-O1 -mfma -DMODEL_CHECK -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a transformer block, for up to two threads."""
    module, inputs = models.block("functional")
    session = ingot.InferenceSession(module, example_inputs=inputs, threads=1)
    feeds = {session.get_inputs()[0].name: inputs[0].numpy()}
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    folder = tmp_path_factory.mktemp("checked")
    emit(session.graph, session.weights, folder, threads=2, vector=Vector(feeds, outputs))
    source = folder / "model.c"
    source.write_text(by(source.read_text(), "portable"))
    return folder


def checked(folder: Path, compiler: str = "cc") -> tuple[int, str]:
    """What a checked run comes to: its exit code, what it says."""
    made = subprocess.run(["make", f"CC={compiler}", f"CFLAGS={FLAGS}"], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(["./model", "--check", "test"], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def changed(folder: Path, pattern: str, by: str) -> str:
    """Changes the first match in model.c; returns what the file was."""
    before = (folder / "model.c").read_text()
    after = re.sub(pattern, by, before, count=1)
    assert after != before
    (folder / "model.c").write_text(after)
    return before


def test_a_checked_run_has_the_same_bits(block: Path) -> None:
    code, said = checked(block)
    assert code == 0 and "the bits of test/output.npy" in said


def test_what_a_step_writes_elsewhere_is_found(block: Path) -> None:
    before = changed(block, r"\.c = (t\d+),", r".c = \1 + 16,")
    assert checked(block) == (70, "model: step 0 wrote outside of its results\n")
    (block / "model.c").write_text(before)


def test_what_is_dead_is_nan(block: Path) -> None:
    """A step that reads before anything was written reads NaN, and so does one whose operand is dead."""
    before = changed(block, r"    K\(gemm_f32_packed\)\(&s[^;]*;\n", "    (void)s;\n")
    code, said = checked(block)
    assert code == 1 and "elements differ" in said
    (block / "model.c").write_text(before)


@pytest.mark.slow
def test_the_analyzer_finds_nothing(block: Path) -> None:
    """GCC's, of the steps, the kernels and the entry point; the program around them asks of its command line what the
    analyzer does not see."""
    words = ["gcc", "-O1", "-fanalyzer", "-Wall", "-Werror", "-c", "model.c", "-o", "analysed.o"]
    done = subprocess.run(words, cwd=block, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
