"""Sides of other projects: ONNX Runtime on the model's file, and torch on the exported program."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.errors import ExtensionError, ResourceError, UnsupportedError, guarded
from ingot.inspect.comparison.sides import Arrays, Maker, Watch
from ingot.ir.graph import Graph

if TYPE_CHECKING:
    import torch

_AT_ONCE = 32  # values that a watched run of ONNX Runtime returns together


class OnnxSession:
    """ONNX Runtime on the CPU. A watched run returns further values, which may stop fusions: its bits may differ."""

    can_replace, is_foreign, rounding = False, True, ""
    title = "onnxruntime"

    def __init__(self, model: Any, graph: Graph, feeds: Arrays):
        """model: a path or the bytes of an ONNX file. Raises as `expect_installed`, UnsupportedError for others."""
        expect_installed("onnxruntime")
        import onnx

        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if path is not None and not path.endswith(".onnx"):
            raise UnsupportedError(f"compare: onnxruntime needs an ONNX file, got {path}, expected .onnx")
        if path is None and not isinstance(model, (bytes, bytearray)):
            raise UnsupportedError(f"compare: onnxruntime needs an ONNX file, got a {type(model).__name__}")
        self.graph, self._feeds = graph, dict(feeds)
        with typed_errors("onnx"):
            self._proto = onnx.load(path) if path is not None else onnx.load_from_string(bytes(model))
        named = {name for node in self._proto.graph.node for name in node.output}
        self.makers = {
            name: Maker(node.op.name, self.title, node.sources)
            for node in graph.nodes
            for name in node.outputs
            if name in named
        }
        self._session = self._opened(())

    def _opened(self, names: Iterable[str]) -> Any:
        """Return a session that returns further values."""
        import onnx
        import onnxruntime  # type: ignore[import-untyped]

        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        returned = {output.name for output in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in returned)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # of fatal errors: the others are raised
        with typed_errors(self.title):
            return onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])

    def _run(self, session: Any, names: list[str]) -> dict[str, Any]:
        with typed_errors(self.title):
            return dict(zip(names, session.run(names, self._feeds), strict=True))

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        return self._run(self._session, [output.name for output in self._proto.graph.output])

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        session = self._opened(self.makers)
        for some in _batches(list(self.makers), _AT_ONCE):
            watch(self._run(session, some))
        return self._run(session, [output.name for output in self._proto.graph.output])


class TorchGraph:
    """torch on an exported program, node by node as torch's interpreter of fx graphs runs it."""

    can_replace, is_foreign, rounding = True, True, ""
    title = "torch"

    def __init__(self, model: Any, example_inputs: Any, graph: Graph, feeds: Arrays):
        """As `exported_program`."""
        expect_installed("torch")
        import torch

        self.graph, self._module = graph, exported_program(model, example_inputs).module()
        self._first = dict(self._module.named_buffers())  # whose memory the user's module may share
        for path, buffer in self._first.items():
            owner, _, name = path.rpartition(".")
            setattr(self._module.get_submodule(owner), name, buffer.clone())
        self._inputs = [torch.from_numpy(np.array(feeds[name])) for name in graph.inputs]
        self.makers: dict[str, Maker] = {}
        last = {node.sources[0].name: node for node in graph.nodes if len(node.sources) == 1 and len(node.outputs) == 1}
        computed = {node.name for node in self._module.graph.nodes}
        self._values = {name: node.output for name, node in last.items() if name in computed}
        for name in self._values:
            node = last[name]
            self.makers[node.output] = Maker(node.op.name, self.title, node.sources)
        self._names = list(graph.outputs)

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        import torch

        with torch.no_grad(), typed_errors(self.title):
            return self._named(self._module(*self._begun()))

    def _begun(self) -> list[torch.Tensor]:
        """Set the buffers that every run starts with, and return its inputs; a run may write both."""
        for path, buffer in self._module.named_buffers():
            buffer.copy_(self._first[path])
        return [each.clone() for each in self._inputs]

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        import torch

        values = self._values

        class Watched(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                with typed_errors(f"{TorchGraph.title}, node {n.name}"):
                    found = super().run_node(n)
                if n.name not in values or not isinstance(found, torch.Tensor):
                    return found
                name = values[n.name]
                replaced = watch({name: found.detach().numpy()}).get(name)
                return found if replaced is None else torch.from_numpy(np.array(replaced)).to(found.dtype)

        with torch.no_grad():
            return self._named(Watched(self._module).run(*self._begun()))

    def _named(self, outputs: Any) -> dict[str, Any]:
        """Return the outputs by the names of the graph; values of other types are left out."""
        import torch

        flat, _ = torch.utils._pytree.tree_flatten(outputs)
        tensors = [each.detach().numpy() for each in flat if isinstance(each, torch.Tensor)]
        return dict(zip(self._names, tensors, strict=False))


def exported_program(model: Any, example_inputs: Any) -> torch.export.ExportedProgram:
    """Return a model as torch exports it: a path of a .pt2, an exported program, or a module with example inputs.

    Raises as `expect_installed`, UnsupportedError for another model.
    """
    expect_installed("torch")
    import torch

    with typed_errors(TorchGraph.title):
        if isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".pt2"):
            return torch.export.load(os.fspath(model))
        if isinstance(model, torch.nn.Module) and isinstance(example_inputs, tuple):
            return torch.export.export(model, example_inputs)
        if isinstance(model, torch.export.ExportedProgram):
            return model
        raise UnsupportedError("needs a .pt2 file, an exported program, or a module with a tuple")


@contextmanager
def typed_errors(where: str) -> Iterator[None]:
    """Convert any error that another project raises in the block to UnsupportedError."""
    try:
        with guarded(f"compare: {where}"):
            yield
    except ExtensionError as error:
        raise UnsupportedError(str(error)) from error


def _batches(names: Sequence[str], count: int) -> list[list[str]]:
    return [list(names[i : i + count]) for i in range(0, len(names), count)]


def expect_installed(package: str) -> None:
    """Raise ResourceError if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ResourceError(f"compare: needs the package {package}, got none, expected it installed")
