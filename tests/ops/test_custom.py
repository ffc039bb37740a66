"""Registered ops: from each source to each end, and every way to break a promise."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import ingot
from ingot.emit.c import emit
from ingot.errors import ExtensionError, InputError, LoadError, ResourceError, ShapeError, UnsupportedError
from ingot.ir.graph import OPS, TensorType
from ingot.ir.text import dump, parse
from registered import registering

assert registering

pytestmark = pytest.mark.usefixtures("registering")


def swirl(
    x, weight=None, *, amount: float, times: int = 1, flip: bool = False, why: str = "", by: tuple[int, ...] = ()
):
    """Adds each element to its neighbour."""
    for _ in range(times + sum(by)):
        x = x + np.roll(x, -1 if flip else 1, -1) * x.dtype.type(amount)
    return x if weight is None else x * weight


def parts(x, *, at: int):
    """x before a column, and from it on."""
    return x[:, :at], x[:, at:]


def parts_type(x, *, at):
    if x.rank != 2:
        raise ShapeError(f"parts: wrong rank, got {x}, expected 2")
    return TensorType(x.dtype, (x.shape[0], at)), TensorType(x.dtype, (x.shape[0], x.shape[1] - at))


def register_swirl(**options):
    ingot.register_op("mine.swirl", swirl, onnx=("mine", "Swirl"), torch="mine::swirl", **options)


def register_parts():
    ingot.register_op("parts", parts, infer=parts_type, outputs=2, onnx=("mine", "Parts"), torch="mine::parts")


X = np.arange(12, dtype=np.float32).reshape(3, 4)


# -- sources ------------------------------------------------------------------------------------------------------


def onnx_model(node: str, results: str = "float[3,4] y") -> bytes:
    body = f"g (float[N,4] x, float[4] w) => ({results}) {{ {node} }}"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "mine" : 1]> {body}').SerializeToString()


def test_nodes_of_onnx():
    register_swirl()
    register_parts()
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "mine" : 1]>
        g (float[N,4] x, float[4] w) => (float[N,1] a, float[N,3] b) {
            z = mine.Swirl<amount = 0.5, times = 2, flip = 1, why = "so", by = [1, 0]>(x, w)
            a, b = mine.Parts<at = 1>(z)
        }""")
    session = ingot.InferenceSession(model.SerializeToString())
    w = np.float32([1, 2, 3, 4])
    expected = swirl(X, w, amount=0.5, times=2, flip=True, by=(1, 0))
    for result, part in zip(session.run(None, {"x": X, "w": w}), (expected[:, :1], expected[:, 1:]), strict=True):
        np.testing.assert_array_equal(result, part)
    assert 'why="so", by=[1, 0]' in dump(session.graph)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("y = mine.Swirl(x)", r"Swirl.*mine.swirl: unknown attributes \[\], missing \['amount'\]"),
        ("y = mine.Swirl<amount = 1.0, more = 2>(x)", r"unknown attributes \['more'\]"),
        ("y = mine.Swirl<amount = 1>(x)", "attribute 'amount' has a wrong type, got INT, expected FLOAT"),
        ("y = mine.Swirl<amount = 1.0>(x, w, w)", "mine.swirl: bad operands"),
        ("y, z = mine.Swirl<amount = 1.0>(x)", "mine.swirl has 1 results, 2 are named"),
        ("y, z = mine.Parts<at = 1>(w)", "parts: wrong rank"),
    ],
)
def test_nodes_that_do_not_fit(node, message):
    register_swirl()
    register_parts()
    with pytest.raises(LoadError, match=message):
        ingot.InferenceSession(onnx_model(node))


