"""IOBinding: buffers bound once, to arrays, values or addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ingot.session.inference
from ingot.errors import InputError
from ingot.ort.options import RunOptions
from ingot.ort.tables import Accepts, Refuses, completed
from ingot.ort.values import OrtValue, array_at, expect_cpu
from ingot.session.context import Context
from ingot.session.io_binding import shown_bindings
from ingot.support.columns import table


@completed
class IOBinding:
    """The buffers of runs. A run allocates outputs that are bound without memory, again if their shapes change.

    Also accepts arrays as `ingot.session`'s `IOBinding`: `bind_input(name, array)`, `bind_output(name, array)`.
    """

    synchronize_inputs: Accepts
    synchronize_outputs: Accepts
    get_outputs_as_ortvaluevector: Refuses

    def __init__(self, session: ingot.session.inference.InferenceSession):
        self._context: Context = session._context
        self._names = [[each.name for each in each()] for each in (session.get_inputs, session.get_outputs)]
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._binding: ingot.session.io_binding.IOBinding | None = None  # the checked binding
        self._ready: tuple[Callable[[Any], None], Any] | None = None

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array. A row-major array is read in place at each run; another is copied now."""
        self._bind_input("bind_cpu_input", name, np.require(np.asarray(arr_on_cpu), requirements=("C", "A")))

    def bind_input(
        self,
        name: str,
        device_type: Any,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] = (),
        buffer_ptr: int = 0,
    ) -> None:
        """Bind memory at an address, or an array given instead of the device. The caller keeps both alive."""
        if isinstance(device_type, str):
            expect_cpu(f"bind_input {name!r}", device_type)
            device_type = array_at(f"bind_input {name!r}", element_type, shape, buffer_ptr)
        self._bind_input("bind_input", name, device_type)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind the array of a value."""
        self._bind_input("bind_ortvalue_input", name, ortvalue.numpy())

    def bind_output(
        self,
        name: str,
        device_type: Any = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind memory at an address, an array given instead of the device, or no memory: then a run allocates it."""
        if device_type is None or isinstance(device_type, str):
            call = f"bind_output {name!r}"
            expect_cpu(call, device_type or "cpu")
            device_type = None if buffer_ptr is None else array_at(call, element_type, shape or (), buffer_ptr)
        self._bind_output(name, device_type)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind the array of a value, which a run writes."""
        self._bind_output(name, ortvalue.numpy())

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self._inputs, self._ready = {}, None

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs."""
        self._outputs, self._ready = {}, None

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound outputs of the last run, in the order of binding."""
        return [OrtValue(array) for array in self._arrays()]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of the bound outputs of the last run, in the order of binding."""
        return [array.copy() for array in self._arrays()]

    def run(self, run_options: RunOptions | None = None) -> None:
        """Run once; after the first run this is a single C call.

        Raises the errors of `ingot.session`'s `IOBinding.run`, and IngotError if the options set `terminate`.
        """
        if run_options is not None:
            run_options.expect_not_terminated("run_with_iobinding")
        call, table = self._ready or self._prepare()
        call(table)

    def __repr__(self) -> str:
        return shown_bindings(self._inputs, self._outputs)[0]

    def __str__(self) -> str:
        bound = {} if self._ready is None or self._binding is None else self._binding.outputs
        return table(*shown_bindings(self._inputs, {name: bound.get(name, own) for name, own in self._outputs.items()}))

    def _prepare(self) -> tuple[Callable[[Any], None], Any]:
        binding = self._binding = ingot.session.io_binding.IOBinding(self._context)
        for name, array in self._inputs.items():
            binding.bind_input(name, array)
        for name, output in self._outputs.items():
            binding.bind_output(name, output)
        self._ready = binding.prepare()
        return self._ready

    def _arrays(self) -> list[np.ndarray]:
        found = self._binding.outputs if self._ready is not None and self._binding is not None else self._outputs
        arrays = [found.get(name) for name in self._outputs]
        return [array for array in arrays if array is not None]

    def _bind_input(self, call: str, name: str, array: Any) -> None:
        self._expect_named(call, name, self._names[0])
        if not isinstance(array, np.ndarray) or not (array.flags.c_contiguous and array.flags.aligned):
            raise InputError(f"{call} {name!r}: wrong type, got {type(array).__name__}, expected a row-major array")
        self._inputs[name], self._ready = array, None

    def _bind_output(self, name: str, array: Any) -> None:
        self._expect_named("bind_output", name, self._names[1])
        if array is not None and not (isinstance(array, np.ndarray) and array.flags.carray):
            got = type(array).__name__
            raise InputError(f"bind_output {name!r}: wrong type, got {got}, expected a writable row-major array")
        self._outputs.pop(name, None)
        self._outputs[name], self._ready = array, None

    @staticmethod
    def _expect_named(call: str, name: str, names: list[str]) -> None:
        if name not in names:
            raise InputError(f"{call}: no such name, got {name!r}, expected one of {names}")
