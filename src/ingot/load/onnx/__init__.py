"""ONNX models: `load_onnx`. Importing this registers every rule."""

from ingot.load.onnx import (  # noqa: F401  # each declares its rules
    attention,
    classify,
    codes,
    contrib,
    control,
    conv,
    earlier,
    elementwise,
    gradient,
    grid,
    grouped,
    image,
    index,
    linear,
    ml,
    norm,
    pad,
    quantize,
    random,
    recurrent,
    reduce,
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
from ingot.load.onnx.model import interface_of, load_onnx, load_parsed
from ingot.load.onnx.parse import parse_model

__all__ = ["interface_of", "load_onnx", "load_parsed", "parse_model"]