def test_in_a_subgraph_and_with_a_function():
    """A registered op goes before a function of the model that has its name."""
    register_swirl()
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "mine" : 1]>
        g (float[3,4] x, int64 n) => (float[3,4] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(n, yes, x) <body = b (int64 i, bool c, float[3,4] v) => (bool d, float[3,4] u) {
                d = Identity(c)
                u = mine.Swirl<amount = 1.0>(v)
            }>
        }
        <domain: "mine", opset_import: ["" : 18]>
        Swirl <amount> (x) => (y) { y = Neg(x) }
        """)
    (y,) = ingot.InferenceSession(model.SerializeToString()).run(None, {"x": X, "n": np.array(2)})
    np.testing.assert_array_equal(y, swirl(X, amount=1.0, times=2))


@pytest.fixture(scope="module")
def torch_ops():
    """Custom ops of torch, as its users declare them."""
    library = torch.library.Library("mine", "DEF")
    library.define("swirl(Tensor x, Tensor? weight=None, *, float amount=1.0, SymInt times=1) -> Tensor")
    library.define("parts(Tensor x, SymInt at) -> (Tensor, Tensor)")
    library.define("odd(Tensor x, float amount, int number) -> Tensor")
    library.impl("swirl", lambda x, weight=None, **_: torch.empty_like(x), "Meta")
    library.impl("parts", lambda x, at: (x[:, :at].clone(), x[:, at:].clone()), "Meta")
    library.impl("odd", lambda x, amount, number: torch.empty_like(x), "Meta")
    yield
    library._destroy()


class Swirls(torch.nn.Module):
    def forward(self, x):
        y = torch.ops.mine.swirl(x, torch.ones(4) * 2, amount=0.5, times=3)
        return torch.ops.mine.parts(torch.ops.mine.swirl(y), 1)


@pytest.mark.usefixtures("torch_ops")
def test_custom_ops_of_torch(tmp_path):
    program = torch.export.export(Swirls(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim("N", min=1)},))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(UnsupportedError, match=r"mine\.parts\.default"):
        ingot.InferenceSession(program)
    register_swirl()
    register_parts()
    expected = swirl(swirl(X, np.float32(2), amount=0.5, times=3), amount=1.0)
    for source in (program, tmp_path / "m.pt2"):
        a, b = ingot.InferenceSession(source).run(None, {"x": X})
        np.testing.assert_array_equal(np.concatenate([a, b], 1), expected)


@pytest.mark.usefixtures("torch_ops")
def test_custom_ops_of_torch_that_do_not_fit():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.ops.mine.odd(x, 1.0, 7)

    class Symbolic(torch.nn.Module):
        def forward(self, x):
            return torch.ops.mine.swirl(x, amount=1.0, times=x.shape[0])

    ingot.register_op("odd", lambda x, y=None: x, torch="mine::odd")
    with pytest.raises(UnsupportedError, match=r"odd: bad operands|bad arguments, got"):
        ingot.InferenceSession(Odd(), example_inputs=(torch.ones(2),))
    register_swirl()
    shapes = ({0: torch.export.Dim("N", min=2)},)
    program = torch.export.export(Symbolic(), (torch.ones(3, 4),), dynamic_shapes=shapes)
    with pytest.raises(UnsupportedError, match=r"bad arguments, got \['times'\], expected tensors and known numbers"):
        ingot.InferenceSession(program)
    ingot.unregister_op("mine.swirl")
    register_swirl(infer=lambda x, w=None, **_: TensorType(x.dtype, (*x.shape, 2)))
    program = torch.export.export(Swirls(), (torch.ones(3, 4),))
    with pytest.raises(ShapeError, match="types differ"):
        ingot.InferenceSession(program)


# -- passes and ends ----------------------------------------------------------------------------------------------

TEXT = """graph turned
input x: f32[B, 4]
constant c: f32[4] = [1.0, 0.0, 0.0, 0.0]
folded = mine.swirl(c, amount=2.0): f32[4]
dead = mine.swirl(x, amount=3.0): f32[B, 4]
one = mine.swirl(x, folded, amount=0.5, times=2): f32[B, 4]
same = mine.swirl(x, folded, amount=0.5, times=2): f32[B, 4]
y = add(one, same): f32[B, 4]
output y = y
"""


def test_passes_treat_it_like_any_other():
    register_swirl()
    graph = parse(TEXT)
    assert dump(parse(dump(graph))) == dump(graph)
    session = ingot.InferenceSession(graph)
    assert [node.op.name for node in session.graph.nodes] == ["mine.swirl", "add"]
    expected = 2 * swirl(X, swirl(np.float32([1, 0, 0, 0]), amount=2.0), amount=0.5, times=2)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
    interpreted = ingot.InferenceSession(graph, executor="interpret").run(None, {"x": X})[0]
    np.testing.assert_array_equal(interpreted, expected)


def test_a_trait_lets_passes_move_it():
    """A reshape sinks behind what acts on elements, where it meets its inverse."""
    text = """
        input x: f32[3, 2, 2]
        a = reshape(x, shape=[6, 2])
        b = third(a)
        y = reshape(b, shape=[3, 2, 2])
        output y = y
        """
    x = X.reshape(3, 2, 2)
    left = []
    for trait in ("element", "tensor"):
        ingot.register_op("third", lambda x: x / 3, acts_on=trait)
        session = ingot.InferenceSession(parse(text))
        left.append([node.op.name for node in session.graph.nodes])
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x / 3)
        ingot.unregister_op("third")
    assert left == [["third"], ["reshape", "third", "reshape"]]


def test_it_is_a_visible_step_on_the_reference():
    register_swirl()
    session = ingot.InferenceSession(parse(TEXT), dims={"B": 3})
    assert session.explain().fallback == ("mine.swirl 'one'",)
    with pytest.raises(UnsupportedError, match=r"strict: no kernel, got mine.swirl 'one'"):
        ingot.InferenceSession(parse(TEXT), dims={"B": 3}, strict=True)
    with pytest.raises(UnsupportedError, match=r"emit: no kernel, got mine.swirl 'one'"):
        emit(session.graph, session.weights, "nowhere")


def test_runs_inside_of_runs():
    """Of another session, of a context and of the very session that runs: right results, and nothing waits forever."""
    deeper = []
    ingot.register_op("again", lambda x: deeper.pop().run(None, {"x": x})[0] if deeper else x)
    inner = ingot.InferenceSession(parse("input x: f32[4]\ny = exp(x)\noutput y = y"))
    outer = ingot.InferenceSession(parse("input x: f32[4]\na = exp(x)\nb = again(a)\ny = sub(b, a)\noutput y = y"))
    x = np.float32([-3, -2, -1, 0])
    deeper += [inner, outer.context(), outer]
    first = np.exp(x)
    second = np.exp(first)
    third = np.exp(second)
    np.testing.assert_allclose(outer.run(None, {"x": x})[0], np.exp(third) - third - second - first, rtol=1e-5)


def test_a_saved_program_names_it(tmp_path):
    register_swirl()
    session = ingot.InferenceSession(parse(TEXT), dims={"B": 3})
    session.save(tmp_path / "program")
    (expected,) = session.run(None, {"x": X})
    (loaded,) = ingot.InferenceSession(tmp_path / "program").run(None, {"x": X})
    np.testing.assert_array_equal(loaded, expected)
    ingot.unregister_op("mine.swirl")
    with pytest.raises(LoadError, match=r"unknown op 'mine.swirl'"):
        ingot.InferenceSession(tmp_path / "program")


def test_the_cache_is_left_alone(tmp_path):
    """What a registered op computes is no part of an entry's name, and a folded one leaves no trace in the graph."""
    register_swirl()
    graph = parse("constant c: f32[2] = [1.0, 2.0]\ninput x: f32[2]\na = mine.swirl(c, amount=1.0)\ny = add(x, a)\n"
                  "output y = y")  # fmt: skip
    ingot.export_onnx(graph, tmp_path / "m.onnx")
    for factor in (1.0, 2.0):
        session = ingot.InferenceSession(tmp_path / "m.onnx", cache=tmp_path / "cache")
        assert session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [3 * factor, 3 * factor]
        ingot.unregister_op("mine.swirl")
        register_double()
    assert not (tmp_path / "cache").exists()


