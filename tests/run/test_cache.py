"""The cache of compiled ONNX files: equal bits, and every way in which an entry may be bad."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot import InferenceSession, at_most
from ingot.run.store import WeightStore
from ingot.session import compile_cache as cache
from places import KIT

K, N = 96, 80


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a test has just written count as settled."""
    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", 0)


def write_model(path: Path, seed: int = 0, external: bool = False, rows: int | str = 4) -> Path:
    """y = tanh(x @ w + b) @ v, with x of [rows, K], w of [K, N] and v of [N, K]."""
    rng = np.random.default_rng(seed)
    arrays = {"w": rng.standard_normal((K, N)), "b": rng.standard_normal(N), "v": rng.standard_normal((N, K))}
    initializers = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Tanh", ["q"], ["r"]), helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]  # fmt: skip
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, K]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data", size_threshold=0)
    return path


def feeds(rows: int = 4) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((rows, K)).astype(np.float32)}


def run(model: Path, root: Path | bool, rows: int = 4) -> np.ndarray:
    (y,) = InferenceSession(model, cache=root).run(None, feeds(rows))
    return y


def is_kept(model: Path, root: Path) -> bool:
    """True when a session would find this model's entry."""
    return cache.entry_of(root, model, None, None).read(WeightStore()) is not None


def only_entry(root: Path) -> Path:
    (found,) = (path for path in root.iterdir() if not path.name.startswith("."))
    return found


@pytest.mark.parametrize("external", [False, True])
def test_the_second_start_has_the_same_bits(tmp_path: Path, external: bool) -> None:
    model, root = write_model(tmp_path / "m.onnx", external=external), tmp_path / "cache"
    expected = run(model, False)
    assert not root.exists()
    assert np.array_equal(run(model, root), expected)
    assert is_kept(model, root)
    found = InferenceSession(model, cache=root)
    assert found.graph.values["w"].data is None  # it did not come from the file
    assert np.array_equal(found.run(None, feeds())[0], expected)


@pytest.mark.parametrize(("rows", "dims"), [(4, None), ("n", {"n": 4}), ("n", {"n": at_most(4)})])
def test_known_dims_are_cached_at_load(tmp_path: Path, rows: int | str, dims: dict[str, Any] | None) -> None:
    model, root = write_model(tmp_path / "m.onnx", rows=rows), tmp_path / "cache"
    InferenceSession(model, dims=dims, cache=root)
    assert only_entry(root)
    found = InferenceSession(model, dims=dims, cache=root)
    assert found.graph.values["w"].data is None and found.plan.arena_bytes
    assert np.array_equal(found.run(None, feeds())[0], run(model, False))


