"""The forms of a call of an ONNX op: the call with one change, which the op's schema or its shapes suggest."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_form_calls import VALUES
from onnx_form_schemas import Schema, schema_of, versions_of
from onnx_models import Case, model, one_node, value_info

MOST_RANK = 6


@dataclass(frozen=True)
class Form:
    """A node with its operands. arrays: None for an input that is left out; stored: which are initializers.

    dims: `static`, `symbolic` (a name for each size) or `unknown` shapes of inputs. outputs: names, "" for one that is
    not asked for. label: the change that made this form of its call.
    """

    case: Case
    arrays: tuple[np.ndarray | None, ...]
    stored: frozenset[int]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    dims: str = "static"
    label: str = "as it is"
    is_shape: bool = False  # whether shapes are what was changed

    @property
    def op(self) -> tuple[str, str]:
        return self.case.domain, self.case.op

    def changed(self, label: str, **values: Any) -> Form:
        return replace(self, label=label, **values)

    def with_arrays(self, label: str, arrays: dict[int, np.ndarray | None], **values: Any) -> Form:
        """The form with some of its operands replaced."""
        own = tuple(arrays.get(i, array) for i, array in enumerate(self.arrays))
        return self.changed(label, arrays=own, **values)

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model and its feeds."""
        names = ["" if array is None else f"in{i}" for i, array in enumerate(self.arrays)]
        node = helper.make_node(self.case.op, names, self.outputs, "tested", domain=self.case.domain, **self.attributes)
        inputs, constants, feeds = [], [], {}
        for i, array in enumerate(self.arrays):
            if array is not None and i in self.stored:
                constants.append(numpy_helper.from_array(array, names[i]))
            elif array is not None:
                feeds[names[i]] = array
                inputs.append(value_info(names[i], array))
        if self.dims != "static":
            for info in inputs:
                for dim in info.type.tensor_type.shape.dim:
                    size = dim.dim_value
                    dim.ClearField("dim_value")
                    if self.dims == "symbolic":
                        dim.dim_param = f"size{size}"
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs if name]
        domains = {} if self.case.domain in ("", "com.microsoft") else {self.case.domain: self.case.version}
        graph = helper.make_graph([node], self.case.op, inputs, outputs, constants)
        return model(graph, self.opset, **domains), feeds


# -- the forms of a call ---------------------------------------------------------------------------------------------


def form_of(case: Case) -> Form:
    """A case of the tables of the tests as a form; its numbers depend on its text alone."""
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    proto, feeds = one_node(case, rng)
    names = list(proto.graph.node[0].input)
    arrays = tuple((feeds | case.constants).get(name) for name in names)
    stored = frozenset(i for i, name in enumerate(names) if name in case.constants)
    return Form(case, arrays, stored, tuple(proto.graph.node[0].output), dict(case.attributes), case.opset)


def forms_of(case: Case) -> Iterator[Form]:
    """The call itself, and every change of it."""
    form = form_of(case)
    yield form
    schema = schema_of(*form.op, form.opset, case.version)
    if schema is not None:
        yield from _inputs(form, schema)
        yield from _outputs(form, schema)
        yield from _attributes(form, schema)
        yield from _types(form, schema)
    yield from _storage(form)
    for other in (*_ranks(form), *_sizes(form)):
        yield replace(other, is_shape=True)
    if not case.domain:
        for version in versions_of(case.op):
            if schema is None or version != schema.since_version:
                yield form.changed(f"opset {version}", opset=version)


def _inputs(form: Form, schema: Schema) -> Iterator[Form]:
    """Each optional input left out, and the list of inputs ended before it; and given as an empty name at the end."""
    given = len(form.arrays)
    for i, parameter in enumerate(schema.inputs[:given]):
        if parameter.is_optional and form.arrays[i] is not None:
            yield form.with_arrays(f"input {i} absent", {i: None})
            if i < given - 1:
                yield form.changed(f"{i} inputs", arrays=form.arrays[:i])
    for i, parameter in enumerate(schema.inputs[given:], given):
        if parameter.is_optional:
            yield form.changed(f'input {i} ""', arrays=form.arrays + (None,) * (i + 1 - given))


def _outputs(form: Form, schema: Schema) -> Iterator[Form]:
    """The first outputs, as many as there are; and the last of them alone."""
    for count in range(max(schema.least_outputs, 1), min(schema.most_outputs, 8) + 1):
        names = tuple(f"result{i}" for i in range(count))
        if names != form.outputs:
            yield form.changed(f"{count} outputs", outputs=names)
        if count > 1:
            yield form.changed(f"output {count - 1} alone", outputs=(*[""] * (count - 1), names[-1]))


def _attributes(form: Form, schema: Schema) -> Iterator[Form]:
    """Each attribute left out, with its explicit default, and with other values."""
    for name, attribute in schema.attributes.items():
        given = form.attributes.get(name)
        if given is not None and not attribute.is_required:
            rest = {key: value for key, value in form.attributes.items() if key != name}
            yield form.changed(f"without {name}", attributes=rest)
        for value in _values(form, name, attribute.kind, attribute.default, given):
            if value != given or type(value) is not type(given):
                text = str(value) if len(str(value)) < 40 else "..."
                yield form.changed(f"{name}={text}", attributes={**form.attributes, name: value})


