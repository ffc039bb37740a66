"""`torch.compile(module, backend="ingot")`: the backend that torch finds by its entry point.

AOT Autograd converts the graph traced by Dynamo to a functional ATen graph, and handles aliases and mutated inputs; the
functional graph becomes a session. Parameters and buffers are inputs of the graph; they become weights that share
torch's memory and are watched: if one is replaced or written in place (which changes its version), a new session is
built. A write through `parameter.data` does not change the version and is not detected.
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

# Errors of import and compilation, after which the graph runs in PyTorch. A graph traced by torch is valid, so any of
# them is a limitation of Ingot. Invalid inputs of a run are an InputError.
_UNCOMPILED = (LoadError, UnsupportedError, LimitError)


def compile_backend(module: GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None) -> Call:
    """Compile a graph traced by Dynamo; `options` are keywords of InferenceSession (threads, executor ...).

    If gradients are needed, forward and backward are separate sessions, with parameters as inputs, because an optimizer
    changes them at every step. A graph that Ingot cannot compile, possibly only for the sizes of a later run, warns
    once and runs in PyTorch. Invalid values in a run, such as an index outside a table, are an InputError.
    """
    trains = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    watched = {} if trains else _parameters(module, example_inputs)

    def compile_functional(functional: GraphModule, _: Sequence[Any]) -> Call:
        mutated = TracingContext.get().fw_metadata.mutated_inp_runtime_indices if watched else ()  # type: ignore[union-attr]
        constant = {i: named for i, named in watched.items() if i not in mutated}
        try:
            with unset_fake_temporarily():  # real weights are read, not fake tensors
                compiled: Call = CompiledGraph(functional, constant, options or {})
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
    with sdpa_kernel(SDPBackend.MATH):  # fused attention needs torch's own backward and its extra results
        return backend(module, example_inputs)


@functools.cache
def _decompositions() -> dict[Any, Call]:
    """Return torch's decompositions for training: of all ops except core ops, and of norms."""
    aten = torch.ops.aten
    batch_norms = [aten._native_batch_norm_legit_no_training, aten._native_batch_norm_legit]
    norms = [aten.native_layer_norm, aten.native_group_norm, *batch_norms]
    return core_aten_decompositions() | get_decompositions(norms)


class CompiledGraph:
    """A session over a functional ATen graph; called with the graph's inputs, including parameters.

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
    """Return address and version of a tensor, one of which changes on a replacement or write; 0 without a version."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _to_torch(array: np.ndarray, like: Any) -> Any:
    """Return an output as a torch tensor, or as a number if the graph returns a size."""
    if not isinstance(like, torch.Tensor):
        return array.item()
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array))


def _parameters(module: GraphModule, example_inputs: Sequence[Any]) -> dict[int, tuple[str, torch.Tensor]]:
    """Return the inputs that are parameters or buffers of the compiled module, with readable names."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = {}
    for i, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        if isinstance(value, torch.nn.Parameter) or (static and isinstance(value, torch.Tensor)):
            found[i] = (_readable(node), value)
    return found


def _readable(node: torch.fx.Node) -> str:
    """Return `fc.weight` for Dynamo's source `L['self']._modules['fc']._parameters['weight']`."""
    source = node.meta.get("grapharg")
    parts = re.findall(r"_(?:modules|parameters|buffers)\['([^']+)'\]", source.source.name) if source else []
    return ".".join(parts) or node.name


def _warn(reason: str) -> None:
    warnings.warn(f"ingot: this graph runs in PyTorch: {reason}", IngotWarning, stacklevel=2)
