"""Models from any source, as static graphs whose weights can be trained."""

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
from ingot.load import expect_there, is_onnx_file
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

LENGTH = 256  # tokens of a window, unless it is said
_MEASURED = ("running_mean", "running_var")  # as torch names buffers that batches move
_STATISTICS = {"batch_norm": (3, 4)}  # operands that are measured and not trained


def load_trained(
    source: ModelSource | Folder,
    example_inputs: tuple[Any, ...],
    prediction: str | None = None,
    *,
    is_named: bool = False,
) -> tuple[Graph, list[str]]:
    """The graph of a source, its symbols bound to what the examples say, and the names of its weights to train.

    source, prediction: see `ingot.Trainer`. is_named: names will say which are trained, and may be of parameters that
    require no gradients. Raises KindError for what is no model, InputError for examples that do not fit, and what
    loading raises.
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
        raise KindError(f"source: shapes depend on data, got {unknown[:20]}, expected known ones")
    return graph, [name for name in wanted if graph.values[name].users]


def state_bytes(source: Any, kept: int, alignment: int) -> int:
    """The most bytes that the states of a module take, so many arrays of each parameter; 0 for any other source."""
    if isinstance(source, type) or not hasattr(source, "named_buffers"):
        return 0
    sizes = [kept * [each.nbytes] for _, each in source.named_parameters() if each.requires_grad]
    sizes += [[each.nbytes] for name, each in source.named_buffers() if name.endswith(_MEASURED)]
    return sum(-(-size // alignment) * alignment for each in sizes for size in each) + alignment  # that of the step


def load_static(path: str, dims: Mapping[str, int], prediction: str | None) -> Graph:
    """The graph of an ONNX file to train, its symbols bound; prediction: see `ingot.Trainer`.

    Raises KindError for another file, InputError where a symbol has no value, and what loading raises.
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


def load_looked(path: str, folder: Folder | None, dims: Mapping[str, int]) -> tuple[Graph, list[str]]:
    """The graph of a model to train, its symbols bound, and the names of its weights to train, for what only looks.

    folder: of a language model, which takes `batch` windows of `length` tokens, and none of whose weights is read.
    Raises as `load_static`, and InputError for dims that a language model does not have.
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
    """Arrays that fit a static graph's inputs, and a target of its only output."""
    rng = np.random.default_rng(0)
    made = graph.type(next(iter(graph.outputs.values())))
    types = [*map(graph.type, graph.inputs), loss_of(loss).target(made)]
    return [
        rng.uniform(0, 1, type.dims).astype(type.dtype.numpy)
        if type.dtype.kind == "f"
        else rng.integers(0, 2, type.dims).astype(type.dtype.numpy)
        for type in types
    ]


def random_windows(folder: Folder, batch: int, length: int) -> list[np.ndarray]:
    """Ids i64[batch, length] of a language model's vocabulary, and what follows each. Raises what reading it raises."""
    from ingot.load.hf import load_dense

    expect_windows(length, batch)
    words = load_dense(folder, length).vocab_size
    ids = np.random.default_rng(0).integers(0, words, (batch, length + 1))
    return [np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])]


def _predict(graph: Graph, prediction: str) -> None:
    """Makes a value, or what is put out under a name, the only output."""
    name = graph.outputs.get(prediction, prediction)
    if name not in graph.values or graph.producer(name) is None:
        made = [node.outputs[0] for node in graph.nodes]
        raise InputError(f"option prediction: no such value, got {prediction!r}, expected one of {made[-20:]}")
    for external in list(graph.outputs):
        graph.remove_output(external)
    graph.set_output(prediction, name)
    eliminate_dead(graph)


def _loaded(source: ModelSource | Folder, example_inputs: tuple[Any, ...], is_named: bool) -> tuple[Graph, list[str]]:
    if isinstance(source, Graph):
        return source.copy(), _float_weights(source)
    # An nn.Module or ExportedProgram: what is no parameter is a buffer.
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
    """Gives a parameter that has several names the one by which `named_parameters` has it: its first."""
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
    expect_there(path)
    if os.path.isdir(path) or is_gguf(path):
        return _loaded_folder(read_model(path), example_inputs)
    if not is_onnx_file(path):
        raise KindError(f"{path}: cannot be trained, got a saved program, expected what torch.export.load makes of it")
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
    """Arrays, lists and numbers as what a module is exported with, where there may be one. Raises InputError."""
    torch = sys.modules.get("torch")
    if torch is None:
        return example_inputs
    try:
        return tuple(x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in example_inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"example_inputs: got what is no array, {error}, expected arrays or tensors") from error


def _is_static(type: Any) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _weights(graph: Graph) -> Iterable[str]:
    return [name for name, value in graph.values.items() if value.kind == "weight"]


def _float_weights(graph: Graph) -> list[str]:
    """The weights of floats, but for statistics."""
    measured: set[str | None] = set()
    for node in graph.nodes:
        measured.update(node.operands[i] for i in _STATISTICS.get(node.op.name, ()))
    return [name for name in _weights(graph) if graph.type(name).dtype.kind == "f" and name not in measured]


def trained_weights(
    graph: Graph, candidates: Sequence[str], trainable: Sequence[str] | Lora | None
) -> tuple[list[str], list[Adapter]]:
    """The names of the weights to train, and the adapters that they are of, if they are; the graph gets these.

    trainable: patterns of names; None for all candidates. Weights of 16 bits that are trained become f32.

    Raises InputError for a pattern that matches none, KindError for what is no list of patterns, and UnsupportedError
    for weights of other dtypes.
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
        raise InputError("trainable: nothing to train, got no weight of floats that is not frozen, expected some")
    for name in found:
        _widen(graph, name)
    others = [f"{name} {graph.values[name].type}" for name in found if graph.type(name).dtype is not f32]
    if others:
        raise UnsupportedError(f"trainable: wrong dtype, got {', '.join(others)}, expected f32")
    return found, []


def _widen(graph: Graph, name: str) -> None:
    """Makes a weight of 16 bits, of which only f32 is read, that f32."""
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
    """The share of a batch that is one of several equal ones along the first axis."""
    if parts == 1:
        return list(inputs)
    return [x[part * (len(x) // parts) : (part + 1) * (len(x) // parts)] for x in inputs]


def expect_windows(context: int, batch: int) -> None:
    """Raises InputError for windows of a text that are none, and KindError for what is no whole number."""
    expect_whole("option context", context, 1)
    expect_whole("option batch", batch, 1)


def expect_parts(inputs: Sequence[Any], parts: int) -> None:
    """Raises InputError for inputs that cannot be cut into so many equal parts, and KindError for no such number."""
    expect_integer("option accumulate", parts)
    sizes = [shape[0] if (shape := np.shape(x)) else 0 for x in inputs]
    if parts < 1 or (parts > 1 and any(size < parts or size % parts for size in sizes)):
        raise InputError(f"option accumulate: does not divide the batch, got {parts}, expected a divisor of {sizes}")
