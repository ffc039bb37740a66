"""Graphs back to ONNX: ONNX Runtime computes what the reference does, and so does Ingot once it has read them again."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import ingot
import ingot.emit.onnx.model as written_model
import models
import onnx_backend_cases as backend
from ingot.emit.onnx import export_onnx
from ingot.emit.onnx.registry import RULES
from ingot.errors import KindError, LoadError, OutputError, UnsupportedError
from ingot.ir.dim import symbol
from ingot.ir.dtype import f32
from ingot.ir.graph import MAX_RANK, OPS, Graph, TensorType
from ingot.ir.text import parse
from ingot.load import load_model
from ingot.load.onnx import load_onnx
from ingot.passes import optimize
from ingot.run.interpret import interpret
from onnx_models import run_oracle, text_model
from onnx_value_cases import RANKS
from op_cases import CASES, case_id, one_node

Feeds = dict[str, np.ndarray]

# What ONNX Runtime has no kernel for, or computes otherwise over nothing: samples for ONNX's reference.
BY_REFERENCE = {
    ("bitcast", "x:bool[5]"),
    ("conv", "x:i32>-9<9[2,3,5,4] w:i32>-9<9[4,3,2,3] b:i32[4]"),
    ("conv_integer", "x:i8>-127<127[1,8,9,7] w:i8>-127<127[34,8,1,1] none z:i8[]"),
    ("conv_integer", "x:u8<255[1,4,9,7] w:u8<255[6,2,3,2] none z:u8<200[] y:u8<200[6]"),
    ("conv_integer", "x:i8>-127<127[1,33,9,9] w:u8<255[33,1,5,5] none z:i8[] y:u8<200[33]"),
    ("conv_integer", "x:i8>-127<127[2,4,11] w:i8>-127<127[5,4,4]"),
    ("conv_integer", "x:u8<255[0,3,5,5] w:i8>-127<127[2,3,3,3]"),
    ("matmul_integer", "x:u8<255[3,0] w:i8[0,4]"),
    ("dequantize", "x:u4[4,5] s>0.5<1[4] z:u4[4]"),
    ("unpack", "x:u8<256[3,5]"),
    ("unpack", "x:i32>-2147483648<2147483647[2,5,3]"),
    ("unpack", "x:u8<256[0,3]"),
    ("dequantize", "x:f8e5m2[4,5] s>0.5<1[]"),
    ("group_norm", "x[2,0,3] w[0] b[0]"),
    ("label_encode", "x:i64[0] k:i64[4] v:string[4] d:string[]"),
    ("quantize", "x:i32<99[7] s>0.5<1[]"),
    ("quantize", "x[4,5] s>0.5<1[4]"),
    ("quantize", "x[4,5] s>0.5<1[]"),
    ("reduce_mean", "x[3,0]"),
    ("relu", "x:i64>-9<10[3,5]"),
    ("roi_align", "x[2,3,6,7] r>0<6[4,4] b:i64<2[4]"),
    ("roi_align", "x[2,3,6,7] r>-9<9[4,4] b:i64<2[4]"),
    ("roi_align", "x[1,1,6,7] r>0<6[4,4] b:i64<1[4]"),
    ("roi_align", "x[1,2,6,7] r>0<6[0,4] b:i64<1[0]"),
    ("where", "c:bool[5] a:bool[5] b:bool[5]"),
}
INEXACT = {"fft", "rfft", "irfft"}  # ONNX Runtime's transforms of most lengths are right to four digits
# What neither computes to the op's tolerance.
BEYOND = {
    ("decode_image", "x:u8<255[9]"): "the file is broken, which only Ingot's rule takes",
    ("decode_image", "x:u8[0]"): "the file is broken, which only Ingot's rule takes",
    ("rnn", "g[3,13,80] r[80,80] h[13,80] n:i64<4[13]"): "float32 is not enough for these weights, whoever computes",
    ("string_normalize", "x:string[5]"): "a locale; ONNX's reference takes stop words out of longer words",
}
# What ONNX cannot say of an op that it has.
REFUSED = {
    (
        "tree_ensemble",
        "x[0,3] s[0] n:i64[0,7] l:i64>0<2[1,2] w[1] t:i64<1[1] r:i64>-1<0[2] m[0]",
    ): "max over leaves without one vote each"
}
ATTRIBUTES = {"tree_ensemble": range(1, 8)}  # operands that are attributes there: they have to be weights

DRAWN = {"draw_uniform"}  # whose numbers are other ones in each generator
EXPORTED = [pytest.param(op, s, id=case_id((op, s))) for op, s in CASES if op.name in RULES and op.name not in DRAWN]


def error_of(actual, expected) -> float:
    """The largest error relative to max(1, |expected|); equal infinities and NaNs agree."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return np.inf
    if expected.dtype == object:
        return float(actual.tolist() != expected.tolist())
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return float(np.max(np.where(same, 0, error), initial=0))


