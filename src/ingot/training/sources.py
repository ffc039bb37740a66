"""Load models from any source as static graphs with trainable weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.errors import InputError, KindError, UnsupportedError
from ingot.ir.dtype import bf16, f16, f32
from ingot.ir.graph import Graph, TensorType
from ingot.load import expect_exists, is_onnx_file
from ingot.passes.dce import eliminate_dead
from ingot.run.interpret import bind_symbols
from ingot.session.dynamic_shapes import unbound
from ingot.session.inputs import arrays
from ingot.training.adapters import Adapter, Lora, adapt, patterns
from ingot.training.losses import CrossEntropy, loss_of
from ingot.training.ranges import expect_integer, expect_whole

if TYPE_CHECKING:
    from ingot.load import ModelSource
    from ingot.load.hf import Folder

LENGTH = 256  # default number of tokens in a window
_MEASURED = ("running_mean", "running_var")  # torch's names of buffers that batch norms update
_STATISTICS = {"batch_norm": (3, 4)}  # operands that are statistics and not trained


def load_trained(
    source: ModelSource | Folder,
    example_inputs: tuple[Any, ...],
    prediction: str | None = None,
    *,
    is_named: bool = False,
) -> tuple[Graph, list[str]]:
    """Load the graph of a source, with symbols bound to the examples' sizes; return it and the names of its weights.

    source, prediction: see `ingot.Trainer`. is_named: the caller selects weights by name, so parameters that require
    no gradients are also returned. Raises KindError for a source that is not a model, InputError for examples that do
    not fit, and the errors of loading.
    """
    graph, wanted = _loaded(source, example_inputs, is_named)
    if len(graph.inputs) != len(example_inputs):
        raise InputError(
            f"example_inputs: got {len(example_inputs)} and a target, expected {len(graph.inputs)}: "
            f"{', '.join(graph.inputs)}"
        )
    feeds = arrays(graph, dict(zip(graph.inputs, example_inputs, strict=True)))
    graph = graph.bind(bind_symbols(graph, feeds))
    if prediction is not None:
        _predict(graph, prediction)
    unknown = [name for name, value in graph.values.items() if not _is_static(value.type)]
    if unknown:
        raise KindError(f"source: shapes depend on data, got {unknown[:20]}, expected static shapes")
    return graph, [name for name in wanted if graph.values[name].users]


def state_bytes(source: Any, kept: int, alignment: int) -> int:
    """Return an upper bound on the bytes of a module's states, `kept` arrays per parameter; 0 for other sources."""
    if isinstance(source, type) or not hasattr(source, "named_buffers"):
        return 0
    sizes = [kept * [each.nbytes] for _, each in source.named_parameters() if each.requires_grad]
    sizes += [[each.nbytes] for name, each in source.named_buffers() if name.endswith(_MEASURED)]
    return sum(-(-size // alignment) * alignment for each in sizes for size in each) + alignment  # that of the step


def load_static(path: str, dims: Mapping[str, int], prediction: str | None) -> Graph:
    """The graph of an ONNX file to train, its symbols bound; prediction: see `ingot.Trainer`.

    Raises KindError for another file, InputError for a symbol without a value, and the errors of loading.
    """
    if not is_onnx_file(path):
        raise KindError(f"{path}: cannot be trained, got another kind of model, expected an ONNX file")
    graph, _ = _loaded_onnx(path)
    graph = graph.bind({name: dims[name] for name in graph.symbols if name in dims})
    if graph.symbols:
        raise unbound(graph.symbols)
    if prediction is not None:
        _predict(graph, prediction)
    return graph


def load_for_inspection(path: str, folder: Folder | None, dims: Mapping[str, int]) -> tuple[Graph, list[str]]:
    """Load a model's training graph for inspection, with symbols bound; return it and the names of trainable weights.

    folder: of a language model, whose inputs are `batch` windows of `length` tokens and whose weights are not read.
    Raises the errors of `load_static`, and InputError for dims that a language model does not have.
    """
    if folder is None:
        graph = load_static(path, dims, None)
        return graph, trained_weights(graph, _float_weights(graph), None)[0]
    from ingot.load.hf import load_dense, longest_context

    if unknown := dims.keys() - {"batch", "length"}:
        raise InputError(f"{path}: no such dims, got {', '.join(sorted(unknown))}, expected batch and length")
    sizes = {"batch": 1, "length": min(LENGTH, longest_context(folder))} | dict(dims)
    graph = load_dense(folder, sizes["length"]).graph.bind(sizes)
    for name in _weights(graph):
        graph.values[name].data = None
    return graph, trained_weights(graph, [n for n in _float_weights(graph) if n in folder.tensors], None)[0]


def random_batch(graph: Graph, loss: str | CrossEntropy) -> list[np.ndarray]:
    """Return random arrays for a static graph's inputs, and a target for its only output."""
    rng = np.random.default_rng(0)
    prediction = graph.type(next(iter(graph.outputs.values())))
    types = [*map(graph.type, graph.inputs), loss_of(loss).target(prediction)]
    return [
        rng.uniform(0, 1, type.dims).astype(type.dtype.numpy)
        if type.dtype.kind == "f"
        else rng.integers(0, 2, type.dims).astype(type.dtype.numpy)
        for type in types
    ]


def random_windows(folder: Folder, batch: int, length: int) -> list[np.ndarray]:
    """Return random ids i64[batch, length], and the next id of each. Raises the errors of reading the model."""
    from ingot.load.hf import load_dense

    expect_windows(length, batch)
    words = load_dense(folder, length).vocab_size
    ids = np.random.default_rng(0).integers(0, words, (batch, length + 1))
    return [np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])]


