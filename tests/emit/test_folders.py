"""What commands write into folders that hold files of others: those stay, and models lie side by side."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.cli import main
from ingot.emit.c import Vector, emit
from ingot.emit.platform import Platform
from ingot.emit.web.model import emit_model
from ingot.errors import OutputError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.run.store import WeightStore
from ingot.support.folders import MANIFEST, filled_folder

Emit = Callable[..., list[str]]


def scaled(factor: float) -> Graph:
    graph = Graph("scaled")
    x = graph.add_input("x", TensorType(f32, (4,)))
    weight = graph.add_weight("w", np.full(4, factor, np.float32))
    graph.set_output("y", graph.add("mul", (x, weight)).output)
    return graph


def write_c(folder: Path, *, prefix: str = "model", factor: float = 2, **options: object) -> list[str]:
    x = np.arange(4, dtype=np.float32)
    vector = Vector({"x": x}, {"y": x * np.float32(factor)})
    return emit(scaled(factor), WeightStore(), folder, prefix=prefix, vector=vector, **options)  # type: ignore[arg-type]


def write_bare(folder: Path, **options: object) -> list[str]:
    return write_c(folder, platform=Platform(freestanding=True), **options)


def write_site(folder: Path, *, force: bool = False) -> list[str]:
    return emit_model("scaled", scaled(2), WeightStore(), folder, force=force)


EMISSIONS: dict[str, Emit] = {"c": write_c, "freestanding": write_bare, "site": write_site}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", EMISSIONS)
def test_files_of_others_stay(kind: str, tmp_path: Path) -> None:
    """Each name that an emission writes, with a user's file there: refused, and nothing else is written."""
    names = contents_of(EMISSIONS[kind], tmp_path / "free")
    for number, name in enumerate(sorted(names - {MANIFEST})):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine\n")
        with pytest.raises(OutputError, match="did not write or that were changed since, got"):
            EMISSIONS[kind](folder)
        assert contents(folder) == {name: b"mine\n"}
    EMISSIONS[kind](folder, force=True)
    assert {*contents(folder)} == names and (folder / name).read_bytes() != b"mine\n"


def contents_of(write: Emit, folder: Path) -> set[str]:
    paths = write(folder)
    assert {*paths} == {str(folder / name) for name in contents(folder)}
    return {*contents(folder)}


@pytest.mark.parametrize("kind", EMISSIONS)
def test_what_was_emitted_is_replaced_until_it_is_changed(kind: str, tmp_path: Path) -> None:
    names = contents_of(EMISSIONS[kind], tmp_path)
    (tmp_path / "notes.txt").write_text("mine\n")
    before = contents(tmp_path)
    EMISSIONS[kind](tmp_path)
    assert contents(tmp_path) == before
    changed = min(name for name in names if name.endswith((".c", ".js")))
    with open(tmp_path / changed, "a") as file:
        file.write("/* mine */\n")
    with pytest.raises(OutputError, match=f"got {changed},"):
        EMISSIONS[kind](tmp_path)
    EMISSIONS[kind](tmp_path, force=True)
    assert contents(tmp_path) == before


def test_files_that_an_emission_no_longer_has_are_removed(tmp_path: Path) -> None:
    """But for those that were changed."""
    graph = Graph("wide")
    x = graph.add_input("x", TensorType(f32, (1 << 16,)))
    graph.set_output("y", graph.add("exp", (x,)).output)
    emit(graph, WeightStore(), tmp_path, threads=4)
    assert (tmp_path / "model_pool.c").exists()
    (tmp_path / "model_pool.h").write_text("mine\n")
    write_c(tmp_path)
    assert not (tmp_path / "model_pool.c").exists() and (tmp_path / "model_pool.h").read_text() == "mine\n"
    emit(scaled(2), WeightStore(), tmp_path)
    assert not (tmp_path / "test").exists()


def test_an_emission_that_was_cut_off_can_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), filled_folder(tmp_path, "one", ["a", "b"]):
        (tmp_path / "a").write_text("half")
        raise KeyboardInterrupt
    with filled_folder(tmp_path, "one", ["a", "b"]):
        (tmp_path / "a").write_text("whole")
        (tmp_path / "b").write_text("whole")
    with pytest.raises(OutputError, match="got b,"), filled_folder(tmp_path, "two", ["b", "c"]):
        pass