def register_double():
    def doubled(x, weight=None, *, amount: float, times: int = 1, flip: bool = False, why: str = "",
                by: tuple[int, ...] = ()):  # fmt: skip
        return 2 * swirl(x, weight, amount=amount, times=times)

    ingot.register_op("mine.swirl", doubled, onnx=("mine", "Swirl"))


def test_back_to_onnx():
    register_swirl()
    register_parts()
    graph = parse("input x: f32[N, 4]\ny = mine.swirl(x, amount=0.5, why=\"so\", by=[1])\na, b = parts(y, at=1)\n"
                  "output a = a\noutput b = b")  # fmt: skip
    model = ingot.export_onnx(graph)
    onnx.checker.check_model(model)
    assert [(n.domain, n.op_type) for n in model.graph.node] == [("mine", "Swirl"), ("mine", "Parts")]
    again = ingot.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    for result, expected in zip(again, ingot.InferenceSession(graph).run(None, {"x": X}), strict=True):
        np.testing.assert_array_equal(result, expected)
    ingot.register_op("plain", lambda x: x)
    with pytest.raises(UnsupportedError, match="plain is registered without an ONNX name"):
        ingot.export_onnx(parse("input x: f32[2]\ny = plain(x)\noutput y = y"))


# -- promises -----------------------------------------------------------------------------------------------------


def annotated(x, *, a: int, b: dict):
    return x


