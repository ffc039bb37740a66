"""Model folders: what is read, what is refused, and that nothing is read before it is asked for."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save, save_file

from attacks.hostile_folders import ATTACKS, LAYOUTS, Attack, packed
from ingot.errors import IngotError, LoadError, UnsupportedError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.folder import Folder, read_folder
from ingot.load.hf.safetensors import DTYPES
from places import KIT

RANDOM = np.random.default_rng(0)
TENSORS = {
    "w": RANDOM.standard_normal((3, 5)).astype(np.float32),
    "h": RANDOM.standard_normal((2, 2, 4)).astype(np.float16),
    "b": RANDOM.standard_normal(7).astype(ml_dtypes.bfloat16),
    "mask": np.array([True, False, True]),
    "ids": np.arange(6, dtype=np.int64).reshape(2, 3),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5),
}
CONFIG = {"model_type": "llama", "hidden_size": 8, "nested": {"list": [1, 2.5, None, True, "ü"]}}


def write_folder(folder: Path, content: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(save(TENSORS) if content is None else content)
    return folder


def expect_tensors(folder: Path) -> None:
    read = read_folder(folder)
    assert read.config == CONFIG and set(read.tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        stored = read.tensors[name]
        array = stored.array()
        assert (stored.name, stored.shape, stored.nbytes) == (name, expected.shape, expected.nbytes)
        assert array.dtype == stored.dtype.numpy == expected.dtype and not array.flags.writeable
        np.testing.assert_array_equal(array, expected)


def test_single_file(tmp_path: Path) -> None:
    expect_tensors(write_folder(tmp_path))


def test_shards(tmp_path: Path) -> None:
    """Files that the index does not name are not read; its metadata describe, and nothing relies on them."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    parts = {"model-00001-of-00002.safetensors": ["w", "h", "b"], "model-00002-of-00002.safetensors": list(TENSORS)[3:]}
    for file, names in parts.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / file)
    (tmp_path / "consolidated.safetensors").write_bytes(b"not read")
    index = {"metadata": {"total_size": 1}, "weight_map": {n: file for file, names in parts.items() for n in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    expect_tensors(tmp_path)


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"ä": 1}')
    (tmp_path / "latin.txt").write_bytes("ä".encode("latin-1"))
    folder = Folder(tmp_path)
    assert folder.text("tokenizer.json", 9) == '{"ä": 1}' and folder.json("tokenizer.json", 9) == {"ä": 1}
    assert folder.text("chat_template.jinja", 9) is None and folder.json("generation_config.json", 9) is None
    with pytest.raises(IngotError, match=r"tokenizer.json: too large, got 9 bytes, expected at most 8"):
        folder.text("tokenizer.json", 8)
    with pytest.raises(LoadError, match=r"latin.txt: not UTF-8"):
        folder.text("latin.txt", 9)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        read_folder(tmp_path / "file")


def test_code_in_a_folder_is_data(tmp_path: Path) -> None:
    """C1: `auto_map` and `trust_remote_code` change nothing, and the file that they name is not run."""
    write_folder(tmp_path)
    config = CONFIG | {"auto_map": {"AutoConfig": "code.Config"}, "trust_remote_code": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')")
    assert read_folder(tmp_path).config == config
    assert not (tmp_path / "touched").exists()


# -- links ------------------------------------------------------------------------------------------------------


def cached_snapshot(cache: Path, is_shared: bool) -> Path:
    """The folder of a snapshot as the hub's cache lays it out; shared: blobs are links to those of the whole cache."""
    repository = cache / "models--some--model"
    snapshot = repository / "snapshots" / "0123abcd"
    for name, content in (("config.json", json.dumps(CONFIG).encode()), ("model.safetensors", save(TENSORS))):
        blob = repository / "blobs" / f"{name}-hash"
        blob.parent.mkdir(parents=True, exist_ok=True)
        snapshot.mkdir(parents=True, exist_ok=True)
        if is_shared:
            stored = cache / "blobs" / "ab" / f"{name}-hash"
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_bytes(content)
            blob.symlink_to(os.path.relpath(stored, blob.parent))
        else:
            blob.write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


def test_cached_snapshot(tmp_path: Path) -> None:
    expect_tensors(cached_snapshot(tmp_path, is_shared=False))
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "models--some--model" / "snapshots" / "0123abcd")
    expect_tensors(linked)


def test_cached_snapshot_with_shared_blobs(tmp_path: Path) -> None:
    snapshot = cached_snapshot(tmp_path, is_shared=True)
    with pytest.raises(LoadError, match="leads outside the folder"):
        read_folder(snapshot)
    (tmp_path / "blobs" / ".huggingface-shared-blobs").write_text("1")
    expect_tensors(snapshot)


def test_links_leave_a_snapshot_nowhere_else(tmp_path: Path) -> None:
    snapshot = cached_snapshot(tmp_path, is_shared=False)
    other = write_folder(tmp_path / "models--other--model" / "blobs")
    for target in (other / "config.json", "../../refs", "/etc/passwd"):
        (snapshot / "config.json").unlink()
        (snapshot / "config.json").symlink_to(target)
        with pytest.raises(LoadError, match="leads outside the folder"):
            read_folder(snapshot)


def test_links_inside_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "stored").mkdir()
    (tmp_path / "model.safetensors").rename(tmp_path / "stored" / "weights")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "stored" / "weights")
    expect_tensors(tmp_path)


# -- bad input --------------------------------------------------------------------------------------------------