def largest_error(results, expected) -> float:
    return max(error_of(got, want) for got, want in zip(results, expected, strict=True))


@pytest.mark.parametrize(("op", "sample"), EXPORTED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of ONNX's reference, over nothing
def test_every_op_computes_the_same(op, sample):
    case = op.name, sample.operands
    graph, feeds = one_node(op, sample, ATTRIBUTES.get(op.name, ()))
    if case in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[case]):
            export_onnx(graph)
        return
    exact = list(interpret(graph, feeds, float64=True).values())
    model = export_onnx(graph)
    onnx.checker.check_model(model)
    again = load_onnx(model.SerializeToString())
    assert [again.values[n].type for n in again.inputs] == [graph.values[n].type for n in graph.inputs]
    results, expected = ([*interpret(each, feeds).values()] for each in (again, graph))
    assert largest_error(results, expected) <= op.tolerance[f32]
    assert [r.dtype for r in results] == [r.dtype for r in expected]
    if case not in BEYOND:
        oracle = "reference" if case in BY_REFERENCE or op.name in INEXACT else "onnxruntime"
        assert largest_error(run_oracle(oracle, model, feeds), exact) <= op.tolerance[f32]


@pytest.mark.parametrize("sample", OPS["draw_uniform"].samples, ids=lambda sample: str(sample.attributes["shape"]))
def test_draws_have_their_shape_and_range(sample):
    """By ONNX's reference and by Ingot, which reads them as draws of its own."""
    graph, feeds = one_node(OPS["draw_uniform"], sample)
    (expected,) = interpret(graph, feeds).values()
    model = export_onnx(graph)
    onnx.checker.check_model(model)
    again = next(iter(interpret(load_onnx(model.SerializeToString()), feeds).values()))
    for drawn in (again, *run_oracle("reference", model, feeds)):
        assert drawn.dtype == expected.dtype and drawn.shape == expected.shape
        assert np.all((drawn >= 0) & (drawn < 1)) and np.unique(drawn).size == drawn.size


# -- ONNX's own cases: control flow, sequences, optionals, symbols measured by a run, all dtypes ----------------------

# Cases whose graph cannot be written, or not so that ONNX's checker takes it.
UNWRITTEN = {
    "test_sequence_model1": "'shape'",  # of a result whose rank is not known
}
WITH_BODIES = (
    "test_if", "test_loop", "test_scan", "test_sequence", "test_optional", "test_split_to", "test_range",
    "test_affine_grid_2d_expanded",
)  # fmt: skip
EVERY = 40  # of the other cases one in so many


def failure(case, content: bytes, data) -> str:
    """What is wrong with a case's graph once it was written and read; "" for nothing."""
    graph = load_onnx(content)
    try:
        model = export_onnx(graph)
        onnx.checker.check_model(model)
    except (UnsupportedError, onnx.checker.ValidationError) as error:
        return str(error)
    again = load_onnx(model.SerializeToString())
    for inputs, expected in data:
        results = interpret(again, dict(zip(again.inputs, map(backend.as_array, inputs), strict=True)))
        if not all(backend.same(got, want, case) for got, want in zip(results.values(), expected, strict=True)):
            return "differs"
    return ""


