"""`torch.compile(module, backend="ingot")`: the backend that torch finds by its entry point.

AOT Autograd turns what Dynamo traced into a functional ATen graph and takes care of aliases and written inputs; the
graph becomes a session. Parameters and buffers arrive as graph inputs and are weights here, shared with torch and
watched: one that is replaced or written in place (which moves its version) leads to a fresh session. Writing through
`parameter.data` leaves no trace in torch and is not seen.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from ingot.errors import IngotWarning, LimitError, LoadError, UnsupportedError
from ingot.load.aten import load_traced, to_numpy
from ingot.session.inference import InferenceSession

Call = Callable[..., Any]

# What importing and compiling raise. A graph that torch has traced is a right one, so that shapes which contradict each
# other, say, are Ingot's mistake and no reason to run nothing; what a run is given wrongly is an InputError.
_UNCOMPILED = (LoadError, UnsupportedError, LimitError)


def compile_backend(module: GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None) -> Call:
    """Compiles a graph that Dynamo traced; `options` are keywords of InferenceSession (threads, executor ...).

    Where gradients are wanted, forward and backward are a session each, and parameters inputs of both: an optimiser
    writes them at every step. A graph that Ingot cannot compile, be it for sizes that a run is the first to have, warns
    once and runs in PyTorch. What is wrong with the numbers that a run is given, as an index outside a table, is an
    InputError of the run.
    """
    trains = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    watched = {} if trains else _parameters(module, example_inputs)

    def compile_functional(functional: GraphModule, _: Sequence[Any]) -> Call:
        mutated = TracingContext.get().fw_metadata.mutated_inp_runtime_indices if watched else ()  # type: ignore[union-attr]
        kept = {i: named for i, named in watched.items() if i not in mutated}
        try:
            with unset_fake_temporarily():  # weights are read for real
                compiled: Call = CompiledGraph(functional, kept, options or {})
        except _UNCOMPILED as error:
            _warn(str(error))
            compiled = functional.forward

        def boxed(arguments: list[Any]) -> Any:
            nonlocal compiled
            try:
                results = compiled(*arguments)
            except _UNCOMPILED as error:
                _warn(str(error))
                compiled = functional.forward
                results = compiled(*arguments)
            arguments.clear()
            return results

        boxed._boxed_call = True  # type: ignore[attr-defined]  # torch's mark of this calling convention
        return boxed

    backend = aot_autograd(
        fw_compiler=compile_functional,
        bw_compiler=compile_functional,
        inference_compiler=compile_functional,
        decompositions=_decompositions() if trains else None,
    )
    if not trains:
        return backend(module, example_inputs)
    with sdpa_kernel(SDPBackend.MATH):  # what torch fuses has a way back of its own, and results for that alone
        return backend(module, example_inputs)


@functools.cache
def _decompositions() -> dict[Any, Call]:
    """What torch takes apart of a graph that is trained: all but core ops, and norms, whose statistics it keeps."""
    aten = torch.ops.aten
    batch_norms = [aten._native_batch_norm_legit_no_training, aten._native_batch_norm_legit]
    norms = [aten.native_layer_norm, aten.native_group_norm, *batch_norms]
    return core_aten_decompositions() | get_decompositions(norms)


class CompiledGraph:
    """A session over a functional ATen graph; called with the graph's inputs, parameters among them.

    parameters: input position -> (name, tensor).
    """

    def __init__(self, module: GraphModule, parameters: dict[int, tuple[str, torch.Tensor]], options: dict[str, Any]):
        self._module = module
        self._options = options
        self._names = {position: name for position, (name, _) in parameters.items()}
        self._build({position: tensor for position, (_, tensor) in parameters.items()})

    def _build(self, tensors: dict[int, torch.Tensor]) -> None:
        self._watched = [(position, tensor, _state(tensor)) for position, tensor in tensors.items()]
        graph = load_traced(self._module, {i: (self._names[i], tensor) for i, tensor in tensors.items()})
        placeholders = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        self._positions = [
            i for i, node in enumerate(placeholders) if i not in tensors and isinstance(node.meta["val"], torch.Tensor)
        ]
        self._inputs = list(graph.inputs)
        returned = self._module.graph.output_node().args[0]
        self._results = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in returned]  # type: ignore[union-attr]
        self._session = InferenceSession(graph, **self._options)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        for position, tensor, state in self._watched:
            if arguments[position] is not tensor or _state(tensor) != state:
                self._build({i: arguments[i] for i, _, _ in self._watched})
                break
        feeds = {
            name: to_numpy(arguments[position]) for name, position in zip(self._inputs, self._positions, strict=True)
        }
        outputs = iter(self._session.run(None, feeds))
        return tuple(None if result is None else _to_torch(next(outputs), result) for result in self._results)


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes when a tensor gets other memory or is written in place; inference tensors have no version."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _to_torch(array: np.ndarray, like: Any) -> Any:
    """An output as torch has it: a tensor, or a number where the graph returns a size."""
    if not isinstance(like, torch.Tensor):
        return array.item()
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array))


def _parameters(module: GraphModule, example_inputs: Sequence[Any]) -> dict[int, tuple[str, torch.Tensor]]:
    """The inputs that are parameters or buffers of the compiled module, with readable names."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = {}
    for i, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        if isinstance(value, torch.nn.Parameter) or (static and isinstance(value, torch.Tensor)):
            found[i] = (_readable(node), value)
    return found


def _readable(node: torch.fx.Node) -> str:
    """`fc.weight` from Dynamo's source `L['self']._modules['fc']._parameters['weight']`."""
    source = node.meta.get("grapharg")
    parts = re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", source.source.name) if source else []
    return ".".join(parts) or node.name


def _warn(reason: str) -> None:
    warnings.warn(f"ingot: this graph runs in PyTorch: {reason}", IngotWarning, stacklevel=2)
