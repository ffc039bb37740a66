"""Every op against its own promises and, where torch has the same function, against torch.

The cases are the ops' samples: adding an op adds tests, not test code.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch

import image_cases
import ingot.ops  # noqa: F401
import kv_cache_cases
import quantize_cases
import recurrent_cases
import sequence_state_cases
import torch_oracles
from ingot.errors import InputError, ShapeError
from ingot.ir.dim import bind, symbol
from ingot.ir.dtype import bf16, boolean, f32, f64, from_numpy, i8, i32, i64, u8
from ingot.ir.graph import OPS, REQUIRED, Graph, TensorType
from ingot.ir.text import dump, parse
from ingot.ops.define import draw, expand_node
from ingot.run.interpret import interpret

CASES = [
    pytest.param(op, sample, id=f"{name}-{sample.operands.replace(' ', '_')}-{i}")
    for name, op in OPS.items()
    for i, sample in enumerate(op.samples)
]
EXPANDED = [case for case in CASES if case.values[0].expand is not None]


def arrays_of(op, sample, rng):
    return draw(sample.operands, rng, op.domain)


def graph_of(op, sample, arrays, shapes=None):
    """One node over graph inputs, with `shapes` in place of the arrays' own."""
    graph = Graph(op.name)
    operands = []
    for i, array in enumerate(arrays):
        if array is not None:
            shape = array.shape if shapes is None else shapes[i]
            graph.add_input(f"x{i}", TensorType(from_numpy(array.dtype), shape))
        operands.append(None if array is None else f"x{i}")
    node = graph.add(op.name, operands, [f"y{i}" for i in range(op.outputs)], **sample.attributes)
    for output in node.outputs:
        graph.set_output(output, output)
    graph.validate()
    return graph


def feeds_of(arrays):
    return {f"x{i}": array for i, array in enumerate(arrays) if array is not None}


def error_of(actual, expected):
    """The largest error relative to max(1, |expected|); equal infinities and NaNs agree."""
    assert actual.shape == expected.shape
    if actual.dtype == object:
        return float(actual.tolist() != expected.tolist())
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.max(np.where(same, 0, error), initial=0))


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_reference_inference_and_text(op, sample, rng):
    arrays = arrays_of(op, sample, rng)
    graph = graph_of(op, sample, arrays)
    results = interpret(graph, feeds_of(arrays))
    exact = interpret(graph, feeds_of(arrays), float64=True)
    for name, result in results.items():
        declared = graph.type(name)
        shape = tuple(n if d is None else d for n, d in zip(result.shape, declared.shape, strict=True))
        assert (result.shape, result.dtype) == (shape, declared.dtype.numpy)
        assert exact[name].dtype == (np.float64 if result.dtype == np.float32 else result.dtype)
        assert error_of(result, exact[name]) <= op.tolerance[f32]
    assert dump(parse(dump(graph))) == dump(graph)


@pytest.mark.parametrize(("op", "sample"), EXPANDED)
def test_expansion_computes_the_same(op, sample, rng):
    arrays = arrays_of(op, sample, rng)
    graph = graph_of(op, sample, arrays)
    expected = interpret(graph, feeds_of(arrays), float64=True)
    types = {name: graph.type(name) for name in graph.outputs}
    assert expand_node(graph, next(graph.nodes)) == tuple(expected)
    graph.validate()
    assert {name: graph.type(name) for name in graph.outputs} == types, "names and types survive"
    assert op not in [node.op for node in graph.nodes]
    for name, result in interpret(graph, feeds_of(arrays)).items():
        assert error_of(result, expected[name]) <= op.tolerance[f32]


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_inplace_permission_is_for_the_result_type(op, sample, rng):
    """A permission that can never be used, or a view that also claims one, is a mistake in the declaration."""
    assert not (op.view and op.inplace)
    graph = graph_of(op, sample, arrays_of(op, sample, rng))
    (node,) = graph.nodes
    for index in op.inplace:
        output = node.outputs[index if len(node.outputs) > 1 else 0]
        assert graph.type(node.operands[index]).dtype is graph.type(output).dtype


@pytest.mark.parametrize(("op", "sample"), [c for c in CASES if c.values[0].view])
def test_views_are_the_operands_memory(op, sample, rng):
    """`view` declares that the elements are the operand's own: numpy agrees whenever it can."""
    (array,) = arrays_of(op, sample, rng)
    attributes = {k: v for k, v in op.attributes.items() if v is not REQUIRED} | sample.attributes
    assert op.function(array, **attributes).size == 0 or np.shares_memory(op.function(array, **attributes), array)


