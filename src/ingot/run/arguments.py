"""Fill the argument structs of a Plan for the addresses of its memory, and record which fields each run sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot.ir.dim import AtMost, Expr, content_of
from ingot.lower.lowered import FAULT, Lowered, Pointer, Step
from ingot.plan.memory import Address, Plan
from ingot.run.library import Library


class Arguments:
    """The C program of a Plan.

    weights: by the keys of their packed weights. addresses: of the plan's other regions. slots: indices in a binding
    table, by region; the entry after them has the sizes of a run. sizes: the index of each run-time size. `program`
    stays valid as long as this object, the weights, the regions and `run_lock` live.
    """

    def __init__(
        self,
        library: Library,
        lowered: Lowered,
        plan: Plan,
        weights: Mapping[str, np.ndarray],
        addresses: Mapping[str, int],
        slots: Mapping[str, int],
        sizes: Mapping[Expr, int],
    ):
        self._library, self._lowered, self._plan = library, lowered, plan
        self._weights, self._addresses, self._slots, self._sizes = weights, addresses, slots, sizes
        self._owned: list[Any] = []
        self._bases: dict[str, int] = {}  # of tensors, by id
        self._patches: list[tuple[Any, int, int]] = []
        self._resizes: list[tuple[Any, int, int, int]] = []
        self._fault = library.new("ingot_fault")

    def program(self, run_lock: Any, stop: Any) -> Any:
        """Return an `ingot_program *` with every struct filled; it keeps all of its memory alive except the regions.

        stop: an `int32_t *`, or NULL.
        """
        library, isa = self._library, self._lowered.target.isa
        steps = library.new("ingot_step[]", max(1, len(self._plan.steps)))
        for index, step in enumerate(self._plan.steps):
            row = steps[index]
            row.kernel = library.kernel(step.kernel, isa)
            row.args = self._arguments(step, index)
            row.num_tasks, row.barrier = step.parts, self._plan.barriers[index]
            row.iterations, row.chunks = step.iterations, step.chunks
        patches = library.new("ingot_patch[]", max(1, len(self._patches)))
        for index, (where, slot, offset) in enumerate(self._patches):
            row = patches[index]
            row.where, row.slot, row.byte_offset = where, slot, offset
            self._note_size(library.ffi.addressof(row), offset, "byte_offset")
        resizes = library.new("ingot_resize[]", max(1, len(self._resizes)))
        for row, (where, size, factor, base) in zip(resizes, self._resizes, strict=False):
            row.where, row.size, row.factor, row.base = where, size, factor, base
        self._owned += [steps, patches, resizes, run_lock, stop]
        return library.new(
            "ingot_program",
            {
                "steps": steps, "patches": patches, "resizes": resizes, "fault": self._fault,
                "lock": run_lock, "stop": stop, "step_count": len(self._plan.steps), "patch_count": len(self._patches),
                "resize_count": len(self._resizes), "sizes_slot": len(self._slots),
                "threads": self._lowered.target.threads,
            },
        )  # fmt: skip

    def _arguments(self, step: Step, index: int) -> Any:
        """Return the struct of a step: first numbers, by cffi, then pointers; record fields that each run sets."""
        numbers: dict[str, Any] = {}
        pointers: list[tuple[str, Any]] = []
        for name, value in step.fields.items():
            first = value[0] if value.__class__ is tuple and value else value  # type: ignore[index]
            if first.__class__ is Pointer:
                pointers.append((name, value))
            elif value is not None:
                numbers[name] = value
        args = self._library.new(step.args_type, numbers)
        self._owned.append(args)
        words, offsets = self._library.cast("uintptr_t*", args), self._library.words[step.args_type]
        for name, value in pointers:
            if value.__class__ is not Pointer:
                for i, element in enumerate(value):
                    words[offsets[name] + i] = self._address(args, element, name, i)
            elif value.tensor == FAULT:
                args.fault, args.step = self._fault, index
            else:
                words[offsets[name]] = self._address(args, value, name)
        for name, value in numbers.items() if self._sizes else ():
            for i, element in enumerate(value if isinstance(value, tuple) else ()):
                self._note_size(args, element, name, i)
            self._note_size(args, value, name)
        return args

    def _note_size(self, struct: Any, value: Any, *field: str | int, base: int = 0) -> None:
        """Record a field that each run sets, because it is a run-time size or an offset that depends on one."""
        if isinstance(value, AtMost):
            factor, size = content_of(value.dim)
            where = self._library.cast("int64_t*", self._field(struct, field))
            self._resizes.append((where, self._sizes[size], factor, base))

    def _field(self, args: Any, field: Sequence[str | int]) -> Any:
        """Return the address of a field of an argument struct, or of an element of one."""
        ffi = self._library.ffi
        return self._library.cast("char*", args) + ffi.offsetof(ffi.typeof(args).item, *field)

    def _address(self, args: Any, pointer: Pointer, *field: str | int) -> int:
        """Return the address of a pointer; 0 for one that each run sets, which is recorded as a patch of the field."""
        address, offset = self._plan.addresses[pointer.tensor], pointer.byte_offset
        if address.region in self._slots:
            where = self._library.cast("void**", self._field(args, field))
            self._patches.append((where, self._slots[address.region], offset))
            return 0
        if (base := self._bases.get(pointer.tensor)) is None:
            base = self._bases[pointer.tensor] = self._base(pointer.tensor, address)
        if self._sizes:
            self._note_size(args, offset, *field, base=base)
        return base + int(offset)

    def _base(self, id: str, address: Address) -> int:
        packed_weight = self._lowered.tensors[id].packed_weight
        if packed_weight is None:
            return self._addresses[address.region] + address.offset
        return int(self._weights[packed_weight.key].__array_interface__["data"][0])
