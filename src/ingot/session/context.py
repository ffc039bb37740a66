"""Context: a queue of calls, with the memory and the compiled programs of its runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ingot.errors import InputError, KindError, LimitError, ResourceError, ShapeError, UnsupportedError, bounded
from ingot.ir.dim import AtMost
from ingot.ir.graph import Graph
from ingot.ops.source import DRAWS
from ingot.plan.memory import Placement
from ingot.run.arena import Arena
from ingot.run.interpret import Watch, interpret
from ingot.run.program import Program, print_checksums
from ingot.session import dynamic_shapes
from ingot.session.dynamic_shapes import BucketPolicy, Programs, SingleGraph
from ingot.session.executable import Executable
from ingot.session.inputs import arrays, row_major
from ingot.session.reports import BindingReport, Profile
from ingot.session.seeds import next_seed
from ingot.session.trace import Trace
from ingot.support.collector import uncollected
from ingot.support.columns import counted
from ingot.support.config import debug
from ingot.support.locks import OwnedLock

MAX_CACHED_SHAPES = 1024  # shapes of inputs whose dims are remembered


class Context:
    """A queue of calls over a session's weights, with a separate arena and an LRU cache of compiled bindings.

    It has no reference to a session: a dropped session is freed at once, and its contexts may outlive it.
    """

    def __init__(self, executable: Executable):
        self._executable = executable
        shared, bindings = executable.shared, executable.bindings
        self._arena, self._state = Arena(), Arena() if shared is None else shared.state
        self._carries = None if shared is None else False  # whether segments pass states on as arrays
        self._states = {} if shared is None else shared.allocations  # the location of each state, in every binding
        self._compiling = OwnedLock("run")
        self._printing = OwnedLock("run")
        self._debug = debug()
        self._growth = BucketPolicy(bindings.fits) if isinstance(bindings, SingleGraph) and executable.grows else None
        self._programs = Programs()
        self._unplanned = "" if isinstance(bindings, SingleGraph) else "the model has another graph for each size"
        self._known_sizes: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}
        self.output_names = executable.output_names
        self._static: Program | None = None
        if executable.executor != "interpret":
            if not executable.symbols:
                self._static = self._compile({})
            elif not self._unplanned and executable.limits.keys() >= set(executable.symbols):
                self._planned({})

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[np.ndarray]:
        """As `InferenceSession.run`."""
        if self._executable.executor == "interpret":
            with bounded("run"):
                results = self._interpret(*self._interpreted(input_feed))
            outputs = [results[name] for name in self.output_names]
        else:
            program, inputs, sizes = self.prepare(input_feed)
            outputs = program.run(inputs, sizes) if self._debug < 2 else self._run_and_print(program, inputs, sizes)
            if program.fallback:
                self._executable.warn(program)
        return self.selected(outputs, output_names)

    def selected(self, outputs: list[Any], output_names: Sequence[str] | None) -> list[Any]:
        """Return the named outputs, or all of them if there are no names. Raises InputError, KindError."""
        if not output_names:
            return outputs
        if isinstance(output_names, str) or not isinstance(output_names, Iterable):
            expected = [output_names] if isinstance(output_names, str) else self.output_names
            raise KindError(f"run: not a list of names, got {output_names!r}, expected {expected}")
        return [outputs[self._executable.output_index(name)] for name in output_names]

    def prepare(self, input_feed: Mapping[str, Any]) -> tuple[Program, list[np.ndarray], Mapping[str, int]]:
        """Return the program for these inputs, the inputs row-major in graph order, and the run-time sizes of the run.

        Raises InputError.
        """
        executable = self._executable
        inputs = executable.exact_inputs(input_feed) if executable.takes_arrays else None
        if inputs is not None and self._static is not None:
            return self._static, inputs, {}
        symbols = None if inputs is None else self._known_sizes.get(tuple([array.shape for array in inputs]))
        with bounded("run"):
            if inputs is None or symbols is None:
                feeds = arrays(executable.interface, input_feed)
                symbols = executable.sizes(feeds)
                inputs = [row_major(feeds[name]) for name in executable.input_names]
                if self._static is not None:
                    return self._static, inputs, {}
                self._cache_sizes(inputs, symbols)
            program, sizes = self._program(symbols)
            return program, inputs, sizes

    def _cache_sizes(self, inputs: list[np.ndarray], symbols: dict[str, int]) -> None:
        """Cache the sizes that follow from the shapes of inputs."""
        if self._executable.takes_arrays:
            if len(self._known_sizes) >= MAX_CACHED_SHAPES:
                self._known_sizes.clear()
            self._known_sizes[tuple([array.shape for array in inputs])] = symbols

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
            raise dynamic_shapes.unbound(self._executable.symbols)
        return latest

    def __repr__(self) -> str:
        return f"<Context: {self._executable.executor}, {counted(self.cached_programs, 'program')}>"

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def bindings(self) -> BindingReport:
        """As `InferenceSession.bindings`; bytes of this context's memory and of the weights that all share."""
        programs, growth, limits = self._programs, self._growth, self._executable.limits
        found, refusal = ({}, "") if growth is None else (growth.limits, growth.refusal)
        return BindingReport(
            dict(limits or found), self._unplanned if limits else "", refusal, programs.hits, programs.misses,
            self.cached_programs, dynamic_shapes.MAX_BINDINGS, self._arena.nbytes,
            self._executable.bindings.weight_bytes,
        )  # fmt: skip

    def _program(self, symbols: Mapping[str, int]) -> tuple[Program, Mapping[str, int]]:
        """Return the program for values of all symbols, and the run-time sizes of the run.

        Raises InputError for values that the model does not accept.
        """
        if self._executable.limits and not self._unplanned:
            sizes = {name: symbols[name] for name in self._executable.limits}
            program = self._planned({name: size for name, size in symbols.items() if name not in sizes})
            if program is not None and all(sizes[name] >= least for name, least in program.least.items()):
                return program, sizes
        if self._growth is not None and (grown := self._grown(self._growth, symbols)) is not None:
            return grown
        try:
            return self._cached_program(symbols, lambda: self._compile(symbols)), {}
        except ShapeError as error:
            if not isinstance(self._executable.bindings, SingleGraph):  # the model may have no graph for these dims
                raise
            got = ", ".join(f"{name} = {size}" for name, size in symbols.items())
            raise InputError(f"inputs: the model cannot have these sizes, got {got}: {error}") from error

    def _planned(self, others: Mapping[str, int]) -> Program | None:
        """Return the program for every size up to the limits and values of other symbols; None if there is none."""
        sizes = {name: AtMost(limit, name) for name, limit in self._executable.limits.items()}
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
        executable = self._executable
        bound = executable.bindings.bound(sizes)
        self._seed(bound.graph)
        compiled = executable.compiled(bound, sizes, Placement(states=self._states))
        if growth is not None:
            growth.expect_small_arena(sizes, compiled.native[1].arena_bytes)
        program = Program(compiled, bound.weights, self._arena, self._state)
        self._expect_one_home(program)
        executable.expect_kernels(program)
        if isinstance(executable.bindings, SingleGraph):
            executable.pending.keep(bound.graph, program, bound.weights)
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

    def _interpreted(self, input_feed: Mapping[str, Any]) -> tuple[Graph, Mapping[str, Any]]:
        """Return the graph that the reference runs for these inputs, and their arrays. Raises InputError."""
        feeds = arrays(self._executable.interface, input_feed)
        return self._executable.interpreted(feeds), feeds

    def trace_interpreter(self, input_feed: Mapping[str, Any], runs: int) -> Trace:
        """Return the times of the nodes of runs on the reference. Raises the errors of `run`."""
        with bounded("trace"):
            graph, feeds = self._interpreted(input_feed)
            return Trace.of_interpreter(graph, runs, lambda watch: self._interpret(graph, feeds, watch))

    def _interpret(self, graph: Graph, feeds: Mapping[str, Any], watch: Watch | None = None) -> dict[str, Any]:
        """Run once on the reference; states have the values that the previous run left. watch: see `interpret`."""
        if not graph.states:
            return interpret(graph, feeds, watch=watch)
        carried = self._state.carried
        with carried.lock.once():
            self._seed(graph)
            state_arrays = {name: array for name, array in carried.arrays.items() if name in graph.states}
            results = interpret(graph, {**state_arrays, **feeds}, watch=watch)
            carried.arrays = {**carried.arrays, **{name: results[f"state:{name}"] for name in graph.states}}
        return results

    def _seed(self, graph: Graph) -> None:
        """Give a graph's random ops without a seed a seed of this context."""
        state = self._state
        if self._executable.shared is not None:
            return
        if DRAWS in graph.states and DRAWS not in {**graph.initial, **state.beginnings}:
            begin = np.array([next_seed(), 0])
            state.beginnings[DRAWS], state.carried.arrays = begin, {**state.carried.arrays, DRAWS: begin}

    def _run_and_print(self, program: Program, inputs: list[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        with self._printing.once():  # otherwise it might print the arena of another run
            outputs = program.run(inputs, sizes)
            if program.single is not None:
                print(Profile.of(program.single, program.single.profile(inputs, 1, sizes)), file=sys.stderr)
            if self._debug >= 5:
                print_checksums(program, outputs)
        return outputs
