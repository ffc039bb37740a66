"""What each op means, whoever runs it: importing this package fills `ingot.ir.OPS`."""

from ingot.ops import attention, conv, elementwise, index, kv_cache, linear, norm, reduce, shape, source

__all__ = ["attention", "conv", "elementwise", "index", "kv_cache", "linear", "norm", "reduce", "shape", "source"]
