"""What lowering takes for a CPU: rows by family, which fill `rows.ROWS` as they are imported, and the rest of `CPU`."""

from ingot.ir.dtype import DTYPES
from ingot.lower.cpu import (
    attention,
    conv,
    conv_gradient,
    elementwise,
    fourier,
    index,
    integer,
    kv_cache,
    linear,
    norm,
    optimise,
    recurrent,
    shape,
    trees,
)
from ingot.lower.cpu.cost import cost
from ingot.lower.cpu.formats import FORMATS
from ingot.lower.cpu.fused import STRIPS, add_strip
from ingot.lower.cpu.rows import ROWS
from ingot.lower.lowering import Backend
from ingot.support import abi

CPU = Backend(
    rows=ROWS,
    held={dtype: dtype.held for dtype in DTYPES.values() if dtype.is_native},
    epilogues=linear.EPILOGUES,
    strips=STRIPS,
    add_strip=add_strip,
    formats=FORMATS,
    pack=linear.add_pack,
    copy=elementwise.add_copy,
    cast=elementwise.add_cast,
    scratch_floats=abi.scratch_floats,
    cost=cost,
)

__all__ = [
    "CPU", "ROWS", "attention", "conv", "conv_gradient", "elementwise", "fourier", "index", "integer", "kv_cache",
    "linear", "norm", "optimise", "recurrent", "shape", "trees",
]  # fmt: skip