REFUSED = [
    (("relu", lambda x: x), {}, "the name is already used"),
    (("not a name", lambda x: x), {}, "bad name"),
    (("a" * 65, lambda x: x), {}, "bad name"),
    (("mine.", lambda x: x), {}, "bad name"),
    (("new", 3), {}, "not a function, got int"),
    (("new", lambda x, **more: x), {}, r"attributes have names, got \*\*more"),
    (("new", lambda x, *, a: x), {}, "bad attribute 'a', got no annotation"),
    (("new", annotated), {}, "bad attribute 'b', got <class 'dict'>"),
    (("new", lambda x, y=3: x), {}, "bad operand 'y', got a default"),
    (("new", lambda x: x), {"acts_on": "all"}, "bad acts_on"),
    (("new", lambda x: (x, x)), {"acts_on": "element", "outputs": 2}, "bad acts_on or outputs"),
    (("new", lambda x: x), {"outputs": 0}, "bad acts_on or outputs"),
    (("new", lambda x: x), {"onnx": "mine"}, "bad ONNX name"),
    (("new", lambda x: x), {"onnx": ("", "Relu")}, "expected a domain that is not ONNX's or Ingot's"),
    (("new", lambda x: x), {"onnx": ("mine", "Swirl")}, "the ONNX name is already used"),
    (("new", lambda x: x), {"torch": "aten::relu"}, "bad torch name"),
    (("new", lambda x: x), {"torch": "relu"}, "bad torch name"),
    (("new", lambda x: x), {"torch": "mine::swirl.default"}, "the torch name is already used"),
    (("new", lambda x: x), {"kernel": ("lib.so", "f")}, "bad kernel"),
    (("new", lambda x: x), {"kernel": ingot.ExternalKernel("lib.so", "f", ("float",))}, "bad kernel"),
    (("new", swirl), {"kernel": ingot.ExternalKernel("lib.so", "f")}, "attribute 'why' cannot be given to a kernel"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "options", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_cannot_be_registered(given, options, message):
    register_swirl()
    with pytest.raises(InputError, match=message):
        ingot.register_op(*given, **options)
    assert "new" not in OPS


def test_a_name_is_given_back():
    with pytest.raises(InputError, match="unregister_op: no such op, got 'relu', expected one of none"):
        ingot.unregister_op("relu")
    register_swirl()
    with pytest.raises(InputError, match="the name is already used"):
        register_swirl()
    ingot.unregister_op("mine.swirl")
    register_swirl()


def scribble(x):
    x[:] = 0
    return x


BROKEN = [
    (lambda x: x[:1], None, r"op 'broken': its reference gives a wrong result, got float32\[1, 4\], expected f32"),
    (lambda x: x.astype(np.float64), None, r"got float64\[3, 4\], expected f32\[3, 4\]"),
    (lambda x: (x, x), None, r"got float32\[3, 4\], float32\[3, 4\], expected f32\[3, 4\]"),
    (lambda x: x.tolist(), None, "got list, expected"),
    (lambda x: None, None, "got NoneType, expected"),
    (lambda x: x.nothing, None, "op 'broken': its reference raised AttributeError: .*nothing"),
    (scribble, None, "its reference raised ValueError: assignment destination is read-only"),
    (lambda x: x, lambda x: x.shape, "op 'broken': its inference gives a wrong result, got "),
    (lambda x: x, lambda x: (x, x), "its inference gives a wrong result"),
    (lambda x: x, lambda x: 1 / 0, "op 'broken': its inference raised ZeroDivisionError: division by zero"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "infer", "message"), BROKEN, ids=[message for *_, message in BROKEN])
def test_broken_promises(function, infer, message):
    ingot.register_op("broken", function, infer=infer)
    with pytest.raises((ExtensionError, LoadError), match=message):
        ingot.InferenceSession(parse("input x: f32[3, 4]\ny = broken(x)\noutput y = y")).run(None, {"x": X})


# -- kernels ------------------------------------------------------------------------------------------------------

KERNEL = """
#include <stdint.h>
typedef struct { void *data; const int64_t *shape; int64_t rank; const char *dtype; } ingot_array;
typedef union { int64_t integer; double real; } ingot_number;

/* x * by + weight, or an error where a flag says so; the second result is what the kernel was told. */
int scale(int64_t inputs, const ingot_array *in, int64_t outputs, const ingot_array *out, const ingot_number *n)
{
    if (n[2].integer)
        return 7;
    int64_t count = 1;
    for (int64_t i = 0; i < in[0].rank; i++)
        count *= in[0].shape[i];
    for (int64_t i = 0; i < count; i++)
        ((float *)out[0].data)[i] = ((float *)in[0].data)[i] * (float)n[0].real
            + (inputs > 1 && in[1].data ? ((float *)in[1].data)[i % in[0].shape[in[0].rank - 1]] : 0);
    float *told = out[1].data;
    told[0] = inputs, told[1] = outputs, told[2] = in[0].dtype[0] == 'f', told[3] = n[1].integer;
    return 0;
}
"""


def scale(x, weight=None, *, by: float, number: int = 3, fails: bool = False):
    """x * by + weight."""
    told = np.float32([1 if weight is None else 2, 2, 1, number])
    return (x * x.dtype.type(by) + (0 if weight is None else weight)).astype(x.dtype), told.astype(x.dtype)


def scale_type(x, weight=None, **_):
    return x, TensorType(x.dtype, (4,))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "scale.c").write_text(KERNEL)
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "scale.c", "-o", "libscale.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libscale.so"


def register_scale(library, **options):
    kernel = ingot.ExternalKernel(library, "scale", **options)
    ingot.register_op("scale", scale, infer=scale_type, outputs=2, kernel=kernel)


SCALED = """input x: f32[B, 4]
input w: f32[4]
e = exp(x)
a, told = scale(e, w, by=0.5)
b, told2 = scale(a, by=-2, number=9)
y = neg(b)
output y = y
output told = told
output told2 = told2
"""


def test_a_kernel_of_a_library(library, tmp_path):
    register_scale(library)
    w = np.float32([1, 2, 3, 4])
    sessions = [ingot.InferenceSession(parse(SCALED), dims={"B": 3}, strict=True)]
    assert {c.candidates for c in sessions[0].explain("a").choices} == {(("libscale.so:scale", ""),)}
    assert sessions[0].explain().fallback == () and "b: scale -> libscale.so:scale" in str(sessions[0].explain())
    sessions[0].save(tmp_path / "program")
    sessions.append(ingot.InferenceSession(tmp_path / "program", strict=True))
    sessions.append(ingot.InferenceSession(parse(SCALED)))
    expected = ingot.InferenceSession(parse(SCALED), executor="interpret").run(None, {"x": X, "w": w})
    for session in sessions:
        for result, want in zip(session.run(None, {"x": X, "w": w}), expected, strict=True):
            np.testing.assert_allclose(result, want, rtol=1e-6)
    with pytest.raises(UnsupportedError, match=r"emit: kernels of shared libraries, got libscale.so:scale"):
        emit(sessions[0].graph, sessions[0].weights, "nowhere")
    with pytest.raises(UnsupportedError, match="segments"):
        sessions[0].profile({"x": X, "w": w})


def test_kernels_run_concurrently(library):
    register_scale(library)
    session = ingot.InferenceSession(parse(SCALED), dims={"B": 300})
    feeds = [{"x": np.full((300, 4), i, np.float32), "w": np.full(4, i, np.float32)} for i in range(4)]
    expected = [session.run(["y"], feed)[0] for feed in feeds]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            contexts = [session.context() for _ in feeds]
            results = threads.map(lambda context, feed: context.run(["y"], feed)[0], contexts, feeds)
            for result, want in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, want)


