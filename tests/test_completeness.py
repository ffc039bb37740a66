"""The stage tables joined: every op against importers, kernels and expansions, and a list of the known gaps.

A hole that is not listed fails, and so does a listed one that has been filled.
"""

import pytest

import ingot.ops
from ingot.cli.ops import matrix
from ingot.emit.onnx.registry import GAPS
from ingot.gradients import FLAT, GRADIENTS, MISSING, UNROLLED
from ingot.ir.graph import OPS
from ingot.lower.cpu import KERNEL_RULES
from ingot.lower.cpu.formats import FORMATS, PLAIN_I8
from ingot.run.library import load
from ingot.support import abi

assert ingot.ops

# What language models are made of: their loader alone makes these.
LANGUAGE = {
    "append_keys", "append_keys_int4", "append_keys_int8", "append_values", "append_values_int4", "append_values_int8",
    "cached_attention", "causal_conv", "expert_matmul", "linear_attention_of_rows", "linear_recurrence",
    "selective_scan", "wkv",
}  # fmt: skip
# What decodes the blocks of GGUF files, and makes codes: loaders alone make these, of weights, so nothing runs them.
BLOCKS = {"affine_blocks", "decode_blocks", "quantize_groups", "unpack_bits"}
# Quantized numbers, strings, tables and trees, which run on the reference.
TABLES = {
    "dequantize", "label_encode", "pairwise_coupling", "quantize", "regex_full_match", "string_concat",
    "string_normalize", "string_split", "tfidf", "tree_ensemble", "unpack",
}  # fmt: skip
# Special functions, which run on the reference and which ONNX does not have.
SPECIAL = {
    "airy_ai",
    "bessel",
    "digamma",
    "erfc",
    "erfcx",
    "erfinv",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "igamma",
    "lgamma",
    "ndtri",
    "polynomial",
    "zeta",
}
# Linear algebra and a greatest common divisor, likewise; only importers of torch's programs make them.
MATRICES = {
    "cholesky", "eig", "eigh", "gcd", "householder_product", "ldl_factor", "ldl_solve", "lu_factor", "matrix_exp",
    "pivoted_rows", "qr_factor", "solve_triangular", "svd",
}  # fmt: skip
# What trainers alone make.
TRAINING = {
    "adamw", "attention_dropout", "attention_dropout_gradient", "attention_gradient", "batch_norm_training",
    "conv_filter_gradient", "cross_entropy", "cross_entropy_gradient", "detach", "dropout", "gelu_gradient",
    "layer_norm_gradient", "max_pool_gradient", "relu_gradient", "rms_norm_gradient", "sgd", "silu_gradient",
}  # fmt: skip
# Their operands are no tensors of known rank, or they run subgraphs: samples cannot say that, and no kernel takes them.
TRIED_IN_MODELS = {
    "absent", "as_rank", "concat_from_sequence", "get_element", "has_element", "has_rank", "if", "loop", "optional",
    "refuse", "scan", "sequence", "sequence_at", "sequence_erase", "sequence_insert", "sequence_length",
    "sequence_map", "split_to_sequence", "squeeze", "zip_map",
}  # fmt: skip
KNOWN_GAPS: dict[str, set[str]] = {
    "aten": {
        *("arange", "random_uniform"),
        *("conv_integer", "dynamic_quantize", "matmul_integer"),
        "deform_conv",
        *("decode_image", "roi_align"),
        *("linear_attention", "repeated_ngrams", "rotary"),
        *("non_max_suppression", "reduce_over"),
        *(TRIED_IN_MODELS - {"if", "loop", "scan"}),
        *(TABLES - {"dequantize"}),
        *BLOCKS,
        *TRAINING,
        *(LANGUAGE - {"expert_matmul"}),
    },  # sizes that become data come from the importer; a pass finds rotary; torch takes the rest apart
    # No ONNX op means these; refuse is made of a branch where dims were given.
    "onnx": {
        *("log1p", "refuse"),
        *BLOCKS,
        *(LANGUAGE - {"expert_matmul"}),
        *(MATRICES - {"lu_factor", "pivoted_rows", "solve_triangular"}),
        *SPECIAL,
        *TRAINING,
    },
    "kernels": {
        "arange",
        # Shapes that depend on data.
        *("compress", "decode_image", "measure", "non_max_suppression", "nonzero", "reduce_over", "unique"),
        *(TRIED_IN_MODELS - {"absent", "loop", "scan"}),
        *(TABLES - {"dequantize", "quantize", "tfidf", "tree_ensemble"}),
        *BLOCKS,
        *MATRICES,
        *SPECIAL,
    },
    # A paged cache, an error and an iteration that ONNX cannot say; GAPS has each reason.
    "to onnx": {
        "pairwise_coupling",
        "refuse",
        *BLOCKS,
        *MATRICES,
        *SPECIAL,
        *TRAINING,
        *(LANGUAGE - {"expert_matmul"}),
    },
}

