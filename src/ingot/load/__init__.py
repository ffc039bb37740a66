"""Load models of other formats as a Graph. Each format has its own package, imported on first use."""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard

from ingot.errors import InputError, KindError, LoadError, MissingFileError, UnboundError
from ingot.ir.graph import Graph, Type

if TYPE_CHECKING:
    import torch

    from ingot.load.onnx.parse import Parsed

    # A path, the bytes of an ONNX model, a model of torch, or a graph.
    ModelSource = (
        str | os.PathLike[str] | bytes | bytearray | memoryview | torch.nn.Module | torch.export.ExportedProgram | Graph
    )
    Examples = tuple[Any, ...] | list[Any] | dict[str, Any] | torch.Tensor  # the arguments of a module's forward

_LOOKED_THROUGH = 10_000  # names of a folder that are compared with a missing name

_OF_TORCH = (
    "weights or a script of torch, expected a whole program: InferenceSession(module, example_inputs=(x,)), or a .pt2:"
    " torch.export.save(torch.export.export(module, (x,)), 'model.pt2')"
)
_EXPORT = "expected an export to ONNX"
_LANGUAGE = "use ingot.LLM, or `ingot generate`"
# Suffix of a file that is seldom ONNX -> the content such a file has, and the source to pass instead.
_NO_MODELS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin", ".ts"), _OF_TORCH),
    ".safetensors": "weights alone, expected the folder that contains them, with its config.json",
    ".ort": "ONNX Runtime's own format, expected the .onnx file it was converted from",
    **dict.fromkeys((".pb", ".h5", ".keras", ".tflite"), f"TensorFlow's own format, {_EXPORT}: tf2onnx.convert"),
    ".mlmodel": f"Core ML's own format, {_EXPORT}",
    ".engine": "a program of TensorRT, expected the .onnx file it was built from",
}


@dataclass(frozen=True, slots=True)
class ShapeDependentModel:
    """A model whose graph depends on the values of its symbolic dims.

    interface: a graph with the inputs alone. outputs: the declared type of each output, None where undeclared. load:
    build the graph for the given symbol sizes (possibly a subset); raises the errors of the format's loader. bound: the
    same model with some symbols bound to values.
    """

    interface: Graph
    outputs: Mapping[str, Type | None]
    load: Callable[[Mapping[str, int]], Graph]
    bound: Callable[[Mapping[str, int]], ShapeDependentModel]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model and the identities of the files it was read from, by location, where the format reports them.

    facts: metadata of the model, as plain data. absent: by weight name, the reason why its data is unavailable. unused:
    the bytes of weights of the file that nothing reads, by name; the graph does not have them.
    """

    graph: Graph | ShapeDependentModel
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)


def is_onnx_file(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return True for the path of a file that is read as ONNX: any file without the suffix .pt2."""
    return isinstance(source, (str, os.PathLike)) and os.path.isfile(source) and not os.fspath(source).endswith(".pt2")


