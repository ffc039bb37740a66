"""Emitted C for machines unlike this one, as far as this one can tell; `make test-cpus` runs it on others."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.emit.c import Vector, emit
from ingot.emit.language.model import emit_language_model
from ingot.emit.platform import Platform
from ingot.errors import InputError, UnsupportedError
from ingot.ir.dtype import DTYPES, f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.store import WeightStore

DIGITS = str(Path(ingot.__file__).parent / "data" / "digits.onnx")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
STRICT = "-O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
# What compilers ask of every machine, and of the loader of this one.
FREESTANDING = set("memcpy memmove memset _GLOBAL_OFFSET_TABLE_".split())

CALLER = """\
#include "digits.h"

int main(void) { return (int)digits_check(); }
"""


def shell(folder: Path, *words: object) -> str:
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[:4000]}"
    return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the digits model for a machine without a libc."""
    from click.testing import CliRunner

    from ingot.cli.emit import emit_c

    folder = tmp_path_factory.mktemp("bare")
    words = [DIGITS, "--dim", "batch=1", "--prefix", "digits", "--freestanding", "-o", str(folder)]
    result = CliRunner().invoke(emit_c, words)
    assert result.exit_code == 0, result.output
    assert set(map(Path, result.output.splitlines())) >= {*folder.iterdir()}
    return folder


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_freestanding_model_needs_no_libc(bare: Path, tmp_path: Path, compiler: str) -> None:
    folder = tmp_path / "out"
    shutil.copytree(bare, folder)
    shell(folder, "make", f"CC={compiler}", f"CFLAGS={STRICT} -fno-stack-protector")
    undefined = set(shell(folder, "nm", "-u", "digits.o", "digits-weights.o").split()) - {
        "U",
        "digits.o:",
        "digits-weights.o:",
    }
    assert undefined <= FREESTANDING
    sections = shell(folder, "size", "-A", "digits-weights.o")
    held = dict(line.split()[:2] for line in sections.splitlines() if line.startswith("."))
    assert int(held[".rodata"]) > 170_000 and held.get(".data", "0") == held.get(".bss", "0") == "0"
    (folder / "caller.c").write_text(CALLER)
    shell(folder, compiler, "caller.c", "libdigits.a", "-o", "caller")
    shell(folder, "./caller")
    text = (folder / "digits.c").read_text()
    assert "math.h>" not in text and "string.h>" not in text and "malloc" not in text


