"""Emitted C of dims with a limit: each run sets its sizes, and gives the bits of a session that is bound to these."""

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from test_states import aligned
from torch import nn
from torch.export import Dim

import ingot
import models
from emitted_together import by
from ingot.emit.c import Vector, emit
from ingot.errors import InputError, UnsizedError
from ingot.ir.dtype import DTYPES
from ingot.ir.text import parse
from ingot.run.store import WeightStore
from op_cases import same_bits

MOST = {"batch": 3, "length": 33}
# Plain C with the one instruction that its sums want.
FLAGS = "-O1 -mfma -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
Arrays = dict[str, np.ndarray]


class Encoder(nn.Module):
    """Tokens through a transformer block, every second position of which is taken by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(61, 32), models.Block(32, 4, "sdpa", False)
        self.shrink = nn.Conv1d(32, 16, 3, stride=2, padding=1)

    def forward(self, ids):
        h = self.block(self.tokens(ids))
        return h, torch.relu(self.shrink(h.permute(0, 2, 1))), h.mean(-1)


class Decoder(nn.Module):
    """Tokens through a block that looks back alone, to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(61, 32), models.Block(32, 4, "manual", True)
        self.logits = nn.Linear(32, 61, bias=False)

    def forward(self, ids):
        return self.logits(self.block(self.tokens(ids)))


class Sounds(nn.Module):
    """Frames through convolutions along them: with a step, a dilated one, one for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(8, 24, 3, padding=1), nn.GELU(), nn.Conv1d(24, 24, 3, 2, 1), nn.ReLU(),
            nn.Conv1d(24, 24, 3, padding=2, dilation=2, groups=24), nn.SiLU(), nn.Conv1d(24, 5, 1),
        )  # fmt: skip

    def forward(self, x):
        h = self.layers(x)
        return h, h.softmax(1), x.amax(-1)


class Pair(nn.Module):
    """Rows that look at other rows, of which there are any number too."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(16, 24), nn.Linear(12, 24)

    def forward(self, x, y):
        keys = self.key(y)
        return (self.query(x) @ keys.transpose(-2, -1)).softmax(-1) @ keys, y.cumsum(0)


TOKENS = torch.ones(2, 6, dtype=torch.long)
# Modules, their inputs, the dims of these that may change, and the most of each.
MODELS: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...], dict[str, dict[int, str]], dict[str, int]]] = {
    "encoder": (Encoder, (TOKENS,), {"ids": {0: "batch", 1: "length"}}, MOST),
    "decoder": (Decoder, (TOKENS,), {"ids": {0: "batch", 1: "length"}}, {"batch": 2, "length": 35}),
    "sounds": (Sounds, (torch.ones(1, 8, 20),), {"x": {2: "length"}}, {"length": 40}),
    "pair": (
        Pair,
        (torch.ones(4, 16), torch.ones(5, 12)),
        {"x": {0: "rows"}, "y": {0: "others"}},
        {"rows": 20, "others": 34},
    ),
}