# What closes a gap.
PLACES = {
    "aten": "a loading rule and its line of load/aten/built_ops.txt",
    "onnx": "a loading rule and its line of load/onnx/built_ops.txt",
    "kernels": "a kernel with a rule in lower/cpu/, a line of csrc/elementwise.def, or an `expand`",
    "to onnx": "a rule in emit/onnx/, or a line of GAPS in emit/onnx/registry.py",
}


@pytest.mark.parametrize("stage", KNOWN_GAPS)
def test_gaps_are_the_known_ones(stage: str) -> None:
    """kernels: no row, expansion or restatement, so that the op runs on the reference."""
    rows = matrix()
    if stage == "kernels":
        static = {name for name, op in OPS.items() if not op.operand_names}  # sources are computed while lowering
        gaps = {row["op"] for row in rows if not row["kernels"] and row["without one"] == "reference"} - static
    else:
        gaps = {row["op"] for row in rows if not row[stage]}
    new, closed = sorted(gaps - KNOWN_GAPS[stage]), sorted(KNOWN_GAPS[stage] - gaps)
    assert not new, f"no {stage}, got {new}, expected {PLACES[stage]}, and else a name in KNOWN_GAPS[{stage!r}]"
    assert not closed, f"KNOWN_GAPS[{stage!r}] names what is no gap, got {closed}"


def test_every_gap_of_the_way_back_has_a_reason() -> None:
    assert set(GAPS) == KNOWN_GAPS["to onnx"]


def test_every_op_has_a_gradient_or_a_reason() -> None:
    """A row, an expansion through which it is differentiated, nothing that could flow, or a gap that is named."""
    named = GRADIENTS.keys() | FLAT.keys() | MISSING.keys() | UNROLLED.keys()
    expanded = {name for name, op in OPS.items() if op.expand is not None} - named
    without = sorted(set(OPS) - named - expanded)
    assert not without, f"no gradient, got {without}, expected one in gradients/, or a name in FLAT or MISSING there"
    assert named <= OPS.keys()
    assert len(named) == sum(map(len, (GRADIENTS, FLAT, MISSING, UNROLLED))), "an op is in two tables"


def test_every_op_has_samples_tolerances_and_a_line_of_documentation() -> None:
    for op in OPS.values():
        assert bool(op.samples) == (op.name not in TRIED_IN_MODELS)
        assert op.tolerance and op.doc.endswith("."), op.name


def test_kernels_rows_and_bodies_are_one_list() -> None:
    """Each kernel of kernels.def has a row (or packs, copies, probes, rounds, samples, runs groups); each row, one."""
    declared = set(abi.kernels())
    assert declared == set(load().kernels)
    used = {row.kernel for rows in KERNEL_RULES.values() for row in rows} - {"view", "copy_b"}
    copies = {f"copy_b{size}" for size in (1, 2, 4, 8)}
    assert used <= declared
    alone = {
        "conv2d_filter_points_f32",
        "fused_f32",
        "probe_fma_f32",
        "probe_read_f32",
        "quantize_rows",
        "round_image_u8",
        "round_rows_i24",
        "round_rows_i8",
        "sample_f32",
    }
    alone |= {format.pack for format in (*FORMATS, PLAIN_I8)}
    assert declared - used == copies | alone
