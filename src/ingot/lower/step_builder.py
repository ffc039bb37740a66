"""The steps of a lowered graph and their tensors, as lowering adds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, TensorType
from ingot.lower.lowered import Field, Lowered, Pointer, Step, Tensor, moved, moved_field
from ingot.lower.packed_weight import PackedWeight
from ingot.lower.selection import Backend, Selection
from ingot.lower.target import Target
from ingot.lower.view import View, contiguous_strides, ordered_strides


class StepBuilder(Selection):
    """Adds tensors and steps to `lowered`, with copies where a step cannot write a view or would overwrite a state.

    node_name: the node that the next steps compute. work: an estimate for each step, in nanoseconds on one thread.
    """

    def __init__(self, graph: Graph, target: Target, backend: Backend):
        super().__init__(graph, target, backend)
        self.lowered = Lowered(target)
        self.node_name = ""
        self.work: list[float] = []
        self._weights: dict[str, str] = {}  # packed weight key -> tensor id
        self._stand_ins: dict[str, tuple[View, View]] = {}  # tensor -> its view, and the view it is copied to

    def step(
        self,
        kernel: str,
        args_type: str,
        fields: dict[str, Field],
        reads: Sequence[View],
        writes: Sequence[View],
        *,
        work: float,
        inplace: tuple[int, ...] = (),
        keeps: int = 0,
        scratch_floats: int = 0,
        iterations: int = 1,
    ) -> None:
        """Add a step. `work` is an estimate in nanoseconds on one thread, for `cut`. keeps, iterations: see `Step`.

        scratch_floats: f32 scratch per task, if the kernel rule sets it; otherwise the backend computes it. The kernel
        gets it as `scratch` and `scratch_stride`.
        """
        if all(w.size == 0 for w in writes):
            return
        redirected = self._redirect(reads, writes, inplace) if self.graph.states and not keeps else {}
        written = [moved(view, redirected) for view in writes] if redirected else writes
        fields = {name: moved_field(value, redirected) for name, value in fields.items()} if redirected else fields
        scratch = None
        if scratch_floats := scratch_floats or self.backend.scratch_floats(kernel, fields):
            slot = -(-scratch_floats // 16) * 16
            scratch = self._new(f"{self.node_name}.scratch", f32, (slot,), "scratch").tensor
            fields = fields | {"scratch": Pointer(scratch), "scratch_stride": slot}
        self.work.append(work)
        views = tuple(reads), tuple(written)
        self.lowered.steps.append(
            Step(kernel, args_type, fields, *views, self.node_name, inplace, 1, scratch, keeps, iterations)
        )
        for view, own in zip(writes, written, strict=True) if redirected else ():
            if own != view:
                self.add_copy(own, view)
        for write in writes if self._stand_ins else ():
            if write.tensor in self._stand_ins:
                self.add_copy(*self._stand_ins.pop(write.tensor))

    def _redirect(self, reads: Sequence[View], writes: Sequence[View], inplace: tuple[int, ...]) -> dict[str, str]:
        """For a step that would overwrite a state that it reads: return update id -> id of a temporary tensor."""
        redirected = {}
        for i, write in enumerate(writes):
            tensor = self.lowered.tensors[write.tensor]
            readers = [k for k, read in enumerate(reads) if read.tensor == tensor.replaces]
            permitted = i == 0 and len(readers) == 1 and readers[0] in inplace
            if readers and not (permitted and self.replaces(write, reads[readers[0]])):
                own = self.temporary(f"{self.node_name}.aside", tensor.dtype, tensor.shape)
                redirected[write.tensor] = own.tensor
        return redirected

    def cut(self) -> None:
        """Split steps into tasks, each with a slot of scratch, and into chunks, if the run is worth several threads."""
        if sum(self.work) < self.target.run_nanoseconds:
            return
        for step, work in zip(self.lowered.steps, self.work, strict=True):
            worth = int(work / step.iterations / self.target.task_nanoseconds)  # each iteration has a barrier
            step.parts = max(1, min(self.target.threads, worth))
            chunks = self.target.chunks(work / step.parts)
            if chunks > 1 and "chunks" in step.fields:
                step.chunks = step.fields["chunks"] = chunks
            if step.scratch is not None:
                tensor = self.lowered.tensors[step.scratch]
                tensor.shape = (tensor.shape[0] * step.parts,)
                tensor.nbytes *= step.parts

    def move(self, source: View, target: View) -> None:
        """Add a step that copies elements between two views of one shape, with a cast if their dtypes differ."""
        (self.backend.copy if source.dtype is target.dtype else self.backend.cast)(self, source, target)

    def add_copy(self, source: View, target: View) -> None:
        """Add a step that copies elements between two views of one shape."""
        self.backend.copy(self, source, target)

    def stand_in(self, value: str, target: View, order: tuple[int, ...] | None = None) -> View:
        """Return a tensor that the next step writes instead of a view of a value, row-major or in `order`.

        The step is followed by a copy into the view.
        """
        view = self.temporary(f"{value}.rows", target.dtype, target.shape, order)
        self._stand_ins[view.tensor] = view, target
        return view

    def replaces(self, new: View, old: View) -> bool:
        """Return whether a view is the update of another view: the same elements at the same address."""
        return self.lowered.tensors[new.tensor].replaces == old.tensor and replace(new, tensor=old.tensor) == old

    # -- tensors ------------------------------------------------------------------------------------------------

    def temporary(self, name: str, dtype: DType, shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> View:
        """Add a tensor for data between steps, row-major or with its axes in another order."""
        return self._new(name, dtype, shape, "activation", order)

    def root(self, name: str, type: TensorType, kind: str) -> View:
        """Add the tensor of an input, an output, a state or the update of a state."""
        return self._new(name, type.dtype, type.dims, kind)

    def add_weight(self, packed_weight: PackedWeight) -> View:
        """Return the tensor of a packed weight, the same for equal keys; raw values keep their shape."""
        value, own = packed_weight.value, packed_weight.dtype
        dtype = self.backend.held[value.type.dtype] if packed_weight.format is None else own
        id = self._weights.get(packed_weight.key)
        if id is None:
            id = self._weights[packed_weight.key] = self._id()
            held = packed_weight.nbytes if dtype is own else packed_weight.nbytes * dtype.bits // own.bits
            self.lowered.tensors[id] = Tensor(id, value.name, dtype, value.dims, "weight", held, packed_weight)
        return View(id, dtype, 0, value.dims, contiguous_strides(value.dims))

    def _id(self) -> str:
        return f"t{len(self.lowered.tensors)}"

    def _new(
        self, name: str, dtype: DType, shape: tuple[int, ...], kind: str, order: tuple[int, ...] | None = None
    ) -> View:
        """Add a root whose axes are stored in `order`, and return its view; the view's shape is `shape`."""
        dtype = self.backend.held[dtype]
        strides = contiguous_strides(shape) if order is None else ordered_strides(shape, order)
        view = View(self._id(), dtype, 0, shape, strides)
        stored = shape if order is None or view.is_contiguous else tuple(shape[axis] for axis in order)
        self.lowered.tensors[view.tensor] = Tensor(view.tensor, name, dtype, stored, kind, dtype.nbytes(view.size))
        return view