# Sizes that an op or its attributes fix stay ints; None: attributes fix them all, see test_symbolic_attributes.
FIXED = {
    "tree_ensemble": None,
    "measure": None,  # how many sizes there are is the rank of the result
    "non_max_suppression": {4},
    "rotary": {8, 34, 2, 4},
    "reshape": None,
    "slice": None,
    "expand": None,
    "grid_sample": {2, 3},
    "roi_align": {4},
    "deform_conv": None,
    "conv_filter_gradient": None,  # sizes of d follow from those of x
    "max_pool_gradient": None,
}
FIXED |= recurrent_cases.FIXED | sequence_state_cases.FIXED
FIXED |= {name: {64} for name in kv_cache_cases.ORACLE}


def symbolic_case(op, sample, arrays):
    """Shapes in which each size above 1 is a symbol of its own, and the symbols' values."""
    fixed = FIXED.get(op.name, set())
    sizes = {size for array in arrays if array is not None for size in array.shape if size > 1}
    if fixed is None or not sizes - fixed:
        return None
    values = {f"N{size}": size for size in sizes - fixed}
    names = {size: symbol(f"N{size}") for size in sizes - fixed}
    shapes = [None if array is None else tuple(names.get(n, n) for n in array.shape) for array in arrays]
    if op.name in ("conv", "conv_integer", "conv_transpose", "resample"):
        shapes[1:] = [array if array is None else array.shape for array in arrays[1:]]
    return shapes, values


SYMBOLIC = [c for c in CASES if symbolic_case(*c.values, draw(c.values[1].operands, np.random.default_rng(0), (0, 1)))]


@pytest.mark.parametrize(("op", "sample"), SYMBOLIC)
def test_symbolic_then_bind_is_static(op, sample, rng):
    arrays = arrays_of(op, sample, rng)
    shapes, values = symbolic_case(op, sample, arrays)
    static = graph_of(op, sample, arrays)
    graph = graph_of(op, sample, arrays, shapes)
    assert dump(parse(dump(graph))) == dump(graph)
    for name in graph.outputs:
        bound = tuple(bind(dim, values) for dim in graph.type(name).shape)
        assert bound == static.type(name).shape
    assert dump(graph.bind(values)) == dump(static)
    for name, result in interpret(graph, feeds_of(arrays)).items():
        np.testing.assert_array_equal(result, interpret(static, feeds_of(arrays))[name])


@pytest.mark.parametrize(("op", "sample"), [case for case in SYMBOLIC if case.values[0].expand is not None])
def test_expansion_with_symbols(op, sample, rng):
    arrays = arrays_of(op, sample, rng)
    shapes, _ = symbolic_case(op, sample, arrays)
    expected = interpret(graph_of(op, sample, arrays), feeds_of(arrays), float64=True)
    graph = graph_of(op, sample, arrays, shapes)
    expand_node(graph, next(graph.nodes))
    graph.validate()
    for name, result in interpret(graph, feeds_of(arrays)).items():
        assert error_of(result, expected[name]) <= op.tolerance[f32]


def test_symbolic_attributes(rng):
    """The ops whose attributes are dims, with those dims symbolic."""
    B, S = symbol("B"), symbol("S")
    graph = Graph()
    graph.add_input("x", TensorType(f32, (B, S, 6)))
    y = graph.add("reshape", ["x"], shape=(B, S, 2, 3)).output
    y = graph.add("expand", [graph.add("reshape", [y], shape=(B, S, 1, 2, 3)).output], shape=(B, S, S, 2, 3)).output
    y = graph.add("slice", [y], starts=(0, S - 1, 0, 0, 0), stops=(B, S, S, 2, 3), steps=(1, 1, 2, 1, 1)).output
    y = graph.add("pad", [y], low=(0, 0, 0, 0, S), high=(0,) * 5, value=2.0).output
    graph.set_output("y", y)
    graph.set_output("n", graph.add("dims", [], values=(B, S * 2 - 1)).output)
    graph.set_output("i", graph.add("iota", [], length=S + 1, start=S, step=2, dtype=i64).output)
    graph.set_output("top", graph.add("topk", ["x"], k=S, axis=1, largest=True).outputs[0])
    x = rng.random((2, 5, 6), np.float32)
    results = interpret(graph, {"x": x})
    assert str(graph.type(y)) == "f32[B, 1, ((S+1)//(2)), 2, S+3]"
    expected = np.pad(x.reshape(2, 5, 1, 2, 3)[:, 4:], [(0, 0)] * 4 + [(5, 0)], constant_values=2)
    np.testing.assert_array_equal(results["y"], np.repeat(expected, 3, 2))
    np.testing.assert_array_equal(results["n"], [2, 9])
    np.testing.assert_array_equal(results["i"], [5, 7, 9, 11, 13, 15])
    np.testing.assert_array_equal(results["top"], -np.sort(-x, 1))
    graph.bind({"B": 2, "S": 5}).validate()


