"""InferenceSession: a model from any source, ready to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import ingot.ops
from ingot.errors import InputError, KindError, UnsupportedError, bounded
from ingot.ir.dim import Limit, given
from ingot.ir.graph import Graph
from ingot.run.native import NativeProgram
from ingot.run.program import Program
from ingot.run.store import WeightStore
from ingot.session import saved_program as saved
from ingot.session.context import Context
from ingot.session.dynamic_shapes import GraphPerShape
from ingot.session.executable import Executable
from ingot.session.io_binding import IOBinding
from ingot.session.reports import BindingReport, Explanation, PlanReport, Profile
from ingot.session.source import (
    Closed,
    NodeArg,
    Origin,
    Shared,
    check_options,
    node_arg,
    reopened,
    signature,
)
from ingot.session.trace import Trace
from ingot.support import html
from ingot.support.columns import counted
from ingot.support.machine import usable_threads

if TYPE_CHECKING:
    import numpy as np

    from ingot.load import Examples, ModelSource
    from ingot.run.webgpu import WebgpuProgram
    from ingot.session.source import SessionKeywords

assert ingot.ops  # the import registers every op


class InferenceSession:
    """A loaded model, ready to run.

    source: a path (.onnx, .pt2, a folder that `save` wrote, a Hugging Face folder of an encoder), the bytes of an ONNX
    model, an ExportedProgram, an nn.Module with `example_inputs`, or a Graph. example_inputs: the arguments of the
    module's forward, as a tuple, a dict by name, or one tensor; the module is exported for their shapes and dtypes.
    threads: 1..256; 0 means as many as the machine allows. executor: "native"; "webgpu" for the device that
    INGOT_WGPU_ADAPTER names, with rows in f32 and 32-bit integers; or "interpret" for the reference. precision: the
    precision of products: "f32"; "bf16", for the CPU's dot products; "bf16w", which rounds only constant weights;
    "int8" or "int4", for quantized weights and 8-bit rows and images; None means the precision of a saved program, else
    f32. strict: refuse ops that only the reference can run. dims: values for symbolic dims, bound at load, or
    `ingot.at_most(n)`: one program for every size of a dim up to n, which computes only the used size. If the model has
    no such program, `bindings` gives the reason, and each size gets a separate program, as for dims that are not
    listed; for these, one is planned as soon as sizes keep changing. passes: names of the passes to run; None means
    all. fuse: False makes each node a separate step, without epilogues and fused programs. cache: the folder of
    compiled programs of ONNX files between processes: a path, True for the user's own, False for none, None for
    INGOT_CACHE; programs without fusion are not cached.

    Raises MissingFileError for a missing path, LoadError, UnsupportedError or LimitError for a model that cannot be
    loaded, InputError for a bad option, ResourceError when out of memory. Concurrent `run` calls queue; `context()`
    returns another queue over the same weights.
    """

    def __init__(
        self,
        source: ModelSource | Shared,
        *,
        example_inputs: Examples | None = None,
        threads: int = 0,
        executor: str = "native",
        precision: str | None = None,
        strict: bool = False,
        dims: Mapping[str, int | Limit] | None = None,
        passes: Sequence[str] | None = None,
        fuse: bool = True,
        cache: str | os.PathLike[str] | bool | None = None,
    ):
        check_options(executor, threads, passes, cache)
        self.executor = executor
        self.strict = strict
        self.threads = threads or usable_threads()
        names = None if passes is None else tuple(passes)
        options: SessionKeywords = {"threads": threads, "executor": executor, "precision": precision, "strict": strict}
        options |= {"dims": dims, "passes": names, "cache": cache}
        self._origin = Origin.of(source, **options)
        with bounded(str(source) if isinstance(source, (str, os.PathLike)) else f"source {type(source).__name__}"):
            self._executable = Executable(
                source, example_inputs=example_inputs, threads=self.threads, executor=executor, precision=precision,
                strict=strict, dims=dims, passes=names, fuse=fuse, cache=cache,
            )  # fmt: skip
            self.precision, self.isa = self._executable.precision, self._executable.target.isa
            self.source_node_count = self._executable.source_node_count
            self._context = Context(self._executable)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Run once, with ONNX Runtime's signature: names (None or an empty list for all), and an array for each input.

        Lists and numbers are converted to arrays of the input's dtype, tensors of other libraries by `__array__` or
        DLPack; a sequence is a list, an optional its value or None. Arrays are referenced during the call and mostly
        read without a copy: concurrent writes of another thread may be visible. Returns fresh arrays in the order of
        the names. Raises InputError for a wrong name, dtype, rank, dim or index, UnsupportedError for an op without a
        kernel if the session is strict, LoadError for a file of weights that has changed, and ResourceError when out of
        memory.
        """
        return self._context.run(output_names, input_feed)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, in order."""
        interface = self._executable.interface
        return [node_arg(name, interface.values[name].type) for name in interface.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in order."""
        return [node_arg(name, type) for name, type in self._executable.bindings.outputs.items()]

    def io_binding(self) -> IOBinding:
        """Return a binding of buffers, for runs without checks or allocation."""
        return IOBinding(self._context)

    def run_with_iobinding(self, binding: IOBinding) -> None:
        """Run once on the buffers of a binding; raises the errors of `IOBinding.run`."""
        binding.run()

    def context(self) -> Context:
        """Return another queue of calls, with separate memory over the same weights."""
        return Context(self._executable)

    def explain(self, node: str | None = None) -> Explanation:
        """Return the kernel of each node and the reasons; only for one node if its output is named.

        Raises InputError for an unknown node, and for a symbolic model that no shape has been bound for yet.
        """
        program = self._context.current()
        return Explanation.of(program.native, program.fallback, self.bindings.plans(), node, program.external)

    def profile(self, input_feed: Mapping[str, Any], runs: int = 1) -> Profile:
        """Measure each step; return its median over `runs` runs, in nanoseconds.

        Raises InputError for less than one run, UnsupportedError for a model that runs in several segments, and the
        errors of `run`.
        """
        if self.executor == "interpret":
            raise UnsupportedError("profile: no step times, got executor 'interpret', expected another")
        only, inputs, sizes = self._measured("profile", input_feed, runs)
        return Profile.of(only, only.profile(inputs, runs, sizes))

    def trace(self, input_feed: Mapping[str, Any], runs: int = 1) -> Trace:
        """Measure when each thread computes each step of `runs` runs, without additional barriers.

        Each run is a normal run: it updates states. Raises the errors of `profile`.
        """
        if self.executor == "interpret":
            _expect_runs("trace", runs)
            return self._context.trace_interpreter(input_feed, runs)
        only, inputs, sizes = self._measured("trace", input_feed, runs)
        if isinstance(only, NativeProgram):
            return Trace.of_native(only, only.trace(inputs, runs, sizes)[1])
        return Trace.of_webgpu(only, inputs, runs, sizes)

    def _measured(
        self, call: str, input_feed: Mapping[str, Any], runs: int
    ) -> tuple[NativeProgram | WebgpuProgram, list[np.ndarray], Mapping[str, int]]:
        """Return the only segment of the program for these inputs, the inputs, and the sizes of the run."""
        _expect_runs(call, runs)
        program, inputs, sizes = self._context.prepare(input_feed)
        if program.only is None:
            raise UnsupportedError(f"{call}: the model runs in {len(program.segments)} segments, expected one")
        return program.only, inputs, sizes

    @property
    def bindings(self) -> BindingReport:
        """The cached programs for sizes of symbolic dims: their number, cache hits, and bytes."""
        return self._context.bindings

    @property
    def plan(self) -> PlanReport:
        """The location of every byte of a run, for the binding used last. Raises InputError if there is none."""
        program = self._context.current()
        return PlanReport.of(program.native, self._executable.bindings.unfused, program.sizes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights so far."""
        return self._executable.bindings.weight_bytes

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save a program that loads without torch or onnx: graph, packed weights, layout.

        The folder is written completely or not at all, and replaces an earlier program. Raises OutputError for a folder
        that cannot be written or contains other files, InputError for symbolic dims that no run has bound yet,
        UnsupportedError for a model that has another graph for other dims, ResourceError when out of memory.
        """
        if isinstance(self._executable.bindings, GraphPerShape):
            expected = given(self._executable.interface.symbols)
            raise UnsupportedError(f"save: the model has another graph for other dims, got none, expected {expected}")
        if self.executor == "webgpu":
            raise UnsupportedError("save: no native program, got executor 'webgpu', expected 'native'")
        if self._executable.shared is not None:
            InferenceSession(self._executable.shared.snapshot(), threads=self.threads).save(folder)
            return
        program = self._context.current()
        with bounded("save"):
            saved.write(os.fspath(folder), self.graph, self.precision, program, self.weights)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run once on arrays in the order of the inputs, or by their names; return the array of a single output, else
        the list of `run`. Raises InputError for more arrays than inputs and for an input given twice, and the
        errors of `run`.
        """
        names = [argument.name for argument in self.get_inputs()]
        twice = [name for name in names[: len(arrays)] if name in named]
        if len(arrays) > len(names) or twice:
            got = f"{len(arrays)} arrays in order" + (f" and {twice} by name too" if twice else "")
            raise InputError(f"session: too many inputs, got {got}, expected each of {names} once")
        results = self.run(None, dict(zip(names, arrays, strict=False)) | named)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        closed = ", closed" if isinstance(self._executable, Closed) else ""
        settings = f"{self.executor}, {self.precision.name}, {counted(self.threads, 'thread')}"
        return f"<InferenceSession {self._origin}: {settings}{closed}>"

    def __str__(self) -> str:
        closed = isinstance(self._executable, Closed)
        return repr(self) if closed else signature(repr(self), self.get_inputs(), self.get_outputs())

    def _repr_html_(self) -> str:
        ports = [("input", each) for each in self.get_inputs()] + [("output", each) for each in self.get_outputs()]
        rows = [(kind, each.name, each.type, each.shape) for kind, each in ports]
        return html.table(repr(self), ("", "name", "type", "shape"), rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session: its memory is freed once it has no other context; later calls raise InputError."""
        self._context = self._executable = Closed()  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """Pickle a session as its source and options, from which it is built again; see `Origin`. States start anew.

        Raises KindError for a session over the parameters of a trainer.
        """
        if self._origin.kind == Shared.__name__:
            raise KindError(
                "session: cannot be pickled, got one of a trainer, expected Trainer.snapshot() in a session"
            )
        return reopened, (type(self), *self._origin.reopen_arguments(lambda: self.graph))

    @property
    def graph(self) -> Graph:
        """The graph; for a model that has another graph for other dims, that of the binding used last."""
        return self._executable.bindings.graph

    @property
    def program(self) -> Program:
        """The compiled program of the binding used last. Raises InputError if dims have no values yet."""
        return self._context.current()

    @property
    def weights(self) -> WeightStore:
        """The packed weights of `graph`, for tools that write them."""
        return self._executable.bindings.weights


def _expect_runs(call: str, runs: int) -> None:
    if runs < 1:
        raise InputError(f"{call}: option runs: out of range, got {runs}, expected at least 1")
