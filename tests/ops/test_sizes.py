"""ONNX models whose dims are 0 or 1, at load or at run time, against ONNX Runtime: every executor, every passes."""

import numpy as np
import pytest
from onnx import parser

from differential import check
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_models import run_oracle

# What is at stake -> declarations and nodes, and the values of N and M that it runs with.
MODELS: dict[str, tuple[str, tuple[dict[str, int], ...]]] = {
    "a weight of no columns": ("(float[3, 4] x) => (y) <float[4, 0] w = {}> { y = MatMul(x, w) }", ({},)),
    "a weight of no columns, one row": ("(float[1, 4] x) => (y) <float[4, 0] w = {}> { y = MatMul(x, w) }", ({},)),
    "a weight of no columns beside one of five": (
        f"(float[N, 4] x) => (y, z) <float[4, 0] w = {{}}, float[4, 5] v = {{{', '.join(map(str, range(20)))}}}>"
        " { y = MatMul(x, w) z = MatMul(x, v) }",
        ({"N": 3}, {"N": 1}, {"N": 0}),
    ),
    "k = 0 gives the bias": (
        "(float[3, 0] x) => (y) <float[0, 2] w = {}, float[2] b = {1.0, 2.0}> { h = MatMul(x, w) y = Add(h, b) }",
        ({},),
    ),
    "k = 0 of one row gives zeros": ("(float[1, 0] x) => (y) <float[0, 5] w = {}> { y = MatMul(x, w) }", ({},)),
    "k = 0 at run time": (
        "(float[2, N] x, float[N, 3] w) => (y) { y = MatMul(x, w) }", ({"N": 3}, {"N": 0}, {"N": 1})
    ),
    "the largest of an axis that a run leaves empty": (
        "(float[2, N] x) => (y) { y = Hardmax(x) }", ({"N": 3}, {"N": 0}, {"N": 1})
    ),
    "Flatten of nothing, then a product": (
        "(float[N, 0, 2] x) => (y) <float[0, 5] w = {}> { h = Flatten(x) y = MatMul(h, w) }",
        ({"N": 3}, {"N": 0}, {"N": 1}),
    ),
    "the mean of integers": (
        "(int64[3, 4] x) => (y) <int64[1] a = {1}> { y = ReduceMean(x, a) }", ({},)
    ),
    "the mean of one integer": ("(int64[3, 1] x) => (y) <int64[1] a = {1}> { y = ReduceMean(x, a) }", ({},)),
    "reversed": (
        "(float[N, 3] x) => (y) <int64[1] a = {-1}, int64[1] b = {-9223372036854775807}, int64[1] c = {0},"
        " int64[1] d = {-1}> { y = Slice(x, a, b, c, d) }",
        ({"N": 3}, {"N": 0}, {"N": 1}),
    ),
    "nothing reversed": (
        "(float[0, 3] x) => (y) <int64[1] a = {-1}, int64[1] b = {-9223372036854775807}, int64[1] c = {0},"
        " int64[1] d = {-1}> { y = Slice(x, a, b, c, d) }",
        ({},),
    ),
    "backwards from before the first element": (
        "(float[1, 3] x) => (y) <int64[1] a = {-3}, int64[1] b = {-9223372036854775807}, int64[1] c = {0},"
        " int64[1] d = {-7}> { y = Slice(x, a, b, c, d) }",
        ({},),
    ),
    "a slice that empties": (
        "(float[N, 3] x) => (y) <int64[1] a = {5}, int64[1] b = {2}, int64[1] c = {0}> { y = Slice(x, a, b, c) }",
        ({"N": 3}, {"N": 0}, {"N": 9}),
    ),
    "a slice to before the end that empties": (
        "(float[N, 3] x) => (y) <int64[1] a = {0}, int64[1] b = {-2}, int64[1] c = {0}> { y = Slice(x, a, b, c) }",
        ({"N": 3}, {"N": 0}, {"N": 1}),
    ),
    "a dim of 1 beside 5": (
        "(float[N, 3] x, float[5, 3] z) => (y) { y = Add(x, z) }", ({"N": 5}, {"N": 1})
    ),
    "two dims that one value broadcasts": (
        "(float[N, 3] x, float[M, 3] z) => (y) { h = Add(x, z) g = Mul(h, x) y = Sub(z, g) }",
        ({"N": 1, "M": 5}, {"N": 5, "M": 1}, {"N": 4, "M": 4}, {"N": 0, "M": 1}, {"N": 1, "M": 0}),
    ),
    "the shape of what broadcasts": (
        "(float[N, 3] x, float[M, 3] z) => (y) <float[1] c = {2.0}, int64[1] all = {-1}>"
        " { h = Add(x, z) s = Shape(h) e = Expand(c, s) m = Mul(e, h) y = Reshape(m, all) }",
        ({"N": 1, "M": 5}, {"N": 5, "M": 1}, {"N": 4, "M": 4}, {"N": 1, "M": 1}),
    ),
    **{
        f"a running sum, {attributes or 'plain'}": (
            f"(float[N, 3] x) => (y) <int64 a = {{0}}> {{ y = CumSum<{attributes}>(x, a) }}",
            ({"N": 3}, {"N": 0}, {"N": 1}),
        )
        for attributes in ("reverse=0", "reverse=1", "exclusive=1", "reverse=1, exclusive=1")
    },
    "a convolution that makes no channels": (
        "(float[N, 2, 3, 3] x) => (y) <float[0, 2, 2, 2] w = {}, float[0] b = {}> { y = Conv(x, w, b) }",
        ({"N": 2}, {"N": 0}),
    ),
    "a convolution of no channels": (
        "(float[N, 0, 3, 3] x) => (y) <float[1, 0, 2, 2] w = {}, float[1] b = {2.0}> { y = Conv(x, w, b) }",
        ({"N": 2}, {"N": 0}),
    ),
    "a padded convolution of no channels": (
        "(float[N, 0, 5, 3] x) => (y) <float[17, 0, 2, 2] w = {}> "
        " { c = Conv<pads = [0, 1, 2, 2]>(x, w) y = Sigmoid(c) }",
        ({"N": 2}, {"N": 0}),
    ),
    "a range that ends before it starts": (
        "(float[N, 3] x) => (y) <int64 a = {2}, int64 i = {0}, int64 b = {1}>"
        " { s = Shape(x) n = Gather(s, i) y = Range(a, n, b) }",
        ({"N": 5}, {"N": 0}, {"N": 2}),
    ),
    "instances of no channels": (
        "(float[N, 0, 3] x) => (y) <float[0] s = {}> { y = InstanceNormalization(x, s, s) }", ({"N": 2}, {"N": 0})
    ),
    "attention of no heads": (
        "(float[2, H, 3, 4] q, float[2, H, 4, N] k, float[2, H, N, 5] v) => (y)"
        " { s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, v) }",
        ({"H": 2, "N": 3}, {"H": 0, "N": 3}, {"H": 1, "N": 0}),
    ),
    "rows of nothing, of which a reshape makes fewer": (
        "(float[1, 3, N] x, float[N, 2] w) => (y) <int64[2] s = {1, 0}>"
        " { h = Reshape<allowzero = 1>(x, s) y = MatMul(h, w) }",
        ({"N": 0},),
    ),
    "a running sum over nothing": (
        "(float[0, 3] x) => (y) <int64 a = {0}> { y = CumSum<reverse=1, exclusive=1>(x, a) }", ({},)
    ),
}  # fmt: skip

# In ONNX Runtime, now and then, so that ONNX's reference is the oracle.
ENDLESS = {"a convolution of no channels", "a padded convolution of no channels"}


@pytest.mark.parametrize("name", MODELS)
def test_sizes(name: str, rng: np.random.Generator) -> None:
    body, bindings = MODELS[name]
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {body}')
    content = proto.SerializeToString()
    session, graph = InferenceSession(content), load_onnx(content)
    for binding in bindings:
        feeds = {}
        for declared in proto.graph.input:
            dims = declared.type.tensor_type.shape.dim
            shape = [binding[d.dim_param] if d.dim_param else d.dim_value for d in dims]
            is_float = declared.type.tensor_type.elem_type == 1
            drawn = rng.standard_normal(shape) if is_float else rng.integers(-9, 9, shape)
            feeds[declared.name] = np.asarray(drawn, np.float32 if is_float else np.int64)
        expected = run_oracle("reference" if name in ENDLESS else "ort", proto, feeds)
        for results in (session.run(None, feeds), interpret(graph, feeds).values()):
            for got, right in zip(results, expected, strict=True):
                assert got.dtype == right.dtype and got.shape == right.shape
                np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)
        check(graph, feeds, saved=True, emitted="-O0")
