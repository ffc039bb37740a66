"""Kernels of registered ops in WGSL, on software adapters, compared with their references."""

import numpy as np
import pytest

import ingot
from adapters import adapter
from ingot.errors import ExtensionError, InputError
from ingot.ir.graph import TensorType
from ingot.ir.text import parse
from registered import registering

assert adapter and registering
pytestmark = pytest.mark.usefixtures("adapter", "registering")

X = np.linspace(-2, 2, 300, dtype=np.float32).reshape(3, 100)


def spread(x, weight=None, *, by: float = 2.0, back: bool = False, shift: int = 0):
    """x * by + weight, and the first column moved down."""
    scaled = x * x.dtype.type(-by if back else by)
    return scaled + (0 if weight is None else weight), np.roll(x[:, 0], shift)


BODY = """
fn work(i: i32) {
  var sum = x[i] * select(by, -by, back);
  SUM
  out0[i] = sum;
  if (i % shape_x[1] == 0) { out1[(i / shape_x[1] + shift) % count_out1] = x[i]; }
}
"""


def register(body: str = BODY, **options) -> None:
    def types(x, weight=None, **_):
        return x, TensorType(x.dtype, x.shape[:1])

    ingot.register_op("spread", spread, infer=types, outputs=2, wgsl=ingot.WgslKernel(body, **options))


def outputs(source: str, **options):
    session = ingot.InferenceSession(parse(source), **options)
    feeds = {name: X[:1] if name == "w" else X for name in session.graph.inputs}
    return session, session.run(None, feeds)


@pytest.mark.parametrize(
    ("body", "call", "inputs"),
    [
        ("sum += weight[i % shape_weight[1]];", "spread(e, w, by=0.5, back=true, shift=1)", "input w: f32[1, 100]\n"),
        ("", "spread(e, by=-1e-20, shift=2)", ""),
    ],
)
def test_a_body_gives_what_the_reference_gives(body: str, call: str, inputs: str) -> None:
    register(BODY.replace("SUM", body))
    source = f"input x: f32[3, 100]\n{inputs}e = exp(x)\na, b = {call}\ny = neg(a)\noutput y = y\noutput b = b"
    session, found = outputs(source, executor="webgpu", strict=True)
    assert {c.candidates for c in session.explain("a").choices} == {(("wgsl:work", ""),)}
    for result, expected in zip(found, outputs(source, executor="interpret")[1], strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5)
    for _ in range(2):
        again = session.run(None, {name: X[:1] if name == "w" else X for name in session.graph.inputs})
        assert all(np.array_equal(a, b) for a, b in zip(again, found, strict=True))
    with pytest.warns(ingot.errors.IngotWarning, match="no kernel for spread"):
        outputs(source)  # native has none


def test_integers() -> None:
    ingot.register_op(
        "odd", lambda x: x & 1, wgsl=ingot.WgslKernel("fn work(i: i32) { out0[i] = x[i] & 1; }", ("i32",))
    )
    session = ingot.InferenceSession(parse("input x: i32[5]\ny = odd(x)\noutput y = y"), executor="webgpu", strict=True)
    assert session.run(None, {"x": np.int32([-3, -2, 0, 7, 2**31 - 1])})[0].tolist() == [1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("body", "call", "message"),
    [
        ("nothing(i);", "spread(x)", "op 'spread': its kernel in WGSL was refused"),
        ("", "spread(x, by=1e300)", "attribute 'by': cannot be given to a kernel in WGSL, got 1e[+]300"),
        ("", "spread(x, shift=4294967296)", "attribute 'shift': cannot be given .*got 4294967296, expected 32 bits"),
    ],
)
def test_what_wgsl_does_not_take(body: str, call: str, message: str) -> None:
    register(BODY.replace("SUM", body))
    with pytest.raises(ExtensionError, match=message):
        outputs(f"input x: f32[3, 100]\na, b = {call}\noutput a = a", executor="webgpu")


@pytest.mark.parametrize(
    ("wgsl", "message"),
    [
        (BODY, "expected a WgslKernel of f32 and i32"),
        (ingot.WgslKernel(BODY, ("f64",)), "expected a WgslKernel of f32 and i32"),
        (ingot.WgslKernel("fn other(i: i32) {}"), r"expected 'fn work\(i: i32\)' in its source"),
    ],
)
def test_a_wrong_declaration(wgsl: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ingot.register_op("spread", spread, outputs=2, wgsl=wgsl)  # type: ignore[arg-type]