class Sized:
    """An emitted model of the table and its library; a session that has a program for each size."""

    def __init__(self, folder: Path, threads: int, model: str = "encoder"):
        make, inputs, dynamic, most = MODELS[model]
        torch.manual_seed(0)
        dims = {name: Dim(name, min=3 if name == "length" else 1, max=99) for name in most}
        shapes = {name: {axis: dims[symbol] for axis, symbol in axes.items()} for name, axes in dynamic.items()}
        program = torch.export.export(models.seeded(make), inputs, dynamic_shapes=shapes)
        self.each = ingot.InferenceSession(program, threads=1, dims={})
        self.limits = dict(zip(self.each.graph.symbols, most.values(), strict=True))
        limits = {name: ingot.at_most(most) for name, most in self.limits.items()}
        session = ingot.InferenceSession(program, threads=1, dims=limits)
        feeds = self.feeds(*(2, 7)[-len(most) :])
        outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
        emit(
            session.graph, session.weights, folder, limits=self.limits, threads=threads, vector=Vector(feeds, outputs)
        )  # fmt: skip
        self.folder = folder
        source = folder / "model.c"
        source.write_text(by(source.read_text(), "portable"))
        checks = " -DMODEL_CHECK" if threads == 1 else ""  # which is for one
        objects = sorted(path.name.replace(".c", ".o") for path in folder.glob("model*.c"))
        for words in (
            ["make", f"CFLAGS={FLAGS}{checks} -fPIC", "model"],
            ["cc", "-shared", *objects, "-lm", "-pthread", "-o", "libmodel.so"],
        ):
            made = subprocess.run(words, cwd=folder, capture_output=True, text=True)
            assert made.returncode == 0, made.stderr
        self._c = ctypes.CDLL(str(folder / "libmodel.so"))
        self._c.model_init.restype = ctypes.c_void_p
        self._layout = json.loads((folder / "layout.json").read_text())
        self._memory, self._weights = (
            aligned(each()) for each in (self._c.model_state_bytes, self._c.model_weights_bytes)
        )
        self._weights[:] = np.fromfile(folder / "weights.bin", np.uint8)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (self._memory, self._weights))
        self._state = ctypes.c_void_p(self._c.model_init(*pointers, threads))

    def feeds(self, *sizes: int) -> Arrays:
        """Inputs of some sizes, in the order of the limits."""
        values = dict(zip(self.limits, sizes, strict=True))
        draw = np.random.default_rng(sizes)
        feeds = {}
        for argument in self.each.get_inputs():
            shape = [values[dim] if isinstance(dim, str) else dim for dim in argument.shape]
            is_ids = argument.type == "tensor(int64)"
            feeds[argument.name] = draw.integers(0, 61, shape) if is_ids else draw.standard_normal(shape, np.float32)
        return feeds

    def run(self, feeds: Arrays, *sizes: int) -> tuple[int, list[np.ndarray]]:
        """What a run returns, and its outputs, in the shapes that it tells."""
        rows = {(row["kind"], row["name"]): row for row in self._layout["tensors"]}
        made = [rows["output", name] for name in self._layout["outputs"].values()]
        room = [np.zeros(int(np.prod(row["shape"])), DTYPES[row["dtype"]].numpy) for row in made]
        inputs = (ctypes.c_int64 * (len(feeds) + len(sizes)))(
            *(feeds[name].ctypes.data for name in self._layout["inputs"].values()), *sizes
        )
        header = (self.folder / "model.h").read_text()
        ranks = [
            len(row["shape"]) * (f"{c}_dims[" in header) for c, row in zip(self._layout["outputs"], made, strict=True)
        ]
        outputs = (ctypes.c_int64 * (len(room) + sum(ranks)))(*(array.ctypes.data for array in room))
        code = self._c.model_run(self._state, inputs, outputs)
        told, shapes = list(outputs)[len(room) :], []
        for rank, row in zip(ranks, made, strict=True):
            shapes.append(tuple(told[:rank] if rank else row["shape"]))
            del told[:rank]
        return code, [array[: np.prod(shape)].reshape(shape) for array, shape in zip(room, shapes, strict=True)]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 3])
def sized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sized:
    return Sized(tmp_path_factory.mktemp("sized"), request.param)


def test_bits_of_every_size(sized: Sized) -> None:
    for sizes in ((1, 1), (3, 33), (2, 16), (1, 33), (3, 1), (1, 2), (2, 17), (1, 31)):
        feeds = sized.feeds(*sizes)
        code, got = sized.run(feeds, *sizes)
        expected = sized.each.run(None, feeds)
        assert code == 0
        assert [array.shape for array in got] == [array.shape for array in expected]
        assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True)), sizes