MANIFESTS = {
    "no JSON": "{",
    "a list": "[]",
    "another version": '{"version": 2, "files": {}}',
    "no files": '{"version": 1}',
    "a file outside": '{"version": 1, "files": {"../victim": {"owner": "C: model", "sha256": null}}}',
    "a whole path": '{"version": 1, "files": {"/victim": {"owner": "C: model", "sha256": null}}}',
    "behind a link": '{"version": 1, "files": {"link/victim": {"owner": "C: model", "sha256": null}}}',
    "no name": '{"version": 1, "files": {"": {"owner": "C: model", "sha256": null}}}',
    "nested": '{"version": 1, "files": ' + "[" * 100_000,
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_manifest_of_somebody_else(kind: str, tmp_path: Path) -> None:
    """It has nothing removed or replaced."""
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine\n")
    (folder / "link").symlink_to(tmp_path)
    (folder / MANIFEST).write_text(MANIFESTS[kind])
    with pytest.raises(OutputError, match="damaged"):
        write_c(folder)
    write_c(folder, force=True)
    assert victim.read_text() == "mine\n"


def test_models_side_by_side(tmp_path: Path) -> None:
    """Each is built and checked, by make and by CMake; emitted again, one leaves the others as they are."""
    write_c(tmp_path, factor=2)
    write_c(tmp_path, factor=3, prefix="tripled", threads=2)
    write_bare(tmp_path, factor=5, prefix="device")
    before = contents(tmp_path)
    write_c(tmp_path, factor=2)
    assert contents(tmp_path) == before
    out = command(tmp_path, "make", "-j2", "check", "all", "libtripled.a", "libmodel.so", "CFLAGS=-O0")
    assert "y f32[4]: the bits of test/y.npy" in out and "y f32[4]: the bits of tripled-test/y.npy" in out
    command(tmp_path, "make", "install", "DESTDIR=root dir", "PREFIX=/usr", "CFLAGS=-O0")
    root = tmp_path / "root dir" / "usr"
    assert {path.name for path in (root / "lib").glob("lib*")} == {
        f"lib{name}.{ending}" for name in ("model", "tripled") for ending in ("a", "so")
    }
    assert (root / "share" / "tripled" / "tripled-weights.bin").read_bytes() == before["tripled-weights.bin"]
    flags = command(root / "lib" / "pkgconfig", "sh", "-c", "PKG_CONFIG_PATH=. pkg-config --static --libs tripled")
    assert "-ltripled" in flags and "-lm" in flags
    command(tmp_path, "make", "clean")
    assert {name: data for name, data in contents(tmp_path).items() if not name.startswith("root")} == before


def test_cmake_builds_and_installs_models_side_by_side(tmp_path: Path) -> None:
    write_c(tmp_path / "out", factor=2)
    write_c(tmp_path / "out", factor=3, prefix="tripled")
    cmake, ctest = (str(Path(sys.executable).with_name(tool)) for tool in ("cmake", "ctest"))
    command(tmp_path, cmake, "-S", "out", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug")
    command(tmp_path, cmake, "--build", "build")
    passed = command(tmp_path / "build", ctest)
    assert "100% tests passed" in passed and "check-tripled" in passed and "check-model" in passed
    command(tmp_path, cmake, "--install", "build", "--prefix", "root")
    names = {path.name for path in (tmp_path / "root").rglob("*") if path.is_file()}
    assert {"libtripled.a", "model.h", "tripled.pc", "tripled-weights.bin", "weights.bin"} <= names


def test_command_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A user's file, by each command; the output of a command apart from file names."""
    model = tmp_path / "scaled.onnx"
    ingot.export_onnx(scaled(2), model)

    def call(*words: object) -> tuple[int, str, str]:
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capfd.readouterr()

    folder = tmp_path / "a folder"
    folder.mkdir()
    for words, name in ((("emit-c",), "main.c"), (("emit-web",), "index.html")):
        (folder / name).write_text("mine\n")
        code, out, err = call(*words, model, "-o", folder)
        assert (code, out) == (73, "") and f"got {name}, expected free names, or force" in err
        code, out, err = call(*words, model, "-o", folder, "--force")
        assert (code, err) == (0, "") and (folder / name).read_text() != "mine\n"
        if name == "index.html":
            assert f"python -m http.server -d '{folder}'\n" in out
        else:
            assert "\nRAM    96 bytes: state 64 (arena 0, kept 0), inputs 16, outputs 16\n" in out
            assert f"\nflash  64 bytes of weights; size of the code: make -C '{folder}' size\n" in out
    assert call("emit-onnx", model, "-o", model)[0] == 0
    for name in ("notes.onnx", "new.onnx.data"):
        (tmp_path / name).write_text("mine\n")
        code, _, err = call("emit-onnx", model, "-o", str(tmp_path / name).removesuffix(".data"))
        assert code == 73 and "no model that Ingot wrote" in err and (tmp_path / name).read_text() == "mine\n"
    assert call("emit-onnx", model, "-o", tmp_path / "notes.onnx", "--force")[0] == 0
    assert json.loads((folder / MANIFEST).read_text())["version"] == 1