def test_open_dims_are_cached_by_the_first_run(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx", rows="n"), tmp_path / "cache"
    session = InferenceSession(model, cache=root)
    assert not root.exists()
    session.run(None, feeds())
    assert only_entry(root)


def test_symbolic_dims_are_cached_from_the_first_binding_on(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx", rows="n"), tmp_path / "cache"
    for rows in (4, 7, 1):
        assert np.array_equal(run(model, root, rows), run(model, False, rows))
    assert is_kept(model, root)


def test_options_have_entries_of_their_own(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx", rows="n"), tmp_path / "cache"
    for options in ({}, {"dims": {"n": 4}}, {"passes": ()}):
        for _ in range(2):
            (y,) = InferenceSession(model, cache=root, **options).run(None, feeds())
            assert y.shape == (4, K)
    assert len(cache.entries(root)) == 3


def test_a_changed_model_is_compiled_again(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    run(model, root)
    times = os.stat(model)
    write_model(model, seed=1)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert np.array_equal(run(model, root), run(model, False))


def test_changed_external_data_is_read_again(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx", external=True), tmp_path / "cache"
    run(model, root)
    other = write_model(tmp_path / "other.onnx", seed=1, external=True)
    data, times = tmp_path / "m.data", os.stat(tmp_path / "m.data")
    data.write_bytes(other.with_suffix(".data").read_bytes())
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not is_kept(model, root)
    assert np.array_equal(run(model, root), run(other, False))
    data.unlink()
    assert not is_kept(model, root)


def test_a_file_that_has_just_changed_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", 3_600_000_000_000)
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    run(model, root)
    assert not root.exists()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


DAMAGE = {
    "a bit of the weights": lambda entry: flip(entry / "weights.bin", K * N),
    "the last weight": lambda entry: flip(entry / "weights.bin", -1),
    "a bit of the graph": lambda entry: flip(entry / "graph.ingot", 100),
    "a bit of the manifest": lambda entry: flip(entry / "weights.json", 40),
    "shorter weights": lambda entry: os.truncate(entry / "weights.bin", 1000),
    "no weights": lambda entry: (entry / "weights.bin").unlink(),
    "empty weights": lambda entry: os.truncate(entry / "weights.bin", 0),
    "longer weights": lambda entry: os.truncate(entry / "weights.bin", 1 << 20),
    "no manifest": lambda entry: (entry / "weights.json").unlink(),
    "another manifest": lambda entry: (entry / "weights.json").write_text('{"format": "cake"}'),
    "rows without hashes": lambda entry: edit(entry / "weights.json", lambda row: row.pop("hash")),
    "rows that overlap": lambda entry: edit(entry / "weights.json", lambda row: row.update(offset=0)),
    "rows beyond the end": lambda entry: edit(entry / "weights.json", lambda row: row.update(offset=1 << 40)),
    "no sources": lambda entry: (entry / "sources.json").unlink(),
    "sources that are no object": lambda entry: (entry / "sources.json").write_text("[]"),
    "sources without files": lambda entry: (entry / "sources.json").write_text('{"files": 7}'),
    "deep sources": lambda entry: (entry / "sources.json").write_text("[" * 100_000),
    "writable by others": lambda entry: os.chmod(entry / "weights.bin", 0o666),
    "a folder writable by others": lambda entry: os.chmod(entry, 0o777),
    "a root writable by others": lambda entry: os.chmod(entry.parent, 0o777),
    "a link to the weights": lambda entry: link(entry / "weights.bin"),
    "a link to the folder": link,
    "a file, not a folder": lambda entry: (shutil.rmtree(entry), entry.write_text("")),
    "a pipe": lambda entry: ((entry / "weights.bin").unlink(), os.mkfifo(entry / "weights.bin")),
}


def edit(manifest: Path, change) -> None:  # type: ignore[no-untyped-def]
    content = json.loads(manifest.read_text())
    for row in content["arrays"].values():
        change(row)
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_bad_entry_is_as_good_as_none(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    expected = run(model, root)
    damage(only_entry(root))
    assert not is_kept(model, root)
    assert np.array_equal(run(model, root), expected)
    os.chmod(root, 0o700)
    assert np.array_equal(run(model, root), expected)
    assert is_kept(model, root)


def test_an_entry_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    expected = run(model, root)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not is_kept(model, root)
    assert np.array_equal(run(model, root), expected)


def test_permissions(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    run(model, root)
    entry = only_entry(root)
    assert {os.stat(folder).st_mode & 0o777 for folder in (root, entry)} == {0o700}
    assert {os.stat(file).st_mode & 0o777 for file in entry.iterdir()} == {0o600}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    (tmp_path / "cache").write_text("a file")
    assert np.array_equal(run(model, tmp_path / "cache"), run(model, False))


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    models = [write_model(tmp_path / f"{i}.onnx", seed=i) for i in range(3)]
    run(models[0], root)
    (nbytes,) = (int(str(row["bytes"])) for row in cache.entries(root))
    run(models[1], root)
    for i, entry in enumerate(cache.entry_of(root, model, None, None).folder for model in models[:2]):
        os.utime(entry, (1000 + i, 1000 + i))
    run(models[0], root)  # used: now models[1] is the oldest
    monkeypatch.setattr(cache, "MAX_BYTES", nbytes * 5 // 2)
    run(models[2], root)
    assert [is_kept(model, root) for model in models] == [True, False, True]
    monkeypatch.setattr(cache, "MAX_BYTES", nbytes // 2)
    run(models[1], root)
    assert not any(is_kept(model, root) for model in models)


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    (root / ".new-dead").mkdir(parents=True, mode=0o700)
    os.chmod(root, 0o700)
    run(model, root)
    assert not (root / ".new-dead").exists()
    cache.clear(root)
    assert cache.entries(root) == []


TESTS = [str(KIT), str(Path(__file__).parent)]
PROCESS = """
import sys
from pathlib import Path
import numpy as np
sys.path[:0] = {tests!r}
from test_cache import feeds
from ingot import InferenceSession
from ingot.session import compile_cache as cache
cache.SETTLED_NANOSECONDS = 0
for _ in range(8):
    y, = InferenceSession({model!r}, cache={root!r}).run(None, feeds())
np.save({output!r}, y)
"""


def test_processes_share_a_cache(tmp_path: Path) -> None:
    model, root = write_model(tmp_path / "m.onnx"), tmp_path / "cache"
    outputs = [tmp_path / f"{i}.npy" for i in range(4)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS.format(tests=TESTS, model=str(model), root=str(root), output=str(output))]
        )
        for output in outputs
    ]
    assert [process.wait(120) for process in running] == [0] * len(running)
    assert all(np.array_equal(np.load(output), run(model, False)) for output in outputs)
    assert is_kept(model, root)
    assert len(cache.entries(root)) == 1


def test_the_knob_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "m.onnx")
    assert cache.folder_of(None) is None
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    InferenceSession(model)
    assert is_kept(model, tmp_path / "cache")
    assert cache.folder_of(False) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder_of(True) == tmp_path / "ingot" / "programs"
    for word in ("on", "ON", "1", "true", "yes"):
        monkeypatch.setenv("INGOT_CACHE", word)
        assert cache.folder_of(None) == tmp_path / "ingot" / "programs"
    for word in ("off", "Off", "0", "false", "no"):
        monkeypatch.setenv("INGOT_CACHE", word)
        assert cache.folder_of(None) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("./kept", "~/kept", "kept/", str(tmp_path / "kept")):
        monkeypatch.setenv("INGOT_CACHE", folder)
        assert cache.folder_of(None) == tmp_path / "kept"
    for word in ("kept", "enabled", "2"):
        monkeypatch.setenv("INGOT_CACHE", word)
        with pytest.raises(ValueError, match=f"INGOT_CACHE: unknown value, got '{word}'"):
            cache.folder_of(None)


PEAK = """
import sys
from pathlib import Path
import numpy as np
import ingot.load.onnx
from ingot import InferenceSession
def peak():
    return 1024 * next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
before = peak()
session = InferenceSession(sys.argv[1], threads=2, cache=False)
session.run(None, {"x": np.zeros((1, 2048), np.float32)})
print((peak() - before) / (session.weight_bytes + session.plan.arena_bytes))
"""


@pytest.mark.parametrize("external", [False, True])
def test_source_and_packed_weights_are_not_in_memory_together(tmp_path: Path, external: bool) -> None:
    width, layers = 2048, 6  # 100 MB
    weights = [np.full((width, width), 1 / width, np.float32) for _ in range(layers)]
    names = ["x", *(f"x{i}" for i in range(layers - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(layers)]
    initializers = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=external, location="m.data")
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5  # a second copy would make it 2