@pytest.mark.parametrize("model", [name for name in MODELS if name != "encoder"])
def test_bits_of_any_size_of_other_models(tmp_path: Path, model: str) -> None:
    """Every size of the last symbol, and some of the others."""
    sized = Sized(tmp_path, 1, model)
    *others, last = sized.limits.values()
    for size in range(1, last + 1):
        sizes = [1 + size % most for most in others] + [size]
        feeds = sized.feeds(*sizes)
        code, got = sized.run(feeds, *sizes)
        expected = sized.each.run(None, feeds)
        assert code == 0
        assert [array.shape for array in got] == [array.shape for array in expected]
        assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True)), sizes


@pytest.mark.parametrize("sizes", [(1, 34), (4, 5), (0, 5), (1, 0), (-1, 3), (1, 1 << 40)])
def test_a_size_beyond_its_limits_is_an_error(sized: Sized, sizes: tuple[int, int]) -> None:
    code, got = sized.run(sized.feeds(3, 33), *sizes)
    assert code == 2 and not any(array.any() for array in got)


def test_an_index_outside_is_an_error_at_every_size(sized: Sized) -> None:
    feeds = sized.feeds(1, 5)
    next(iter(feeds.values()))[0, 4] = 61
    assert sized.run(feeds, 1, 5)[0] == 1
    assert sized.run(feeds, 1, 4)[0] == 0  # memory after the length is not read


def test_the_program_takes_sizes_from_files_and_words(sized: Sized) -> None:
    def program(*words: str) -> tuple[int, str]:
        done = subprocess.run(["./model", *words], cwd=sized.folder, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, out = program("--check", "test")
    assert code == 0 and out.count("the bits of") == 3
    (array,) = (feeds := sized.feeds(2, 9)).values()
    np.save(sized.folder / "ids.npy", array)
    (sized.folder / "ids.raw").write_bytes(array.tobytes())
    batch, length = json.loads((sized.folder / "layout.json").read_text())["sizes"]
    first, second, _ = json.loads((sized.folder / "layout.json").read_text())["outputs"]
    expected = sized.each.run(None, feeds)
    for words in (["ids=ids.npy"], ["ids=ids.raw", f"{batch}=2", f"{length}=9"]):
        code, out = program(*words, f"{first}=y.npy", f"{second}=z.npy")
        assert (code, "f32[2, 9, 32]: y.npy" in out) == (0, True), out
        assert same_bits(np.load(sized.folder / "y.npy"), expected[0])
        assert same_bits(np.load(sized.folder / "z.npy"), expected[1])
    assert f"{length}  1 to 33" in program("--help")[1]
    np.save(sized.folder / "long.npy", sized.feeds(2, 40)["ids"])
    for words, wrong, message in (
        (["ids=ids.raw"], 2, f"{batch}: has no value"),
        (["ids=ids.raw", f"{batch}=2", f"{length}=x"], 2, "no number"),
        (["ids=ids.raw", f"{batch}=2", f"{length}=8"], 65, "got more than 128 bytes"),
        (["ids=long.npy"], 65, f"{length}: out of range, got 40, expected 1 to 33"),
        (["ids=ids.npy", f"{length}=8"], 65, "ids.npy: of another shape or type"),
    ):
        code, out = program(*words)
        assert code == wrong and message in out, out


MEAN = """graph mean
input x: f32[n, 8]
sizes = dims(values=[n]): i64[1]
count = cast(sizes, dtype=@f32): f32[1]
total = reduce_sum(x, axes=[0], keepdims=false): f32[8]
y = div(total, count): f32[8]
output y = y
"""


def test_where_there_is_no_one_program(tmp_path: Path) -> None:
    with pytest.raises(UnsizedError, match="computes from sizes only"):
        emit(parse(MEAN), WeightStore(), tmp_path, limits={"n": 9})
    with pytest.raises(InputError, match="dims have no values"):
        emit(parse(MEAN), WeightStore(), tmp_path)
