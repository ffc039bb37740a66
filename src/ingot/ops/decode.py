"""Decode image files with Pillow, which is imported only here, and only when a graph requires it."""

from __future__ import annotations

import io
import struct
from types import ModuleType
from typing import Literal

import numpy as np

from ingot.errors import LimitError, ShapeError, UnsupportedError
from ingot.ir.dtype import u8
from ingot.ir.graph import TensorType
from ingot.ops.define import op, sample

MAX_ENCODED_BYTES = 2**28  # of a file
MAX_PIXELS = 2**26  # of a decoded image
FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")

# The errors that Pillow's formats raise for invalid bytes.
_BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, AttributeError, RuntimeError,
    struct.error,
)  # fmt: skip


def pillow() -> ModuleType:
    """Return Pillow's image module. Raises UnsupportedError if it is not installed."""
    try:
        import PIL.Image
    except ImportError as error:
        raise UnsupportedError("decode_image needs Pillow: pip install 'ingot-compiler[image]'") from error
    return PIL.Image


def _infer_decode(x, *, pixels):
    if x.dtype is not u8 or x.rank != 1:
        raise ShapeError(f"decode_image: bad operand, got {x}, expected the bytes of a file, u8[n]")
    return TensorType(u8, (None, None, 1 if pixels == "gray" else 3))


@op(
    infer=_infer_decode, computes=False, samples=[sample("x:u8<255[9]", pixels="rgb"), sample("x:u8[0]", pixels="gray")]
)
def decode_image(x, *, pixels: Literal["rgb", "bgr", "gray"]):
    """The image in a file [n] of one of `FORMATS`: u8 [height, width, 1 or 3].

    A broken file gives no pixels, as ONNX requires. Raises LimitError, before memory is allocated, for a file or an
    image that is too large.
    """
    images = pillow()
    if x.size > MAX_ENCODED_BYTES:
        raise LimitError(f"decode_image: file too large, got {x.size} bytes, expected at most {MAX_ENCODED_BYTES}")
    try:
        with images.open(io.BytesIO(x.tobytes()), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise LimitError(
                    f"decode_image: image too large, got {image.width} x {image.height}, expected at most {MAX_PIXELS}"
                )
            decoded = np.asarray(image.convert("L" if pixels == "gray" else "RGB"))
    except images.DecompressionBombError as error:
        raise LimitError(f"decode_image: image too large, expected at most {MAX_PIXELS} pixels: {error}") from error
    except _BROKEN:
        return np.zeros((0, 0, 1 if pixels == "gray" else 3), np.uint8)
    return (
        decoded[:, :, None]
        if pixels == "gray"
        else np.ascontiguousarray(decoded[:, :, :: -1 if pixels == "bgr" else 1])
    )