def repeated_ngrams(tokens, *, size, vocab):
    found = torch.zeros(len(tokens), vocab, dtype=torch.bool)
    for row, words in zip(found, tokens.tolist(), strict=True):
        ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
        last = tuple(words[len(words) - size + 1 :])
        row[[ngram[-1] for ngram in ngrams if ngram[:-1] == last]] = True
    return found


ORACLE = torch_oracles.ORACLE | quantize_cases.ORACLE | {"repeated_ngrams": repeated_ngrams}
# Cases of ONNX's rules compare strings, tables, trees, boxes, and what has no samples.
WITHOUT_ORACLE = {"dims", "random_uniform", "label_encode", "tfidf", "tree_ensemble", "unique", "non_max_suppression"}
WITHOUT_ORACLE |= {"decode_image", "pairwise_coupling", "roi_align"}  # cases of their rules have some
WITHOUT_ORACLE |= {"draw_uniform"}  # tests/load/test_random.py asks Philox in integers of Python
WITHOUT_ORACLE |= {"affine_blocks", "decode_blocks"}  # test_blocks.py asks gguf
# test_decompose.py and the cases of ATen ask torch.
WITHOUT_ORACLE |= {"cholesky", "eig", "eigh", "householder_product", "ldl_factor", "ldl_solve", "lu_factor"}
WITHOUT_ORACLE |= {"matrix_exp", "pivoted_rows", "qr_factor", "solve_triangular", "svd"}
WITHOUT_ORACLE |= {"linear_attention"}  # ONNX Runtime's numbers: tests/kit/onnx_contrib_cases.py
WITHOUT_ORACLE |= {"quantize_groups"}  # tests/lower/test_quant.py bounds its error
WITHOUT_ORACLE |= {name for name, op in OPS.items() if not op.samples}
WITHOUT_ORACLE |= {name for name in OPS if name[:5] in ("strin", "regex")}
# Their results' dtype.
CHOOSING = (
    "cast",
    "iota",
    "quantize",
    "quantize_groups",
    "dequantize",
    "dynamic_quantize",
    "tfidf",
    "label_encode",
    "unpack",
)
# torch refuses an empty axis or window, or takes no such dtype.
REFUSED_BY_TORCH = {
    ("max_pool", "x[0,2,3,3]"),
    ("max_pool_indices", "x[0,2,3,3]"),
    ("max_pool_gradient", "x[0,2,3,3] d[0,2,2,2]"),
    ("avg_pool", "x[0,2,3,3]"),
    ("group_norm", "x[0,4,2] w[4] b[4]"),
    ("fft", "x[0,3] y[0,3]"),
    ("rfft", "x[0,4]"),
    ("irfft", "x[0,3] y[0,3]"),
}
REFUSED_BY_TORCH |= quantize_cases.REFUSED


def test_every_op_has_an_oracle():
    without = sorted(set(OPS) - set(ORACLE) - WITHOUT_ORACLE)
    assert not without, f"no oracle, got {without}, expected one in kit/torch_oracles.py, or a name in WITHOUT_ORACLE"
    assert not WITHOUT_ORACLE & set(ORACLE)
    assert set(ORACLE) | WITHOUT_ORACLE <= set(OPS)


ORACLE_CASES = [
    case
    for case in CASES
    if case.values[0].name in ORACLE and (case.values[0].name, case.values[1].operands) not in REFUSED_BY_TORCH
]


def torch_of(array):
    if array.dtype == bf16.numpy:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array.astype(np.float64) if array.dtype == np.float32 else array)