def test_a_freestanding_check_counts_what_differs(bare: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(bare, folder)
    text = (folder / "digits-check.c").read_text()
    last = text.index("probabilities[10] = {\n  ") + len("probabilities[10] = {\n  0x")
    (folder / "digits-check.c").write_text(text[:last] + "f" + text[last + 1 :])
    (folder / "caller.c").write_text(CALLER)
    shell(folder, "make", "CFLAGS=-O1")
    shell(folder, "cc", "caller.c", "libdigits.a", "-o", "caller")
    assert subprocess.run([folder / "caller"]).returncode == 1


def test_stack_is_listed_by_function(bare: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(bare, folder)
    words = "make -s --no-print-directory stack CC=gcc CFLAGS=-Os".split()  # make may run the tests, too
    rows = [line.split() for line in shell(folder, *words).splitlines()]
    sizes = [int(row[1]) for row in rows]
    assert any("digits_run" in row[0] for row in rows) and sizes == sorted(sizes, reverse=True)
    assert all(row[2] != "dynamic" for row in rows)
    assert not any("tile_step" in row[0] for row in rows)  # a call for each element of k


def test_memory_of_a_small_machine(bare: Path) -> None:
    (line,) = (line for line in (bare / "digits.h").read_text().splitlines() if "STATE_BYTES " in line)
    assert int(line.split()[2]) < 52_000


def every_size() -> tuple[Graph, WeightStore, dict[str, np.ndarray]]:
    """A graph with a weight of each size of element, and the weights."""
    graph, weights = Graph("sizes"), {}
    for name in ("u8", "bf16", "f32", "f64"):
        dtype = DTYPES[name]
        weights[name] = np.arange(1, 6).astype(dtype.numpy)
        x = graph.add_input(f"x {name}", TensorType(dtype, (5,)))
        c = graph.add_input(f"c {name}", TensorType(DTYPES["bool"], (5,)))
        graph.set_output(f"y {name}", graph.add("where", (c, x, graph.add_weight(name, weights[name]))).output)
    return graph, WeightStore(), weights


def test_bytes_of_a_big_endian_machine(tmp_path: Path) -> None:
    """Each element of the weights is byte-swapped, as are those of the test vector, whose header marks it."""
    graph, store, weights = every_size()
    for order in ("little", "big"):
        emit(graph, store, tmp_path / order, platform=Platform(order))
    little, big = ((tmp_path / order / "weights.bin").read_bytes() for order in ("little", "big"))
    rows = json.loads((tmp_path / "big" / "layout.json").read_text())["tensors"]
    stored = [row for row in rows if row["kind"] == "weight"]
    assert sorted(row["name"] for row in stored) == sorted(weights)
    for row in stored:
        array, begin = weights[row["name"]], row["offset"]
        assert little[begin : begin + array.nbytes] == array.tobytes()
        assert big[begin : begin + array.nbytes] == array.byteswap().tobytes()
    done = subprocess.run(["cc", "-c", "model.c"], cwd=tmp_path / "big", capture_output=True, text=True)
    assert done.returncode != 0 and "the weights are big-endian" in done.stderr
    shell(tmp_path / "little", "cc", "-c", "model.c")
    program = (tmp_path / "big" / "main.c").read_text()
    assert '">f4"' in program and '"<f4"' not in program


def test_a_compiler_that_widens_floats_is_refused(bare: Path) -> None:
    """As GCC defines on s390x with -std=c11, where sums of floats are rounded as doubles."""
    words = "cc -U__FLT_EVAL_METHOD__ -D__FLT_EVAL_METHOD__=1 -fsyntax-only digits.c".split()
    done = subprocess.run(words, cwd=bare, capture_output=True, text=True)
    assert done.returncode != 0 and "-fexcess-precision=fast" in done.stderr


def test_a_big_endian_test_vector(tmp_path: Path) -> None:
    graph = Graph("doubled")
    x = graph.add_input("x", TensorType(f32, (3,)))
    graph.set_output("y", graph.add("add", (x, x)).output)
    x = np.array([1, 2, 3], np.float32)
    emit(graph, WeightStore(), tmp_path, vector=Vector({"x": x}, {"y": x + x}), platform=Platform("big"))
    content = (tmp_path / "test" / "y.npy").read_bytes()
    assert b"'descr': '>f4'" in content and content.endswith((x + x).byteswap().tobytes())
    assert np.array_equal(np.load(tmp_path / "test" / "y.npy"), x + x)


def test_a_freestanding_model_has_one_thread(tmp_path: Path) -> None:
    graph, store, _ = every_size()
    with pytest.raises(InputError, match="option threads: a freestanding platform has none, got 2, expected 1"):
        emit(graph, store, tmp_path / "out", threads=2, platform=Platform(freestanding=True))
    assert not (tmp_path / "out").exists()


def test_quantized_weights_have_one_byte_order(tmp_path: Path) -> None:
    """Codes and the f16 that scale them lie in one array; what turns it round would have to know more of it."""
    graph = Graph("coded")
    x = graph.add_input("x", TensorType(f32, (2, 64)))
    codes = graph.add_weight("codes", np.ones((64, 64), np.int8))
    scales = graph.add_weight("scales", np.ones((64, 2), np.float16))
    w = graph.add("dequantize", (codes, scales), axis=1, block=32, dtype=f32).output
    graph.set_output("y", graph.add("matmul", (x, w), transpose_a=False, transpose_b=True, scale=1.0).output)
    emit(graph, WeightStore(), tmp_path / "little")
    with pytest.raises(UnsupportedError, match=r"little-endian, got codes.* for a big-endian machine"):
        emit(graph, WeightStore(), tmp_path / "big", platform=Platform("big"))
    assert not (tmp_path / "big").exists()


def test_of_many_tensors_an_error_names_some(tmp_path: Path) -> None:
    shipped = Path(ingot.__file__).parent / "models" / "tiny-lm"
    named = r"got model\.embed_tokens\.weight\S*, \S+, \S+ and \d+ more for a big-endian machine"
    with pytest.raises(UnsupportedError, match=named):
        emit_language_model(shipped, tmp_path / "big", precision="int8", context=64, platform=Platform("big"))
    assert not (tmp_path / "big").exists()
