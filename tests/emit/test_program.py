"""The program that emit-c writes around a model: as a user builds it, runs it, and gets something wrong."""

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.emit.c import Vector, emit
from ingot.emit.names import identifiers
from ingot.ir.dtype import DTYPES, f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.store import WeightStore

DATA = Path(ingot.__file__).parent / "data"
DIGITS = str(DATA / "digits.onnx")
STRICT = "CFLAGS=-O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `ingot ARGUMENTS`: (exit code, stdout, stderr)."""
    from ingot.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def shell(folder: Path, *words: object) -> tuple[int, str, str]:
    """Runs a program in a folder: (exit code, stdout, stderr)."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `out/model`, which classifies digits, and the image of a digit."""
    folder = tmp_path_factory.mktemp("digits")
    session = ingot.InferenceSession(DIGITS, dims={"batch": 2})
    with np.load(DATA / "digits.npz", allow_pickle=False) as held_out:
        images, labels = held_out["images"][:2, None].astype(np.float32), held_out["labels"][:2]
    (probabilities,) = session.run(None, {"image": images})
    assert np.array_equal(probabilities.argmax(-1), labels)
    vector = Vector({"image": images}, {"probabilities": probabilities})
    emit(session.graph, session.weights, folder / "out", vector=vector)
    np.save(folder / "image.npy", images)
    (folder / "image.raw").write_bytes(images.tobytes())
    np.save(folder / "wide.npy", images.astype(np.float64))
    np.save(folder / "flat.npy", images.reshape(2, 64))
    np.save(folder / "columns.npy", np.asfortranarray(images))
    (folder / "short.npy").write_bytes((folder / "image.npy").read_bytes()[:-1])
    (folder / "short.raw").write_bytes(images.tobytes()[:-1])
    (folder / "long.raw").write_bytes(images.tobytes() + b"0")
    code, _, err = shell(folder, "make", "-C", "out", STRICT)
    assert (code, err) == (0, "")
    return folder


@pytest.mark.parametrize("ending", [".npy", ".raw"])
def test_named_files_go_in_and_come_out(digits: Path, ending: str) -> None:
    code, out, err = shell(digits, "out/model", f"probabilities=y{ending}", f"image=image{ending}")
    assert (code, out, err) == (0, f"probabilities f32[2, 10]: y{ending}\n", "")
    expected = np.load(digits / "out" / "test" / "probabilities.npy")
    path = digits / f"y{ending}"
    got = np.load(path) if ending == ".npy" else np.fromfile(path, np.float32).reshape(2, 10)
    assert got.tobytes() == expected.tobytes() and got.shape == expected.shape and got.dtype == expected.dtype


def test_what_has_no_file_is_shown(digits: Path) -> None:
    code, out, err = shell(digits, "out/model", "image=image.npy")
    assert (code, err) == (0, "") and out.startswith("probabilities f32[2, 10]: ") and out.endswith(" ...\n")
    shown = out.split()[3:-1]
    expected = np.load(digits / "out" / "test" / "probabilities.npy").reshape(-1)[:10]
    np.testing.assert_allclose([float(word) for word in shown], expected, rtol=1e-6)


def test_values_may_follow_an_equals_sign(digits: Path) -> None:
    wanted = shell(digits, "out/model", "image=image.npy")
    assert shell(digits, "out/model", "--weights=out/weights.bin", "--threads=1", "image=image.npy") == wanted
    assert shell(digits, "out/model", "--check=out/test") == shell(digits, "out/model", "--check", "out/test")


def test_it_explains_itself(digits: Path) -> None:
    code, out, err = shell(digits, "out/model", "--help")
    assert (code, err) == (0, "")
    assert "  image  f32[2, 1, 8, 8], 512 bytes\n" in out and "  probabilities  f32[2, 10], 80 bytes\n" in out
    assert all(word in out for word in ("usage: out/model", "--weights FILE", "--check FOLDER", ".npy"))
    assert shell(digits, "out/model", "-h") == (0, out, "")


