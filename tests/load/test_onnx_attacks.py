"""Hostile ONNX files: each gets one typed error, and nothing outside the model's folder is touched."""

import contextlib
import itertools
import os
import random
import re
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attacks.hostile_families import FAMILIES
from attacks.hostile_onnx import ATTRIBUTES, BOMBS, FILES, GRAPHS, TENSORS, Attack, chain, changed, graph, node, one
from attacks.hostile_subgraphs import SUBGRAPHS
from attacks.hostile_types import TYPES
from attacks.hostile_values import VALUES
from ingot.errors import IngotError, LimitError, LoadError
from ingot.load.onnx import load_onnx
from ingot.load.onnx import model as loader
from ingot.load.onnx.signature import OPTIONAL_SOON
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_cases import NODES
from onnx_models import Case, ints, one_node, run_oracle, text_model, value_info
from opened import watched


@pytest.mark.parametrize(
    "attack",
    [*FILES, *GRAPHS, *TENSORS, *ATTRIBUTES, *BOMBS, *SUBGRAPHS, *TYPES, *FAMILIES, *VALUES],
    ids=lambda a: a[0],
)
def test_attack(attack: Attack) -> None:
    _, build, error, fragment = attack
    source = build()
    content = source if isinstance(source, bytes) else source.SerializeToString()
    with pytest.raises(IngotError) as caught:
        load_onnx(content)
    assert type(caught.value) is error and fragment in str(caught.value), f"{type(caught.value)}: {caught.value}"
    assert len(str(caught.value)) < 2000


def required_inputs(case: Case) -> list[int]:
    """The inputs that the schema of a case's op requires, of those that it has; none outside of ONNX's own domain."""
    if case.domain or not onnx.defs.has(case.op, case.opset):
        return []
    formals = onnx.defs.get_schema(case.op, case.opset).inputs
    count = len(case.operands.split())
    kinds = [formals[min(i, len(formals) - 1)].option for i in range(count)]
    required = [i for i, kind in enumerate(kinds) if kind != onnx.defs.OpSchema.FormalParameterOption.Optional]
    return [i for i in required if (case.op, formals[min(i, len(formals) - 1)].name) not in OPTIONAL_SOON]


@pytest.mark.parametrize("known", [False, True], ids=["fed", "known"])
def test_required_input_left_out(known: bool, rng: np.random.Generator) -> None:
    """Given as "", it is an error that names the node and the input, whatever else is known at load."""
    tried = 0
    for case in NODES:
        for index in required_inputs(case):
            proto, feeds = one_node(case, rng)
            if known:
                del proto.graph.input[:]
                proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in feeds.items())
            proto.graph.node[0].input[index] = ""
            with pytest.raises(LoadError) as caught:
                load_onnx(proto.SerializeToString())
            message = f"onnx node 'tested' ({case.op}): input {index} is missing"
            assert type(caught.value) is LoadError and message in str(caught.value), f"{case}: {caught.value}"
            tried += 1
    assert tried > 200


def branches_of_two_ranks(name: str, opset: int) -> tuple[onnx.NodeProto, list]:
    """A node that makes `u`, of unknown rank, of a value; and the constant that it reads."""
    axes = {"axes": [0]} if opset < 13 else {}
    names = [name] if axes else [name, "front"]
    bodies = [
        helper.make_graph([node(op, operands, [made], **given)], made, [], [onnx.ValueInfoProto(name=made)])
        for op, operands, made, given in (("Identity", [name], "same", {}), ("Unsqueeze", names, "more", axes))
    ]
    constants = [] if axes else [numpy_helper.from_array(ints(0), "front")]
    return node("If", ["either"], ["unranked"], then_branch=bodies[0], else_branch=bodies[1]), constants


