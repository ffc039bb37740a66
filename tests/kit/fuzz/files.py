"""Targets that read files: models, weights, graphs, saved programs, states and checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.target import Accept, Target

SEPARATOR = b"\n--\0--\n"  # between the files of a target that reads several


def _memory() -> Path:
    """A new folder, below that of the process, which removes it."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _file(name: str) -> tuple[Path, Callable[[bytes], None]]:
    """A file in memory, and what gives it another content."""
    path = _memory() / name

    def fill(content: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    return path, fill


# -- ONNX -------------------------------------------------------------------------------------------------------------


def _onnx() -> Accept:
    from ingot.load.onnx import load_onnx

    return lambda content: load_onnx(content).validate()


def _onnx_seeds() -> list[bytes]:
    from onnx_damage import files
    from onnx_mutations import originals

    return [*files().values(), *[each for each in originals() if len(each) < 400][::8]]


def _onnx_mutant(content: bytes, chance: Random) -> bytes:
    from google.protobuf.message import DecodeError, EncodeError
    from onnx import load_from_string

    from onnx_mutations import MUTATIONS

    try:
        proto = load_from_string(content)
        chance.choice(MUTATIONS)(proto, chance)
        return proto.SerializeToString()
    except (DecodeError, EncodeError, ValueError, TypeError, RuntimeError):
        return content


def _wire() -> Accept:
    """The walker that cuts weights out of a message, which must leave what protobuf reads as it is."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    from ingot.errors import LoadError
    from ingot.load.onnx import message

    message._LEAST_BYTES = 16  # so that small inputs have weights to be cut out

    def walk(content: bytes) -> None:
        found = message.without_weights(memoryview(content))
        whole, rest = ModelProto(), ModelProto()
        try:
            whole.ParseFromString(content)
        except DecodeError as error:
            raise LoadError("not a message") from error
        rest.ParseFromString(bytes(found.content))
        for index, (offset, size) in found.raw.items():
            rest.graph.initializer[index].raw_data = content[offset : offset + size]
        if whole.SerializeToString(deterministic=True) != rest.SerializeToString(deterministic=True):
            raise AssertionError("the walker changed a message")

    return walk


def _wire_seeds() -> list[bytes]:
    from onnx import TensorProto, helper

    def model(*sizes: int) -> bytes:
        weights = [helper.make_tensor(f"w{n}", TensorProto.FLOAT, [n], bytes(4 * n), raw=True) for n in sizes]
        return helper.make_model(helper.make_graph([], "g", [], [], weights)).SerializeToString()

    return [model(), model(2), model(8), model(1, 20, 2, 30)]


# -- safetensors ------------------------------------------------------------------------------------------------------


def _safetensors() -> Accept:
    from ingot.load.hf.safetensors import read_safetensors

    path, fill = _file("model.safetensors")

    def read(content: bytes) -> None:
        fill(content)
        with open(path, "rb") as file:
            tensors = read_safetensors(file.fileno(), "model.safetensors")
        for tensor in tensors.values():
            tensor.array().sum(dtype=np.float64)

    return read


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _safetensors_seeds() -> list[bytes]:
    def row(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    return [
        with_header({}),
        with_header({"a": row("F32", [2, 2], 0, 16)}, bytes(16)),
        with_header({"__metadata__": {"format": "pt"}, "b": row("BOOL", [3], 0, 3)}, b"\1\0\1"),
        with_header(
            {"a": row("BF16", [2], 0, 4), "b": row("I64", [0, 7], 4, 4), "c": row("F64", [], 4, 12)}, bytes(12)
        ),
    ]


def _header_mutant(content: bytes, chance: Random) -> bytes:
    """Change one character of the header, whose length fits again."""
    size = int.from_bytes(content[:8], "little")
    text = bytearray(content[8 : 8 + size])
    if not text or size > len(content):
        return content
    at = chance.randrange(len(text))
    word = chance.choice((b"0", b"1", b"-1", b"9" * 20, b"[", b"]", b"{", b"}", b'"', b",", b":", b"1e3", b"true", b""))
    text[at : at + chance.randint(0, 2)] = word
    return with_header(bytes(text), content[8 + size :])


# -- GGUF -------------------------------------------------------------------------------------------------------------


def _gguf() -> Accept:
    from ingot.llm.tokenizer import Tokenizer
    from ingot.load.hf import load_language_model, longest_context
    from ingot.load.language import read_model

    path, fill = _file("model.gguf")

    def read(content: bytes) -> None:
        fill(content)
        model = read_model(path)
        Tokenizer.read(model).encode("ab ba")
        load_language_model(model, context=min(16, longest_context(model))).graph.validate()

    return read


def _gguf_seeds() -> list[bytes]:
    from attacks.hostile_gguf import ATTACKS, TOKENIZERS
    from gguf_damage import files

    found = list(files().values())
    for _, build, _, _ in (*ATTACKS, *TOKENIZERS):
        folder = _memory()
        build(folder)
        found.append((folder / "model.gguf").read_bytes())
    return [each for each in found if len(each) < 1 << 16]


# -- graphs and saved programs ----------------------------------------------------------------------------------------


def _graphs(least: int, most: int) -> list[Any]:
    from saved_mutants import sources

    return sources(0)[least:most]


def _text() -> Accept:
    """The text form of graphs: what is read is written, and read again as the same text."""
    import ingot.ops
    from ingot.ir.text import dump, parse

    assert ingot.ops

    def read(content: bytes) -> None:
        graph = parse(content.decode("utf-8", "replace"))
        graph.validate()
        text = dump(graph)
        if dump(parse(text)) != text:
            raise AssertionError("a text changes when it is read and written")

    return read


def _text_seeds() -> list[bytes]:
    from ingot.ir.text import dump

    return [text.encode() for graph, _ in _graphs(0, 400)[::3] if len(text := dump(graph)) < 1500]


def _text_mutant(content: bytes, chance: Random) -> bytes:
    from saved_mutants import Mutation

    text, _ = Mutation(content.decode("utf-8", "replace"), {}, b"", chance.getrandbits(32)).made()
    return text.encode("utf-8", "surrogatepass")


def _program() -> Accept:
    """A saved program whose hashes fit: whoever writes the folder can compute them."""
    from ingot import InferenceSession

    folder = _memory()

    def read(content: bytes) -> None:
        parts = content.split(SEPARATOR)
        text, rows, blob = [*parts, b"", b""][:3]
        fitting = _with_hashes(text, rows, blob)
        for name, each in (("graph.ingot", text), ("weights.json", fitting), ("weights.bin", blob)):
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(each)
        InferenceSession(folder, threads=1)

    return read


def _with_hashes(text: bytes, rows: bytes, blob: bytes) -> bytes:
    """A manifest with the hashes that it should have, where it has rows at all."""
    from ingot.ir.dtype import DTYPES
    from ingot.run.library import content_hash
    from ingot.session.saved_program import row_hash

    try:
        manifest = json.loads(rows)
    except (ValueError, RecursionError):
        return rows
    if not isinstance(manifest, dict):
        return rows
    manifest |= {"graph_sha256": hashlib.sha256(text).hexdigest(), "bytes": len(blob)}
    arrays = manifest.get("arrays")
    for key, row in arrays.items() if isinstance(arrays, dict) else ():
        if not isinstance(row, dict) or not isinstance(row.get("dtype"), str) or row["dtype"] not in DTYPES:
            continue
        shape, offset = row.get("shape"), row.get("offset")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= 1 << 20 for n in (*shape, offset)):
            continue
        size = DTYPES[row["dtype"]].itemsize * int(np.prod(shape, dtype=object))
        row["hash"] = row_hash(key, row, content_hash(np.frombuffer(blob[offset : offset + size], np.uint8).copy()))
    return json.dumps(manifest).encode()


def _program_seeds() -> list[bytes]:
    from ingot import InferenceSession

    found = []
    for graph, arrays in _graphs(0, 400)[::9]:
        session, folder = InferenceSession(graph, threads=1), _memory() / "program"
        session.run(None, arrays)
        session.save(folder)
        parts = [(folder / name).read_bytes() for name in ("graph.ingot", "weights.json", "weights.bin")]
        found.append(SEPARATOR.join(parts))
    return [each for each in found if len(each) < 6000]


def _program_mutant(content: bytes, chance: Random) -> bytes:
    from saved_mutants import Mutation

    parts = content.split(SEPARATOR)
    if len(parts) != 3:
        return content
    try:
        manifest = json.loads(parts[1])
    except (ValueError, RecursionError):
        return content
    if not isinstance(manifest, dict) or not manifest:
        return content
    mutation = Mutation(parts[0].decode("utf-8", "replace"), manifest, parts[2], chance.getrandbits(32))
    text, rows = mutation.made()
    return SEPARATOR.join([text.encode("utf-8", "surrogatepass"), rows.encode(), parts[2]])


# -- states and checkpoints -------------------------------------------------------------------------------------------


def _types(count: int) -> Mapping[str, Any]:
    from ingot.ir.dtype import f32, i8
    from ingot.ir.graph import TensorType

    blocks = -(-count // 4)
    return {"keys.0": TensorType(f32, (blocks, 1, 3, 4)), "values.0": TensorType(i8, (blocks, 1, 4, 3))}


def _state() -> Accept:
    """A saved sequence whose hash fits."""
    from ingot.llm.saved_state import read_state

    path, fill = _file("state")

    def read(content: bytes) -> None:
        fill(content[:-32] + hashlib.sha256(content[:-32]).digest() if len(content) > 32 else content)
        read_state(path, "model", 32, _types)

    return read


def _state_seeds() -> list[bytes]:
    from ingot.llm.saved_state import write_state

    found = []
    for count in (0, 1, 5):
        path = _memory() / "state"
        arrays = {name: np.ones(type.dims, type.dtype.numpy) for name, type in _types(count).items()}
        write_state(path, "model", list(range(count)), arrays)
        found.append(path.read_bytes())
    return found


def _states() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    return np.arange(32, dtype=np.uint8), {"w": np.ones((2, 3), np.float32), "step": np.zeros((), np.int64)}


def _checkpoint() -> Accept:
    from ingot.training import checkpoint

    path, fill = _file("checkpoint")

    def read(content: bytes) -> None:
        fill(content)
        checkpoint.read(path, *_states())

    return read


def _checkpoint_seeds() -> list[bytes]:
    from ingot.training import checkpoint

    path = _memory() / "checkpoint"
    checkpoint.write(path, *_states())
    return [path.read_bytes(), *_safetensors_seeds()]


# -- exported programs of torch ---------------------------------------------------------------------------------------


def _pt2() -> Accept:
    """The JSON of an exported program, in an archive with fitting checksums."""
    import warnings

    from attacks.hostile_pt2 import PROGRAM, records, write
    from ingot.load.aten import load_pt2

    path, _ = _file("model.pt2")
    rest = records()
    warnings.simplefilter("ignore")

    def read(content: bytes) -> None:
        archive = io.BytesIO()
        write(archive, rest | {PROGRAM: content})
        path.unlink(missing_ok=True)
        path.write_bytes(archive.getvalue())
        load_pt2(path)

    return read


def _pt2_seeds() -> list[bytes]:
    from attacks.hostile_pt2 import PROGRAM, records

    return [records()[PROGRAM]]


def _archive() -> Accept:
    """The zip around it."""
    from ingot.load.aten.archive import Archive

    path, fill = _file("model.pt2")

    def read(content: bytes) -> None:
        import torch

        from ingot.errors import LoadError

        fill(content)
        with open(path, "rb") as file:
            try:
                archive = Archive(file, "model.pt2")
                archive.read("models/model.json")
                archive.tensor("data/weights/weight_0", torch.float32)
            except (zipfile.BadZipFile, OSError, EOFError) as error:  # what `read_archive` makes an error of its own
                raise LoadError("model.pt2: not an archive") from error

    return read


def _archive_seeds() -> list[bytes]:
    from attacks.hostile_pt2 import write

    content = io.BytesIO()
    write(content, {"archive_format": b"pt2", "byteorder": b"little", "models/model.json": b"{}",
                    "data/weights/weight_0": bytes(8)})  # fmt: skip
    return [content.getvalue()]


def json_mutant(content: bytes, chance: Random) -> bytes:
    """Change one value of a JSON document: to another kind, to another value of the document, or by removing it."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return content
    containers: list[Any] = [document] if isinstance(document, (dict, list)) and document else [[document]]
    for each in containers:
        inner = each.values() if isinstance(each, dict) else each
        containers += [value for value in inner if isinstance(value, (dict, list)) and value]
        if len(containers) > 4000:
            break
    chosen = chance.choice(containers)
    key = chance.choice(list(chosen)) if isinstance(chosen, dict) else chance.randrange(len(chosen))
    match chance.randrange(4):
        case 0:
            del chosen[key]
        case 1:
            other = chance.choice(containers)
            chosen[key] = json.loads(json.dumps(other)) if len(json.dumps(other)) < 400 else None
        case 2 if isinstance(chosen, dict):
            chosen[chance.choice(list(chosen)) + chance.choice(("", "x"))] = chosen[key]
        case _:
            chosen[key] = chance.choice(VALUES)
    return json.dumps(document).encode()


VALUES = (None, True, False, 0, 1, -1, 2, 3, 64, 1 << 31, 1 << 63, 10**30, 0.5, -1.5, 1e300, "", "x", [], {}, [0], [[]])

FILES = {
    "onnx": Target(
        "ONNX models", _onnx, _onnx_seeds, _onnx_mutant, most=2048
    ),
    "wire": Target("protobuf's wire format, of weights in ONNX files", _wire, _wire_seeds),
    "safetensors": Target(
        "safetensors", _safetensors, _safetensors_seeds, _header_mutant,
        ("BF16", "F32", "U8", "BOOL", "dtype", "shape", "data_offsets", "__metadata__"),
    ),
    "gguf": Target("GGUF models and their tokenizers", _gguf, _gguf_seeds, most=65536),
    "text": Target("the text form of graphs", _text, _text_seeds, _text_mutant),
    "program": Target(
        "saved programs and entries of the compile cache", _program, _program_seeds,
        _program_mutant, most=8192,
    ),
    "state": Target("saved states of language models", _state, _state_seeds),
    "checkpoint": Target(
        "checkpoints of training", _checkpoint, _checkpoint_seeds,
        _header_mutant,
    ),
    "pt2": Target("programs of torch.export", _pt2, _pt2_seeds, json_mutant, most=32768),
    "archive": Target("archives of torch.export", _archive, _archive_seeds, packages=("ingot", "zipfile")),
}  # fmt: skip
