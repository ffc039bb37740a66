"""What the CPU has for each op: rows by family, in `rows.ROWS`."""

from ingot.lower.cpu import attention, cache, conv, elementwise, index, linear, norm, shape
from ingot.lower.cpu.rows import ROWS

__all__ = ["ROWS", "attention", "cache", "conv", "elementwise", "index", "linear", "norm", "shape"]
