"""Parse bytes or a path into a checked `onnx_ir.Model`. Every inconsistency within the file is rejected here.

No size is used before it is compared with a limit, and no file is opened before its path is checked (see
`external.py`). Properties that depend on an op's semantics are checked where the op is loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.serde import SerdeError, deserialize_model

from ingot.errors import LimitError, LoadError, MissingFileError, ShapeError, UnsupportedError
from ingot.load.onnx.external import map_external, view_of
from ingot.load.onnx.message import without_weights
from ingot.load.onnx.registry import ML, REFUSED
from ingot.load.onnx.tensors import check_tensor, has_map, is_external, map_type, shown
from ingot.load.onnx.topology import label, sort_nodes
from ingot.support.collector import uncollected
from ingot.support.files import MappedFile

MAX_FILE_BYTES = 2**31 - 1  # protobuf's own limit
MAX_NAME_BYTES = 1 << 16  # of a name in a model
NEWEST_OPSET = onnx.defs.onnx_opset_version()

_IR_WITH_OPSETS = 3  # earlier files declare no opset and have opset 1

Graph = onnx.GraphProto | onnx.FunctionProto
_NOTHING: Mapping[int, int] = {}


@dataclass(slots=True)
class Parsed:
    """A model that passed the checks; `opset` is that of the default domain.

    files: the files that were read, by location, "" for the model file itself; see `files.identity`. file: the path of
    the model, "" for bytes. absent: by name, the reason why data of an initializer is unavailable.
    """

    model: onnx_ir.Model
    opset: int
    files: dict[str, tuple[int, ...]]
    file: str
    absent: dict[str, str]

    @property
    def facts(self) -> dict[str, Any]:
        """Return the model's metadata, as plain data."""
        model = self.model
        opsets = {domain or "ai.onnx": version for domain, version in model.opset_imports.items()}
        facts = {
            "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
            "ir_version": model.ir_version, "opsets": opsets or {"ai.onnx": self.opset}, "domain": model.domain,
            "model_version": model.model_version, "doc": model.doc_string, "metadata": dict(model.metadata_props),
        }  # fmt: skip
        return {key: value for key, value in facts.items() if value}

    @property
    def unused(self) -> dict[str, int]:
        """Return the bytes of each initializer that no node and no output reads, by name."""
        graph = self.model.graph
        returned = {value.name for value in graph.outputs}
        return {
            name: int(value.const_value.nbytes)
            for name, value in graph.initializers.items()
            if not value.uses() and name not in returned and value.const_value is not None
        }


@uncollected()
def parse_model(source: str | os.PathLike | bytes, *, may_lack_data: bool = False) -> Parsed:
    """Read and check a model. External data is mapped, and only searched for in the folder of a model given as a
    path.

    may_lack_data: record unavailable external data of the graph's initializers instead of raising an error.

    Raises MissingFileError for a path that does not exist, LoadError for malformed content, LimitError for sizes beyond
    the documented limits, UnsupportedError for well-formed content that Ingot does not implement.
    """
    where, content = _content(source)
    folder = None if isinstance(source, bytes) else os.path.dirname(os.path.abspath(source))
    proto, raw = _decode(content, where)
    try:
        opset = _check_header(proto, where)
        _check_model(proto, where, {i: nbytes for i, (_, nbytes) in raw.items()})
        maps = _without_maps(proto.graph, where)
        for function in proto.functions:
            _without_maps(function, where)
        weights = {proto.graph.initializer[i].name: offset for i, (offset, _) in raw.items()}
        model = deserialize_model(proto)
    except (SerdeError, UnicodeDecodeError, RecursionError) as error:
        cause = error.__cause__ or error
        raise LoadError(f"{where}: malformed, {type(cause).__name__}: {str(cause)[:200]}") from error
    _view_weights(model.graph, content, weights)
    for value in model.graph.outputs:
        value.type = maps.get(value.name or "", value.type)
    absent: dict[str, str] | None = {} if may_lack_data else None
    mapped_files = _read_weights(model, where, folder, absent)
    if isinstance(content.obj, MappedFile):
        mapped_files[""] = content.obj
    files = {location: mapped.identity for location, mapped in mapped_files.items() if isinstance(mapped, MappedFile)}
    return Parsed(model, opset, files, "" if isinstance(source, bytes) else os.fspath(source), absent or {})


