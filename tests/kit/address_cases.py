"""Integers of ONNX models that address something: for each such operand a case, or the reason why any number will do.

The keys are the operands to which the schemas give integers alone, of the op types that have a rule; a test holds the
table against the schemas.
"""

from dataclasses import dataclass

import numpy as np

from ingot.load.onnx.registry import MICROSOFT, ML, TRAINING
from onnx_models import Case, case

F = np.float32
MS = {"domain": MICROSOFT}


@dataclass(frozen=True)
class Address:
    """A case whose operand `feed` addresses something, in low..high-1.

    said: how an error calls the operand, where that is not the schema's name.
    """

    case: Case
    feed: str
    low: int
    high: int
    said: str = ""


_COUNTS = "a shape, size or count: one that no tensor can have is refused by the op that makes it"
_AXES = "axes, which have to be known when the model is loaded or are checked by the op"
_CLAMPED = "the operator's definition clamps it to the dim"
_DIAGONAL = "a diagonal: one outside of the matrix keeps all or nothing"
_NUMBERS = "numbers: they are computed with, and address nothing"

_LSTM = "x[3,2,4] w[1,20,4] r[1,20,5] b[1,40] n:i32<4[2]"
_GRU = "x[3,2,4] w[1,15,4] r[1,15,5] b[1,30] n:i32<4[2]"
_RNN = "x[3,2,4] w[1,5,4] r[1,5,5] b[1,10] n:i32<4[2]"
_EMBED = "ids:i32<9[2,4] seg:i32<2[2,4] word[9,8] pos[6,8] type[2,8] w[8] b[8] none"
_QUANT = (
    "ids:i32<9[2,4] seg:i32<2[2,4] word:u8[9,8] pos:u8[6,8] type:u8[2,8] w:u8[8] b:u8[8] none"
    " s>0.1<1[] s>0.1<1[] s>0.1<1[] s>0.1<1[] s>0.1<1[] z:u8[] z:u8[] z:u8[] z:u8[] z:u8[]"
)
_GQA = "q[2,1,32] k[2,1,16] v[2,1,16] past[2,2,4,8] past[2,2,4,8] last:i32<5[2] @total"
_TOTAL = np.array(5, np.int32)
_ROTATED = (
    "q[2,1,64] k[2,1,32] v[2,1,32] past[2,2,4,16] past[2,2,4,16] last:i32>2<5[2] @total cos[7,8] sin[7,8] p:i64<7[2,1]"
)
_HEADS = {"num_heads": 4, "kv_num_heads": 2}