def test_operands_of_unknown_rank(rng: np.random.Generator) -> None:
    """Every op accepts them, or reports an error: those whose dims it has to know, too."""
    computed, refused = 0, 0
    for case in {(case.domain, case.op): case for case in NODES}.values():
        for index, name in enumerate(one_node(case, rng)[0].graph.node[0].input):
            proto, feeds = one_node(case, rng)
            if name not in feeds or index > 2:
                continue
            expected = interpret(load_onnx(proto.SerializeToString()), feeds)
            branches, constants = branches_of_two_ranks(name, case.opset)
            proto.graph.node[0].input[index] = "unranked"
            nodes = [branches, *proto.graph.node]
            del proto.graph.node[:]
            proto.graph.node.extend(nodes)
            proto.graph.initializer.extend(constants)
            proto.graph.input.append(value_info("either", np.array(True)))
            try:
                results = interpret(load_onnx(proto.SerializeToString()), {**feeds, "either": np.array(True)})
            except IngotError as error:
                assert re.search("onnx node 'tested'.*a tensor of known rank is needed|wrong rank", str(error)), case
                refused += 1
                continue
            for key, wanted in expected.items():
                np.testing.assert_array_equal(results[key], wanted, f"{case}, input {index}")
            computed += 1
    assert computed > 300 > 75 > refused


def test_many_ranks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operand of an unknown rank takes so many times the nodes."""
    monkeypatch.setattr(loader, "MAX_RANKED_NODES", 300)
    branches = (
        "then_branch = a{0} () => (p{0}) {{ p{0} = Gather(x, i) }}, else_branch = b{0} () => (q{0}) {{ q{0} = Neg(x) }}"
    )
    parts = " ".join(f"t{i} = If (c) <{branches.format(i)}>" for i in range(4))
    text = f"g (float[2, 3] x, bool c, int64 i) => (y) {{ {parts} y = Concat<axis=0>(t0, t1, t2, t3) }}"
    with pytest.raises(LimitError, match=r"onnx node 'y' .Concat.: too many nodes for ranks"):
        load_onnx(text_model(text))


LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def extreme(number: int) -> dict[str, onnx.ModelProto]:
    """Models that take a number for an index, a bound, a step, a size, an axis or a count."""
    scalar, vector, zero = np.array(number), ints(number), ints(0)
    bounds = {"a": vector, "b": zero, "c": zero, "d": ints(-1)}
    builders = {
        "gather": one("Gather", ["x", "i"], {"i": vector}),
        "gather of a scalar": one("Gather", ["w", "i"], {"w": ints(4, 5), "i": scalar}),
        "gather elements": one("GatherElements", ["w", "i"], {"w": ints(4, 5), "i": vector}),
        "gather nd": one("GatherND", ["w", "i"], {"w": ints(4, 5), "i": vector}),
        "slice from": one("Slice", ["x", "a", "b", "c"], bounds),
        "slice back from": one("Slice", ["x", "a", "b", "c", "d"], bounds),
        "slice to": one("Slice", ["w", "b", "a"], bounds | {"w": ints(4, 5)}),
        "slice by": one("Slice", ["w", "b", "d", "c", "a"], bounds | {"w": ints(4, 5)}),
        "slice along": one("Slice", ["x", "b", "d", "a"], bounds),
        "trilu": one("Trilu", ["x", "k"], {"k": scalar}),
        "sum along": one("CumSum", ["x", "k"], {"k": scalar}),
        "one hot": one("OneHot", ["i", "d", "v"], {"i": vector, "d": np.array(3), "v": ints(0, 1)}),
        "one hot of": one("OneHot", ["i", "d", "v"], {"i": zero, "d": scalar, "v": ints(0, 1)}),
        "eye": one("EyeLike", ["x"], k=number),
        "tile": one("Tile", ["x", "r"], {"r": ints(number, 1)}),
        "expand": one("Expand", ["x", "s"], {"s": ints(number, 1, 1)}),
        "shape": one("ConstantOfShape", ["s"], {"s": vector}),
        "reshape": one("Reshape", ["x", "s"], {"s": vector}),
        "squeeze": one("Squeeze", ["x", "a"], {"a": vector}),
        "unsqueeze": one("Unsqueeze", ["x", "a"], {"a": vector}),
        "pad": one("Pad", ["x", "p"], {"p": ints(number, 0, number, 0)}),
        "split": one("Split", ["x", "s"], {"s": vector}),
        "range by": one("Range", ["a", "b", "c"], {"a": np.array(0), "b": np.array(9), "c": scalar}),
        "shape from": one("Shape", ["x"], start=number),
    }
    return {name: build() for name, build in builders.items()}


@pytest.mark.parametrize("number", [LARGEST, SMALLEST, LARGEST - 1, 2**31, -(2**31) - 1])
def test_extreme_numbers(number: int) -> None:
    """A typed error, or the values of ONNX Runtime."""
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    answered = 0
    for name, proto in extreme(number).items():
        try:
            loaded = load_onnx(proto.SerializeToString())
            results = interpret(loaded, {key: feeds[key] for key in loaded.inputs})
        except IngotError:
            continue
        (expected,) = run_oracle("ort", proto, feeds)
        assert np.array_equal(results["y"], expected), name
        answered += 1
    assert answered > 3


def test_rows_of_nothing() -> None:
    """2**22 rows without an element are nothing: nowhere is there an object for each."""
    empty = TensorProto(name="z", data_type=TensorProto.INT64, dims=[2**22, 0])
    nodes = [node("Concat", ["z", "z"], ["h"], axis=1), node("Constant", [], ["c"], value=empty)]
    nodes += [node("Add", ["h", "c"], ["y"])]
    content = graph(nodes, constants=[empty]).SerializeToString()
    tracemalloc.start()
    loaded = load_onnx(content)
    (y,) = interpret(loaded, {"x": np.ones((2, 3), np.float32)}).values()
    (native,) = InferenceSession(loaded, threads=1).run(None, {"x": np.ones((2, 3), np.float32)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert y.shape == native.shape == (2**22, 0) and peak < 2**24


def test_rows_of_nothing_are_not_looked_at() -> None:
    """Loading computes nothing over many rows, whatever room the op's reference would take for them."""
    empty = TensorProto(name="z", data_type=TensorProto.INT64, dims=[2**22, 0])
    content = graph([node("Trilu", ["z"], ["y"])], constants=[empty]).SerializeToString()
    tracemalloc.start()
    assert len(load_onnx(content)) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("executor", ["native", "interpret"])