def backend_cases(chosen: Callable[[int, str], bool]):
    failing = backend.listed()
    for i, (case, content, data) in enumerate(backend.cases()):
        if case.name not in failing and chosen(i, case.name):
            yield case, content, data


def expect_written(cases) -> None:
    found = {case.name: failure(case, content, data) for case, content, data in cases}
    assert len(found) > 100
    wrong = {name: why for name, why in found.items() if why and (UNWRITTEN.get(name) or "none") not in why}
    assert wrong == {}
    assert [name for name in UNWRITTEN if name in found and not found[name]] == []


def test_cases_of_onnx_survive():
    expect_written(backend_cases(lambda i, name: name.startswith(WITH_BODIES) or i % EVERY == 0))


@pytest.mark.slow
def test_all_cases_of_onnx_survive():
    expect_written(backend_cases(lambda i, name: True))


@pytest.mark.parametrize("name", ["test_loop11", "test_if_seq", "test_scan9_sum", "test_sequence_map_add_2_sequences"])
def test_subgraphs_run_elsewhere(name):
    ((_, content, data),) = backend_cases(lambda i, each: each == name)
    model = export_onnx(load_onnx(content))
    for inputs, expected in data:
        feeds = {i.name: backend.as_array(value) for i, value in zip(model.graph.input, inputs, strict=True)}
        results = run_oracle("onnxruntime", model, feeds)
        for got, want in zip(results, expected, strict=True):
            wanted = want if isinstance(want, list) else [want]
            assert largest_error(got if isinstance(got, list) else [got], map(backend.as_array, wanted)) <= 1e-6


@pytest.mark.parametrize("rank", [-1, MAX_RANK + 1, 1 << 40])
def test_ranks_of_a_file_are_checked(rank):
    model = export_onnx(load_onnx(text_model(RANKS["what takes one rank alone"][0])))
    body = model.graph.node[[n.op_type for n in model.graph.node].index("as_rank")]
    body.attribute[0].i = rank
    with pytest.raises(LoadError, match=r"as_rank.*rank"):
        load_onnx(model.SerializeToString())


# -- whole models -------------------------------------------------------------------------------------------------

BATCH = torch.export.Dim("B", min=1, max=64)
MODELS: dict[str, Callable[[], models.Built]] = {
    "bert": models.bert,
    "llama": models.llama,
    "block": lambda: models.block("manual", causal=True),
    "convnet": models.convnet,
    "vit": lambda: models.image("vit"),
    "lstm": lambda: models.tagger("LSTM"),
}
WITH_BATCH = ("block", "convnet")


