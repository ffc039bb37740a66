"""What lowering takes for a CPU: rows by family, which fill `rows.ROWS` as they are imported, and the rest of `CPU`."""

from ingot.lower.build import Backend
from ingot.lower.cpu import attention, cache, conv, elementwise, index, linear, norm, shape
from ingot.lower.cpu.rows import ROWS
from ingot.lower.cpu.tile import emit_tile
from ingot.lower.epilogue import find_groups
from ingot.lower.tile import find_tiles

CPU = Backend(ROWS, find_groups, find_tiles, emit_tile, elementwise.emit_copy, elementwise.emit_cast)

__all__ = ["CPU", "ROWS", "attention", "cache", "conv", "elementwise", "index", "linear", "norm", "shape"]
