"""Bands of rows: a chain of convolutions runs some rows of the result at a time, from the first step to the last.

What a step writes is then read from a core's cache, and is never in memory as a whole. The kernels and their sums are
unchanged. A step is a product of pixels, 1 x 1, or a convolution that reads windows of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ingot.ir.dim import AtMost
from ingot.ir.dtype import f32
from ingot.lower.cpu.limits import BAND_LEAST, BAND_WEIGHTS, set_limits
from ingot.lower.lowered import Field, Lowered, Pointer, Step
from ingot.lower.step_builder import StepBuilder
from ingot.lower.view import View, channels_last

_PRODUCT = "gemm_f32_packed"
_WINDOWS = ("conv2d_f32_depthwise", "conv2d_f32_planes", "conv2d_f32_packed")
_Rows = tuple[int, int]  # the first row, and the one after the last


@dataclass(frozen=True, slots=True)
class _Stage:
    """A step of a chain, with its work; its result is an image of so many rows and columns."""

    step: Step
    work: float
    height: int
    width: int

    def number(self, name: str) -> int:
        """Return a field that is one integer."""
        value = self.step.fields[name]
        assert isinstance(value, int), name
        return value

    def needs(self, rows: _Rows) -> _Rows:
        """Return the rows of its operand that rows of the result are computed from."""
        if self.step.kernel == _PRODUCT:
            return rows
        stride, pad = self.number("stride_h"), self.number("pad_top")
        reach = (self.number("kernel_h") - 1) * self.number("dilation_h") + 1
        height = self.number("height")
        first = min(height, max(0, rows[0] * stride - pad))
        return first, max(first, min(height, (rows[1] - 1) * stride - pad + reach))


def divide_into_bands(builder: StepBuilder) -> None:
    """Replace chains of steps with large images in between by steps for one band of rows after the other."""
    lowered = builder.lowered
    steps, work = lowered.steps, builder.work
    if not lowered.target.reuse:
        return
    touched = Counter(id for step in steps for id in {view.tensor for view in (*step.reads, *step.writes)})
    links = [_is_link(lowered, touched, *pair) for pair in pairwise(steps)]
    if not any(links):
        return
    lowered.steps, builder.work = [], []
    gone: set[str] = set()
    begin = 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and links[end - 1]:
            continue
        chain = steps[begin:end]
        if len(chain) == 1:
            lowered.steps.append(steps[begin])
            builder.work.append(work[begin])
        else:
            _add_bands(builder, _stages(chain, work[begin:end]))
            gone.update(step.writes[0].tensor for step in chain[:-1])
            gone.update(step.scratch for step in chain if step.scratch is not None)
        begin = end
    for tensor in gone:
        del lowered.tensors[tensor]
    lowered.views = {name: view for name, view in lowered.views.items() if view.tensor not in gone}


def _is_link(lowered: Lowered, touched: Counter[str], producer: Step, reader: Step) -> bool:
    """Return whether a step writes all of a large image of which only the next step reads rows."""
    if not _has_bands(producer) or not _has_bands(reader) or {producer.kernel, reader.kernel} == {_PRODUCT}:
        return False
    written, x = producer.writes[0], reader.reads[0]
    tensor = lowered.tensors[written.tensor]
    if len(producer.writes) != 1 or written.tensor != x.tensor or tensor.kind != "activation":
        return False
    if touched[x.tensor] != 2 or any(view.tensor == x.tensor for view in reader.reads[1:]):
        return False
    least = max(BAND_LEAST, 2 * set_limits(lowered.target).band_bytes * lowered.target.threads)
    if tensor.nbytes < least or tensor.nbytes != written.size * 4:
        return False
    image = x if len(x.shape) == 4 else written
    batch, channels, height, width = image.shape
    dense = (height * width * channels, 1, width * channels, channels)
    return batch == 1 < height and image.strides == dense and written.size == x.size


def _has_bands(step: Step) -> bool:
    """Return whether a step may run for some rows at a time: it has no other results, and reads few weights."""
    if step.kernel != _PRODUCT and step.kernel not in _WINDOWS:
        return False
    numbers = (value for group in step.fields.values() for value in (group if isinstance(group, tuple) else (group,)))
    if any(isinstance(number, AtMost) for number in numbers) or "rounded" in step.fields:
        return False
    return int(step.reads[1].size) * 4 <= BAND_WEIGHTS


def _stages(chain: Sequence[Step], work: Sequence[float]) -> list[_Stage]:
    stages = []
    for i, step in enumerate(chain):
        if step.kernel != _PRODUCT:
            image = step.writes[0]
        else:  # the image of its neighbour, which is none
            image = chain[i + 1].reads[0] if i == 0 else chain[i - 1].writes[0]
        stages.append(_Stage(step, work[i], image.shape[2], image.shape[3]))
    return stages


def _bands(stages: Sequence[_Stage], most_bytes: int) -> Iterator[list[_Rows]]:
    """Yield, for each band, the rows of each stage's result that the band needs.

    Bands are as large as a number of bytes in buffers allows, but at least a row of the result.
    """
    height = stages[-1].height
    for count in range(1, height + 1):
        rows = -(-height // count)
        start = (height - rows) // 2
        needed, total = (start, start + rows), 0
        for i in range(len(stages) - 1, 0, -1):
            needed = stages[i].needs(needed)
            total += (needed[1] - needed[0]) * int(stages[i - 1].step.writes[0].size) * 4 // stages[i - 1].height
        if total <= most_bytes:
            break
    for band in range(count):
        wanted = [(height * band // count, height * (band + 1) // count)]
        for stage in reversed(stages[1:]):
            wanted.append(stage.needs(wanted[-1]))
        yield wanted[::-1]


def _add_bands(builder: StepBuilder, stages: Sequence[_Stage]) -> None:
    """Add the steps of all bands of a chain.

    Between two stages, two buffers alternate, so that a stage does not wait for the readers of the band before. Rows
    that were computed for that band are copied from its buffer.
    """
    bands = list(_bands(stages, set_limits(builder.target).band_bytes * builder.target.threads))
    buffers = [_buffers(builder, stage, [band[i] for band in bands]) for i, stage in enumerate(stages[:-1])]
    for turn, band in enumerate(bands):
        x: View | None = None  # the rows that the next stage reads
        for i, stage in enumerate(stages[:-1]):
            (begin, end), old = band[i], bands[turn - 1][i] if turn else (0, 0)
            builder.node_name = stage.step.node
            buffer, before = buffers[i][turn % 2], buffers[i][1 - turn % 2]
            kept = max(0, old[1] - begin)
            if kept:
                builder.add_copy(_image_rows(before, begin - old[0], old[1] - old[0]), _image_rows(buffer, 0, kept))
            if begin + kept < end:
                rows = begin + kept, end
                if x is not None:
                    first, last = stage.needs(rows)
                    x = _image_rows(x, first - band[i - 1][0], last - band[i - 1][0])
                _add_rows(builder, stage, rows, x, _image_rows(buffer, kept, end - begin))
            x = _image_rows(buffer, 0, end - begin)
        builder.node_name = stages[-1].step.node
        _add_rows(builder, stages[-1], band[-1], x, None)


def _buffers(builder: StepBuilder, stage: _Stage, bands: Sequence[_Rows]) -> list[View]:
    """Return two buffers for the rows of any band of a stage's result, as images."""
    tensor = builder.lowered.tensors[stage.step.writes[0].tensor]
    rows = max(end - begin for begin, end in bands)
    shape = (1, tensor.nbytes // (4 * stage.height * stage.width), rows, stage.width)
    return [builder.temporary(f"{tensor.name}.rows{turn}", f32, shape, channels_last(4)) for turn in range(2)]


def _image_rows(image: View, begin: int, end: int) -> View:
    """Return rows [begin, end) of an image [N, C, H, W]."""
    batch, channels, _, width = image.shape
    return image.slice((0, 0, begin, 0), (batch, channels, end, width), (1, 1, 1, 1))


def _pixels(image: View) -> View:
    """Return an image of evenly spaced pixels as their rows of channels."""
    _, channels, height, width = image.shape
    return replace(image, shape=(height * width, channels), strides=(image.strides[3], 1))


def _pointer(view: View) -> Pointer:
    return Pointer(view.tensor, view.byte_offset)


def _add_rows(builder: StepBuilder, stage: _Stage, rows: _Rows, x: View | None, out: View | None) -> None:
    """Add a stage's step for some rows of its result. x, out: these rows, or None where the step's own have them."""
    step = stage.step
    fields: dict[str, Field] = {name: value for name, value in step.fields.items() if not name.startswith("scratch")}
    reads, writes = list(step.reads), list(step.writes)
    add = _product_fields if step.kernel == _PRODUCT else _window_fields
    fields |= add(stage, rows, x, out, reads, writes)
    work = stage.work * (rows[1] - rows[0]) / stage.height
    builder.step(step.kernel, step.args_type, fields, reads, writes, work=work)


def _product_fields(
    stage: _Stage, rows: _Rows, x: View | None, out: View | None, reads: list[View], writes: list[View]
) -> dict[str, Field]:
    begin, end = (row * stage.width for row in rows)

    def some(view: View) -> View:
        return view.slice((begin, 0), (end, view.shape[1]), (1, 1))

    reads[0] = some(reads[0]) if x is None else _pixels(x)
    writes[0] = some(writes[0]) if out is None else _pixels(out)
    fields: dict[str, Field] = {"a": _pointer(reads[0]), "c": _pointer(writes[0]), "m": end - begin}
    if "residual" in stage.step.fields:
        reads[-1] = some(reads[-1])
        fields["residual"] = _pointer(reads[-1])
    return fields


def _window_fields(
    stage: _Stage, rows: _Rows, x: View | None, out: View | None, reads: list[View], writes: list[View]
) -> dict[str, Field]:
    begin, end = rows
    first, last = stage.needs(rows)
    if x is None:
        reads[0] = _image_rows(reads[0], first, last)
    else:
        reads[0] = x
    writes[0] = _image_rows(writes[0], begin, end) if out is None else out
    pad = first - (begin * stage.number("stride_h") - stage.number("pad_top"))
    fields: dict[str, Field] = {"x": _pointer(reads[0]), "out": _pointer(writes[0])}
    fields |= {"height": last - first, "out_height": end - begin, "pad_top": pad}
    for name, view in (("x", reads[0]), ("out", writes[0])):
        batch, channels, row, column = view.strides
        fields[f"{name}_strides"] = (batch, row, column, channels) if name == "x" else (batch, row, column)
    if "residual" in stage.step.fields:
        reads[-1] = _image_rows(reads[-1], begin, end)
        fields["residual"] = _pointer(reads[-1])
    if "means" in stage.step.fields:  # [batch, rows, channels]
        writes[1] = writes[1].slice((0, begin, 0), (1, end, writes[1].shape[2]), (1, 1, 1))
        fields["means"] = _pointer(writes[1])
    return fields