@pytest.mark.parametrize("name", RANKS)
def test_ranks_known_at_run_time(name, rng):
    """Branches for each, which ONNX Runtime takes as well; ONNX's checker wants a shape of every output."""
    text, given = RANKS[name]
    content, feeds = text_model(text), {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), **given}
    expected = run_oracle("ort", onnx.load_from_string(content), feeds)
    for got, wanted in zip(run_oracle("ort", export_onnx(load_onnx(content)), feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_before_and_after_the_passes(name):
    module, inputs = MODELS[name]()
    shapes = ({0: BATCH},) if name in WITH_BATCH else None
    graph = load_model(torch.export.export(module, inputs, dynamic_shapes=shapes)).graph
    feeds = dict(zip(graph.inputs, (x.numpy() for x in inputs), strict=True))
    every = [feeds, {k: np.concatenate([x, x[:1]]) for k, x in feeds.items()}] if shapes else [feeds]
    expected = [list(interpret(graph, each, float64=True).values()) for each in every]
    counts = []
    for optimised in (False, True):
        if optimised:
            optimize(graph)
        native = ingot.InferenceSession(graph)
        model = export_onnx(graph)
        onnx.checker.check_model(model, full_check=True)
        counts.append(len(model.graph.node))
        again = ingot.InferenceSession(model.SerializeToString(), strict=True)
        theirs = onnxruntime.InferenceSession(model.SerializeToString())
        for each, exact in zip(every, expected, strict=True):
            assert largest_error(theirs.run(None, each), exact) <= 1e-4
            for a, b in zip(native.run(None, each), again.run(None, each), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    assert counts[1] <= counts[0], "passes leave fewer nodes to look at"


# -- the form of the file -----------------------------------------------------------------------------------------


def test_sizes_are_computed_of_the_dims_of_inputs(rng):
    """Sums, products, quotients, minima and what two dims broadcast to."""
    text = """
        graph sizes
        input x: f32[B, 2*S+1, 6]
        input y: f32[T, 6]
        a = reshape(x, shape=[B, 2*S+1, 2, 3]): f32[B, 2*S+1, 2, 3]
        b = slice(x, starts=[0, S, 0], stops=[B, 2*S, 6], steps=[1, 1, 1]): f32[B, S, 6]
        c = slice(x, starts=[0, 2*S, 0], stops=[B, S-2, 6], steps=[1, -1, 1]): f32[B, S+2, 6]
        d = dims(values=[B*S, (S-5)//(3)-(2-S)//(2), min(B, T), max(S, T), broadcast(S, T), 7]): i64[6]
        e = expand(y, shape=[B, T, 6]): f32[B, T, 6]
        i = iota(length=S, start=B, step=T, dtype=@i32): i32[S]
        f = iota(length=S, start=0.5, step=0.25, dtype=@f32): f32[S]
        output a = a
        output b = b
        output c = c
        output d = d
        output e = e
        output i = i
        output f = f
        """
    graph = parse(text)
    model = export_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    dims = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    assert dims == [["B", "2*S+1", 6], ["T", 6]]
    for b, s, t in ((2, 4, 4), (3, 1, 1), (1, 5, 5)):
        feeds = {"x": rng.random((b, 2 * s + 1, 6), np.float32), "y": rng.random((t, 6), np.float32)}
        expected = list(interpret(graph, feeds).values())
        for got, want in zip(run_oracle("onnxruntime", model, feeds), expected, strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.dtype == want.dtype


def test_a_dim_is_left_to_onnx_where_onnx_infers_the_same():
    """What is read again has the same dims, written no longer than before."""
    text = """
        input x: f32[B, S, 6]
        a = reshape(x, shape=[B*S, 6]): f32[B*S, 6]
        b = reshape(x, shape=[B, 6*S]): f32[B, 6*S]
        c = pad(x, low=[0, 0, 0], high=[0, -S+4*((S+3)//(4)), 0], value=0.0)
        d = reshape(c, shape=[B, ((S+3)//(4)), 4, 6]): f32[B, ((S+3)//(4)), 4, 6]
        e = iota(length=((S-3)//(4))+1, start=0, step=1, dtype=@i64)
        output a = a
        output b = b
        output d = d
        output e = e
        """
    again = load_onnx(export_onnx(parse(text)).SerializeToString())
    types = {name: str(again.type(value)) for name, value in again.outputs.items()}
    assert types == {
        "a": "f32[B*S, 6]",
        "b": "f32[B, 6*S]",
        "d": "f32[B, ((S+3)//(4)), 4, 6]",
        "e": "i64[((S+1)//(4))]",
    }
    assert not again.measured, "no size is left to the run"


def test_an_op_that_onnx_lacks_is_a_function():
    graph = Graph("turn")
    for name in ("x", "cos", "sin"):
        graph.add_input(name, TensorType(f32, (symbol("S"), 8)))
    transposed = graph.add("rotary", ["x", "cos", "sin"]).output
    graph.set_output("y", graph.add("rotary", [transposed, "cos", "sin"]).output)
    model = export_onnx(graph)
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("ingot", "rotary")] * 2
    assert [f.name for f in model.functions] == ["rotary"], "one body for uses of equal types"


@pytest.mark.parametrize("bias", [False, True])
def test_a_recurrent_layer_takes_its_product(bias, rng):
    """ONNX's own weights and bias, so that nothing is multiplied by the unit matrix."""
    gates = "s = add(b, m)\ng = permute(s, axes=[1, 0, 2])" if bias else "g = permute(m, axes=[1, 0, 2])"
    activations = 'activations=["sigmoid", "tanh", "tanh"]'
    graph = parse(f"""
        input x: f32[B, T, 4]
        input w: f32[12, 4]
        input r: f32[12, 3]
        input b: f32[12]
        input h: f32[B, 3]
        m = matmul(x, w, transpose_b=true)
        {gates}
        z, z1, z2 = lstm(g, r, h, h, {activations}, alphas=[0.0, 0.0, 0.0], betas=[0.0, 0.0, 0.0])
        output y = z
        """)
    model = export_onnx(graph)
    found = [node.op_type for node in model.graph.node]
    assert "LSTM" in found and not {"EyeLike", "MatMul", "Add"}.intersection(found)
    sizes = {"B": 2, "T": 5}
    feeds = {}
    for name in graph.inputs:
        shape = [sizes.get(str(dim), dim) for dim in graph.type(name).shape]
        feeds[name] = rng.uniform(-1, 1, shape).astype(np.float32)
    expected = list(interpret(graph, feeds).values())
    assert largest_error(run_oracle("onnxruntime", model, feeds), expected) <= 1e-5


def test_names_of_results():
    """Two results of one value, an input and a constant as results, and a node that has a result's name."""
    graph = parse("""
        graph names
        input x: f32[3]
        constant c: f32[] = [2.0]
        y = exp(x): f32[3]
        first = neg(y): f32[3]
        output second = y
        output first = y
        output third = first
        output x = x
        output c2 = c
        """)
    model = export_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in model.graph.output] == ["second", "first", "third", "x", "c2"]
    x = np.float32([1, 2, 3])
    for got, want in zip(run_oracle("onnxruntime", model, {"x": x}), interpret(graph, {"x": x}).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="output 'x' has the name of an input"):
        export_onnx(parse("input x: f32[3]\ny = exp(x)\noutput x = y"))


def test_a_state_is_an_input_and_an_output():
    graph = parse("input x: f32[3]\nstate s: f32[3] -> t\nt = add(s, x): f32[3]\noutput y = t")
    model = export_onnx(graph)
    x, s = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    assert [o.name for o in model.graph.output] == ["y", "state:s"]
    for result in run_oracle("onnxruntime", model, {"x": x, "s": s}):
        np.testing.assert_array_equal(result, x + s)


def test_what_is_no_graph_is_named() -> None:
    with pytest.raises(KindError, match="got str, expected a session's `graph`"):
        export_onnx("model.onnx")  # type: ignore[arg-type]


def test_what_cannot_be_written_is_named_at_once():
    graph = parse("""
        input x: f32[3, 3, 3]
        input c: bool[]
        p = pairwise_coupling(x)
        r = refuse(c, why="it is odd", result=<f32[2]>)
        output p = p
        output r = r
        """)
    with pytest.raises(UnsupportedError, match=r"export: .* pairwise_coupling iterates .*, refuse is an error"):
        export_onnx(graph)
    graph = Graph()
    graph.add_weight("w", None, TensorType(f32, (3,)))
    graph.set_output("y", graph.add("neg", ["w"]).output)
    with pytest.raises(LoadError, match="export: weight 'w' has no data"):
        export_onnx(graph)
    graph = Graph()
    graph.add_input("x", TensorType(f32, (symbol("A") * symbol("B"),)))
    graph.set_output("y", graph.add("dims", [], values=(symbol("A"),)).output)
    with pytest.raises(UnsupportedError, match=r"node 't' \(dims\): symbol 'A' is not a dim by itself"):
        export_onnx(graph)


def large_graph(rng) -> tuple[Graph, Feeds]:
    graph = Graph("large")
    graph.add_input("x", TensorType(f32, (2, 300)))
    graph.add_weight("w", rng.random((300, 40), np.float32))
    graph.add_constant("c", np.array([2], np.float32))
    y = graph.add("matmul", ["x", "w"]).output
    for _ in range(2):  # there and back
        y = graph.add("permute", [y], axes=(1, 0)).output
    graph.set_output("y", graph.add("add", [y, "c"]).output)
    return graph, {"x": rng.random((2, 300), np.float32)}


@pytest.mark.parametrize("outside", [False, True])
def test_a_file_and_its_external_data(outside, tmp_path, monkeypatch, rng):
    graph, feeds = large_graph(rng)
    if outside:
        monkeypatch.setattr(written_model, "INLINE_BYTES", 1000)
    path = tmp_path / "large.onnx"
    model = ingot.export_onnx(graph, path)
    onnx.checker.check_model(path)
    assert {f.name for f in tmp_path.iterdir()} == {"large.onnx", *(["large.onnx.data"] if outside else [])}
    assert (path.stat().st_size < 2000) == outside
    assert model.graph.initializer[0].raw_data, "what is returned is whole"
    (expected,) = interpret(graph, feeds).values()
    (theirs,) = onnxruntime.InferenceSession(path).run(None, feeds)
    (again,) = ingot.InferenceSession(path, cache=False).run(None, feeds)
    np.testing.assert_allclose(theirs, expected, rtol=1e-5)
    np.testing.assert_allclose(again, expected, rtol=1e-5)
    with pytest.raises(OutputError):
        export_onnx(graph, tmp_path / "no" / "folder.onnx")


def test_the_command(call, tmp_path, rng):
    graph, feeds = large_graph(rng)
    source, before, after = (tmp_path / name for name in ("source.onnx", "before.onnx", "after.onnx"))
    export_onnx(graph, source)
    assert call("emit-onnx", source, "-o", after)[0] == 0
    assert call("emit-onnx", source, "-o", before, "--before-passes")[0] == 0
    nodes = [[node.op_type for node in onnx.load(path).graph.node] for path in (before, after)]
    assert nodes == [["MatMul", "Transpose", "Transpose", "Add"], ["MatMul", "Add"]]
    (expected,) = interpret(graph, feeds).values()
    for path in (before, after):
        (result,) = onnxruntime.InferenceSession(path).run(None, feeds)
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_nodes_have_metadata_that_viewers_show(call, tmp_path):
    """Names of the loaded nodes, of torch's modules, and kernels where dims have values."""

    def written(*options: object) -> list[dict[str, str]]:
        assert call("emit-onnx", *options, "-o", tmp_path / "out.onnx", "--force")[0] == 0
        model = onnx.load(tmp_path / "out.onnx")
        onnx.checker.check_model(model)
        return [{each.key: each.value for each in node.metadata_props} for node in model.graph.node]

    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), tmp_path / "m.pt2")
    last = written(tmp_path / "m.pt2")[-1]
    assert last["ingot.op"] == "relu" and "aten.relu.default relu" in last["ingot.source"]
    assert last["ingot.module"] == "1" and last["ingot.kernel"]
    (tmp_path / "m.onnx").write_bytes(text_model("g (float[n] x) => (y) { [one] a = Relu (x) [two] y = Exp (a) }"))
    assert [each.get("ingot.source") for each in written(tmp_path / "m.onnx")] == ["Relu one", "Exp two"]
    assert all("ingot.kernel" not in each for each in written(tmp_path / "m.onnx"))
    assert any("ingot.kernel" in each for each in written(tmp_path / "m.onnx", "--dim", "n=3"))