@pytest.mark.parametrize(("op", "sample"), ORACLE_CASES)
def test_torch_computes_the_same(op, sample, rng):
    arrays = arrays_of(op, sample, rng)
    actual = interpret(graph_of(op, sample, arrays), feeds_of(arrays), float64=True)
    tensors = [None if a is None else torch_of(a) for a in arrays]
    defaults = {k: v for k, v in op.attributes.items() if v is not REQUIRED} if op.name == "gelu" else {}
    expected = ORACLE[op.name](*tensors, **defaults | sample.attributes)
    for name, tensor in zip(actual, expected if op.outputs > 1 else [expected], strict=True):
        array = (tensor.double() if tensor.dtype is torch.bfloat16 else tensor).numpy()
        if op.name == "topk":
            array = np.take(array, range(sample.attributes["k"]), sample.attributes["axis"])
        assert array.dtype.kind == from_numpy(actual[name].dtype).kind or op.name in ("iota", "quantize", "unpack")
        assert error_of(actual[name], array) <= 1e-11


SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5]
AS_IN_TORCH = """relu neg abs exp expm1 log log1p sqrt rsqrt reciprocal sin cos sinh cosh asin acos
    atan asinh acosh atanh tanh erf sigmoid silu floor ceil round mish isnan isinf hard_swish"""


@pytest.mark.parametrize("name", AS_IN_TORCH.split())
def test_special_values_of_unary_ops(name):
    x = np.float32(SPECIAL)
    with np.errstate(all="ignore"):
        actual = OPS[name].function(x)
    expected = ORACLE[name](torch.from_numpy(x)).numpy()
    assert actual.dtype == expected.dtype
    assert error_of(actual, expected) <= 1e-6
    zero = actual == 0
    if name not in ("relu", "isnan", "isinf"):
        np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_div", "mod", "pow", "maximum", "minimum", "equal",
                                  "not_equal", "less", "less_equal", "greater", "greater_equal"])  # fmt: skip
