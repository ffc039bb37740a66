"""Foreign models -> Graph. Each format is a package of its own, imported when a source is of it."""

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

_LOOKED_THROUGH = 10_000  # names of a folder, for one like that which is not there

_OF_TORCH = (
    "weights or a script of torch, expected a whole program: InferenceSession(module, example_inputs=(x,)), or a .pt2:"
    " torch.export.save(torch.export.export(module, (x,)), 'model.pt2')"
)
_EXPORT = "expected an export to ONNX"
_LANGUAGE = "use ingot.LLM, or `ingot generate`"
# Suffixes of files that are seldom ONNX -> what one that is none will be, and what to give in its place.
_NO_MODELS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin", ".ts"), _OF_TORCH),
    ".safetensors": "weights alone, expected the folder that they lie in, with its config.json",
    ".ort": "ONNX Runtime's own format, expected the .onnx file that it was made of",
    **dict.fromkeys((".pb", ".h5", ".keras", ".tflite"), f"TensorFlow's own format, {_EXPORT}: tf2onnx.convert"),
    ".mlmodel": f"Core ML's own format, {_EXPORT}",
    ".engine": "a program of TensorRT, expected the .onnx file that it was made of",
}


@dataclass(frozen=True, slots=True)
class ShapeDependentModel:
    """A model that has a graph only once its dims have values, and another one for other values.

    interface: a graph of its inputs alone. outputs: their types, None where they are not declared. load: the graph for
    sizes of symbols, which may be some of them; raises what the format's loader raises. bound: the same model with
    values of some symbols.
    """

    interface: Graph
    outputs: Mapping[str, Type | None]
    load: Callable[[Mapping[str, int]], Graph]
    bound: Callable[[Mapping[str, int]], ShapeDependentModel]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and the identities of the files that it was read from, by location, where the format tells.

    facts: what the model says of itself, as plain data. absent: why data of weights cannot be had, by name.
    """

    graph: Graph | ShapeDependentModel
    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def is_onnx_file(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """True for a path that is read as ONNX: that of any file that is no .pt2."""
    return isinstance(source, (str, os.PathLike)) and os.path.isfile(source) and not os.fspath(source).endswith(".pt2")


def is_saved_program(source: object) -> TypeGuard[str | os.PathLike[str]]:
    """True for a folder that is not a Hugging Face one: what `save` wrote, which no loader reads."""
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return False
    return not os.path.isfile(os.path.join(source, "config.json"))


def load_model(source: ModelSource, example_inputs: Examples | None = None) -> Loaded:
    """A foreign model, with its graph if it has one without sizes: see `InferenceSession` for sources.

    Raises MissingFileError for a path that does not exist, InputError for what is no model, what fetching one of the
    hub raises, and what the format's loader raises.
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
    """As `load_model`, of a path to a model that is only looked at: no large weight is read, and of ONNX, external data
    that cannot be had is noted as absent.
    """
    return _load_path(path, is_looked_at=True)


def _described(source: Any) -> str:
    """What a source is that is none, and what to write in its place, where that can be told."""
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


def _load_path(path: str, is_looked_at: bool = False) -> Loaded:
    from ingot.load.gguf import is_gguf
    from ingot.load.hub import located

    path = located(path)
    expect_there(path)
    if os.path.isdir(path):
        return Loaded(_load_encoder(path))
    if is_gguf(path):
        raise InputError(f"{path}: a language model keeps state between runs, got a GGUF file; {_LANGUAGE}")
    if path.endswith(".pt2"):
        from ingot.load.aten import load_pt2, read_facts

        graph = load_pt2(path, is_mapped=is_looked_at)
        return Loaded(graph, facts=read_facts(path) if is_looked_at else {})
    try:
        return _load_onnx(path, is_looked_at)
    except LoadError as error:
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in _NO_MODELS:
            raise
        raise InputError(f"{path}: {_NO_MODELS[suffix]}") from error


def expect_there(path: str) -> None:
    """Raises MissingFileError, with a name like it, for a path with nothing there, InputError for an empty one."""
    if not path:
        raise InputError("path of a model: empty, got '', expected a file or folder")
    if not os.path.exists(path):
        raise MissingFileError(2, f"no such file{_close_to(path)}", path)


def _close_to(path: str) -> str:
    """What a path that has nothing there may have meant."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f", got no folder {folder!r} either" if folder else ""
    from ingot.load.hub import SHIPPED

    with os.scandir(folder or ".") as found:
        names = [entry.name for entry in islice(found, _LOOKED_THROUGH)] + ([] if folder else list(SHIPPED))
    close = get_close_matches(name, names, n=1)
    return f", expected perhaps {os.path.join(folder, close[0])!r}" if close else ""


def _load_onnx(source: str | bytes, is_looked_at: bool = False) -> Loaded:
    from ingot.load.onnx import load_parsed, parse_model

    parsed = parse_model(source, may_lack_data=is_looked_at)
    graph: Graph | ShapeDependentModel
    try:
        graph = load_parsed(parsed)
    except UnboundError:
        graph = _deferred(parsed, {})
    return Loaded(graph, parsed.files, parsed.facts, parsed.absent)


def _deferred(parsed: Parsed, sizes: Mapping[str, int]) -> ShapeDependentModel:
    """An ONNX model that has no graph yet, though symbols have these values."""
    from ingot.load.onnx import interface_of, load_parsed

    return ShapeDependentModel(
        *interface_of(parsed, sizes),
        load=lambda more: load_parsed(parsed, {**sizes, **more}),
        bound=lambda more: _deferred(parsed, {**sizes, **more}),
    )


def _load_encoder(folder: str) -> Graph:
    from ingot.load.hf import load_language_model, read_folder

    model = load_language_model(read_folder(folder), context=None)
    if model.kind != "encoder":
        raise InputError(f"{folder}: a decoder keeps state between runs, got {model.config['model_type']}; {_LANGUAGE}")
    return model.graph
