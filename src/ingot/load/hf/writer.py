"""Write model folders: the file of weights, tensor by tensor, and copies of the other files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from ingot.ir.dtype import DType, from_numpy
from ingot.load.hf.folder import OWN_TEMPLATE, Folder
from ingot.load.hf.quantized import CODES, SCALES, ZEROS
from ingot.load.hf.safetensors import DTYPES, StoredTensor
from ingot.support.files import release, written

MAX_COPIED_BYTES = 256 << 20  # of a tokenizer or another file that is copied
_COPIED = re.compile(r"(?!\.).*\.(json|jinja|txt|model|md)|LICENSE.*|NOTICE.*")
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH_BYTES = 8  # of the header's length
_ALIGNMENT = 64
_BLOCK_BYTES = 4 << 20  # of a tensor that is written, at a time


def copy_others(folder: Folder, target: Path, config: bytes | None = None) -> None:
    """Copy the files other than weights from a folder to another. config: the content of the new config.json. A given
    template is written as `ingot.yaml`.

    Raises OutputError, and the errors of reading the folder.
    """
    for name in (*sorted(filter(_COPIED.fullmatch, folder.names)), *folder.templates()):
        if name.endswith(".safetensors.index.json"):
            continue
        content = folder.content(name, MAX_COPIED_BYTES)
        assert content is not None
        (target / name).parent.mkdir(exist_ok=True)
        with written(target / name) as file:
            file.write(config if name == "config.json" and config is not None else content)
    if (own := folder.own_template) is not None:
        with written(target / OWN_TEMPLATE) as file:
            file.write(own[0].encode())


class SafetensorsWriter:
    """Write a safetensors file tensor by tensor, and finally its header, for which space is reserved.

    tensors: the source tensors; each becomes one or three tensors of the file.
    """

    def __init__(self, file: IO[bytes], tensors: Collection[StoredTensor]):
        self._file = file
        self._rows: dict[str, dict[str, object]] = {}
        most = 4 * sum(tensor.nbytes + 8 for tensor in tensors)
        longest = {
            f"{tensor.name}.{part}": _row("BF16", tensor.shape, most, most)
            for tensor in tensors
            for part in (CODES, SCALES, ZEROS)
        }
        self._reserved_bytes = -(-(_LENGTH_BYTES + len(_text(longest))) // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = 0
        file.write(bytes(self._reserved_bytes))

    def write(self, array: np.ndarray) -> None:
        """Write the elements of a tensor, or some of them; pages read from a mapped file are released."""
        flat = array.reshape(-1)
        step = _BLOCK_BYTES // array.itemsize
        for begin in range(0, flat.size, step):
            part = flat[begin : begin + step]
            self._file.write(part.view(np.uint8).data)
            release(part)
        self.nbytes += array.nbytes

    def name(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        """Name the tensor whose elements were written last."""
        begin = self.nbytes - dtype.nbytes(math.prod(shape))
        self._rows[name] = _row(_NAMES[dtype], shape, begin, self.nbytes)

    def add(self, name: str, array: np.ndarray) -> None:
        """Write a whole tensor."""
        self.write(array)
        self.name(name, from_numpy(array.dtype), array.shape)

    def finish(self) -> None:
        """Write the header."""
        text = _text(self._rows).ljust(self._reserved_bytes - _LENGTH_BYTES)
        self._file.seek(0)
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)


def _row(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _text(rows: Mapping[str, object]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()
