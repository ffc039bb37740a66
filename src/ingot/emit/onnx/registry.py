"""The table of ONNX export rules: `@rule("name")` registers the conversion of an op to ONNX nodes.

A rule receives the builder, the node, and the ONNX name of each operand, None for an omitted one; it returns the ONNX
name of the result, or a tuple of names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RULES: dict[str, Callable[..., str | tuple[str, ...]]] = {}

_CACHE = "keeps keys and values in blocks that sequences share, which ONNX does not have"
_STATE = "keeps the states of several sequences in slots, which ONNX does not have"
_SPECIAL = "is a special function that ONNX does not have"
_FACTORS = "is of linear algebra that ONNX does not have"
_BLOCKS = "is of the blocks of GGUF files, which ONNX does not have"
_TRAINS = "is a part of training, which ONNX leaves to a preview of other semantics"


# Why an op has no rule.
GAPS = {
    "adamw": _TRAINS,
    "affine_blocks": _BLOCKS,
    "airy_ai": _SPECIAL,
    "append_keys": _CACHE,
    "append_keys_int4": _CACHE,
    "append_keys_int8": _CACHE,
    "append_values": _CACHE,
    "append_values_int4": _CACHE,
    "append_values_int8": _CACHE,
    "attention_dropout": _TRAINS,
    "attention_dropout_gradient": _TRAINS,
    "attention_gradient": _TRAINS,
    "batch_norm_training": _TRAINS,
    "bessel": _SPECIAL,
    "cached_attention": _CACHE,
    "causal_conv": _STATE,
    "cholesky": _FACTORS,
    "conv_filter_gradient": _TRAINS,
    "cross_entropy": _TRAINS,
    "cross_entropy_gradient": _TRAINS,
    "decode_blocks": _BLOCKS,
    "detach": _TRAINS,
    "digamma": _SPECIAL,
    "dropout": _TRAINS,
    "eig": _FACTORS,
    "eigh": _FACTORS,
    "erfc": _SPECIAL,
    "erfcx": _SPECIAL,
    "erfinv": _SPECIAL,
    "gcd": "is a greatest common divisor, which ONNX does not have",
    "gelu_gradient": _TRAINS,
    "householder_product": _FACTORS,
    "i0": _SPECIAL,
    "i0e": _SPECIAL,
    "i1": _SPECIAL,
    "i1e": _SPECIAL,
    "igamma": _SPECIAL,
    "layer_norm_gradient": _TRAINS,
    "ldl_factor": _FACTORS,
    "ldl_solve": _FACTORS,
    "lgamma": _SPECIAL,
    "linear_attention_of_rows": _STATE,
    "linear_recurrence": _STATE,
    "lu_factor": _FACTORS,
    "matrix_exp": _FACTORS,
    "max_pool_gradient": _TRAINS,
    "ndtri": _SPECIAL,
    "pairwise_coupling": "iterates inside ONNX's SVMClassifier, which takes no scores",
    "pivoted_rows": _FACTORS,
    "polynomial": _SPECIAL,
    "qr_factor": _FACTORS,
    "quantize_groups": "quantizes weights as they are packed, which ONNX's quantizers do before",
    "refuse": "is an error, which ONNX cannot express",
    "relu_gradient": _TRAINS,
    "rms_norm_gradient": _TRAINS,
    "selective_scan": _STATE,
    "sgd": _TRAINS,
    "silu_gradient": _TRAINS,
    "solve_triangular": _FACTORS,
    "svd": _FACTORS,
    "unpack_bits": "reads integers of 3, 5 or 6 bits, which ONNX does not have",
    "wkv": _STATE,
    "zeta": _SPECIAL,
}


def rule(*names: str) -> Callable[..., Any]:
    """Register the rule of one or more ops."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            known = RULES.get(name, function)
            # An import that is repeated after an interruption registers its rules again.
            assert known.__qualname__ == function.__qualname__, f"the rule of {name} is declared twice"
            RULES[name] = function
        return function

    return declare