def test_special_values_of_binary_ops(name):
    a, b = np.float32(SPECIAL)[:, None], np.float32(SPECIAL)[None, :]
    with np.errstate(all="ignore"):
        actual = OPS[name].function(a, b)
    expected = ORACLE[name](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    assert error_of(actual, expected) <= 1e-6


def apply(name, *operands, **attributes):
    with np.errstate(all="ignore"):
        return OPS[name].function(*(np.asarray(o) for o in operands), **attributes)


NAN, INF = math.nan, math.inf
SMALLEST, LARGEST = -(2**63), 2**63 - 1
REDUCE = {"axes": (0,), "keepdims": False}
EDGES = [
    ("sign", [np.float32([NAN, -0.0, -3])], {}, [NAN, 0, -1]),
    ("clip", [np.float32([NAN, -5, 5])], {"minimum": -1.0, "maximum": 1.0}, [NAN, -1, 1]),
    ("clip", [np.float32([NAN, -5, INF])], {}, [NAN, -5, INF]),
    ("clip", [[SMALLEST, 0, LARGEST]], {"minimum": -1, "maximum": 1}, [-1, 0, 1]),
    ("clip", [[SMALLEST, 0, LARGEST]], {}, [SMALLEST, 0, LARGEST]),
    ("relu", [np.float32([NAN, -INF, INF])], {}, [NAN, 0, INF]),
    ("leaky_relu", [np.float32([NAN, -INF, -2])], {"alpha": 0.5}, [NAN, -INF, -1]),
    ("elu", [np.float32([NAN, -INF, INF])], {"alpha": 2.0}, [NAN, -2, INF]),
    ("hard_sigmoid", [np.float32([NAN, -INF, INF])], {"alpha": 0.2, "beta": 0.5}, [NAN, 0, 1]),
    ("softplus", [np.float32([NAN, -INF, INF, 100, -200])], {}, [NAN, 0, INF, 100, 0]),
    ("gelu", [np.float32([NAN, INF, -40])], {}, [NAN, INF, 0]),
    ("neg", [[SMALLEST]], {}, [SMALLEST]),
    ("abs", [[SMALLEST]], {}, [SMALLEST]),
    ("add", [[LARGEST], [1]], {}, [SMALLEST]),
    ("div", [[-7, 7, -7, 7, -6, SMALLEST], [2, -2, -2, 2, 3, -1]], {}, [-3, -3, 3, 3, -2, SMALLEST]),
    ("floor_div", [[-7, 7, -7, 7], [2, -2, -2, 2]], {}, [-4, -4, 3, 3]),
    ("mod", [[-7, 7, -7, 7], [3, -3, -3, 3]], {}, [2, -2, -1, 1]),
    ("mod", [np.float32([-7, 7, 5]), np.float32([3, -3, 0])], {}, [2, -2, NAN]),
    ("div", [np.float32([1, -1, 0]), np.float32([0, 0, 0])], {}, [INF, -INF, NAN]),
    ("pow", [[2, -2, 1, -1, -1, 0], [-1, -2, -5, -3, -4, 0]], {}, [0, 0, 1, -1, 1, 1]),
    ("maximum", [np.float32([NAN, 1]), np.float32([1, NAN])], {}, [NAN, NAN]),
    ("where", [[True, False], np.float32([1, NAN]), np.float32([NAN, 2])], {}, [1, 2]),
    ("reduce_max", [np.float32([1, NAN, 3])], REDUCE, NAN),
    ("reduce_max", [np.float32([])], REDUCE, -INF),
    ("reduce_min", [np.int64([])], REDUCE, LARGEST),
    ("reduce_max", [np.array([], bool)], REDUCE, False),
    ("reduce_mean", [np.float32([])], REDUCE, NAN),
    ("reduce_prod", [np.float32([])], REDUCE, 1),
    ("reduce_sum", [np.float32([1e8, 1, -1e8])], REDUCE, 1),
    ("reduce_sum", [np.int64([LARGEST, 1])], REDUCE, SMALLEST),
    ("argmax", [np.float32([1, 3, 3, 2])], {"axis": 0, "keepdims": False}, 1),
    ("argmax", [np.float32([1, NAN, 3, NAN])], {"axis": 0, "keepdims": True}, [1]),
    ("argmin", [np.float32([1, NAN, -3])], {"axis": 0, "keepdims": False}, 1),
    ("softmax", [np.float32([[-INF, 0, 0], [-INF, -INF, -INF], [INF, 0, 0], [3e38, -3e38, -INF]])], {"axis": 1},
     [[0, 0.5, 0.5], [NAN] * 3, [NAN, NAN, NAN], [1, 0, 0]]),
    ("log_softmax", [np.float32([-INF, 1000, 0])], {"axis": 0}, [-INF, 0, -1000]),
    ("matmul", [np.zeros((2, 0), np.float32), np.zeros((0, 2), np.float32)], {}, [[0, 0], [0, 0]]),
    ("trilu", [np.float32([[NAN, NAN], [1, INF]])], {"k": 0, "upper": False}, [[NAN, 0], [1, INF]]),
    ("topk", [np.float32([2, NAN, 3, 3])], {"k": 3, "axis": 0, "largest": True}, ([NAN, 3, 3], [1, 2, 3])),
    ("topk", [np.float32([2, NAN, 1, 1])], {"k": 4, "axis": 0, "largest": False}, ([1, 1, 2, NAN], [2, 3, 0, 1])),
    ("iota", [], {"length": 3, "start": 0.1, "step": 0.1, "dtype": f32}, np.float32([0.1, 0.2, 0.1 * 2 + 0.1])),
    ("gather", [np.float32([1, 2, 3]), [-1, -3, 2]], {"axis": 0}, [3, 1, 3]),
    ("slice", [np.arange(6)], {"starts": (4,), "stops": (-1,), "steps": (-2,)}, [4, 2, 0]),
    ("max_pool", [np.float32([[[NAN, 1, 2]]])], {"kernel": (2,), "strides": (1,), "pads": (1, 2), "dilations": (1,)},
     [[[NAN, NAN, 2, 2, -INF]]]),
    ("cast", [np.float32([NAN, INF, -INF, 3e9, -3e9, 2.9, -2.9, 2147483520])], {"dtype": i32},
     [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2, 2147483520]),
    ("cast", [np.float64([2.0**63, -(2.0**63), 2.0**63 - 1024, -1e300])], {"dtype": i64},
     [LARGEST, SMALLEST, 2**63 - 1024, SMALLEST]),
    ("cast", [np.float32([300, -1.5, -0.5, NAN, 255.9])], {"dtype": u8}, [255, 0, 0, 0, 255]),
    ("cast", [[300, -129, 127]], {"dtype": i8}, [44, 127, 127]),
    ("cast", [np.float32([0, -0.0, NAN, 0.1])], {"dtype": boolean}, [False, False, True, True]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "attributes", "expected"), EDGES, ids=[f"{e[0]}-{e[2]}" for e in EDGES])
def test_edges(name, operands, attributes, expected):
    defaults = {k: v for k, v in OPS[name].attributes.items() if v is not REQUIRED}
    actual = apply(name, *operands, **defaults | attributes)
    pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
    for result, wanted in pairs:
        np.testing.assert_allclose(result, np.asarray(wanted), rtol=1e-6, atol=1e-37)
        if np.asarray(result).dtype.kind in "iub":
            np.testing.assert_array_equal(result, np.asarray(wanted))


def test_attention_rows_that_see_nothing_are_zero(rng):
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    keep = np.array([[True, False, True], [False, False, False], [True, True, True]])
    for mask in (keep, np.where(keep, 0, -INF).astype(np.float32)):
        result = apply("attention", q, k, v, mask, scale=0.5)
        assert np.all(result[:, :, 1] == 0) and np.all(np.isfinite(result))
        np.testing.assert_array_equal(result, apply("attention", q, k, v, keep, scale=0.5))
    assert np.all(apply("attention", q, k, v, scale=0.5, causal=True, causal_offset=-3) == 0)


def test_dtypes_beyond_f32():
    """float64 and float16 come back as themselves: a reference computes in the dtype it is given."""
    for dtype in (np.float64, np.float16):
        for op in OPS.values():
            for sample in op.samples:
                arrays = draw(sample.operands, np.random.default_rng(0), op.domain)
                if op.name in CHOOSING or not any(a is not None and a.dtype == np.float32 for a in arrays):
                    continue
                arrays = [a.astype(dtype) if a is not None and a.dtype == np.float32 else a for a in arrays]
                attributes = {k: v for k, v in op.attributes.items() if v is not REQUIRED} | sample.attributes
                with np.errstate(all="ignore"):
                    results = op.function(*arrays, **attributes)
                first = results[0] if isinstance(results, tuple) else results
                stored = [a.dtype for a in arrays if a is not None]
                assert np.asarray(first).dtype in (dtype, np.bool_, np.int64, *stored), op.name


S = symbol("S")
REFUSED = [
    ("exp", "x:i64[3]", {}, r"exp: wrong dtype, got i64\[3\], expected float"),
    ("logical_not", "x[3]", {}, r"expected bool"),
    ("add", "a[3] b:i64[3]", {}, r"add: operands differ in dtype, got f32\[3\], i64\[3\]"),
    ("add", "a[3] b[4]", {}, r"add: shapes do not broadcast, got \[3\] and \[4\]"),
    ("add", "a:bool[3] b:bool[3]", {}, r"got bool\[3\], expected float or signed or unsigned"),
    ("where", "c[3] a[3] b[3]", {}, r"where: wrong dtype, got f32\[3\], expected bool"),
    ("where", "c:bool[2] a[3] b[3]", {}, r"got \[2\] and \[3\]"),
    ("reduce_sum", "x[2,3]", {"axes": (2,), "keepdims": True}, r"bad axes, got \[2\], expected distinct ones in 0..1"),
    ("reduce_sum", "x[2,3]", {"axes": (0, 0), "keepdims": True}, r"got \[0, 0\]"),
    ("reduce_mean", "x:i64[2,3]", {"axes": (0,), "keepdims": True}, r"expected float"),
    ("argmax", "x[2,0]", {"axis": 1, "keepdims": True}, r"axis 1 is empty"),
    ("matmul", "a[3] b[3,2]", {}, r"got f32\[3\] and f32\[3, 2\], expected one dtype and rank 2"),
    ("matmul", "a[2,3] b[2,3]", {}, r"dims differ, got 3 and 2"),
    ("matmul", "a[2,4,3] b[3,3,5]", {}, r"got \[2\] and \[3\]"),
    ("matmul", "a:i64[2,3] b:i64[3,2]", {"scale": 0.5}, r"expected float"),
    ("layer_norm", "x[2,3] w[4]", {"eps": 0.1}, r"dims differ, got 4 and 3"),
    ("layer_norm", "x[2,3] w[1,3]", {"eps": 0.1}, r"bad weight, got f32\[1, 3\], expected f32\[3\]"),
    ("layer_norm", "x[]", {"eps": 0.1}, r"rank too low"),
    ("softmax", "x[2,3]", {"axis": 2}, r"axis out of range, got 2"),
    ("batch_norm", "x[3] a[3] b[3] c[3] d[3]", {"eps": 0.1}, r"rank too low, got f32\[3\]"),
    ("group_norm", "x[2,6]", {"groups": 4, "eps": 0.1}, r"bad groups, got 4, expected a divisor of 6"),
    ("attention", "q[1,3,2,4] k[1,2,2,4] v[1,2,2,4]", {"scale": 1.0}, r"heads do not group, got 3 over 2"),
    ("attention", "q[1,2,2,4] k[1,2,2,5] v[1,2,2,4]", {"scale": 1.0}, r"dims differ, got 4 and 5"),
    ("attention", "q[1,2,2,4] k[1,2,3,4] v[1,2,2,4]", {"scale": 1.0}, r"dims differ, got 3 and 2"),
    ("attention", "q[1,2,2,4] k[1,2,3,4] v[1,2,3,4] m[2,2]", {"scale": 1.0}, r"mask"),
    ("attention", "q[1,2,2,4] k[1,2,3,4] v[1,2,3,4] m[2,1,2,3]", {"scale": 1.0}, r"mask does not broadcast"),
    ("attention", "q[1,2,2,4] k[1,2,3,4] v[1,2,3,4] m:i64[2,3]", {"scale": 1.0}, r"bad mask, got i64\[2, 3\]"),
    ("rotary", "x[2,3] c[2,3] s[2,3]", {}, r"expected an even number"),
    ("rotary", "x[2,4] c[3,2,4] s[2,4]", {}, r"angles do not broadcast"),
    ("reshape", "x[2,3]", {"shape": (7,)}, r"number of elements of f32\[2, 3\] as \[7\]: dims differ, got 6 and 7"),
    ("reshape", "x[2,3]", {"shape": (-1, 3)}, r"negative dim"),
    ("reshape", "x[2,3]", {"shape": (None, None)}, r"more than one unknown"),
    ("permute", "x[2,3]", {"axes": (0, 0)}, r"bad axes, got \[0, 0\]"),
    ("slice", "x[4]", {"starts": (0,), "stops": (5,), "steps": (1,)}, r"out of range, got 0:5:1"),
    ("slice", "x[4]", {"starts": (0,), "stops": (4,), "steps": (0,)}, r"no step 0"),
    ("slice", "x[4]", {"starts": (0, 0), "stops": (4, 4), "steps": (1, 1)}, r"one per axis"),
    ("concat", "a[2,3] b[3,3]", {"axis": 1}, r"dims differ, got 2 and 3"),
    ("concat", "a[2,3] b[2]", {"axis": 0}, r"bad operands"),
    ("concat", "", {"axis": 0}, r"no operands"),
    ("expand", "x[2,3]", {"shape": (2, 4)}, r"got \[2, 3\] and \[2, 4\]"),
    ("expand", "x[2,3]", {"shape": (1, 3)}, r"does not broadcast"),
    ("expand", "x[2,3]", {"shape": (3,)}, r"does not broadcast"),
    ("pad", "x[2]", {"low": (-1,), "high": (0,), "value": 0}, r"bad amounts"),
    *(
        ("pad", f"x:{dtype}[2]", {"low": (1,), "high": (0,), "value": value}, f"bad number, got .*{dtype}")
        for dtype, values in {
            "i64": (math.inf, math.nan, 1e300, 2.0**63, 0.5, 2**63), "i32": (2**31, -(2**31) - 1), "i8": (128, 1.5),
            "u64": (-1, 2**64), "u8": (-1, 256, math.nan), "bool": (2, -1, math.nan),
        }.items()
        for value in values
    ),
    ("clip", "x:i64[2]", {"minimum": math.nan}, r"bad number, got nan, expected one of i64"),
    ("clip", "x:i64[2]", {"minimum": 0, "maximum": -math.inf}, r"bad number, got -inf"),
    ("clip", "x:i64[2]", {"minimum": math.inf}, r"bad number, got inf"),
    ("clip", "x:i32[2]", {"maximum": 2**31}, r"bad number, got 2147483648, expected one of i32"),
    ("clip", "x:u8[2]", {"maximum": 4}, r"wrong dtype"),
    ("iota", "", {"length": 0, "start": 2**31, "step": 1, "dtype": i32}, r"bad number"),
    ("iota", "", {"length": 2, "start": 2, "step": -1, "dtype": u8}, r"bad number, got -1, expected one of u8"),
    ("iota", "", {"length": 2, "start": math.inf, "step": 1, "dtype": i64}, r"bad number, got inf"),
    ("trilu", "x[2]", {"k": 0, "upper": True}, r"rank too low"),
    ("gather", "x[2] i[2]", {"axis": 0}, r"wrong dtype of indices"),
    ("gather", "x[2] i:i64[2]", {"axis": 1}, r"axis out of range, got 1"),
    ("gather_elements", "x[2,3] i:i64[3,3]", {"axis": 1}, r"indices do not fit"),
    ("topk", "x[3]", {"k": 4, "axis": 0, "largest": True}, r"bad k, got 4, expected 0..3"),
    ("iota", "", {"length": -1, "start": 0, "step": 1, "dtype": i64}, r"bad length"),
    ("conv", "x[1,3,4,4] w[2,4,3,3]", {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1},
     r"channels of x .*: dims differ, got 3 and 4"),
    ("conv", "x[1,3,2,4] w[2,3,3,3]", {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1},
     r"window larger than its input"),
    ("scatter_elements", "x[3,4] i:i64[1,5] u[1,5]", {"axis": 0, "reduction": "none"}, r"updates do not fit"),
    ("scatter_elements", "x[3,4] i:i64[1,2] u[1,3]", {"axis": 0, "reduction": "none"}, r"dims differ, got 2 and 3"),
    ("scatter_elements", "x[3] i:i64[1] u:i64[1]", {"axis": 0, "reduction": "add"}, r"differ in dtype"),
    ("det", "x[3,4]", {}, r"det of f32\[3, 4\]: dims differ"),
    ("bitcast", "x[3]", {"dtype": f64}, r"bitcast: wrong dtype, got f32\[3\] as f64"),
    ("arange", "a[] b[] c:i64[]", {}, r"arange: bad operands"),
    ("conv", "x[1,3,4] w[2,3,3,3]", {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1}, r"bad filter"),
    ("max_pool", "x[1,3,4]", {"kernel": (2,), "strides": (0,), "pads": (0, 0), "dilations": (1,)}, r"bad window"),
    ("avg_pool", "x[1,3,4]", {"kernel": (2, 2), "strides": (1,), "pads": (0, 0), "dilations": (1,)}, r"bad rank"),
    ("rotary", "x[2,8] cos[] sin[2,8]", {}, r"bad last dim of the angles, got f32\[\], expected 8"),
    ("rotary", "x[2,8] cos[2,8] sin[2,1]", {}, r"bad last dim of the angles, got f32\[2, 1\], expected 8"),
    (
        "quantize",
        "x[2,5,7] s>0.01<0.1[] z:u8<9[7]",
        {"axis": 0, "block": 0, "precision": f32, "dtype": u8},
        r"zero point does not fit",
    ),
    *image_cases.REFUSED,
    *kv_cache_cases.REFUSED,
    *recurrent_cases.REFUSED,
    *sequence_state_cases.REFUSED,
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "attributes", "message"), REFUSED)
def test_inference_refuses(name, operands, attributes, message):
    arrays = draw(operands, np.random.default_rng(0), (0, 1))
    with pytest.raises(ShapeError, match=message):
        graph_of(OPS[name], dataclasses.replace(OPS[name].samples[0], attributes=attributes), arrays)


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "message"),
    [
        ("gather", [[1, 2, 3], [0, 3]], {"axis": 0}, r"node 'y0': indices: index out of range, got 3, expected -3..2"),
        ("gather", [[1, 2, 3], [0, -4]], {"axis": 0}, r"got -4"),
        ("gather_elements", [[1, 2, 3], [9]], {"axis": 0}, r"indices: index out of range, got 9"),
        ("scatter_elements", [[1, 2], [2], [5]], {"axis": 0, "reduction": "none"}, r"index out of range, got 2"),
        ("scatter_elements", [[1, 2], [-3], [5]], {"axis": 0, "reduction": "add"}, r"got -3, expected -2..1"),
        ("arange", [1, 9, 0], {}, r"arange: bad range, got 1:9:0"),
        ("arange", [0, 2**40, 1], {}, r"bad range, got 0:1099511627776:1, expected at most 268435456 steps"),
        ("arange", [0.0, np.nan, 1.0], {}, r"bad range, got 0.0:nan:1.0"),
        ("resample", [[1.0, 2.0], [[2]], [[1.0]]], {"axis": 0}, r"indices: index out of range, got 2, expected 0..1"),
        *kv_cache_cases.BAD_DATA,
        *sequence_state_cases.BAD_DATA,
    ],
)
def test_bad_data_is_an_input_error(name, operands, attributes, message):
    arrays = [np.array(o) for o in operands]
    graph = graph_of(OPS[name], dataclasses.replace(OPS[name].samples[0], attributes=attributes), arrays)
    with pytest.raises(InputError, match=message):
        interpret(graph, feeds_of(arrays))
