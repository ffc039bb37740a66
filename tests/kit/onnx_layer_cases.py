"""Cases of layers of com.microsoft: gates, norms of branches, experts, linear attention, distances, regions."""

import numpy as np

from onnx_models import Case, case

F = np.float32
I32 = np.int32
MS = "com.microsoft"
REGIONS = {
    "r": np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.2, 0.3, 1.3, 0.6], [0.9, 0.8, 0.2, 0.1]], F),
    "b": np.array([0, 1, 1, 0], I32),
}


def ms(op: str, operands: str, outputs: int = 1, **rest: object) -> Case:
    return case(op, operands, outputs, domain=MS, **rest)


GATES = [
    ms("GatedAdd", "x[2,5,8] y[2,5,8] g[2,5,1]"),
    ms("ScaledSiLU", "x[2,5,8]", alpha=0.7),
    ms("ScaledSiLU", "x[2,5,8] s[]"),
    *(
        ms("GatedRMSNorm", f"x[2,5,{width}] s[8] g[2,5,{width}]", activation=kind)
        for width, kind in ((24, "sigmoid"), (8, "swish"))
    ),
    ms("GatedRMSNorm", "x:f16[2,5,16] s:f16[8] g:f16[2,5,16]", epsilon=0.1),
    ms("BranchwiseRMSNorm", "x[2,5,3,8]", epsilon=0.1),
    ms("BranchwiseRMSNorm", "x[2,5,3,8] s[3,8]"),
    ms("BranchwiseRMSNorm", "x[2,5,3,8] s[24]"),
    ms("BranchwiseRMSNorm", "x[2,5,24] s[8]", num_branches=3),
    *(ms("HyperConnectionPreMix", f"x[2,5,3,8] m[2,5,{mix}]") for mix in ("3", "3,1")),
    ms("HyperConnectionPreMix", "x[2,5,3,8] m[2,5,3,8]", reduction_scale=0.3),
    *(ms("HyperConnectionPreMix", f"x[2,5,24] m[2,5,{mix}]", num_branches=3) for mix in ("24", "3")),
    ms("HyperConnectionPostMix", "x[2,5,3,8] b[2,5,8] p[2,5,3]"),
    ms("HyperConnectionPostMix", "x[5,3,8] b[5,8] p[5,3,8] m[5,3,3]"),
    ms("HyperConnectionPostMix", "x[2,5,24] b[2,5,8] p[2,5,3,1] m[2,5,3,3]", num_branches=3),
    ms("LinearAttentionGate", "a[2,5,4] b[4] c[4] d[2,5,4]", 2),
    ms("EngramGate", "k[2,5,3,8] q[2,5,3,8] v[2,5,8] s[3,8] t[3,8] u[3,8]", 2),
    ms("EngramGate", "k:f16[2,5,3,8] q:f16[2,5,3,8] v:f16[2,5,8] s:f16[3,8] t:f16[3,8]", epsilon=0.1),
]
STATES = [
    ms("CausalConvWithState", "x[2,6,5] w[6,1,4] b[6] p[2,6,3]", 2, activation="silu"),
    ms("CausalConvWithState", "x[2,6,1] w[6,1,4] none p[2,6,6]", 2, dilation=2, activation="swish"),
    ms("CausalConvWithState", "x[2,5,3,2] w[6,1,4] b[6] p[2,3,3,2]", 2, channels_last=1),
    ms("LinearAttention", "q[2,5,16] k>-.3<.3[2,5,16] v[2,5,12]", 2, q_num_heads=2, kv_num_heads=2,
       update_rule="linear", scale=0.3),
    ms("LinearAttention", "q[2,5,32] k>-.3<.3[2,5,16] v[2,5,12] s[2,2,8,6] d>-1<0[2,5,16]", 2, q_num_heads=4,
       kv_num_heads=2, update_rule="gated"),
    ms("LinearAttention", "q[2,5,16] k>-.3<.3[2,5,32] v[2,5,24] none none b>0<1[2,5,4]", 2, q_num_heads=2,
       kv_num_heads=4, update_rule="delta", chunk_size=2),
    ms("LinearAttention", "q[2,5,16] k>-.3<.3[2,5,16] v[2,5,12] s[2,2,8,6] d>-1<0[2,5,2] b>0<1[2,5,1]", 2,
       q_num_heads=2, kv_num_heads=2),
]  # fmt: skip
EXPERTS = [
    ms("MoE", "x[2,5,8] r[10,4] a[4,16,8] p[4,16] b[4,8,16] q[4,8]"),
    *(
        ms("MoE", "x[10,8] r[10,4] a[4,16,8] none b[4,8,16]", k=2, activation_type=kind, normalize_routing_weights=1)
        for kind in ("gelu", "silu", "identity")
    ),
    ms("MoE", "x[10,8] r[10,4] a[4,32,8] p[4,32] b[4,8,16] q[4,8]", k=2, activation_type="swiglu", swiglu_fusion=1,
       activation_alpha=1.7, activation_beta=1.0, swiglu_limit=0.5),
]  # fmt: skip
ROTATED = [
    ms("MRotaryEmbedding", "x[2,4,5,12] p:i64<9[3,2,5] c[9,6] d[9,6]", mrope_section=[2, 2, 2]),
    ms("MRotaryEmbedding", "x[2,5,48] p:i64<9[3,2,5] c[9,6] d[9,6]", mrope_section=[3, 2, 1], num_heads=4,
       rotary_embedding_dim=12, mrope_layout=1),
    ms("MRotaryEmbedding", "x[2,4,5,16] p:i64<9[3,2,5] c[9,6] d[9,6]", mrope_section=[1, 3, 2], num_heads=4,
       rotary_embedding_dim=12, mrope_layout=1, interleaved=1),
]  # fmt: skip
QUANTIZED = [
    ms("MatMulBnb4", f"x[2,3,{columns}] b:u8<256[{-(-rows * columns // 2)}] s>0.1<1[{-(-rows * columns // block)}]",
       N=rows, K=columns, block_size=block, quant_type=kind)
    for rows, columns, block, kind in ((8, 32, 16, 0), (5, 24, 32, 1), (3, 7, 16, 1))
]  # fmt: skip
PLAIN = [
    ms("Unique", "@x", 3, x=np.array([2, 1, 1, 3, 4, 3], F)),
    ms("SampleOp", "x[2,3]"),
    *(ms("CDist", f"x{dtype}[5,7] y{dtype}[4,7]", metric="euclidean") for dtype in ("", ":f64")),
    ms("CDist", "x[5,7] y[4,7]"),
    ms("Inverse", "x[2,3,4,4]"),
    ms("Inverse", "x:f64[4,4]"),
    ms("UnfoldTensor", "x[3,7,5]", size=2),
    ms("UnfoldTensor", "x:i64<9[3,7,5]", size=3, step=2, dim=1),
    ms("ConvTransposeWithDynamicPads", "x[1,4,5,6] w[4,2,3,3] @p b[2]", p=np.array([1, 0, 1, 2]), strides=[2, 2]),
    ms("ConvTransposeWithDynamicPads", "x[1,4,5,6] w[4,2,3,3] @p", p=np.array([1, 0, 1, 2]), group=2,
       dilations=[2, 1]),
    ms("CropAndResize", "x[2,3,5,6] @r @b @s", s=np.array([4, 3], I32), **REGIONS),
    ms("CropAndResize", "x[2,3,5,6] @r @b @s", s=np.array([1, 7], I32), mode="nearest", extrapolation_value=2.5,
       **REGIONS),
    ms("CropAndResize", "x[2,3,1,6] @r @b @s", s=np.array([2, 1], I32), **REGIONS),
]  # fmt: skip
LAYERS = [*GATES, *STATES, *EXPERTS, *ROTATED, *QUANTIZED, *PLAIN]