ADDRESSED: dict[tuple[str, str, str], Address | str] = {
    # -- ai.onnx
    ("", "Gather", "indices"): Address(case("Gather", "x[5,3] i:i64<5[2]"), "i1", -5, 5),
    ("", "GatherElements", "indices"): Address(case("GatherElements", "x[5,3] i:i64<5[2,3]", axis=0), "i1", -5, 5),
    ("", "GatherND", "indices"): Address(case("GatherND", "x[5,5,3] i:i64<5[4,2]"), "i1", -5, 5),
    ("", "Scatter", "indices"): Address(case("Scatter", "x[5,3] i:i64<5[1,3] u[1,3]", opset=10), "i1", -5, 5),
    ("", "ScatterElements", "indices"): Address(case("ScatterElements", "x[5,3] i:i64<5[1,3] u[1,3]"), "i1", -5, 5),
    ("", "ScatterND", "indices"): Address(case("ScatterND", "x[5,5] i:i64<5[3,2] u[3]"), "i1", -5, 5),
    ("", "TensorScatter", "write_indices"): Address(
        case("TensorScatter", "c[2,6,3] u[2,2,3] w:i64<5[2]", opset=24), "w2", 0, 5
    ),
    ("", "ReverseSequence", "sequence_lens"): Address(case("ReverseSequence", "x[4,3,2] n:i64>1<5[3]"), "n1", 0, 5),
    ("", "LSTM", "sequence_lens"): Address(case("LSTM", _LSTM, hidden_size=5), "n4", 0, 4, "lengths"),
    ("", "GRU", "sequence_lens"): Address(case("GRU", _GRU, hidden_size=5), "n4", 0, 4, "lengths"),
    ("", "RNN", "sequence_lens"): Address(case("RNN", _RNN, hidden_size=5), "n4", 0, 4, "lengths"),
    ("", "RoiAlign", "batch_indices"): Address(
        case("RoiAlign", "x[2,3,6,6] r>0<5[3,4] b:i64<2[3]", output_height=2, output_width=2), "b2", 0, 2, "batch"
    ),
    ("", "RotaryEmbedding", "position_ids"): Address(
        case("RotaryEmbedding", "x[2,4,3,8] cos[7,4] sin[7,4] p:i64<7[2,3]", opset=23), "p3", 0, 7
    ),
    ("", "MaxUnpool", "I"): Address(
        case("MaxUnpool", "x[1,1,2,2] i:i64<16[1,1,2,2]", kernel_shape=[2, 2], strides=[2, 2]), "i1", 0, 16
    ),
    ("", "Attention", "nonpad_kv_seqlen"): Address(
        case("Attention", "q[2,2,3,4] k[2,2,5,4] v[2,2,5,4] none none none n:i64>1<6[2]", opset=24), "n6", 0, 6
    ),
    # Their bodies in ONNX look classes up by GatherElements, which counts from the end.
    ("", "NegativeLogLikelihoodLoss", "target"): Address(
        case("NegativeLogLikelihoodLoss", "x[3,5] t:i64<5[3]"), "t1", -5, 5, "indices"
    ),
    ("", "SoftmaxCrossEntropyLoss", "labels"): Address(
        case("SoftmaxCrossEntropyLoss", "x[3,5] t:i64<5[3]"), "t1", -5, 5, "indices"
    ),
    ("", "CenterCropPad", "shape"): _COUNTS,
    ("", "SequenceAt", "position"): "sequences have no tensors to feed; the table of `position` in the op's record",
    ("", "SequenceErase", "position"): "sequences have no tensors to feed; the table of `position` in the op's record",
    ("", "SequenceInsert", "position"): "sequences have no tensors to feed; the table of `position` in the op's record",
    ("", "Slice", "starts"): _CLAMPED,
    ("", "Slice", "ends"): _CLAMPED,
    ("", "Slice", "axes"): _AXES,
    ("", "Slice", "steps"): _NUMBERS,
    ("", "Trilu", "k"): _DIAGONAL,
    ("", "AffineGrid", "size"): _COUNTS,
    ("", "BlackmanWindow", "size"): _COUNTS,
    ("", "HammingWindow", "size"): _COUNTS,
    ("", "HannWindow", "size"): _COUNTS,
    ("", "Col2Im", "image_shape"): _COUNTS,
    ("", "Col2Im", "block_shape"): _COUNTS,
    ("", "ConstantOfShape", "input"): _COUNTS,
    ("", "CumProd", "axis"): _AXES,
    ("", "CumSum", "axis"): _AXES,
    ("", "DFT", "axis"): _AXES,
    ("", "DFT", "dft_length"): _COUNTS,
    ("", "Expand", "shape"): _COUNTS,
    ("", "Loop", "M"): "a count: no trip is made below 1",
    ("", "MaxUnpool", "output_shape"): _COUNTS,
    ("", "MelWeightMatrix", "num_mel_bins"): _COUNTS,
    ("", "MelWeightMatrix", "dft_length"): _COUNTS,
    ("", "MelWeightMatrix", "sample_rate"): _NUMBERS,
    ("", "NonMaxSuppression", "max_output_boxes_per_class"): "a count: none are chosen below 1",
    ("", "Pad", "pads"): _COUNTS,
    ("", "Pad", "axes"): _AXES,
    ("", "QLinearConv", "B"): _NUMBERS,
    **{("", f"Reduce{name}", "axes"): _AXES for name in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
    )},
    ("", "Reshape", "shape"): _COUNTS,
    ("", "Resize", "sizes"): _COUNTS,
    ("", "STFT", "frame_step"): _COUNTS,
    ("", "STFT", "frame_length"): _COUNTS,
    ("", "Split", "split"): _COUNTS,
    ("", "SplitToSequence", "split"): _COUNTS,
    ("", "Squeeze", "axes"): _AXES,
    ("", "Tile", "repeats"): _COUNTS,
    ("", "TopK", "K"): _COUNTS,
    ("", "Unsqueeze", "axes"): _AXES,
    # -- ai.onnx.ml and training
    (ML, "ArrayFeatureExtractor", "Y"): Address(
        case("ArrayFeatureExtractor", "x[2,5] i:i64<5[3]", domain=ML, version=1), "i1", 0, 5
    ),
    **{(TRAINING, name, "T"): _NUMBERS for name in ("Adagrad", "Adam", "Momentum")},
    # -- com.microsoft
    (MICROSOFT, "Attention", "mask_index"): Address(
        case("Attention", "x[2,5,8] w[8,24] b[24] m:i32<6[2]", num_heads=2, **MS), "m3", 0, 1 << 31
    ),
    (MICROSOFT, "Attention", "past_sequence_length"): "a shared cache, which is refused",
    (MICROSOFT, "QAttention", "mask_index"): Address(
        case("QAttention", "x:u8[2,5,8] w:i8[8,24] b[24] s>0<1[] s>0<1[] m:i32<6[2]", num_heads=2, **MS),
        "m5",
        0,
        1 << 31,
    ),
    (MICROSOFT, "MultiHeadAttention", "key_padding_mask"): Address(
        case("MultiHeadAttention", "q[2,3,8] k[2,5,8] v[2,5,8] none m:i32<6[2]", num_heads=2, **MS), "m4", 0, 1 << 31
    ),
    (MICROSOFT, "MultiHeadAttention", "past_sequence_length"): "a shared cache, which is refused",
    (MICROSOFT, "MultiHeadAttention", "cache_indirection"): "a shared cache, which is refused",
    (MICROSOFT, "GroupQueryAttention", "seqlens_k"): Address(
        case("GroupQueryAttention", _GQA, 3, total=_TOTAL, **_HEADS, **MS), "last5", 0, 5
    ),
    (MICROSOFT, "GroupQueryAttention", "total_sequence_length"): _COUNTS,
    (MICROSOFT, "GroupQueryAttention", "position_ids"): Address(
        case("GroupQueryAttention", _ROTATED, 3, total=_TOTAL, do_rotary=1, **_HEADS, **MS), "p9", 0, 7
    ),
    (MICROSOFT, "RotaryEmbedding", "position_ids"): Address(
        case("RotaryEmbedding", "x[2,3,16] p:i64<7[2,3] cos[7,4] sin[7,4]", **MS), "p1", 0, 7
    ),
    (MICROSOFT, "MRotaryEmbedding", "position_ids"): Address(
        case("MRotaryEmbedding", "x[2,2,3,8] p:i64<7[3,2,3] cos[7,4] sin[7,4]", mrope_section=[2, 1, 1], **MS),
        "p1",
        0,
        7,
    ),
    (MICROSOFT, "CropAndResize", "batch_indices"): Address(
        case("CropAndResize", "x[2,3,5,6] r>0<1[3,4] b:i32<2[3] @size", size=np.array([2, 3], np.int32), **MS),
        "b2",
        0,
        2,
    ),
    (MICROSOFT, "CropAndResize", "crop_size"): _COUNTS,
    (MICROSOFT, "ConvTransposeWithDynamicPads", "Pads"): _COUNTS,
    (MICROSOFT, "EmbedLayerNormalization", "input_ids"): Address(
        case("EmbedLayerNormalization", f"{_EMBED} p:i32<6[2,4]", 2, **MS), "ids0", 0, 9
    ),
    (MICROSOFT, "EmbedLayerNormalization", "segment_ids"): Address(
        case("EmbedLayerNormalization", f"{_EMBED} p:i32<6[2,4]", 2, **MS), "seg1", 0, 2
    ),
    (MICROSOFT, "EmbedLayerNormalization", "position_ids"): Address(
        case("EmbedLayerNormalization", f"{_EMBED} p:i32<6[2,4]", 2, **MS), "p8", 0, 6
    ),
    (MICROSOFT, "EmbedLayerNormalization", "mask"): _NUMBERS,
    (MICROSOFT, "QEmbedLayerNormalization", "input_ids"): Address(
        case("QEmbedLayerNormalization", _QUANT, 2, **MS), "ids0", 0, 9
    ),
    (MICROSOFT, "QEmbedLayerNormalization", "segment_ids"): Address(
        case("QEmbedLayerNormalization", _QUANT, 2, **MS), "seg1", 0, 2
    ),
    (MICROSOFT, "QEmbedLayerNormalization", "mask"): _NUMBERS,
    (MICROSOFT, "GatherBlockQuantized", "indices"): Address(
        case("GatherBlockQuantized", "x:u8[5,16] i:i64<5[2] s>0.1<1[5,1]", bits=8, block_size=16, **MS), "i1", -5, 5
    ),
    (MICROSOFT, "GatherND", "indices"): Address(case("GatherND", "x[5,5,3] i:i64<5[4,2]", **MS), "i1", -5, 5),
    (MICROSOFT, "NGramRepeatBlock", "input_ids"): Address(
        case("NGramRepeatBlock", "i:i64<5[2,6] s[2,5]", ngram_size=1, **MS), "i0", 0, 5, "tokens"
    ),
    (MICROSOFT, "ExpandDims", "axis"): _AXES,
    (MICROSOFT, "Pad", "pads"): _COUNTS,
    (MICROSOFT, "QLinearConv", "B"): _NUMBERS,
    (MICROSOFT, "Trilu", "k"): _DIAGONAL,
    (MICROSOFT, "MatMulNBits", "g_idx"): "known when the model is loaded, and checked then",
    (MICROSOFT, "DynamicQuantizeLSTM", "sequence_lens"): "an LSTM of decoded weights, whose lengths it gets",
    (MICROSOFT, "QGemm", "C"): _NUMBERS,
}  # fmt: skip