def open_all(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.array() for name, tensor in read_folder(folder).tensors.items()}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a[0].replace("\0", "NUL").encode("unicode_escape").decode())
def test_attack(attack: Attack, tmp_path: Path) -> None:
    """One typed error, which names the file; the same at the second try; nothing is run."""
    _, build, error, fragment = attack
    folder = tmp_path / "model"
    folder.mkdir()
    build(folder)
    messages = []
    for _ in range(2):
        with pytest.raises(IngotError) as caught:
            open_all(folder)
        assert type(caught.value) is error and fragment in str(caught.value), f"{type(caught.value)}: {caught.value}"
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and messages[0].startswith(str(folder)) and len(messages[0]) < 2500
    assert messages[0].isprintable()


@pytest.mark.parametrize("flag", [pytest.param("-O", marks=pytest.mark.slow), "-OO"])
def test_attacks_without_asserts(flag: str) -> None:
    """No `assert` guards input: interpreters that drop them refuse the same. -OO drops all that -O does."""
    tests = KIT
    result = subprocess.run(
        [sys.executable, flag, "-m", "attacks"],
        cwd=tests,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"attacks, optimised {len(flag) - 1}" in result.stdout


def attempt(folder: Path, content: bytes) -> bool:
    """Whether a file is accepted; if so, the reference implementation reads the same, down to the bytes."""
    (folder / "model.safetensors").write_bytes(content)
    try:
        found = open_all(folder)
    except IngotError:
        return False
    expected = dict(safetensors.deserialize(content))
    assert set(found) == set(expected)
    for name, array in found.items():
        row = expected[name]
        assert (DTYPES[row["dtype"]].numpy, row["shape"]) == (array.dtype, list(array.shape))
        assert array.tobytes() == bytes(row["data"])
    return True


SMALL = {"w": TENSORS["w"], "b": TENSORS["b"], "empty": TENSORS["empty"]}


def test_truncated_everywhere(tmp_path: Path) -> None:
    content = save(SMALL, {"format": "pt"})
    write_folder(tmp_path, content)
    for length in range(len(content)):
        assert not attempt(tmp_path, content[:length])
    assert attempt(tmp_path, content)


def test_every_flipped_bit(tmp_path: Path) -> None:
    content = save(SMALL, {"format": "pt"})
    write_folder(tmp_path, content)
    data_bytes = sum(array.nbytes for array in SMALL.values())
    accepted = 0
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        accepted += attempt(tmp_path, bytes(flipped))
    assert 8 * data_bytes <= accepted < 4 * len(content)  # a format without a checksum takes any data


def test_spliced_headers(tmp_path: Path) -> None:
    """Pieces of headers, good and bad, put together at random."""
    chance = random.Random(2)
    header = save(SMALL)[8:].partition(b"}}")[0] + b"}}"
    cuts = [i for i, byte in enumerate(header) if byte in b'{}[],:"']
    pieces = [header[a:b] for a, b in itertools.pairwise(cuts)] + [b"0", b"1", b"-1", b"16", b'"U8"', b"[]", b"{}"]
    data = bytes(sum(array.nbytes for array in SMALL.values()))
    write_folder(tmp_path, packed(header, data))
    assert attempt(tmp_path, packed(header, data))
    for _ in range(2000):
        parts = [header[a:b] for a, b in itertools.pairwise([0, *cuts, len(header)])]
        for _ in range(chance.randrange(1, 4)):
            parts[chance.randrange(len(parts))] = chance.choice(pieces)
        attempt(tmp_path, packed(b"".join(parts), data[: chance.choice((None, 8))]))


@pytest.mark.parametrize("attack", LAYOUTS, ids=lambda a: a[0])
def test_the_reference_accepts_no_more(attack: Attack, tmp_path: Path) -> None:
    """Of the layouts that are refused, the reference implementation accepts only those that Ingot cannot hold."""
    name, build, error, _ = attack
    build(tmp_path)
    with contextlib.suppress(safetensors.SafetensorError):
        with safetensors.safe_open(tmp_path / "model.safetensors", "numpy") as file:
            file.keys()
        assert error is UnsupportedError or name in ("S8 empty, product vast", "S9 rank 100000", "S10 BOOL byte 2")


def test_problems_are_listed(tmp_path: Path) -> None:
    """All at once, the first twenty in words."""
    write_folder(tmp_path, packed(json.dumps({f"t{i}": {} for i in range(30)}), b""))
    with pytest.raises(LoadError, match=r"'t0': got .*'t19': got .*; and more"):
        read_folder(tmp_path)


# -- mapping ----------------------------------------------------------------------------------------------------


def test_nothing_is_read(tmp_path: Path) -> None:
    """A file of 256 GiB without contents: whoever reads it takes minutes."""
    rows, columns = 1 << 18, 1 << 18
    header = json.dumps({"w": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, 4 * rows * columns]}})
    write_folder(tmp_path, packed(header, b""))
    os.truncate(tmp_path / "model.safetensors", 8 + len(header) + 4 * rows * columns)
    graph = Graph()
    x = graph.add_input("x", TensorType(f32, (1, rows)))
    weight = graph.add_weight("w", read_folder(tmp_path).tensors["w"].array())
    graph.outputs["y"] = graph.add("matmul", [x, weight]).output
    graph.validate()
    assert graph.type("w").nbytes == 256 << 30


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8], ids=lambda d: d.__name__)
def test_empty_and_vast(dtype: type, tmp_path: Path) -> None:
    """S8: no element, whatever the other dims."""
    name = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}[dtype.__name__]
    shape = [0, (1 << 62) // np.dtype(dtype).itemsize]
    header = {n: {"dtype": name, "shape": s, "data_offsets": [0, 0]} for n, s in (("a", shape), ("b", [3, 0]))}
    write_folder(tmp_path, packed(json.dumps(header), b""))
    arrays = open_all(tmp_path)
    assert arrays["a"].shape == tuple(shape) and arrays["b"].shape == (3, 0) and arrays["a"].dtype == dtype
