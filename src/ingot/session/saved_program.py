"""A saved program: a folder with the graph's text, packed weights, and the layout. It loads without torch or onnx.

graph.ingot    the graph after the passes, as text
weights.bin    64-byte aligned arrays
weights.json   key -> dtype, shape, offset, hash; "packed_weight ..." for packed weights, "weight ..." for raw weights
               and initial values of states
layout.json    every byte of a run, for people and tools

weights.json also stores the precision of the program, which the graph's nodes do not contain.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dim import symbols_of
from ingot.ir.dtype import DTYPES, from_numpy, string
from ingot.ir.graph import Graph, TensorType
from ingot.ir.text import dump, parse
from ingot.lower.cpu.formats import PANEL
from ingot.lower.weight_expr import weight_exprs
from ingot.passes.fold import DECODERS
from ingot.passes.precision import PRECISIONS, Precision
from ingot.plan.memory import layout
from ingot.run.library import content_hash, load
from ingot.run.native import NativeProgram
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.support.files import MappedFile, write_arrays, written, written_folder

FORMAT = {"format": "ingot program", "version": 7, "panel": PANEL}
FILES = ("graph.ingot", "weights.bin", "weights.json", "layout.json")
_ALIGNMENT = 64
_MAX_TEXT_BYTES = 1 << 30


def write(folder: str, graph: Graph, precision: Precision, program: Program, weights: WeightStore) -> None:
    """Save a program, completely or not at all; an earlier program of that name is replaced.

    Raises OutputError, also for a folder with other contents than a program.
    """
    with written_folder(folder, FILES) as temporary:
        write_files(os.fspath(temporary), graph, precision, program, weights)


def write_files(
    folder: str,
    graph: Graph,
    precision: Precision,
    program: Program,
    weights: WeightStore,
    *,
    mode: int = 0o666,
    durable: bool = True,
) -> None:
    """Write a program's files into a folder; mode: their permissions, before the umask.

    Raises OutputError, and UnsupportedError for a graph with string data.
    """
    arrays = {f"packed_weight {key}": array for key, array in weights.items()}
    arrays |= {f"weight {name}": data for name, data in _raw_weights(graph, program).items()}
    rows: dict[str, dict[str, Any]] = {}
    offset = 0
    for key, given in arrays.items():
        if given.dtype == object:
            raise UnsupportedError(f"save: {key!r} contains strings, expected only numbers")
        array = arrays[key] = np.require(given, requirements=("C", "A"))
        row = {"dtype": from_numpy(array.dtype).name, "shape": list(array.shape), "offset": offset}
        rows[key] = row | {"hash": row_hash(key, row, content_hash(array))}
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    with written(os.path.join(folder, "weights.bin"), mode, durable=durable) as file:
        write_arrays(file, arrays.values(), _ALIGNMENT)
    text = dump(graph)
    facts = {"graph_sha256": _digest(text), "precision": precision.name, "bytes": offset, "arrays": rows}
    layouts = [layout(p.lowered, p.plan) for p in program.segments if isinstance(p, NativeProgram)]
    for name, content in (
        ("graph.ingot", text),
        ("layout.json", json.dumps(layouts, indent=1)),
        ("weights.json", json.dumps(FORMAT | facts, indent=1)),
    ):
        with written(os.path.join(folder, name), mode, durable=durable) as file:
            file.write(content.encode())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def row_hash(key: str, row: Mapping[str, Any], content: str) -> str:
    """Return a hash of an array's content hash, its key, and its dtype and shape."""
    return _digest(json.dumps([key, row["dtype"], row["shape"], content]))[:32]


def _raw_weights(graph: Graph, program: Program) -> dict[str, np.ndarray]:
    """Return the weights needed unpacked: by interpreted segments, or because another binding may pack them again."""
    packed: set[str] = set()
    for part in program.native:
        for tensor in part.lowered.tensors.values():
            if tensor.packed_weight is not None and (tensor.packed_weight.layout != "raw" or not graph.symbols):
                packed.update(source.name for source in tensor.packed_weight.sources())
    for segment in program.segments:
        if not isinstance(segment, NativeProgram):
            packed -= set(segment.graph.values)
    if graph.symbols:
        static = weight_exprs(graph)
        packed = {name for name in packed if name in graph.values and _is_only_packed(graph, name, static)}
    return {
        name: value.data
        for name, value in graph.values.items()
        if value.kind == "weight" and name not in packed and value.data is not None
    } | {name: data for name, data in graph.initial.items() if data is not None}


# Ops between a weight and its packed form, and the operand of an op that may be packed.
_PACKED_MOVES = DECODERS | {"permute", "concat", "cast"}
_PACKED_OPERAND = {"matmul": 1, "gather": 0}


def _is_only_packed(graph: Graph, name: str, static: set[str]) -> bool:
    """Return whether only products and the tables they share read a static value, or static values computed from it.

    Any other static value may be folded once symbols have values, and folding reads the weight itself.
    """
    for user in graph.users(name):
        if user.outputs[0] in static:
            if user.op.name not in _PACKED_MOVES or not _is_only_packed(graph, user.output, static):
                return False
        elif user.op.name not in _PACKED_OPERAND or user.operands[_PACKED_OPERAND[user.op.name]] != name:
            return False
    return not graph.is_output(name)