def read_header(source: str | os.PathLike | bytes) -> onnx.ModelProto:
    """Read a model's message without its large weights, for its metadata. Nothing is checked.

    Raises the errors of `parse_model` for a file that cannot be read or decoded.
    """
    where, content = _content(source)
    return _decode(content, where)[0]


def _content(source: str | os.PathLike | bytes) -> tuple[str, memoryview]:
    """Return the name of a model for errors, and its bytes."""
    if isinstance(source, bytes):
        return "onnx bytes", memoryview(source)
    where = f"onnx file {os.fspath(source)!r}"
    return where, _read(source, where)


def _read(path: str | os.PathLike, where: str) -> memoryview:
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingFileError(2, "no such file", os.fspath(path)) from error
    except (OSError, ValueError) as error:
        raise LoadError(f"{where}: cannot be opened, {error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{where}: not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise LimitError(f"{where}: file too large, got {status.st_size} bytes, expected at most {MAX_FILE_BYTES}")
        if status.st_size == 0:
            return memoryview(b"")
        return memoryview(MappedFile(descriptor, where))
    finally:
        os.close(descriptor)


def _decode(content: memoryview, where: str) -> tuple[onnx.ModelProto, dict[int, tuple[int, int]]]:
    """Decode the model, without raw_data of large initializers; return the locations of this data too; see
    `Message`.
    """
    start = bytes(content[:512])
    if not start:
        raise LoadError(f"{where}: file is empty")
    if start.startswith(b"version ") and b"git-lfs" in start[:64]:
        raise LoadError(f"{where}: a git-lfs pointer, not the model; run 'git lfs pull'")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise LoadError(f"{where}: a web page, not an ONNX model")
    if len(content) > MAX_FILE_BYTES:
        raise LimitError(f"{where}: too large, got {len(content)} bytes, expected at most {MAX_FILE_BYTES}")
    message = without_weights(content)
    return _parse(message.content, where), message.raw


def _parse(content: bytes | memoryview, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise LoadError(f"{where}: not an ONNX model, or truncated ({str(error)[:200]})") from error
    if not proto.HasField("graph"):
        raise LoadError(f"{where}: not an ONNX model, it has no graph")
    return proto


def _check_header(proto: onnx.ModelProto, where: str) -> int:
    if proto.ir_version < 1:
        raise LoadError(f"{where}: ir_version missing or not positive, got {proto.ir_version}")
    if proto.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(f"{where}: ir_version {proto.ir_version}, expected 1..{onnx.IR_VERSION}")
    if proto.training_info:
        raise UnsupportedError(f"{where}: training_info is not supported")
    if proto.ir_version < _IR_WITH_OPSETS and not proto.opset_import:
        return 1
    opsets = _opsets(proto.opset_import, where)
    if "" not in opsets and _uses_default_domain(proto.graph):
        raise LoadError(f"{where}: no opset of the default domain is imported")
    return opsets.get("", NEWEST_OPSET)


def _uses_default_domain(graph: onnx.GraphProto) -> bool:
    """Return whether the graph or one of its subgraphs has a node of the default domain."""
    inner = [g for node in graph.node for a in node.attribute for g in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return any(node.domain in ("", "ai.onnx") for node in graph.node) or any(map(_uses_default_domain, inner))


def _opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    versions: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.get(domain, entry.version) != entry.version:  # skl2onnx repeats some imports
            raise LoadError(f"{where}: opset of domain {shown(entry.domain)} is imported twice")
        versions[domain] = entry.version
    if not 1 <= versions.get("", 1) <= NEWEST_OPSET:
        raise UnsupportedError(f"{where}: opset {versions['']}, expected 1..{NEWEST_OPSET}")
    return versions


def _check_model(proto: onnx.ModelProto, where: str, raw_bytes: Mapping[int, int]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        _check_text(where, *key)
        if key in seen:
            raise LoadError(f"{where}: function {shown(function.name)} is defined twice")
        seen.add(key)
        _check_unique([*function.attribute, *(a.name for a in function.attribute_proto)], "attribute", where)
        _opsets(function.opset_import, f"{where}, function {shown(function.name)}")
        sort_nodes(function, f"{where}, function {shown(function.name)}")
        _check_graph(function, [], f"{where}, function {shown(function.name)}")
    sort_nodes(proto.graph, where)
    _check_graph(proto.graph, [], where, raw_bytes)
    _check_returned_inputs(proto.graph, where)


def _without_maps(graph: Graph, where: str) -> dict[str, Any]:
    """Remove declared types that contain maps, which onnx_ir cannot read, and return those of the outputs.

    Raises UnsupportedError for an input that contains a map.
    """
    found: dict[str, Any] = {}
    if isinstance(graph, onnx.GraphProto):
        for info in graph.input:
            if has_map(info.type):
                why = REFUSED[ML, "DictVectorizer"]
                raise UnsupportedError(f"{where}: {shown(info.name)} is a map, as op {ML}.DictVectorizer {why}")
        for info in graph.output:
            if has_map(info.type):
                found[info.name] = map_type(info.type, f"{where}, output {shown(info.name)}")
                info.ClearField("type")
    for info in [info for info in graph.value_info if has_map(info.type)]:
        graph.value_info.remove(info)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                _without_maps(inner, where)
    return found


def _check_returned_inputs(graph: onnx.GraphProto, where: str) -> None:
    """Give an input that is also an output the type of the input, as `onnx_ir` keeps only one declaration.

    Dims of outputs are hints, which may have other names.
    """
    inputs = {info.name: info for info in graph.input}
    for info in graph.output:
        given = inputs.get(info.name)
        if given is not None and info.HasField("type") and _without_dims(info.type) != _without_dims(given.type):
            raise ShapeError(f"{where}: input {shown(info.name)} is an output of another type")
        if given is not None:
            info.CopyFrom(given)


def _without_dims(type: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type of a tensor without its shape; any other type unchanged."""
    has_dims = type.HasField("tensor_type")
    return onnx.helper.make_tensor_type_proto(type.tensor_type.elem_type, None) if has_dims else type


def _check_graph(graph: Graph, scopes: list[set[str]], where: str, raw_bytes: Mapping[int, int] = _NOTHING) -> None:
    """Check single assignment, a producer for each name, and well-formed tensors and attributes; then check the
    subgraphs.

    Inputs and initializers of a subgraph may shadow names of enclosing graphs. `scopes` are the names defined in the
    enclosing graphs; `raw_bytes` the length of raw_data that was cut out, by index of the initializer. Recursion is
    bounded by protobuf's limit of 100 nested messages.
    """
    in_function = isinstance(graph, onnx.FunctionProto)
    inputs, initializers, outputs = _interface(graph, where, raw_bytes, not scopes)
    defined = set(inputs) | set(initializers)
    visible = [*scopes, defined]
    for node in graph.node:
        here = f"{where}, node {label(node)} ({node.op_type[:100]})"
        _check_text(here, node.op_type, node.domain, node.overload, node.name)
        for name in node.input:
            if name and name not in defined and not any(name in scope for scope in scopes):
                raise LoadError(f"{here}: input {shown(name)} has no producer")
        for subgraph in _check_attributes(node, here, in_function):
            _check_graph(subgraph, visible, here)
        for name in filter(None, node.output):
            _check_name(name, here)
            if name in defined or any(name in scope for scope in scopes):
                raise LoadError(f"{here}: output {shown(name)} is defined twice")
            defined.add(name)
    for name in outputs:
        if name not in defined:
            raise LoadError(f"{where}: output {shown(name)} has no producer")


def _interface(
    graph: Graph, where: str, raw_bytes: Mapping[int, int], is_whole: bool
) -> tuple[list[str], list[str], list[str]]:
    """Return the names of inputs, initializers and outputs. is_whole: not a subgraph; in subgraphs, one value may be
    two results.
    """
    if isinstance(graph, onnx.FunctionProto):
        inputs, initializers, outputs = list(graph.input), [], list(graph.output)
    else:
        if graph.sparse_initializer:
            raise UnsupportedError(f"{where}: sparse initializers are not supported")
        inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
        initializers = [t.name for t in graph.initializer]
        for i, tensor in enumerate(graph.initializer):
            check_tensor(tensor, f"{where}, initializer {shown(tensor.name)}", raw_bytes.get(i))
    _check_text(where, graph.name)
    _check_unique(inputs, "input", where)
    _check_unique(initializers, "initializer", where)
    if is_whole:
        _check_unique(outputs, "output", where)
    return inputs, initializers, outputs


def _check_attributes(node: onnx.NodeProto, where: str, in_function: bool) -> Iterator[onnx.GraphProto]:
    _check_unique([a.name for a in node.attribute], "attribute", where)
    for attribute in node.attribute:
        here = f"{where}, attribute {shown(attribute.name)}"
        _check_text(here, attribute.ref_attr_name)
        if attribute.ref_attr_name and not in_function:
            raise LoadError(f"{here}: refers to {shown(attribute.ref_attr_name)} outside of a function")
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise UnsupportedError(f"{here}: sparse tensors are not supported")
        for tensor in [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]:
            check_tensor(tensor, here)
            if is_external(tensor):
                raise UnsupportedError(f"{here}: external data in an attribute is not supported")
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def _check_unique(names: list[str], what: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        _check_name(name, f"{where}, {what}")
        if name in seen:
            raise LoadError(f"{where}: {what} {shown(name)} is defined twice")
        seen.add(name)


def _check_name(name: str, where: str) -> None:
    if not name:
        raise LoadError(f"{where}: a name is empty")
    _check_text(where, name)
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise LimitError(f"{where}: name too long, got {len(name)} characters, expected at most {MAX_NAME_BYTES} bytes")


def _check_text(where: str, *texts: str) -> None:
    # protobuf returns bytes where a string is not UTF-8.
    for text in texts:
        if not isinstance(text, str):
            raise LoadError(f"{where}: not UTF-8, got {text[:100]!r}")


def _view_weights(graph: onnx_ir.Graph, content: memoryview, offsets: dict[str, int]) -> None:
    """Set the arrays of initializers that were cut out of the message, as views of the file."""
    for name, offset in offsets.items():
        tensor = graph.initializers[name].const_value
        assert tensor is not None
        graph.initializers[name].const_value = view_of(tensor, content, offset)


def _read_weights(
    model: onnx_ir.Model, file: str, folder: str | None, absent: dict[str, str] | None
) -> dict[str, MappedFile | bytes]:
    """Set the array of every initializer: external data is mapped, a large raw array is read and its length
    checked.

    Returns the mapped files by location. file: the name of the model in errors. absent: filled with the reason why data
    of one of the graph's own initializers is unavailable, which then stays external; None to raise the error instead.
    """
    maps: dict[str, MappedFile | bytes] = {}
    graphs = [model.graph, *model.graph.subgraphs()]
    for function in model.functions.values():
        graphs += function.subgraphs()
    for value in [v for graph in graphs for v in graph.initializers.values()]:
        tensor, where = value.const_value, f"{file}, initializer {shown(value.name)}"
        assert tensor is not None
        if isinstance(tensor, (onnx_ir.Tensor, onnx_ir.StringTensor)):
            continue
        if not isinstance(tensor, onnx_ir.ExternalTensor):
            try:
                value.const_value = onnx_ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
            except ValueError as error:
                raise LoadError(f"{where}: raw_data has a wrong length for {tensor.dtype}{tensor.shape}") from error
            continue
        try:
            if folder is None:
                raise LoadError(
                    f"{where}: its data is in {str(tensor.location)!r}, but a model from bytes has no folder"
                )
            value.const_value = map_external(tensor, folder, maps, where)
        except LoadError as error:
            if absent is None or value.graph is not model.graph:
                raise
            absent[value.name or ""] = str(error)
    return maps
