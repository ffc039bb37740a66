"""Model files that change after they were loaded: small ones are copied, larger ones are found to have changed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ingot
from attacks.hostile_configs import write_llama
from ingot.errors import LoadError
from ingot.ir.dtype import f32
from ingot.ir.graph import TensorType
from ingot.load.hf.safetensors import read_safetensors
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.weight_expr import WeightExpr
from ingot.run.store import WeightStore
from ingot.support import files
from ingot.support.files import MappedFile

K = 160


def write_model(path: Path, external: bool) -> Path:
    """y = table[ids] @ w; returns the file that holds the weights."""
    rng = np.random.default_rng(0)
    shapes = {"table": (200, K), "w": (K, K)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    ports = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", K]),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=0)
    return path.with_name("weights") if external else path


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\x55" * file.seek(0, os.SEEK_END))
        file.seek(0)
        file.write(b"\x55" * 1000)


CHANGES = {"cut": lambda path: os.truncate(path, 10), "overwritten": overwrite}
FEEDS = {"ids": np.arange(5)}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("external", [False, True], ids=["inline", "external"])
@pytest.mark.parametrize("bound", [False, True], ids=["fresh", "bound"])
@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_onnx(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    external: bool,
    bound: bool,
    executor: str,
) -> None:
    holder = write_model(tmp_path / "m.onnx", external)
    copied = ingot.InferenceSession(tmp_path / "m.onnx", executor=executor)
    (expected,) = copied.run(None, FEEDS)
    monkeypatch.setattr(files, "COPIED_BYTES", 0)
    session = ingot.InferenceSession(tmp_path / "m.onnx", executor=executor)
    if bound:
        assert np.array_equal(session.run(None, FEEDS)[0], expected)
    change(holder)
    for feeds in (FEEDS, {"ids": np.arange(9)}):
        with pytest.raises(LoadError, match="changed after it was loaded"):
            session.run(None, feeds)
    assert np.array_equal(copied.run(None, FEEDS)[0], expected)


GENERATE = """
import os, sys
import ingot
from ingot.support import files
from ingot.run import store
files.COPIED_BYTES = int(sys.argv[2])
store._SMALL_BYTES = 0  # this model has no larger weights
model = ingot.LLM(sys.argv[1], threads=1)
before = list(model.generate_tokens([1, 2], max_tokens=3))
os.truncate(os.path.join(sys.argv[1], "model.safetensors"), 100)
try:
    print(list(model.generate_tokens([1, 2, 3], max_tokens=3)) and "runs")
except ingot.LoadError as error:
    print(error)
"""


@pytest.mark.parametrize(("copied", "outcome"), [(1 << 30, "runs"), (0, "changed after it was loaded")])
def test_a_language_model(tmp_path: Path, copied: int, outcome: str) -> None:
    folder = write_llama(tmp_path / "llama")
    command = [sys.executable, "-c", GENERATE, str(folder), str(copied)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and outcome in done.stdout, done


def test_content_is_read_only_and_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).bytes(100_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    before = len(os.listdir("/proc/self/fd"))
    for limit in (0, 1 << 20):
        monkeypatch.setattr(files, "COPIED_BYTES", limit)
        with open(path, "rb") as file:
            mapped = MappedFile(file.fileno(), str(path))
        array = np.frombuffer(mapped, np.uint8)
        assert array.tobytes() == content and not array.flags.writeable
        files.release(array)
        assert array.tobytes() == content and mapped.identity == files.identity(path.stat())
        assert [file.path for file in files.mapped_files([array[3:], array])] == [str(path)] * (limit == 0)
        del array, mapped
    assert len(os.listdir("/proc/self/fd")) == before


def test_small_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around each, more of the file would be mapped than it takes; large ones are used where they lie."""
    monkeypatch.setattr(files, "COPIED_BYTES", 0)
    path = tmp_path / "file"
    np.arange(100_000, dtype=np.float32).tofile(path)
    with open(path, "rb") as file:
        numbers = np.frombuffer(MappedFile(file.fileno(), str(path)), np.float32)
    for count in (1000, 100_000):
        weight = WeightExpr("w", (TensorType(f32, (count,)),), data=numbers[:count], is_weight=True)
        array = WeightStore().array(PackedWeight("w", weight, "raw", False, None))
        assert np.array_equal(array, numbers[:count])
        assert np.shares_memory(array, numbers) == (count == 100_000)


def test_safetensors_cut_while_open(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    path = Path(folder) / "model.safetensors"
    with open(path, "rb") as file:
        tensors = read_safetensors(file.fileno(), str(path))
        expected = {name: tensor.array().copy() for name, tensor in tensors.items()}
        os.truncate(path, 100)
        assert all(np.array_equal(tensors[name].array(), array) for name, array in expected.items())


def resident(path: Path) -> int:
    """KiB of a file that this process has mapped."""
    found, is_mapping = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_mapping = line.endswith(str(path))
        elif is_mapping and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.parametrize("step", [100_000, 1 << 20, 5_000_001])
def test_nothing_stays_of_what_is_let_go_part_by_part(tmp_path: Path, step: int):
    """The system maps pages around one that is read: those of parts that were let go, too."""
    path = tmp_path / "large"
    path.write_bytes(bytes(24 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)  # the kernel reads ahead in larger pieces than it writes
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    whole = np.frombuffer(MappedFile(descriptor, str(path)), np.uint8)
    os.close(descriptor)
    assert not whole.any() and resident(path) > 20 << 10
    files.release(whole)
    begins = range(0, whole.size, step)
    for number, begin in enumerate([*begins[::2], *begins[1::2]]):
        part = whole[begin : begin + step]
        assert not part.any() and (number % 16 or resident(path) > 0)  # which takes its time to say
        files.release(part)
    assert resident(path) == 0