def test_results_without_memory(executor: str) -> None:
    """Sizes that pass the limits of a file but find no memory are a typed error, before anything is written."""
    content = one("Pad", ["x", "p"], {"p": ints(2**34, 0, 0, 0)})().SerializeToString()
    code = f"""
import resource, sys, numpy as np, ingot
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    session = ingot.InferenceSession({content!r}, executor={executor!r}, threads=1)
    session.run(None, {{"x": np.ones((2, 3), np.float32)}})
except ingot.errors.ResourceError as error:
    sys.exit(0 if "no memory" in str(error) else 1)
sys.exit(2)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_wide_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that call functions expand no further than the limit."""
    monkeypatch.setattr(loader, "MAX_INLINED_NODES", 2000)
    assert len(load_onnx(chain(5, 4).SerializeToString())) == 4**5
    with pytest.raises(LimitError, match="too many nodes after inlining"):
        load_onnx(chain(30, 4).SerializeToString())


def test_long_chain() -> None:
    """No recursion over nodes."""
    names = ["x", *(f"h{i}" for i in range(4999)), "y"]
    nodes = [node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    assert len(load_onnx(graph(nodes).SerializeToString())) == 5000


def small_model() -> bytes:
    """A few kinds of nodes, attributes and tensors in under 500 bytes."""
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    shape = numpy_helper.from_array(np.array([-1, 2], np.int64), "s")
    branch = helper.make_graph([node("Relu", ["r"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([node("Neg", ["r"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")])
    nodes = [
        node("Gemm", ["x", "w"], ["g"], alpha=0.5),
        node("Reshape", ["g", "s"], ["r"]),
        node("If", ["c"], ["i"], then_branch=branch, else_branch=other),
        node("Softmax", ["i"], ["y"], axis=-1),
    ]
    return graph(nodes, constants=[weight, shape, ("c", np.array(True))]).SerializeToString()


def attempt(content: bytes) -> None:
    """Loading gives a valid graph or an IngotError, nothing else."""
    with contextlib.suppress(IngotError):
        load_onnx(content).validate()


def test_truncated_everywhere() -> None:
    content = small_model()
    assert len(content) < 700
    for length in range(len(content)):
        attempt(content[:length])


def test_flipped_bits() -> None:
    content = small_model()
    for place in random.Random(0).sample(range(8 * len(content)), 1000):
        attempt(flipped(content, place))


@pytest.mark.slow
def test_every_flipped_bit() -> None:
    content = small_model()
    for place in range(8 * len(content)):
        attempt(flipped(content, place))


def flipped(content: bytes, place: int) -> bytes:
    """The content with one bit changed."""
    return content[: place // 8] + bytes([content[place // 8] ^ 1 << place % 8]) + content[place // 8 + 1 :]


def test_spliced_bytes() -> None:
    """Runs of bytes removed, repeated and replaced: lengths and tags that no longer fit."""
    content, chance = small_model(), random.Random(1)
    for _ in range(500):
        start, size = chance.randrange(len(content)), chance.randrange(1, 12)
        middle = chance.choice([b"", content[start : start + size] * 2, chance.randbytes(size), b"\xff" * size])
        attempt(content[:start] + middle + content[start + size :])


def test_small_model_is_right() -> None:
    x = np.ones((2, 3), np.float32)
    (y,) = interpret(load_onnx(small_model()), {"x": x}).values()
    assert np.allclose(y, [[1 / (1 + np.exp(1.5)), 1 / (1 + np.exp(-1.5))]] * 2)


def external(folder: Path, location: str, **entries: str) -> Path:
    """A model whose weight f32[2,3] is in a file of the given name."""

    def change(proto: onnx.ModelProto) -> None:
        weight = proto.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            weight.external_data.add(key=key, value=value)

    path = folder / "model.onnx"
    path.write_bytes(changed(change)().SerializeToString())
    return path


WEIGHT = np.arange(6, dtype=np.float32).tobytes()


def _symlink(folder: Path) -> None:
    (folder / "data").symlink_to(folder.parent / "secret")


def _symlinked_parent(folder: Path) -> None:
    (folder / "sub").symlink_to(folder.parent)


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "data"))


def _nothing(folder: Path) -> None:
    (folder / "sub").mkdir()


def _data(size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / "data").write_bytes((WEIGHT * 9)[:size])  # type: ignore[return-value]


LOCATIONS = [
    ("parent", "../secret", {}, _nothing, "outside the model's folder"),
    ("hidden parent", "sub/../../secret", {}, _nothing, "outside the model's folder"),
    ("absolute", "{secret}", {}, _nothing, "outside the model's folder"),
    ("device", "/dev/zero", {}, _nothing, "outside the model's folder"),
    ("dot", ".", {}, _nothing, "outside the model's folder"),
    ("drive", "C:\\secret", {}, _nothing, "not a relative path"),
    ("share", "\\\\host\\secret", {}, _nothing, "not a relative path"),
    ("marker", "*/_ORT_MEM_ADDR_/*", {"offset": "4096"}, _nothing, "does not exist"),
    ("nul", "da\0ta", {}, _nothing, "not a relative path"),
    ("empty", "", {}, _nothing, "not a relative path"),
    ("long", "a/" * 2500, {}, _nothing, "too long"),
    ("missing", "data", {}, _nothing, "does not exist"),
    ("symbolic link", "data", {}, _symlink, "a symbolic link"),
    ("linked folder", "sub/data", {}, _symlinked_parent, "cannot be opened"),
    ("directory", "sub", {}, _nothing, "not a regular file"),
    ("fifo", "data", {}, lambda folder: os.mkfifo(folder / "data"), "not a regular file"),
    ("socket", "data", {}, _socket, "not a regular file"),
    ("short", "data", {}, _data(23), "too short, got 23 bytes, expected 24"),
    ("nothing in it", "data", {}, _data(0), "too short"),
    ("offset -1", "data", {"offset": "-1"}, _data(24), "offset is not a byte count"),
    ("offset beyond", "data", {"offset": "25"}, _data(24), "too short"),
    ("offset huge", "data", {"offset": "9" * 40}, _data(24), "offset is not a byte count"),
    ("length -1", "data", {"length": "-1"}, _data(24), "length is not a byte count"),
    ("length 2**50", "data", {"length": str(2**50)}, _data(24), "wrong length"),
    ("length short", "data", {"length": "8"}, _data(24), "wrong length"),
    ("unknown key", "data", {"__class__": "x"}, _data(24), "unknown external_data key"),
]


@pytest.mark.parametrize("case", LOCATIONS, ids=lambda c: c[0])
def test_external_location(case: tuple, tmp_path: Path) -> None:
    """An error, and nothing outside of the model's folder is opened."""
    _, location, entries, prepare, fragment = case
    folder, outside = tmp_path / "folder", (tmp_path / "secret", tmp_path / "data")
    folder.mkdir()
    for file in outside:
        file.write_bytes(WEIGHT)
    prepare(folder)
    path = external(folder, location.format(secret=outside[0]), **entries)
    with watched(*outside) as opened, pytest.raises(LoadError, match=r"onnx file .*, initializer 'w'") as caught:
        load_onnx(path)
    assert fragment in str(caught.value) and not opened


def test_what_is_opened_is_seen(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(WEIGHT)
    path = external(tmp_path, "data")
    with watched(tmp_path / "data") as opened:
        load_onnx(path)
    assert opened


def test_external_data_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in place, from a folder below, through a hard link, at any offset, wherever the process is."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "origin").write_bytes(b"\0" * 8 + WEIGHT)
    os.link(tmp_path / "origin", tmp_path / "sub" / "data")
    path = external(tmp_path, "./sub/data", offset="8", length="24")
    monkeypatch.chdir(tmp_path)
    for source in (path, str(path), "model.onnx"):
        loaded = load_onnx(source)
        (weight,) = [v.data for v in loaded.values.values() if v.data is not None]
        assert weight.tobytes() == WEIGHT and not weight.flags.writeable
        (y,) = interpret(loaded, {"x": np.ones((2, 3), np.float32)}).values()
        assert np.array_equal(y, np.frombuffer(WEIGHT, np.float32).reshape(2, 3) + 1)


def test_external_data_of_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(WEIGHT)
    content = external(tmp_path, "data").read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="a model from bytes has no folder"):
        load_onnx(content)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_onnx(tmp_path / "missing.onnx")
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path, tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(LoadError, match="not a regular file"):
            load_onnx(other)
    with open(tmp_path / "large.onnx", "wb") as file:
        file.truncate(2**31)
    with pytest.raises(LimitError, match="file too large, got 2147483648 bytes"):
        load_onnx(tmp_path / "large.onnx")


def test_a_file_is_exchanged_for_a_link_while_it_is_opened(tmp_path: Path) -> None:
    """What is checked is what is read: the file's own bytes, or an error, and never what the link leads to."""
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(bytes(24))
    (folder / "data").write_bytes(WEIGHT)
    path, done = external(folder, "data"), threading.Event()

    def exchange() -> None:
        while not done.is_set():
            (folder / "own").write_bytes(WEIGHT)
            (folder / "own").replace(folder / "data")
            (folder / "link").symlink_to(secret)
            (folder / "link").replace(folder / "data")

    thread = threading.Thread(target=exchange)
    outcomes = set()
    with watched(secret) as opened:
        thread.start()
        try:
            for _ in range(100):
                try:
                    (found,) = [v.data for v in load_onnx(path).values.values() if v.data is not None]
                    outcomes.add(found.tobytes())
                except LoadError as error:
                    outcomes.add("link" if "symbolic link" in str(error) else str(error))
        finally:
            done.set()
            thread.join()
    assert outcomes <= {WEIGHT, "link"} and not opened
