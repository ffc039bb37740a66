"""ONNX models: `load_onnx`. Importing this package registers every rule."""

from ingot.load.onnx.without_sympy import import_onnx_ir

import_onnx_ir()

from ingot.load.onnx import (  # noqa: E402, F401  # each declares its rules
    attention,
    causal,
    classify,
    contrib,
    control,
    conv,
    earlier,
    elementwise,
    experts,
    gates,
    gradient,
    grid,
    grouped,
    image,
    index,
    linear,
    linear_attention,
    ml,
    norm,
    pad,
    quantize,
    quantized,
    random,
    recurrent,
    reduce,
    renamed,
    resize,
    scatter,
    select,
    sequence,
    shape,
    signal,
    strings,
    training,
    trees,
)
from ingot.load.onnx.model import interface_of, load_onnx, load_parsed  # noqa: E402
from ingot.load.onnx.parse import parse_model  # noqa: E402

__all__ = ["interface_of", "load_onnx", "load_parsed", "parse_model"]