REFUSED = [
    ((), 2, "image: no file for this input; see --help, expected f32[2, 1, 8, 8]"),
    (("image=image.npy", "image=image.npy"), 2, "image=image.npy: given twice"),
    (("picture=image.npy",), 2, "picture=image.npy: neither an option nor the NAME=FILE of an input or output"),
    (("image.npy",), 2, "image.npy: neither"),
    (("--weights",), 2, "--weights: neither"),
    (("--weight=out/weights.bin",), 2, "--weight=out/weights.bin: neither"),
    (("--threads=2", "image=image.npy"), 2, "--threads: out of range, got 2, expected 1 to 1"),
    (("--check=none",), 66, "none/image.npy: cannot be opened"),
    (("--check", "out/test", "image=image.npy"), 2, "--check: cannot be combined with files"),
    (("image=none.npy",), 66, "none.npy: cannot be opened"),
    (("image=image.raw.npy",), 66, "image.raw.npy: cannot be opened"),
    (("image=wide.npy",), 65, "wide.npy: of another shape or type, got {'descr': '<f8'"),
    (("image=flat.npy",), 65, "(2, 64), }, expected f32[2, 1, 8, 8]"),
    (("image=columns.npy",), 65, "'fortran_order': True"),
    (("image=out/Makefile",), 65, "out/Makefile: of another size, got "),
    (("image=short.npy",), 65, "short.npy: of another size, got fewer than 512 bytes, expected f32[2, 1, 8, 8]"),
    (("image=short.raw",), 65, "short.raw: of another size, got fewer than 512 bytes"),
    (("image=long.raw",), 65, "long.raw: of another size, got more than 512 bytes"),
    (("--weights", "image.raw", "image=image.npy"), 65, "image.raw: of another size, got fewer than "),
    (("image=image.npy", "probabilities=none/y"), 73, "none/y: cannot be written"),
    (("image=image.npy", "probabilities=/dev/full"), 74, "/dev/full: cannot be written whole"),
    (("--check", "none"), 66, "none/image.npy: cannot be opened"),
    (("--weights", "none", "image=image.npy"), 66, "none: cannot be opened; --weights gives its path"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_errors_are_reported(digits: Path, words: tuple[str, ...], code: int, message: str) -> None:
    got, _, err = shell(digits, "out/model", *words)
    assert got == code and message in err and err.count("\n") == 1


def test_what_is_printed_into_nothing_is_an_error(digits: Path) -> None:
    code, _, err = shell(digits, "sh", "-c", "out/model image=image.npy >/dev/full")
    assert (code, err) == (74, "stdout: cannot be written whole\n")


@pytest.mark.parametrize("at, flipped", [(0, 1), (-1, 128), (5000, 16)])
def test_weights_of_another_model_are_refused(digits: Path, at: int, flipped: int) -> None:
    """To the last bit; a file cut short is of another size."""
    stored = bytearray((digits / "out" / "weights.bin").read_bytes())
    stored[at] ^= flipped
    (digits / "other.bin").write_bytes(stored)
    code, _, err = shell(digits, "out/model", "--weights", "other.bin", "image=image.npy")
    assert (code, err) == (65, "other.bin: not the weights of this model, or damaged\n")
    (digits / "other.bin").write_bytes(stored[:-64])
    code, _, err = shell(digits, "out/model", "--weights", "other.bin", "image=image.npy")
    assert code == 65 and err.startswith("other.bin: of another size, got fewer than ")


def test_a_difference_is_found(digits: Path) -> None:
    shutil.copytree(digits / "out" / "test", digits / "changed")
    expected = np.load(digits / "changed" / "probabilities.npy")
    expected[1, 3] = np.nextafter(expected[1, 3], np.float32(1))
    np.save(digits / "changed" / "probabilities.npy", expected)
    code, out, _ = shell(digits, "out/model", "--check", "changed")
    assert code == 1 and "1 of 20 elements differ" in out
    assert shell(digits, "make", "-C", "out", "check")[0] == 0


# Values of every dtype that a model may take, those that print oddly among them.
def every_dtype() -> tuple[Graph, dict[str, np.ndarray]]:
    graph, feeds = Graph("dtypes"), {}
    for name, dtype in DTYPES.items():
        if dtype.is_native and dtype.bits >= 8:
            x = graph.add_input(f"x {name}", TensorType(dtype, (2, 2)))
            graph.set_output(f"y {name}", graph.add("permute", (x,), axes=(1, 0)).output)
            values = [[-1, np.nan], [0, 3]] if dtype.kind == "f" else [[0, 1], [1, 0]]
            feeds[f"x {name}"] = np.array(values, np.float32).astype(dtype.numpy)
            if dtype.kind == "i":
                feeds[f"x {name}"][0, 0] = np.iinfo(dtype.numpy).min
    return graph, feeds


def test_every_dtype_passes_through_numpys_files(tmp_path: Path) -> None:
    graph, feeds = every_dtype()
    outputs = {name.replace("x ", "y "): np.ascontiguousarray(array.T) for name, array in feeds.items()}
    emit(graph, WeightStore(), tmp_path, vector=Vector(feeds, outputs))
    code, out, err = shell(tmp_path, "make", "check", STRICT)
    assert code == 0, err
    assert out.count(": the bits of test/y_") == len(feeds)
    words = [f"x_{name.split()[1]}=test/x_{name.split()[1]}.npy" for name in feeds]
    code, out, err = shell(tmp_path, "./model", *words)
    assert code == 0, err
    shown = dict(line.split(": ") for line in out.splitlines() if ": " in line)
    assert shown["y_i64 i64[2, 2]"] == "-9223372036854775808 1 1 0"
    assert shown["y_u8 u8[2, 2]"] == "0 1 1 0" and shown["y_i8 i8[2, 2]"] == "-128 1 1 0"
    assert shown["y_f64 f64[2, 2]"].replace("-nan", "nan") == "-1 0 nan 3"


def test_names_become_identifiers() -> None:
    names = [
        "image",
        "input.1",
        "1",
        "X",
        "x",
        "float",
        "arena",
        "",
        "été",
        "-",
        "a/b:c",
        "linux",
        "x" * 99,
        "t_2",
        "t",
        "t",
    ]
    made = list(identifiers([("input", name) for name in names]))
    assert made[:13] == [
        "image", "input_1", "input_1_2", "x", "x_2", "float_2", "arena_2", "input", "t", "input_2", "a_b_c", "linux_2",
        "x" * 48,
    ]  # fmt: skip
    assert made[13:] == ["t_2", "t_3", "t_4"]
    assert list(identifiers([("input", "y"), ("output", "y"), ("output", "0")])) == ["y", "y_2", "output_0"]


def test_a_name_may_have_what_the_program_is_written_with(tmp_path: Path) -> None:
    graph = Graph("marks")
    x = graph.add_input("xPREFIX", TensorType(f32, (4,)))
    graph.set_output("aMACROb", graph.add("add", (x, x)).output)
    emit(graph, WeightStore(), tmp_path)
    assert shell(tmp_path, "cc", "-fsyntax-only", "-Wall", "-Werror", "main.c") == (0, "", "")


@pytest.mark.parametrize(
    "prefix", ["", "1st", "a-b", "main", "check", "test", "math", "é", "x" * 32, "_x", 'x";', "install"]
)
def test_a_prefix_that_is_no_name_is_refused(call, tmp_path: Path, prefix: str) -> None:
    code, _, err = call("emit-c", DIGITS, "--dim", "batch=1", "-o", tmp_path / "out", "--prefix", prefix)
    assert code == 65 and "prefix" in err and not (tmp_path / "out").exists()


def test_a_prefix_takes_no_other_file(call, tmp_path: Path) -> None:
    words = [DIGITS, "--dim", "batch=1", "--prefix", "weights", "-o", tmp_path / "out"]
    code, _, err = call("emit-c", *words, "--freestanding")
    assert code == 65 and "option prefix: weights.c is another file here, got 'weights'" in err
    assert not (tmp_path / "out").exists() and call("emit-c", *words)[0] == 0


def scaled(factor: float) -> Graph:
    graph = Graph("scaled")
    x = graph.add_input("x", TensorType(f32, (4,)))
    weight = graph.add_weight("w", np.full(4, factor, np.float32))
    graph.set_output("y", graph.add("mul", (x, weight)).output)
    return graph


TWO = """\
#include <cstdio>
#include "doubled.h"
#include "Tripled.h"

alignas(64) static char weights[2][4096], memory[2][4096];

static void load(const char *path, char *to, size_t bytes) {
  std::FILE *file = std::fopen(path, "rb");
  if (!file || std::fread(to, 1, bytes, file) != bytes) throw 1;
  std::fclose(file);
}

int main() {
  static_assert(DOUBLED_STATE_BYTES <= 4096 && TRIPLED_STATE_BYTES <= 4096, "fits");
  if (doubled_state_bytes() != DOUBLED_STATE_BYTES || Tripled_weights_bytes() != TRIPLED_WEIGHTS_BYTES) return 2;
  load("2/doubled-weights.bin", weights[0], DOUBLED_WEIGHTS_BYTES);
  load("3/Tripled-weights.bin", weights[1], TRIPLED_WEIGHTS_BYTES);
  const float x[4] = {1, 2, 3, 4};
  float y[4], z[4];
  doubled_state *first = doubled_init(memory[0], weights[0], 1);
  Tripled_state *second = Tripled_init(memory[1], weights[1], 1);
  const doubled_inputs in = {x};
  const doubled_outputs out = {y};
  const Tripled_inputs next = {y};
  const Tripled_outputs last = {z};
  if (doubled_run(first, &in, &out) || Tripled_run(second, &next, &last)) return 1;
  std::printf("%g %g %g %g\\n", z[0], z[1], z[2], z[3]);
}
"""


def test_two_models_link_into_one_program_in_cpp(tmp_path: Path) -> None:
    for name, factor in (("doubled", 2), ("Tripled", 3)):
        emit(scaled(factor), WeightStore(), tmp_path / str(factor), prefix=name)
        code, _, err = shell(tmp_path, "cc", "-O1", "-c", f"{factor}/{name}.c")
        assert code == 0, err
    (tmp_path / "both.cpp").write_text(TWO)
    words = [
        "c++",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I2",
        "-I3",
        "both.cpp",
        "doubled.o",
        "Tripled.o",
        "-o",
        "both",
    ]
    code, _, err = shell(tmp_path, *words)
    assert code == 0, err
    assert shell(tmp_path, "./both") == (0, "6 12 18 24\n", "")


def test_ctypes_runs_it(tmp_path: Path) -> None:
    emit(scaled(5), WeightStore(), tmp_path, prefix="five")
    code, _, err = shell(tmp_path, "cc", "-O1", "-shared", "-fPIC", "five.c", "-o", "five.so", "-lm")
    assert code == 0, err
    library = ctypes.CDLL(str(tmp_path / "five.so"))
    room = np.zeros(4096, np.uint8)
    first = -room.ctypes.data % 64
    weights, memory = room[first : first + 1024], room[first + 1024 :]
    stored = np.fromfile(tmp_path / "five-weights.bin", np.uint8)
    weights[: len(stored)] = stored
    x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    library.five_init.restype = ctypes.c_void_p
    state = library.five_init(ctypes.c_void_p(memory.ctypes.data), ctypes.c_void_p(weights.ctypes.data), 1)
    inputs, outputs = ((ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y))
    assert library.five_run(ctypes.c_void_p(state), inputs, outputs) == 0
    assert np.array_equal(y, 5 * x)


# -- the command line -------------------------------------------------------------------------------------------


def test_command_line(call, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with np.load(DATA / "digits.npz", allow_pickle=False) as held_out:
        np.save(tmp_path / "x.npy", held_out["images"][:2, None].astype(np.float32))
    words = ["--dim", "batch=2", "-o", folder, "--prefix", "digits", "--input", tmp_path / "x.npy"]
    code, out, err = call("emit-c", DIGITS, *words)
    assert (code, err) == (0, "")
    paths = [Path(line) for line in out.splitlines() if line.startswith(str(folder))]
    assert {*paths} == {path for path in folder.rglob("*") if path.is_file()}
    assert (folder / "digits-test" / "image.npy").read_bytes() == (tmp_path / "x.npy").read_bytes()
    code, out, err = shell(tmp_path, "make", "-C", folder, "check", "CFLAGS=-O1")
    assert (code, err) == (0, "") and "probabilities f32[2, 10]: the bits of digits-test/probabilities.npy" in out
    header = (folder / "digits.h").read_text()
    assert "  const float *image; /* f32[2, 1, 8, 8] */\n" in header
    assert "  float *probabilities; /* f32[2, 10] */\n" in header
    layout = json.loads((folder / "digits-layout.json").read_text())
    assert (layout["inputs"], layout["outputs"]) == ({"image": "image"}, {"probabilities": "probabilities"})


def test_a_dim_with_a_limit(call, tmp_path: Path) -> None:
    """The test vector is as large as may be, unless an input limits it."""
    code, _, err = call("emit-c", DIGITS, "--dim", "batch=..4", "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    header = (tmp_path / "out" / "model.h").read_text()
    assert "  int64_t batch; /* 1 to 4 */\n" in header and "  int64_t probabilities_dims[2];" in header
    assert np.load(tmp_path / "out" / "test" / "image.npy").shape == (4, 1, 8, 8)
    assert call("emit-c", DIGITS, "--dim", "batch=..3", "--freestanding", "-o", tmp_path / "device")[0] == 0
    assert ".batch = 3\n" in (tmp_path / "device" / "check.c").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--executor", "interpret"],
        ["--strict"],
        ["--threads", 0],
        ["--context", 8],
        ["--cache-dtype", "int8"],
        ["--cache-dtype", "int8", "--mode", "train"],
    ],
)
def test_an_option_without_an_effect_is_refused(call, tmp_path: Path, words: list[object]) -> None:
    code, _, err = call("emit-c", DIGITS, "--dim", "batch=1", "-o", tmp_path / "out", *words)
    assert code == 2 and str(words[0]) in err and not (tmp_path / "out").exists()


def test_command_line_errors(call, tmp_path: Path) -> None:
    code, _, err = call("emit-c", DIGITS, "-o", tmp_path / "out")
    assert code == 65 and "batch" in err and not (tmp_path / "out").exists()
    (tmp_path / "file").write_bytes(b"")
    code, _, err = call("emit-c", DIGITS, "--dim", "batch=1", "-o", tmp_path / "file" / "out")
    assert code == 73 and "file" in err
    info = helper.make_tensor_value_info("x", TensorProto.INT64, [3])
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1], values_floats=[2.0])
    graph = helper.make_graph([node], "g", [info], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports), tmp_path / "labels.onnx")
    code, _, err = call("emit-c", tmp_path / "labels.onnx", "-o", tmp_path / "out")
    assert code == 69 and "label_encode" in err and not (tmp_path / "out").exists()


def test_refused_random_inputs_are_reported(call, tmp_path: Path) -> None:
    graph = Graph("embedding")
    table = graph.add_weight("table", np.ones((1, 3), np.float32))
    ids = graph.add_input("ids", TensorType(DTYPES["i64"], (8,)))
    graph.set_output("y", graph.add("gather", (table, ids), axis=0).output)
    ingot.export_onnx(graph, tmp_path / "rows.onnx")
    code, _, err = call("emit-c", tmp_path / "rows.onnx", "-o", tmp_path / "out")
    assert code == 65 and "--input" in err and not (tmp_path / "out").exists()
    np.save(tmp_path / "ids.npy", np.zeros(8, np.int64))
    words = ["-o", tmp_path / "out", "--input", tmp_path / "ids.npy"]
    assert call("emit-c", tmp_path / "rows.onnx", *words)[0] == 0