def _predict(graph: Graph, prediction: str) -> None:
    """Make a value, given by its name or an output's name, the only output."""
    name = graph.outputs.get(prediction, prediction)
    if name not in graph.values or graph.producer(name) is None:
        computed = [node.outputs[0] for node in graph.nodes]
        raise InputError(f"option prediction: no such value, got {prediction!r}, expected one of {computed[-20:]}")
    for external in list(graph.outputs):
        graph.remove_output(external)
    graph.set_output(prediction, name)
    eliminate_dead(graph)


def _loaded(source: ModelSource | Folder, example_inputs: tuple[Any, ...], is_named: bool) -> tuple[Graph, list[str]]:
    if isinstance(source, Graph):
        return source.copy(), _float_weights(source)
    # An nn.Module or ExportedProgram: its other tensors are buffers.
    if hasattr(source, "named_parameters") and not isinstance(source, type):
        from ingot.load.aten import load_any

        graph = load_any(source, _as_tensors(example_inputs), is_trained=True)
        if graph is not None:
            _name_as_torch(graph, source)
            wanted = {
                name: parameter.is_floating_point() if is_named else parameter.requires_grad
                for name, parameter in source.named_parameters()
            }
            return graph, [name for name in _weights(graph) if wanted.get(name)]
    if isinstance(source, (str, os.PathLike)):
        return _loaded_path(os.fspath(source), example_inputs)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _loaded_onnx(bytes(source))
    from ingot.load.hf import Folder

    if isinstance(source, Folder):
        return _loaded_folder(source, example_inputs)
    name = type(source).__name__
    expected = "a module, an ExportedProgram, ONNX, the folder of a language model, or a Graph"
    raise KindError(f"source: cannot be trained, got {name}, expected {expected}")


def _name_as_torch(graph: Graph, source: Any) -> None:
    """Rename parameters with several names to their first name, as in `named_parameters`."""
    first: dict[int, str] = {}
    every = {"remove_duplicate": False} if hasattr(source, "named_modules") else {}
    for name, parameter in source.named_parameters(**every):
        known = first.setdefault(id(parameter), name)
        if name in graph.values and known not in graph.values:
            graph.rename(name, known)


def _loaded_path(source: str, example_inputs: tuple[Any, ...]) -> tuple[Graph, list[str]]:
    from ingot.load.gguf import is_gguf
    from ingot.load.hub import located
    from ingot.load.language import read_model

    path = located(source)
    expect_exists(path)
    if os.path.isdir(path) or is_gguf(path):
        return _loaded_folder(read_model(path), example_inputs)
    if not is_onnx_file(path):
        raise KindError(f"{path}: cannot be trained, got a saved program, expected it loaded by torch.export.load")
    return _loaded_onnx(path)


