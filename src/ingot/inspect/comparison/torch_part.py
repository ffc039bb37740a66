"""torch on a part of an exported program: some of its nodes, with given values of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.errors import UnsupportedError
from ingot.inspect.comparison.foreign import exported_program, typed_errors
from ingot.inspect.comparison.sides import Arrays, Maker, Watch
from ingot.ir.graph import Graph

if TYPE_CHECKING:
    import torch


class TorchParts:
    """An exported program, to run parts of it. The program is loaded once."""

    def __init__(self, model: Any, example_inputs: Any, graph: Graph):
        """model, example_inputs: as for `TorchGraph`. graph: of the whole model, as loaded."""
        self._source, self._graph = (model, example_inputs), graph
        self._module: torch.fx.GraphModule | None = None

    def __call__(self, part: Graph, feeds: Arrays) -> TorchPart:
        """Return the side that runs a part. Raises UnsupportedError for one that is no part of torch's program."""
        if self._module is None:
            self._module = exported_program(*self._source).module()
        return TorchPart(self._module, self._graph, part, feeds)


class TorchPart:
    """torch on the nodes of a program that compute a part's values.

    A node of torch can be several nodes of the graph; only values that torch has are shown.
    """

    can_replace, is_foreign, rounding = True, True, ""
    title = "torch"

    def __init__(self, module: torch.fx.GraphModule, whole: Graph, part: Graph, feeds: Arrays):
        import torch

        if part.states:
            raise UnsupportedError("compare: torch runs no part with states")
        nodes = list(module.graph.nodes)
        known = {node.name: node for node in nodes}
        self.graph, self._module = part, module
        self._value: dict[torch.fx.Node, str] = dict(zip(
            (node for node in nodes if node.op == "placeholder"), whole.inputs, strict=False
        ))  # fmt: skip
        for node in whole.nodes:  # the last node of torch's that a node was built from computes its value
            if node.sources and len(node.outputs) == 1 and node.sources[-1].name in known:
                self._value[known[node.sources[-1].name]] = node.output
        by_value = {value: node for node, value in self._value.items()}
        self.makers: dict[str, Maker] = {
            name: Maker(node.op.name, self.title, node.sources)
            for node in part.nodes
            for name in node.outputs
            if name in by_value
        }
        self._given: dict[torch.fx.Node, torch.Tensor] = {
            by_value[name]: torch.from_numpy(np.array(feeds[name])) for name in part.inputs if name in by_value
        }
        self._order = self._needed(nodes, [by_value[name] for name in self.makers])
        self._give_weights(whole)

    def _needed(self, nodes: Iterable[torch.fx.Node], wanted: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """Return the nodes that compute the wanted ones, in order. Raises UnsupportedError for one of another part."""
        names = {source.name for node in self.graph.nodes for source in node.sources}
        waiting, found = list(wanted), set(wanted)
        if missing := [name for name in self.graph.outputs.values() if name not in self.makers]:
            raise UnsupportedError(f"compare: torch has no such value, got {missing[0]!r}")
        for node in waiting:
            if node in self._given or node.op == "get_attr":
                continue
            mutates = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
            if node.op != "call_function" or node.name not in names or mutates:
                raise UnsupportedError(f"compare: torch needs another node for this part, got {node.name!r}")
            for each in node.all_input_nodes:
                if each not in found:
                    found.add(each)
                    waiting.append(each)
        return [node for node in nodes if node in found]

    def _give_weights(self, whole: Graph) -> None:
        """Give the part's own weights to the nodes that read them. Raises UnsupportedError for changed constants."""
        import torch

        stored = {
            name: value.data
            for name, value in self.graph.values.items()
            if value.kind in ("weight", "constant") and value.data is not None
            and (name not in whole.values or value.data is not whole.values[name].data)
        }  # fmt: skip
        for node in self._order:
            if node.op == "get_attr" and (data := stored.pop(str(node.target), None)) is not None:
                self._given[node] = torch.from_numpy(np.array(data))
        if stored:
            raise UnsupportedError(f"compare: torch reads its own constants, got {next(iter(stored))!r} changed")

    def run(self) -> dict[str, Any]:
        """As `Side.run`."""
        return self.run_watched(lambda arrays: {})

    def run_watched(self, watch: Watch) -> dict[str, Any]:
        """As `Side.run_watched`."""
        import torch

        runner, found = torch.fx.Interpreter(self._module), dict[str, Any]()
        for node in self._order:
            with torch.no_grad(), typed_errors(f"{self.title}, node {node.name}"):
                given = self._given.get(node)
                result = runner.run_node(node) if given is None else given.clone()
            name = self._value.get(node, "")
            if given is None and name in self.makers and isinstance(result, torch.Tensor):
                found[name] = result.detach().numpy()
                replaced = watch({name: found[name]}).get(name)
                if replaced is not None:
                    result = torch.from_numpy(np.array(replaced)).to(result.dtype)
            runner.env[node] = result
        return {external: found[name] for external, name in self.graph.outputs.items() if name in found}
