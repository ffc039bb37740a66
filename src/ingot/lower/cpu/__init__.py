"""What lowering takes for a CPU: rows by family, which fill `rows.ROWS` as they are imported, and the rest of `CPU`."""

from ingot.lower.cpu import attention, conv, elementwise, index, kv_cache, linear, norm, shape
from ingot.lower.cpu.rows import ROWS
from ingot.lower.cpu.strip import add_strip
from ingot.lower.epilogue import find_groups
from ingot.lower.lowering import Backend
from ingot.lower.strip import find_strips

CPU = Backend(ROWS, find_groups, find_strips, add_strip, elementwise.add_copy, elementwise.add_cast)

__all__ = ["CPU", "ROWS", "attention", "conv", "elementwise", "index", "kv_cache", "linear", "norm", "shape"]