# Other forms of these.
FORMS = [
    Address(
        case("TensorScatter", "c[2,6,3] u[2,2,3] w:i64<5[2]", opset=24, mode="circular"),
        "w2",
        0,
        1 << 62,
        "write_indices",
    ),
    Address(case("RotaryEmbedding", "x[2,3,16] p:i64<4[1] cos[7,4] sin[7,4]", **MS), "p1", 0, 5, "position_ids"),
    Address(
        case(
            "GroupQueryAttention",
            "q[2,3,32] k[2,3,16] v[2,3,16] none none last:i32>2<3[2] @total",
            total=np.array(3, np.int32),
            **_HEADS,
            **MS,
        ),
        "last5",
        0,
        3,
        "seqlens_k",
    ),
    Address(case("GatherND", "x[2,5,3] i:i64<5[2,4,1]", batch_dims=1), "i1", -5, 5, "indices"),
    Address(
        case("LSTM", "x[3,2,4] w[2,20,4] r[2,20,5] b[2,40] n:i32<4[2]", hidden_size=5, direction="bidirectional"),
        "n4",
        0,
        4,
        "lengths",
    ),
    Address(case("Gather", "x[2,5,3] i:i32<5[2,2]", axis=1), "i1", -5, 5, "indices"),
    Address(case("ScatterElements", "x[5,3] i:i32<5[1,3] u[1,3]", reduction="add"), "i1", -5, 5, "indices"),
]
