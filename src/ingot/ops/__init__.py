"""What each op means, whoever runs it: importing this package fills `ingot.ir.OPS`."""

from ingot.ops import attention, cache, conv, elementwise, index, linear, norm, reduce, shape, source

__all__ = ["attention", "cache", "conv", "elementwise", "index", "linear", "norm", "reduce", "shape", "source"]
