"""What each op means, whoever runs it: importing this package fills `ingot.ir.OPS`."""

from ingot.ops import (
    attention,
    cast,
    conv,
    elementwise,
    image,
    index,
    kv_cache,
    linear,
    norm,
    quantize,
    recurrent,
    reduce,
    shape,
    source,
    strings,
    trees,
)

__all__ = [
    "attention",
    "cast",
    "conv",
    "elementwise",
    "image",
    "index",
    "kv_cache",
    "linear",
    "norm",
    "quantize",
    "recurrent",
    "reduce",
    "shape",
    "source",
    "strings",
    "trees",
]
