"""InferenceSession: a model from any source, its compiled programs for each binding of its dims, and their runs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import ingot.ops
from ingot.compile import compile_at_most, compile_mode
from ingot.errors import (
    InputError,
    KindError,
    LimitError,
    ReferenceWarning,
    ResourceError,
    ShapeError,
    UnsupportedError,
    bounded,
)
from ingot.ir.dim import AtMost, Limit, given
from ingot.ir.graph import Graph, TensorType, type_symbols
from ingot.load import is_onnx_file
from ingot.ops.custom import CUSTOM
from ingot.ops.source import DRAWS
from ingot.passes import REGISTERED, optimize
from ingot.passes.precision import F32, precision_of, round_operands
from ingot.plan.memory import Placement
from ingot.run.arena import Arena
from ingot.run.interpret import bind_symbols, interpret
from ingot.run.program import Program, print_checksums
from ingot.run.store import WeightStore
from ingot.session import dynamic_shapes
from ingot.session import saved_program as saved
from ingot.session.compile_cache import PendingEntry, entry_of, folder_of
from ingot.session.dynamic_shapes import BucketPolicy, GraphPerShape, Programs, SingleGraph
from ingot.session.inputs import arrays, row_major
from ingot.session.io_binding import IOBinding
from ingot.session.reports import BindingReport, Explanation, PlanReport, Profile
from ingot.session.seeds import next_seed
from ingot.session.source import (
    Closed,
    NodeArg,
    Opened,
    Origin,
    Shared,
    agreed_precision,
    check_options,
    node_arg,
    open_source,
    reopened,
    signature,
    target_of,
)
from ingot.support.collector import uncollected
from ingot.support.columns import counted
from ingot.support.config import debug
from ingot.support.locks import OwnedLock
from ingot.support.machine import usable_threads

if TYPE_CHECKING:
    from ingot.load import Examples, ModelSource
    from ingot.session.source import SessionKeywords

assert ingot.ops  # the import registers every op

MAX_CACHED_SHAPES = 1024  # shapes of inputs whose dims are remembered


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
        self.passes = None if passes is None else tuple(passes)
        options: SessionKeywords = {"threads": threads, "executor": executor, "precision": precision, "strict": strict}
        options |= {"dims": dims, "passes": self.passes, "cache": cache}
        self._origin = Origin.of(source, **options)
        with bounded(str(source) if isinstance(source, (str, os.PathLike)) else f"source {type(source).__name__}"):
            self._open(source, example_inputs, dims, precision, fuse, cache)

    def _open(
        self,
        source: ModelSource | Shared,
        example_inputs: Examples | None,
        dims: Mapping[str, int | Limit] | None,
        precision: str | None,
        fuse: bool,
        cache: str | os.PathLike[str] | bool | None,
    ) -> None:
        """Load the source, bind dims, run the passes, and compile if all remaining symbols have limits."""
        self._shared = source if isinstance(source, Shared) else None
        weights = WeightStore(self.threads) if self._shared is None else self._shared.weights
        passes, executor = self.passes, self.executor
        exact, self._limits = dynamic_shapes.exact_and_limits(dims)
        self._grows = dims is None and executor == "native"
        # An entry is found by the file and the options, which say nothing of what a registered op or pass does.
        may_keep = executor == "native" and fuse and not CUSTOM and not REGISTERED
        wanted, entry = None if precision is None else precision_of(precision), None
        if may_keep and is_onnx_file(source) and (root := folder_of(cache)) is not None:
            entry = entry_of(root, source, passes, exact, wanted or F32)
        cached = None if entry is None else entry.read(weights)
        loaded = open_source(source, example_inputs, weights) if cached is None else Opened(cached, is_compiled=True)
        given = exact if cached is None else {}
        self.precision = agreed_precision(wanted, loaded.precision)
        self._bindings = dynamic_shapes.bindings_of(loaded.graph, given, self._limits, self.precision, passes, weights)
        self._pending = PendingEntry(None if cached is not None else entry, loaded.files)
        self.source_node_count = len(self._bindings.interface)
        has_graph = isinstance(self._bindings, SingleGraph)
        if has_graph and (not loaded.is_compiled or (cached is None and (exact or passes is not None))):
            optimize(self.graph, self.passes)
        if has_graph and executor == "interpret":
            round_operands(self.graph, self.precision)
        unpacked = frozenset[str]() if self._shared is None else self._shared.unpacked
        target = target_of(executor, self.threads, self.precision)
        self.target = replace(target, unpacked=unpacked, fuses=fuse, epilogues=fuse)
        self.isa = self.target.isa
        self._warned: set[str] = set()  # ops on the reference that a warning has named
        self._context = Context(self)

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
        interface = self._bindings.interface
        return [node_arg(name, interface.values[name].type) for name in interface.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in order."""
        return [node_arg(name, type) for name, type in self._bindings.outputs.items()]

    def io_binding(self) -> IOBinding:
        """Return a binding of buffers, for runs without checks or allocation."""
        return IOBinding(self._context)

    def run_with_iobinding(self, binding: IOBinding) -> None:
        """Run once on the buffers of a binding; raises the errors of `IOBinding.run`."""
        binding.run()

    def context(self) -> Context:
        """Return another queue of calls, with separate memory over the same weights."""
        return Context(self)

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
        if runs < 1:
            raise InputError(f"profile: option runs: out of range, got {runs}, expected at least 1")
        if self.executor == "interpret":
            raise UnsupportedError("profile: no step times, got executor 'interpret', expected another")
        program, inputs, sizes = self._context.prepare(input_feed)
        if program.only is None:
            raise UnsupportedError(f"profile: the model runs in {len(program.segments)} segments, expected one")
        return Profile.of(program.only, program.only.profile(inputs, runs, sizes))

    @property
    def bindings(self) -> BindingReport:
        """The cached programs for sizes of symbolic dims: their number, cache hits, and bytes."""
        return self._context.bindings

    @property
    def plan(self) -> PlanReport:
        """The location of every byte of a run, for the binding used last. Raises InputError if there is none."""
        program = self._context.current()
        return PlanReport.of(program.native, self._bindings.unfused, program.sizes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights so far."""
        return self._bindings.weight_bytes

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save a program that loads without torch or onnx: graph, packed weights, layout.

        The folder is written completely or not at all, and replaces an earlier program. Raises OutputError for a folder
        that cannot be written or contains other files, InputError for symbolic dims that no run has bound yet,
        UnsupportedError for a model that has another graph for other dims.
        """
        if isinstance(self._bindings, GraphPerShape):
            expected = given(self._bindings.interface.symbols)
            raise UnsupportedError(f"save: the model has another graph for other dims, got none, expected {expected}")
        if self.executor == "webgpu":
            raise UnsupportedError("save: no native program, got executor 'webgpu', expected 'native'")
        if self._shared is not None:
            InferenceSession(self._shared.snapshot(), threads=self.threads).save(folder)
            return
        program = self._context.current()
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
        closed = ", closed" if isinstance(self._bindings, Closed) else ""
        settings = f"{self.executor}, {self.precision.name}, {counted(self.threads, 'thread')}"
        return f"<InferenceSession {self._origin}: {settings}{closed}>"

    def __str__(self) -> str:
        closed = isinstance(self._bindings, Closed)
        return repr(self) if closed else signature(repr(self), self.get_inputs(), self.get_outputs())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session: its memory is freed once it has no other context; later calls raise InputError."""
        self._context = self._bindings = Closed()  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """Pickle a session as its source and options, from which it is built again; see `Origin`. States start anew.

        Raises KindError for a session over the parameters of a trainer.
        """
        if self._shared is not None:
            raise KindError(
                "session: cannot be pickled, got one of a trainer, expected Trainer.snapshot() in a session"
            )
        return reopened, (type(self), *self._origin.reopen_arguments(lambda: self.graph))

    @property
    def graph(self) -> Graph:
        """The graph; for a model that has another graph for other dims, that of the binding used last."""
        return self._bindings.graph

    @property
    def program(self) -> Program:
        """The compiled program of the binding used last. Raises InputError if dims have no values yet."""
        return self._context.current()

    @property
    def weights(self) -> WeightStore:
        """The packed weights of `graph`, for tools that write them."""
        return self._bindings.weights


class Context:
    """A queue of calls over a session's weights, with a separate arena and an LRU cache of compiled bindings.

    It has no reference to its session: a dropped session is freed at once, and its contexts may outlive it.
    """

    def __init__(self, session: InferenceSession):
        self._executor, self._target, self._passes = session.executor, session.target, session.passes
        self._bindings, self._strict, self._pending = session._bindings, session.strict, session._pending
        self._interface = self._bindings.interface
        shared = session._shared
        self._arena, self._state = Arena(), Arena() if shared is None else shared.state
        self._is_shared = shared is not None
        self._carries = None if shared is None else False  # whether segments pass states on as arrays
        self._states = {} if shared is None else shared.places  # the location of each state, in every binding
        self._compiling = OwnedLock("run")
        self._printing = OwnedLock("run")
        self._debug = debug()
        self._names = list(self._interface.inputs)
        types = [(name, self._interface.values[name].type) for name in self._names]
        self._symbols = self._interface.symbols
        self._warned = session._warned
        self._limits = session._limits
        self._growth = (
            BucketPolicy(self._bindings.fits) if session._grows and isinstance(self._bindings, SingleGraph) else None
        )
        self._programs = Programs()
        self._unplanned = "" if isinstance(self._bindings, SingleGraph) else "the model has another graph for each size"
        self._expected = [
            (name, None if self._symbols else t.shape, t.dtype.numpy) for name, t in types if isinstance(t, TensorType)
        ]
        self._known_sizes: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}
        self._takes_arrays = len(self._expected) == len(types)
        self.output_names = list(self._bindings.outputs)
        self._static: Program | None = None
        if self._executor != "interpret" and not self._symbols:
            self._static = self._compile({})
        elif self._executor != "interpret" and not self._unplanned and self._limits.keys() >= set(self._symbols):
            self._planned({})

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[np.ndarray]:
        """As `InferenceSession.run`."""
        if self._executor == "interpret":
            with bounded("run"):
                feeds = arrays(self._interface, input_feed)
                results = self._interpret(self._interpreted(feeds), feeds)
            outputs = [results[name] for name in self.output_names]
        else:
            program, inputs, sizes = self.prepare(input_feed)
            outputs = program.run(inputs, sizes) if self._debug < 2 else self._run_and_print(program, inputs, sizes)
            if program.fallback:
                self._warn(program)
        if not output_names:
            return outputs
        if isinstance(output_names, str) or not isinstance(output_names, Iterable):
            expected = [output_names] if isinstance(output_names, str) else self.output_names
            raise KindError(f"run: not a list of names, got {output_names!r}, expected {expected}")
        return [outputs[self._output_index(name)] for name in output_names]

    def prepare(self, input_feed: Mapping[str, Any]) -> tuple[Program, list[np.ndarray], Mapping[str, int]]:
        """Return the program for these inputs, the inputs row-major in graph order, and the run-time sizes of the run.

        Raises InputError.
        """
        inputs = self._exact(input_feed) if self._takes_arrays else None
        if inputs is not None and self._static is not None:
            return self._static, inputs, {}
        symbols = None if inputs is None else self._known_sizes.get(tuple([array.shape for array in inputs]))
        with bounded("run"):
            if inputs is None or symbols is None:
                feeds = arrays(self._interface, input_feed)
                symbols = self._sizes(feeds)
                inputs = [row_major(feeds[name]) for name in self._names]
                if self._static is not None:
                    return self._static, inputs, {}
                self._cache_sizes(inputs, symbols)
            program, sizes = self._program(symbols)
            return program, inputs, sizes

    def _cache_sizes(self, inputs: list[np.ndarray], symbols: dict[str, int]) -> None:
        """Cache the sizes that follow from the shapes of inputs."""
        if self._takes_arrays:
            if len(self._known_sizes) >= MAX_CACHED_SHAPES:
                self._known_sizes.clear()
            self._known_sizes[tuple([array.shape for array in inputs])] = symbols

    def _sizes(self, input_feed: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of the symbols for these inputs. Raises InputError, also for a value above its limit."""
        symbols = bind_symbols(self._interface, input_feed)
        for symbol, limit in self._limits.items():
            if symbols[symbol] > limit:
                name = next(n for n in self._names if symbol in type_symbols(self._interface.values[n].type))
                raise InputError(
                    f"input {name!r}: dim {symbol!r} is too large, got {symbols[symbol]}, expected at most {limit}, "
                    f"the limit from dims="
                )
        return symbols

    def _exact(self, input_feed: Mapping[str, Any]) -> list[np.ndarray] | None:
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

    @property
    def cached_programs(self) -> int:
        """The number of cached bindings."""
        return len(self._programs) + (self._static is not None)

    def current(self) -> Program:
        """Return the program used last. Raises InputError when symbols have no values yet."""
        if self._static is not None:
            return self._static
        latest = self._programs.latest
        if latest is None:
            raise dynamic_shapes.unbound(self._symbols)
        return latest

    def __repr__(self) -> str:
        return f"<Context: {self._executor}, {counted(self.cached_programs, 'program')}>"

    # -- inside -------------------------------------------------------------------------------------------------

    def _warn(self, program: Program) -> None:
        """Warn of ops that the reference computed in the last run, once per op and session."""
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

    @property
    def bindings(self) -> BindingReport:
        """As `InferenceSession.bindings`; bytes of this context's memory and of the weights that all share."""
        programs, growth = self._programs, self._growth
        found, refusal = ({}, "") if growth is None else (growth.limits, growth.refusal)
        return BindingReport(
            dict(self._limits or found), self._unplanned if self._limits else "", refusal, programs.hits,
            programs.misses, self.cached_programs, dynamic_shapes.MAX_BINDINGS, self._arena.nbytes,
            self._bindings.weight_bytes,
        )  # fmt: skip

    def _program(self, symbols: Mapping[str, int]) -> tuple[Program, Mapping[str, int]]:
        """Return the program for values of all symbols, and the run-time sizes of the run.

        Raises InputError for values that the model does not accept.
        """
        if self._limits and not self._unplanned:
            sizes = {name: symbols[name] for name in self._limits}
            program = self._planned({name: size for name, size in symbols.items() if name not in sizes})
            if program is not None and all(sizes[name] >= least for name, least in program.least.items()):
                return program, sizes
        if self._growth is not None and (grown := self._grown(self._growth, symbols)) is not None:
            return grown
        try:
            return self._cached_program(symbols, lambda: self._compile(symbols)), {}
        except ShapeError as error:
            if not isinstance(self._bindings, SingleGraph):  # the model may have no graph for these dims
                raise
            got = ", ".join(f"{name} = {size}" for name, size in symbols.items())
            raise InputError(f"inputs: the model cannot have these sizes, got {got}: {error}") from error

    def _planned(self, others: Mapping[str, int]) -> Program | None:
        """Return the program for every size up to the limits and values of other symbols; None if there is none."""
        sizes = {name: AtMost(limit, name) for name, limit in self._limits.items()}
        try:
            return self._cached_program({**others, **sizes}, lambda: self._compile({**others, **sizes}))
        except (ShapeError, LimitError, UnsupportedError) as error:  # programs of single sizes may still exist
            self._unplanned = str(error)
        return None

    def _grown(self, growth: BucketPolicy, symbols: Mapping[str, int]) -> tuple[Program, Mapping[str, int]] | None:
        """Return a program that covers these and other sizes, if sizes keep changing, and the run-time sizes of a run;
        None if these sizes have or should get a separate program.
        """
        with self._compiling.once():
            if symbols in self._programs:
                return None
            is_served = growth.serves(symbols)
            for limits in [growth.limits] if is_served else growth.proposals(symbols):
                sizes = {**symbols, **{name: AtMost(limit, name) for name, limit in limits.items()}}
                try:
                    program = self._programs.find(sizes, partial(self._compile, sizes, growth), anew=not is_served)
                except (ShapeError, LimitError, UnsupportedError, ResourceError) as error:
                    growth.refuse(error)
                    continue
                if not is_served:
                    growth.settle(limits, symbols)
                used = {name: symbols[name] for name in limits}
                return (program, used) if all(used[name] >= n for name, n in program.least.items()) else None
        return None

    def _cached_program(self, sizes: Mapping[str, int], compile: Callable[[], Program]) -> Program:
        with self._compiling.once():
            return self._programs.find(sizes, compile)

    @uncollected()
    def _compile(self, sizes: Mapping[str, int], growth: BucketPolicy | None = None) -> Program:
        """Compile the program for sizes of all symbols. Raises UnsizedError if one program cannot cover all sizes up to
        a limit, and the errors of `BucketPolicy.expect_small_arena`.
        """
        bound, placement = self._bindings.bound(sizes), Placement(states=self._states)
        self._seed(bound.graph)
        compile = compile_at_most if any(isinstance(size, AtMost) for size in sizes.values()) else compile_mode
        compiled = compile(bound.graph, self._target, bound.mode, placement=placement, passes=self._passes)
        if growth is not None:
            growth.expect_small_arena(sizes, compiled.native[1].arena_bytes)
        program = Program(compiled, bound.weights, self._arena, self._state)
        self._expect_one_home(program)
        if self._strict and program.fallback:
            which = "kernel" if self._executor == "native" else f"kernel of {self._executor}"
            raise UnsupportedError(f"strict: no {which}, got {', '.join(program.fallback)}, expected one for each node")
        if isinstance(self._bindings, SingleGraph):
            self._pending.keep(bound.graph, program, bound.weights)
        return program

    def _expect_one_home(self, program: Program) -> None:
        """Raise UnsupportedError if states would be stored both in memory that others write or that another binding's
        program uses, and in the arrays that a program of several segments passes on.
        """
        if not program.graph.states:
            return
        is_carried = program.carried is not None
        if self._carries is None:
            self._carries = is_carried
        if self._carries != is_carried:
            cached, missing = ", ".join(map(repr, program.graph.states)), ", ".join(program.fallback)
            expected = "kernels in each program that has these states, or in none"
            raise UnsupportedError(f"states {cached}: no kernel, got {missing or 'none missing'}, expected {expected}")

    def _interpreted(self, input_feed: Mapping[str, Any]) -> Graph:
        """Return the graph that the reference runs for these inputs."""
        symbols = self._sizes(input_feed)
        if isinstance(self._bindings, SingleGraph):
            return self._bindings.graph
        bound = self._bindings.bound(symbols)
        return bound.mode.graph(bound.graph)

    def _interpret(self, graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once on the reference; states have the values that the previous run left."""
        if not graph.states:
            return interpret(graph, feeds)
        carried = self._state.carried
        with carried.lock.once():
            self._seed(graph)
            state_arrays = {name: array for name, array in carried.arrays.items() if name in graph.states}
            results = interpret(graph, {**state_arrays, **feeds})
            carried.arrays = {**carried.arrays, **{name: results[f"state:{name}"] for name in graph.states}}
        return results

    def _seed(self, graph: Graph) -> None:
        """Give a graph's random ops without a seed a seed of this context."""
        state = self._state
        if DRAWS in graph.states and DRAWS not in {**graph.initial, **state.beginnings} and not self._is_shared:
            begin = np.array([next_seed(), 0])
            state.beginnings[DRAWS], state.carried.arrays = begin, {**state.carried.arrays, DRAWS: begin}

    def _output_index(self, name: str) -> int:
        if name not in self.output_names:
            raise InputError(f"run: no such output, got {name!r}, expected {self.output_names}")
        return self.output_names.index(name)

    def _run_and_print(self, program: Program, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        with self._printing.once():  # otherwise it might print the arena of another run
            outputs = program.run(inputs, sizes)
            if program.single is not None:
                print(Profile.of(program.single, program.single.profile(inputs, 1, sizes)), file=sys.stderr)
            if self._debug >= 5:
                print_checksums(program, outputs)
        return outputs
