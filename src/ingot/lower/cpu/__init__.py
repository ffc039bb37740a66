"""The backend of CPUs: kernel rules by family, which fill `KERNEL_RULES` as their modules are imported."""

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
    sequence_state,
    shape,
    trees,
)
from ingot.lower.cpu.bands import divide_into_bands
from ingot.lower.cpu.cost import cost
from ingot.lower.cpu.formats import FORMATS
from ingot.lower.cpu.fused import FUSED_LIMITS, add_fused
from ingot.lower.cpu.kernel_rules import KERNEL_RULES
from ingot.lower.selection import Backend
from ingot.support import abi

CPU = Backend(
    rules=KERNEL_RULES,
    held={dtype: dtype.held for dtype in DTYPES.values() if dtype.is_native},
    epilogues=linear.EPILOGUES,
    fused_limits=FUSED_LIMITS,
    add_fused=add_fused,
    formats=FORMATS,
    pack=linear.add_pack,
    copy=elementwise.add_copy,
    cast=elementwise.add_cast,
    divide=divide_into_bands,
    scratch_floats=abi.scratch_floats,
    cost=cost,
)

__all__ = [
    "CPU", "KERNEL_RULES", "attention", "conv", "conv_gradient", "elementwise", "fourier", "index", "integer",
    "kv_cache", "linear", "norm", "optimise", "recurrent", "sequence_state", "shape",
    "trees",
]  # fmt: skip