def _values(form: Form, name: str, kind: str, default: Any, given: Any) -> Iterator[Any]:
    """Values to try of an attribute: those of a table, the default, and some by kind."""
    rank = form.arrays[0].ndim if form.arrays and form.arrays[0] is not None else 0
    listed = VALUES.get((form.case.op, name), VALUES.get(name))
    if default is not None:
        yield default
    if listed is not None:
        yield from listed
    elif kind == "INT":
        yield from range(-rank, rank) if name.endswith("axis") else (0, 1)
    elif kind == "FLOAT":
        yield from (0.0, 0.75, -0.5)
    elif kind == "INTS" and name == "perm":
        yield from (list(range(rank))[::-1], [*range(1, rank), 0])
    elif kind == "INTS" and name == "axes":
        yield from ([i] for i in range(-rank, rank))
        yield from (list(range(rank)), [])
    elif kind == "INTS" and given:
        yield from ([v + 1 for v in given], [1] * len(given), [*given[:-1], given[-1] + 1])


def _types(form: Form, schema: Schema) -> Iterator[Form]:
    """Each type that a variable of the schema can be, for all inputs of that type."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, array in enumerate(form.arrays):
        if array is not None and array.dtype != object:
            parameter = schema.inputs[min(i, len(schema.inputs) - 1)]
            groups[parameter.type].append(i)
    for variable, indices in groups.items():
        own = form.arrays[indices[0]]
        assert own is not None
        for dtype in schema.types.get(variable, ()):
            if dtype != own.dtype:
                arrays = {i: as_dtype(form.arrays[i], dtype) for i in indices}
                yield form.with_arrays(f"{variable}={dtype.name}", arrays)


def as_dtype(array: Any, dtype: np.dtype) -> np.ndarray:
    """An array in another dtype; unsigned numbers are without sign, and bools are positive numbers."""
    numbers = np.asarray(array).astype(np.float64)
    if dtype == np.bool_:
        return np.asarray(numbers > 0)
    if dtype.kind == "u" or dtype.name.startswith("u"):
        numbers = np.abs(numbers)
    with np.errstate(all="ignore"):
        return np.asarray(np.trunc(numbers) if "int" in dtype.name else numbers).astype(dtype)


def _storage(form: Form) -> Iterator[Form]:
    """Each input fed or stored, all of either kind, and inputs whose sizes only a run knows."""
    given = frozenset(i for i, array in enumerate(form.arrays) if array is not None)
    for i in sorted(given):
        kind = "fed" if i in form.stored else "stored"
        yield form.changed(f"input {i} {kind}", stored=form.stored ^ {i})
    yield form.changed("all stored", stored=given)
    yield form.changed("all fed", stored=frozenset())
    for dims in ("symbolic", "unknown"):
        if given - form.stored:
            yield form.changed(f"{dims} dims", dims=dims)


def _ranks(form: Form) -> Iterator[Form]:
    """Other ranks: dims before those of all inputs of the first one's rank, or of one input; dims of space behind."""
    first = form.arrays[0] if form.arrays else None
    if first is None:
        return
    alike = [i for i, array in enumerate(form.arrays) if array is not None and array.ndim == first.ndim]
    for rank in range(MOST_RANK + 1):
        if rank != first.ndim:
            for size in (1, 2) if rank > first.ndim else (1,):
                yield form.with_arrays(f"rank {rank} ({size})", {i: _ranked(form.arrays[i], rank, size) for i in alike})
    for i, array in enumerate(form.arrays):
        for rank in range(max(array.ndim - 2, 0), array.ndim + 2) if array is not None else ():
            assert array is not None
            if rank != array.ndim and len(alike) + len(form.arrays) > 2:
                yield form.with_arrays(f"input {i} of rank {rank}", {i: _ranked(array, rank, 1)})
        if array is not None and array.size == 1 and array.shape in ((), (1,)):
            shape = (1,) if array.ndim == 0 else ()
            yield form.with_arrays(f"input {i} of shape {list(shape)}", {i: array.reshape(shape)})
    if first.ndim > 2:
        yield from _spaces(form, alike)


def _ranked(array: Any, rank: int, size: int) -> np.ndarray:
    shape = (*[size] * (rank - array.ndim), *array.shape[max(array.ndim - rank, 0) :])
    return np.asarray(np.resize(array, shape))


def _spaces(form: Form, alike: Sequence[int]) -> Iterator[Form]:
    """One dim of space more or less, with the attributes that have an element for each."""
    for more in (1, -1):
        arrays = {}
        for i in alike:
            array = form.arrays[i]
            assert array is not None
            shape = (*array.shape, array.shape[-1]) if more > 0 else array.shape[:-1]
            arrays[i] = np.resize(array, shape)
        attributes = dict(form.attributes)
        for name, value in form.attributes.items():
            if name in ("kernel_shape", "strides", "dilations", "output_padding", "output_shape"):
                attributes[name] = [*value, value[-1]] if more > 0 else value[:-1]
            elif name == "pads":
                half = len(value) // 2
                begins, ends = value[:half], value[half:]
                attributes[name] = [*begins, 0, *ends, 0] if more > 0 else [*begins[:-1], *ends[:-1]]
        yield form.with_arrays(f"{'one more' if more > 0 else 'one less'} dim of space", arrays, attributes=attributes)


def _sizes(form: Form) -> Iterator[Form]:
    """Each size 0 or 1 wherever it occurs, and each dim of each input 1, as broadcasting has it."""
    sizes = {size for array in form.arrays if array is not None for size in array.shape}
    for size in sorted(sizes):
        for other in (0, 1):
            if size == other:
                continue
            arrays = {}
            for i, array in enumerate(form.arrays):
                if array is not None and size in array.shape:
                    shape = tuple(other if d == size else d for d in array.shape)
                    arrays[i] = np.resize(array, shape)
            yield form.with_arrays(f"size {size} as {other}", arrays)
    for i, array in enumerate(form.arrays):
        for axis in range(array.ndim if array is not None else 0):
            assert array is not None
            if array.shape[axis] > 1:
                shape = tuple(1 if d == axis else size for d, size in enumerate(array.shape))
                yield form.with_arrays(f"input {i} with 1 at {axis}", {i: np.resize(array, shape)})