def is_saved_program(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return True for a folder written by `save`: a folder without Hugging Face's config.json. No loader reads it."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return False
    return not os.path.isfile(os.path.join(source, "config.json"))


def load_model(source: ModelSource, example_inputs: Examples | None = None) -> Loaded:
    """Load a model of another format; the result has a graph if none is needed before symbols have sizes. See
    `InferenceSession` for the accepted sources.

    Raises MissingFileError for a path that does not exist, InputError for a source that is no model, the errors of a
    fetch from the hub, and the errors of the format's loader.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _load_onnx(bytes(source))
    if isinstance(source, (str, os.PathLike)):
        return _load_path(os.fspath(source))
    if "torch" in sys.modules:
        from ingot.load import aten

        loaded = aten.load_any(source, example_inputs)
        if loaded is not None:
            return Loaded(loaded)
    raise KindError(f"source: cannot be read, got {_described(source)}, expected a path, bytes or a module")


def load_headers(path: str) -> Loaded:
    """Load the model at a path for inspection only, as `load_model` does, without reading large weights. For ONNX,
    unavailable external data is recorded as absent.
    """
    return _load_path(path, headers_only=True)


def _described(source: Any) -> str:
    """Describe an unsupported source and, where known, name the value to pass instead."""
    kind = type(source)
    name = f"{kind.__module__}.{kind.__name__}"
    if isinstance(source, type):
        return f"the class {source.__name__}; make one, {source.__name__}(...)"
    if isinstance(source, types.ModuleType):
        return f"the Python module {source.__name__!r}"
    if isinstance(source, Mapping):
        return f"{name}; of weights alone, build the module that they belong to"
    if kind.__name__ == "ModelProto":
        return f"{name}; give its bytes, SerializeToString()"
    if isinstance(source, io.IOBase):
        return f"{name}; give its content, read()"
    return name


def _load_path(path: str, headers_only: bool = False) -> Loaded:
    from ingot.load.gguf import is_gguf
    from ingot.load.hub import located

    path = located(path)
    expect_exists(path)
    if os.path.isdir(path):
        return Loaded(_load_encoder(path))
    if is_gguf(path):
        raise InputError(f"{path}: a language model keeps state between runs, got a GGUF file; {_LANGUAGE}")
    if path.endswith(".pt2"):
        from ingot.load.aten import load_pt2, read_facts

        graph = load_pt2(path, is_mapped=headers_only)
        return Loaded(graph, facts=read_facts(path) if headers_only else {})
    try:
        return _load_onnx(path, headers_only)
    except LoadError as error:
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in _NO_MODELS:
            raise
        raise InputError(f"{path}: {_NO_MODELS[suffix]}") from error


def expect_exists(path: str) -> None:
    """Raise MissingFileError, with a similar name, if nothing exists at the path; InputError if the path is empty."""
    if not path:
        raise InputError("path of a model: empty, got '', expected a file or folder")
    if not os.path.exists(path):
        raise MissingFileError(2, f"no such file{_close_to(path)}", path)


def _close_to(path: str) -> str:
    """Return a hint for a missing path: a similar name, or the missing folder."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f", got no folder {folder!r} either" if folder else ""
    from ingot.load.hub import SHIPPED

    with os.scandir(folder or ".") as found:
        names = [entry.name for entry in islice(found, _LOOKED_THROUGH)] + ([] if folder else list(SHIPPED))
    close = get_close_matches(name, names, n=1)
    return f", expected perhaps {os.path.join(folder, close[0])!r}" if close else ""


def _load_onnx(source: str | bytes, headers_only: bool = False) -> Loaded:
    from ingot.load.onnx import load_parsed, parse_model

    parsed = parse_model(source, may_lack_data=headers_only)
    graph: Graph | ShapeDependentModel
    try:
        graph = load_parsed(parsed)
    except UnboundError:
        graph = _shape_dependent(parsed, {})
    unused = parsed.unused if headers_only else {}
    return Loaded(graph, parsed.files, parsed.facts, parsed.absent, unused)


def _shape_dependent(parsed: Parsed, sizes: Mapping[str, int]) -> ShapeDependentModel:
    """Return an ONNX model that has no graph for the given symbol sizes."""
    from ingot.load.onnx import interface_of, load_parsed

    return ShapeDependentModel(
        *interface_of(parsed, sizes),
        load=lambda more: load_parsed(parsed, {**sizes, **more}),
        bound=lambda more: _shape_dependent(parsed, {**sizes, **more}),
    )


def _load_encoder(folder: str) -> Graph:
    from ingot.load.hf import load_language_model, read_folder

    model = load_language_model(read_folder(folder), context=None)
    if model.kind != "encoder":
        raise InputError(f"{folder}: a decoder keeps state between runs, got {model.config['model_type']}; {_LANGUAGE}")
    return model.graph
