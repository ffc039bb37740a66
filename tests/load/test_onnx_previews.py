"""Gradients against torch's, and image files that are broken, or larger than they look."""

import random
import struct
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
import torch

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.onnx import load_onnx
from ingot.ops.decode import MAX_ENCODED_BYTES, MAX_PIXELS, decode_image
from ingot.ops.strings import regex_full_match
from ingot.run.interpret import interpret
from onnx_image_cases import encoded
from onnx_models import text_model
from onnx_training_cases import GRADIENTS, gradient_model


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str, rng: np.random.Generator) -> None:
    nodes, function = GRADIENTS[name]
    feeds = {k: rng.uniform(0.5, 2, shape).astype(np.float32) for k, shape in (("a", (2, 3)), ("b", (2, 3)), ("c", 3))}
    graph = load_onnx(gradient_model(nodes))
    graph.validate()
    leaves = {k: torch.tensor(x, requires_grad=k != "b") for k, x in feeds.items()}
    y = function(*leaves.values())
    expected = torch.autograd.grad(y.sum(), [leaves["a"], leaves["c"]], materialize_grads=True)
    for got, wanted in zip(interpret(graph, feeds).values(), [y.detach(), *expected], strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (("Add(a, c)", "Softmax(a)"), UnsupportedError, "the derivative of softmax"),
        (("(a, c, b)", "(b, c, b)"), UnsupportedError, "at other values"),
        (('y="y"', 'y="z"'), LoadError, "'z' is not known"),
    ],
)
def test_gradient_that_is_refused(change: tuple[str, str], error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        load_onnx(gradient_model("y = Add(a, c)", *change))


def png(width: int, height: int) -> np.ndarray:
    """A file of a few bytes that declares many pixels, all of them black."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(bytes(min(width * height, 2**20)))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return np.frombuffer(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b""), np.uint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "height"), [(MAX_PIXELS // 4096, 4097), (30000, 30000), (2**31 - 1, 2**31 - 1)])
def test_a_decompression_bomb_takes_no_memory(width: int, height: int) -> None:
    bomb = png(width, height)
    tracemalloc.start()
    with pytest.raises(LimitError, match="image too large"):
        decode_image(bomb, pixels="rgb")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_file_that_is_too_large_is_not_read() -> None:
    with pytest.raises(LimitError, match="file too large"):
        decode_image(np.broadcast_to(np.uint8(0), MAX_ENCODED_BYTES + 1), pixels="rgb")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", ["png", "bmp", "jpeg", "jpeg2000", "tiff", "webp", "ppm"])
def test_broken_files(format: str) -> None:
    """An image of one shape or another, without any pixel where none can be read; never another error."""
    chance, whole = random.Random(0), encoded(format)
    for _ in range(60):
        broken = whole[: chance.randrange(len(whole))].copy() if chance.random() < 0.4 else whole.copy()
        for _ in range(chance.randrange(4)):
            broken[chance.randrange(min(len(broken), 200))] = chance.randrange(256) if len(broken) else 0
        try:
            image = decode_image(broken, pixels=chance.choice(["rgb", "gray"]))
        except LimitError:
            continue
        assert image.ndim == 3 and image.dtype == np.uint8


def test_other_formats_are_not_tried() -> None:
    assert decode_image(encoded("gif"), pixels="rgb").shape == (0, 0, 3)


@pytest.mark.parametrize(
    ("package", "extra", "body"),
    [
        ("PIL", "image", "g (uint8[n] x) => (uint8[h, w, 3] y) { y = ImageDecoder(x) }"),
        ("re2", "strings", 'g (string[n] x) => (bool[n] y) { y = RegexFullMatch<pattern="a+">(x) }'),
    ],
)
def test_without_a_package_the_load_names_the_extra_to_install(
    package: str, extra: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (package, f"{package}.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=rf"pip install 'ingot-compiler\[{extra}\]'"):
        load_onnx(text_model(body, 20))


def test_an_unpaired_surrogate_is_one_character() -> None:
    texts = np.array(["\ud800", "\ud800a", ""], object)
    assert regex_full_match(texts, pattern=".").tolist() == [True, False, False]
    assert regex_full_match(texts, pattern=r"\W?a?").tolist() == [True, True, True]