def read(folder: str, weights: WeightStore) -> tuple[Graph, Precision]:
    """Return the graph and precision of a saved program; its packed weights go into `weights`, mapped from the file.

    Raises LoadError for a folder that is not a saved program, is damaged, or was packed for another panel width.
    """
    text, manifest, arrays = _stored(folder)
    path = os.path.join(folder, "weights.bin")
    load()  # before several threads need it
    with ThreadPoolExecutor(weights.threads) as executor:
        hashes = executor.map(content_hash, arrays.values())  # while this thread parses the text
        graph = _graph(folder, text, arrays)
        for key, found in zip(arrays, hashes, strict=True):
            row = manifest["arrays"][key]
            if row_hash(key, row, found) != row.get("hash"):
                raise LoadError(f"{path}: {key!r} is damaged, its bytes hash to {found}")
    for key, array in arrays.items():
        if key.startswith("packed_weight "):
            weights.put(key.partition(" ")[2], array)
    return graph, PRECISIONS[manifest["precision"]]


def read_headers(folder: str) -> tuple[Graph, Precision]:
    """As `read`, for inspection only: arrays are mapped, but neither read nor verified.

    Weights that are stored only in packed form have no data in the graph.
    """
    text, manifest, arrays = _stored(folder)
    return _graph(folder, text, arrays), PRECISIONS[manifest["precision"]]


def _stored(folder: str) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """Return the graph's text, weights.json, and the arrays of weights.bin by key, mapped."""
    text = _read_text(folder, "graph.ingot")
    manifest = _read_manifest(folder)
    if _digest(text) != manifest.get("graph_sha256"):
        raise LoadError(f"{folder}: graph.ingot does not match weights.json")
    path = os.path.join(folder, "weights.bin")
    if not os.path.isfile(path):
        raise LoadError(f"{folder}: not a saved program, got no weights.bin")
    if os.path.getsize(path) != manifest["bytes"]:
        raise LoadError(f"{path}: wrong size, got {os.path.getsize(path)} bytes, expected {manifest['bytes']}")
    with open(path, "rb") as file:
        blob = np.frombuffer(MappedFile(file.fileno(), path) if manifest["bytes"] else b"", np.uint8)
    return text, manifest, {key: _slice(path, key, row, blob) for key, row in manifest["arrays"].items()}


def _graph(folder: str, text: str, arrays: Mapping[str, np.ndarray]) -> Graph:
    """Parse the text of a graph, with the weights that are stored unpacked."""
    graph = parse(text, {key.partition(" ")[2]: a for key, a in arrays.items() if key.startswith("weight ")})
    _expect_runnable(graph, folder)
    return graph


def _expect_runnable(graph: Graph, folder: str) -> None:
    """Raise LoadError unless all dims and attributes follow from the dims of inputs."""
    for name in (*graph.inputs, *graph.states):
        type = graph.values[name].type
        if not isinstance(type, TensorType) or None in type.shape:
            raise LoadError(f"{folder}: {name!r} cannot be fed, got {type}, expected a tensor whose dims have names")
    known = {*graph.symbols, *graph.measured}
    for node in graph.nodes:
        unknown = set().union(*map(_symbols, node.attributes.values())) - known
        if unknown:
            raise LoadError(f"{folder}: node {node.outputs[0]!r} uses dims that no input has, got {sorted(unknown)}")


def _symbols(attribute: Any) -> set[str]:
    if isinstance(attribute, tuple):
        return set().union(*map(_symbols, attribute))
    return symbols_of(attribute)


def _read_text(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise LoadError(
            f"{folder}: not a model folder or a saved program, got no config.json and no {name}, expected a folder as"
            " save_pretrained of transformers or `session.save` writes it"
        )
    if os.path.getsize(path) > _MAX_TEXT_BYTES:
        raise LoadError(f"{path}: too large, got {os.path.getsize(path)} bytes, expected at most {_MAX_TEXT_BYTES}")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: not UTF-8, got {error}") from error


def _read_manifest(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, "weights.json")
    try:
        manifest = json.loads(_read_text(folder, "weights.json"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise LoadError(f"{path}: not JSON, got {error}") from error
    if not isinstance(manifest, dict) or any(manifest.get(key) != value for key, value in FORMAT.items()):
        raise LoadError(f"{path}: unknown format, expected {FORMAT}")
    if not isinstance(manifest.get("arrays"), dict) or type(manifest.get("bytes")) is not int:
        raise LoadError(f"{path}: arrays or bytes missing")
    if not isinstance(manifest.get("precision"), str) or manifest["precision"] not in PRECISIONS:
        got = manifest.get("precision")
        raise LoadError(f"{path}: unknown precision, got {got!r}, expected one of {', '.join(PRECISIONS)}")
    return manifest


def _slice(path: str, key: str, row: Any, blob: np.ndarray) -> np.ndarray:
    """Return one array of weights.bin, after checking every number of its row."""
    well_formed = (
        isinstance(row, dict)
        and isinstance(row.get("dtype"), str)
        and row["dtype"] in DTYPES
        and row["dtype"] != string.name
        and isinstance(row.get("shape"), list)
        and all(type(n) is int and n >= 0 for n in (*row["shape"], row.get("offset")))
        and row["offset"] % _ALIGNMENT == 0
    )
    if not well_formed:
        raise LoadError(f"{path}: malformed row for {key!r}, got {row!r}")
    dtype = DTYPES[row["dtype"]].numpy
    size = dtype.itemsize
    for dim in row["shape"]:
        size *= dim
    if row["offset"] + size > blob.nbytes:
        raise LoadError(f"{path}: {key!r} ends at {row['offset'] + size}, file has {blob.nbytes} bytes")
    found = blob[row["offset"] : row["offset"] + size]
    if dtype == np.bool_ and found.max(initial=0) > 1:
        raise LoadError(f"{path}: {key!r} contains {found.max()}, expected 0 or 1")
    return found.view(dtype).reshape(row["shape"])
