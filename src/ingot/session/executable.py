"""Executable: what a session and its contexts share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.compile import Compiled, compile_at_most, compile_mode
from ingot.errors import InputError, ReferenceWarning, UnsupportedError
from ingot.ir.dim import AtMost, Limit
from ingot.ir.graph import Graph, TensorType, type_symbols
from ingot.load import is_onnx_file
from ingot.ops.custom import CUSTOM
from ingot.passes import REGISTERED, optimize
from ingot.passes.precision import F32, precision_of, round_operands
from ingot.plan.memory import Placement
from ingot.run.interpret import bind_symbols
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.session import dynamic_shapes
from ingot.session.compile_cache import PendingEntry, entry_of, folder_of
from ingot.session.dynamic_shapes import Bound, SingleGraph
from ingot.session.source import Opened, Shared, agreed_precision, open_source, target_of
from ingot.support.spans import span

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource


class Executable:
    """A loaded model after the passes, and the options of its programs; a session and its contexts share it.

    bindings: what is compiled for values of the symbols. limits: of the symbols that have one program for all sizes.
    grows: whether programs for several sizes may be planned without limits. shared: the states and weights of a
    trainer. pending: the entry of the cache for the first program. Other attributes: see `InferenceSession`.
    """

    def __init__(
        self,
        source: ModelSource | Shared,
        *,
        example_inputs: Examples | None,
        threads: int,
        executor: str,
        precision: str | None,
        strict: bool,
        dims: Mapping[str, int | Limit] | None,
        passes: tuple[str, ...] | None,
        fuse: bool,
        cache: str | os.PathLike[str] | bool | None,
    ):
        """Load the source, bind dims and run the passes."""
        self.executor, self.strict, self.passes = executor, strict, passes
        self.shared = source if isinstance(source, Shared) else None
        weights = WeightStore(threads) if self.shared is None else self.shared.weights
        exact, self.limits = dynamic_shapes.exact_and_limits(dims)
        self.grows = dims is None and executor == "native"
        # An entry is found by the file and the options, which say nothing of what a registered op or pass does.
        may_keep = executor == "native" and fuse and not CUSTOM and not REGISTERED
        wanted, entry = None if precision is None else precision_of(precision), None
        if may_keep and is_onnx_file(source) and (root := folder_of(cache)) is not None:
            entry = entry_of(root, source, passes, exact, wanted or F32)
        cached = None if entry is None else entry.read(weights)
        with span("load"):
            loaded = (
                open_source(source, example_inputs, weights) if cached is None else Opened(cached, is_compiled=True)
            )
        given = exact if cached is None else {}
        self.precision = agreed_precision(wanted, loaded.precision)
        self.bindings = dynamic_shapes.bindings_of(loaded.graph, given, self.limits, self.precision, passes, weights)
        self.pending = PendingEntry(None if cached is not None else entry, loaded.files)
        self.source_node_count = len(self.bindings.interface)
        if isinstance(self.bindings, SingleGraph):
            if not loaded.is_compiled or (cached is None and (exact or passes is not None)):
                optimize(self.bindings.graph, passes)
            if executor == "interpret":
                round_operands(self.bindings.graph, self.precision)
        unpacked = frozenset[str]() if self.shared is None else self.shared.unpacked
        target = target_of(executor, threads, self.precision)
        self.target = replace(target, unpacked=unpacked, fuses=fuse, epilogues=fuse)
        self.interface = self.bindings.interface
        self.symbols = self.interface.symbols
        self.input_names = list(self.interface.inputs)
        self.output_names = list(self.bindings.outputs)
        types = [(name, self.interface.values[name].type) for name in self.input_names]
        self._expected = [
            (name, None if self.symbols else t.shape, t.dtype.numpy) for name, t in types if isinstance(t, TensorType)
        ]
        self.takes_arrays = len(self._expected) == len(types)
        self._warned: set[str] = set()  # ops on the reference that a warning has named

    def exact_inputs(self, input_feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Return the inputs if they need no conversion, apart from symbolic shapes: the fast path of a run."""
        inputs = []
        try:
            if len(input_feed) != len(self._expected):
                return None
            for name, shape, dtype in self._expected:
                array = input_feed.get(name)
                if type(array) is not np.ndarray or array.dtype != dtype or dtype.hasobject:
                    return None
                if shape is not None and array.shape != shape:
                    return None
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    return None
                inputs.append(array)
        except (AttributeError, TypeError):  # no mapping
            return None
        return inputs

    def sizes(self, input_feed: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of the symbols for these inputs. Raises InputError, also for a value above its limit."""
        symbols = bind_symbols(self.interface, input_feed)
        for symbol, limit in self.limits.items():
            if symbols[symbol] > limit:
                name = next(n for n in self.input_names if symbol in type_symbols(self.interface.values[n].type))
                raise InputError(
                    f"input {name!r}: dim {symbol!r} is too large, got {symbols[symbol]}, expected at most {limit}, "
                    f"the limit from dims="
                )
        return symbols

    def compiled(self, bound: Bound, sizes: Mapping[str, int], placement: Placement) -> Compiled:
        """Compile a graph for sizes of all symbols. Raises UnsizedError if one program cannot cover all sizes up to a
        limit.
        """
        compile = compile_at_most if any(isinstance(size, AtMost) for size in sizes.values()) else compile_mode
        return compile(bound.graph, self.target, bound.mode, placement=placement, passes=self.passes)

    def expect_kernels(self, program: Program) -> None:
        """Raise UnsupportedError for ops that only the reference can run, if that is not allowed."""
        if self.strict and program.fallback:
            which = "kernel" if self.executor == "native" else f"kernel of {self.executor}"
            raise UnsupportedError(f"strict: no {which}, got {', '.join(program.fallback)}, expected one for each node")

    def interpreted(self, input_feed: Mapping[str, Any]) -> Graph:
        """Return the graph that the reference runs for these inputs. Raises the errors of `sizes`."""
        symbols = self.sizes(input_feed)
        if isinstance(self.bindings, SingleGraph):
            return self.bindings.graph
        bound = self.bindings.bound(symbols)
        return bound.mode.graph(bound.graph)

    def output_index(self, name: str) -> int:
        """Return the index of an output. Raises InputError for an unknown name."""
        if name not in self.output_names:
            raise InputError(f"run: no such output, got {name!r}, expected {self.output_names}")
        return self.output_names.index(name)

    def warn(self, program: Program) -> None:
        """Warn of ops that the reference computed in the last run, once per op."""
        new = {text.partition(" ")[0] for text in program.fallback} - self._warned
        if not new:
            return
        self._warned |= new
        nodes = [text for text in program.fallback if text.partition(" ")[0] in new]
        more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        warnings.warn(
            f"no kernel for {', '.join(nodes[:3])}{more}: the numpy reference took {program.reference_share:.0%} of the"
            " run; strict=True makes that an error, `explain` lists all",
            ReferenceWarning,
            stacklevel=4,
        )
