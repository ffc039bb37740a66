"""Arrays that a queue of calls reads and writes without copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ingot.errors import InputError
from ingot.support.columns import counted, table


class Calls(Protocol):
    """The queue of calls of a session, `ingot.session.context.Context`."""

    @property
    def output_names(self) -> Sequence[str]: ...

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]: ...

    def prepare(self, input_feed: Mapping[str, Any]) -> tuple[Any, list[Any], Mapping[str, int]]: ...


class IOBinding:
    """Arrays bound to inputs and outputs: bind every input, then run any number of times.

    Bound arrays are read and written directly at each run: they must stay row-major and alive.
    """

    def __init__(self, context: Calls):
        self._context = context
        self._inputs: dict[str, np.ndarray] = {}
        self._bound: dict[str, np.ndarray] = {}  # outputs, by the caller
        self._results: dict[str, Any] = {}  # outputs, by runs
        self._ready: tuple[Callable[[Any], None], Any] | None = None

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Bind an input.

        Raises InputError for an array that is not row-major and aligned: it is read without a copy.
        """
        if not isinstance(array, np.ndarray) or not (array.flags.c_contiguous and array.flags.aligned):
            raise InputError(f"bind_input {name!r}: a row-major array is needed, got {type(array).__name__}")
        self._ready = None
        self._inputs[name] = array

    def bind_output(self, name: str, array: np.ndarray | None = None) -> None:
        """Bind an output to an array, or to an array that the first run allocates.

        Raises InputError for an array that is not writable, row-major and aligned.
        """
        if array is not None and not array.flags.carray:
            raise InputError(f"bind_output {name!r}: a writable row-major array is needed")
        self._ready = None
        self._results.pop(name, None)
        if array is None:
            self._bound.pop(name, None)
        else:
            self._bound[name] = array

    def __repr__(self) -> str:
        return shown_bindings(self._inputs, self._bound)[0]

    def __str__(self) -> str:
        return table(*shown_bindings(self._inputs, self._bound | self._results))

    @property
    def outputs(self) -> dict[str, Any]:
        """Return the output arrays by name, in graph order; without those that the first run has yet to allocate."""
        found = self._bound | self._results
        return {name: found[name] for name in self._context.output_names if name in found}

    def get_outputs(self) -> list[Any]:
        """Return the arrays of `outputs`."""
        return list(self.outputs.values())

    def run(self) -> None:
        """Run once: a single C call after the first run, if the model is one native segment; else results are copied.

        Raises InputError for arrays that are missing, have another dtype or shape, or share memory with an output, and
        for an index out of range.
        """
        call, table = self._ready or self.prepare()
        call(table)

    def prepare(self) -> tuple[Callable[[Any], None], Any]:
        """Check the bound arrays, and return the function that runs once, with its operand.

        Raises InputError as `run` does.
        """
        program, inputs, sizes = self._context.prepare(self._inputs)
        native = program.single
        if native is None:
            self._expect_split(list(self._bound.values()))
            self._ready = self._run_and_copy, self._inputs
            return self._ready
        outputs = []
        for name, (shape, dtype) in zip(native.lowered.outputs, native.output_types(sizes), strict=True):
            if name not in self._bound and name not in self._results:
                self._results[name] = np.empty(shape, dtype)
            outputs.append(self._fitting(name, shape, dtype))
        self._expect_split(outputs)
        self._ready = native.call, native.pointers([*inputs, *outputs], sizes)
        return self._ready

    def _fitting(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        array = self.outputs[name]
        if array.shape != shape or array.dtype != dtype:
            got, expected = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}"
            raise InputError(f"bind_output {name!r}: wrong array, got {got}, expected {expected}")
        return array

    def _expect_split(self, outputs: Sequence[np.ndarray]) -> None:
        bound = [*self._inputs.values(), *outputs]
        for array in outputs:
            if any(np.may_share_memory(array, other) for other in bound if other is not array):
                raise InputError("io_binding: an output shares memory with another bound array")

    def _run_and_copy(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name, result in zip(self._context.output_names, self._context.run(None, inputs), strict=True):
            if name in self._bound and not isinstance(result, np.ndarray):
                raise InputError(f"bind_output {name!r}: no array, got a {type(result).__name__}, expected none bound")
            if name in self._bound:
                np.copyto(self._fitting(name, result.shape, result.dtype), result)
            else:
                self._results[name] = result


def shown_bindings(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[str, list[tuple[str, ...]]]:
    """A line about a binding, and the rows of a table of its arrays. An output of None is allocated by a run."""
    counts = f"{counted(len(inputs), 'input')}, {counted(len(outputs), 'output')}"
    rows = [("input", *each) for each in inputs.items()] + [("output", *each) for each in outputs.items()]
    return f"<IOBinding: {counts}>", [(kind, name, _shown(array)) for kind, name, array in rows]


def _shown(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return "of the next run" if array is None else type(array).__name__
    return f"{array.dtype}{list(array.shape)}"
