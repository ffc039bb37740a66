"""Checks of emitted C (`MODEL_CHECK`): steps write only their results, and no step reads dead memory."""

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import ingot
import models
from emitted_together import by
from ingot.emit.c import Vector, emit
from ingot.emit.language.model import emit_language_model
from small_tokenizers import document, write_folder
from tiny_language_models import random_llama

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
    """The outcome of a checked run: its exit code and its output."""
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
    before = changed(block, r"\.c = (\w+),", r".c = \1 + 16,")
    assert checked(block) == (70, "model: step 0 wrote outside of its results\n")
    (block / "model.c").write_text(before)


def test_what_is_dead_is_nan(block: Path) -> None:
    """A step that reads before anything was written reads NaN, and so does one whose operand is dead."""
    before = changed(block, r"    K\(gemm_f32_packed\)\(&s[^;]*;\n", "    (void)s;\n")
    code, said = checked(block)
    assert code == 1 and "elements differ" in said
    (block / "model.c").write_text(before)


def encoder_in_int8() -> ingot.InferenceSession:
    """Products of quantized weights, and activations that are rounded to int8."""
    module, inputs = models.block("sdpa", rows=29)
    return ingot.InferenceSession(module, example_inputs=inputs, precision="int8")


def session_of(built: models.Built) -> ingot.InferenceSession:
    module, inputs = built
    return ingot.InferenceSession(module, example_inputs=inputs)


ANALYSED: dict[str, Callable[[], ingot.InferenceSession]] = {
    "mlp": lambda: session_of(models.mlp()),
    "block": lambda: session_of(models.block("functional")),
    "conv net": lambda: session_of(models.convnet()),
    "LSTM": lambda: session_of(models.tagger("LSTM")),
    "int8": encoder_in_int8,
}
ANALYSER = "gcc -O1 -fanalyzer -Wall -Wextra -Wpedantic -Wconversion -Wshadow -c".split()


# Lines of C in which it finds numbers that nobody has set: they are those of v_set, which fills all lanes in a loop
# that the analyzer does not follow to its end.
EXPLAINED = (
    "static inline vf v_mul(vf a, vf b) { EACH_LANE a.lane[i] *= b.lane[i]; return a; }",
    "static inline vm v_lt(vf a, vf b) { vm r; EACH_LANE r.lane[i] = a.lane[i] < b.lane[i]; return r; }",
)


def analyse(folder: Path, *sources: str, flags: Sequence[str] = ()) -> None:
    """Expects the analyzer to find nothing in each that is not explained."""
    for source in sources:
        words = [*ANALYSER, *flags, source, "-o", "analysed.o"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{source}\n{done.stderr[-4000:]}"
        lines = (folder / source).read_text().splitlines()
        found = re.findall(rf"^{source}:(\d+):\d+: warning: (.*)", done.stderr, re.MULTILINE)
        assert len(found) == done.stderr.count(" warning: "), done.stderr[-4000:]
        unset = "use of uninitialized value"
        assert [row for row in found if lines[int(row[0]) - 1] not in EXPLAINED or not row[1].startswith(unset)] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", ANALYSED)
def test_the_analyzer_finds_nothing(model: str, tmp_path: Path) -> None:
    """GCC's, of the kernels of a set, the steps, the entry point and the pool. The program around them asks of its
    command line what the analyzer does not see."""
    session = ANALYSED[model]()
    emit(session.graph, session.weights, tmp_path, precision=session.precision, threads=2)
    source = tmp_path / "model.c"
    source.write_text(by(source.read_text(), "portable"))
    analyse(tmp_path, *(path.name for path in tmp_path.glob("model*.c")))


@pytest.mark.slow
def test_the_analyzer_finds_nothing_in_a_language_model(tmp_path: Path) -> None:
    random_llama(tmp_path / "folder", vocab_size=512)
    write_folder(tmp_path / "folder", document("byte_level"))
    folder = tmp_path / "out"
    emit_language_model(tmp_path / "folder", folder, precision="int4", threads=2)
    source = folder / "model.c"
    source.write_text(by(source.read_text(), "portable"))
    names = sorted(path.name for path in folder.glob("*.c"))
    analyse(folder, *names, flags=("-std=c11", "-D_DEFAULT_SOURCE"))