def test_where_a_kernel_does_not_run(library):
    """dtypes that it does not take, and shapes that only a run knows, stay on the reference, visibly."""
    register_scale(library)
    text = "input x: f64[3, 4]\ny, told = scale(x, by=0.5)\noutput y = y"
    assert ingot.InferenceSession(parse(text)).explain().fallback == (
        "scale 'y' (libscale.so:scale: x is f64, expected f32)",
    )
    text = (
        "input x: f32[5]\ni = nonzero(x): i64[1, n]\nf = cast(i, dtype=@f32)\ny, told = scale(f, by=0.5)\noutput y = y"
    )
    session = ingot.InferenceSession(parse(text))
    assert "scale 'y' (libscale.so:scale: f is f32[1, n], expected a known shape)" in session.explain().fallback
    assert session.run(None, {"x": np.float32([0, 1, 0, 2, 3])})[0].tolist() == [[0.5, 1.5, 2]]


def test_kernels_that_fail(library, tmp_path):
    text = "input x: f32[3, 4]\ny, told = scale(x, by=0.5, fails=true)\noutput y = y"
    register_scale(library)
    session = ingot.InferenceSession(parse(text))
    with pytest.raises(ExtensionError, match=r"op 'scale': its kernel libscale.so:scale failed, got 7, expected 0"):
        session.run(None, {"x": X})
    ingot.unregister_op("scale")
    register_scale(tmp_path / "nothing.so")
    with pytest.raises(ResourceError, match=r"nothing.so:scale: cannot be opened"):
        ingot.InferenceSession(parse(text))
    ingot.unregister_op("scale")
    ingot.register_op("scale", scale, infer=scale_type, outputs=2, kernel=ingot.ExternalKernel(library, "absent"))
    with pytest.raises(ResourceError, match=r"libscale.so:absent: cannot be opened"):
        ingot.InferenceSession(parse(text))