def _loaded_folder(folder: Folder, example_inputs: tuple[Any, ...]) -> tuple[Graph, list[str]]:
    from ingot.load.hf import load_dense

    length = np.shape(example_inputs[0])[-1] if np.ndim(example_inputs[0]) else 0
    graph = load_dense(folder, int(length)).graph
    return graph, [name for name in _float_weights(graph) if name in folder.tensors]


def _loaded_onnx(source: str | bytes) -> tuple[Graph, list[str]]:
    from ingot.load.onnx import load_parsed, parse_model

    graph = load_parsed(parse_model(source), is_trained=True)
    return graph, _float_weights(graph)


def _as_tensors(example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays, lists and numbers as torch tensors, if torch is imported. Raises InputError."""
    torch = sys.modules.get("torch")
    if torch is None:
        return example_inputs
    try:
        return tuple(x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in example_inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"example_inputs: not arrays, {error}, expected arrays or tensors") from error


def _is_static(type: Any) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _weights(graph: Graph) -> Iterable[str]:
    return [name for name, value in graph.values.items() if value.kind == "weight"]


def _float_weights(graph: Graph) -> list[str]:
    """Return the float weights, except statistics."""
    measured: set[str | None] = set()
    for node in graph.nodes:
        measured.update(node.operands[i] for i in _STATISTICS.get(node.op.name, ()))
    return [name for name in _weights(graph) if graph.type(name).dtype.kind == "f" and name not in measured]


def trained_weights(
    graph: Graph, candidates: Sequence[str], trainable: Sequence[str] | Lora | None
) -> tuple[list[str], list[Adapter]]:
    """Return the names of the weights to train, and the adapters that were added to the graph, if any.

    trainable: patterns of names; None for all candidates. Trained weights of 16 bits become f32 in the graph.

    Raises InputError for a pattern that matches no weight, KindError for another type than a list of patterns, and
    UnsupportedError for weights of other dtypes.
    """
    if isinstance(trainable, Lora):
        adapters = adapt(graph, trainable)
        return [name for adapter in adapters for name in (adapter.a, adapter.b)], adapters
    found = list(candidates)
    if trainable is not None:
        wanted = patterns("trainable", trainable)
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in candidates):
                raise InputError(f"trainable: nothing to train, got {pattern!r}, expected some of {found[:20]}")
        found = [name for name in found if any(fnmatchcase(name, pattern) for pattern in wanted)]
    if not found:
        raise InputError("trainable: nothing to train, got no float weight that is not frozen, expected at least one")
    for name in found:
        _widen(graph, name)
    others = [f"{name} {graph.values[name].type}" for name in found if graph.type(name).dtype is not f32]
    if others:
        raise UnsupportedError(f"trainable: wrong dtype, got {', '.join(others)}, expected f32")
    return found, []


def _widen(graph: Graph, name: str) -> None:
    """Convert a weight of 16 bits to f32 if all its readers are casts to f32."""
    casts, type = list(graph.users(name)), graph.type(name)
    if type.dtype not in (f16, bf16) or any(c.op.name != "cast" or c.dtype is not f32 for c in casts):
        return
    stored = graph.fresh(f"{name}.stored")
    graph.rename(name, stored)
    data = graph.data(stored)
    graph.add_weight(name, None if data is None else data.astype(f32.numpy), TensorType(f32, type.shape))
    for cast in casts:
        graph.replace(cast, name)
    graph.remove_value(stored)


def batch_part(inputs: Sequence[Any], part: int, parts: int) -> list[Any]:
    """Return one of several equal parts of a batch along the first axis."""
    if parts == 1:
        return list(inputs)
    return [x[part * (len(x) // parts) : (part + 1) * (len(x) // parts)] for x in inputs]


def expect_windows(context: int, batch: int) -> None:
    """Raise InputError for a context or batch below 1, and KindError for a value that is not a whole number."""
    expect_whole("option context", context, 1)
    expect_whole("option batch", batch, 1)


def expect_parts(inputs: Sequence[Any], parts: int) -> None:
    """Raise InputError for inputs that cannot be split into `parts` equal parts, KindError for other types of parts."""
    expect_integer("option accumulate", parts)
    sizes = [shape[0] if (shape := np.shape(x)) else 0 for x in inputs]
    if parts < 1 or (parts > 1 and any(size < parts or size % parts for size in sizes)):
        raise InputError(f"option accumulate: does not divide the batch, got {parts}, expected a divisor of {sizes}")
