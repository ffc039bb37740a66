"""A matrix that reads a state is packed by steps of each run: the bits are those of the same matrix as a weight."""

import numpy as np
import pytest

import ingot
from ingot.ir import text
from ingot.ir.dtype import DTYPES
from ingot.run.interpret import interpret

# A state or weight, what is made of it, and which value the products take, and how. Numpy makes the same bits of it.
MATRICES = {
    "rows": (("w", "f32[{n}, {k}]"), "", "w", "transpose_b=true"),
    "columns": (("w", "f32[{k}, {n}]"), "", "w", "transpose_b=false"),
    "computed": (("w", "f32[{n}, {k}]"), "m = relu(w): f32[{n}, {k}]", "m", "transpose_b=true"),
    "moved": (("w", "f32[{n}, {k}]"), "m = permute(w, axes=[1, 0]): f32[{k}, {n}]", "m", "transpose_b=false"),
    "bf16 rows": (("w", "bf16[{n}, {k}]"), "m = cast(w, dtype=@f32): f32[{n}, {k}]", "m", "transpose_b=true"),
    "bf16 columns": (("w", "bf16[{k}, {n}]"), "m = cast(w, dtype=@f32): f32[{k}, {n}]", "m", "transpose_b=false"),
    "bf16 moved": (
        ("w", "bf16[{n}, {k}]"),
        "d = cast(w, dtype=@f32): f32[{n}, {k}]\n"
        "e = concat(d, d, axis=0): f32[{nn}, {k}]\n"
        "p = permute(e, axes=[1, 0]): f32[{k}, {nn}]\n"
        "q = slice(p, starts=[0, 3], stops=[{k}, {n3}], steps=[1, 1]): f32[{k}, {n}]\n"
        "m = reshape(q, shape=[{k}, {n}]): f32[{k}, {n}]",
        "m",
        "transpose_b=false",
    ),
}
SIZES = [(1, 300, 70), (5, 33, 32), (40, 257, 130), (3, 1, 1), (2, 0, 5)]  # m, k, n


def graph_of(case: str, m: int, k: int, n: int, weight: np.ndarray | None = None) -> ingot.ir.graph.Graph:
    """relu(x @ matrix + b), twice; the matrix as a weight, or as a state that takes the value of an input each run."""
    (name, type), made, matrix, flags = MATRICES[case]
    type, made = (each.format(m=m, k=k, n=n, nn=2 * n, n3=n + 3) for each in (type, made))
    kind = f"input next: {type}\nstate {name}: {type} -> next" if weight is None else f"weight {name}: {type}"
    source = f"""graph linear
input x: f32[{m}, {k}]
input z: f32[{m}, {k}]
weight b: f32[{n}]
{kind}
{made}
h = matmul(x, {matrix}, transpose_a=false, {flags}, scale=1.0): f32[{m}, {n}]
s = add(h, b): f32[{m}, {n}]
y = relu(s): f32[{m}, {n}]
v = matmul(z, {matrix}, transpose_a=false, {flags}, scale=0.5): f32[{m}, {n}]
output y = y
output v = v
"""
    weights = {"b": np.linspace(-1, 1, n, dtype=np.float32)} | ({} if weight is None else {name: weight})
    return text.parse("\n".join(line for line in source.splitlines() if line) + "\n", weights)


@pytest.mark.checked
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("m, k, n", SIZES)
@pytest.mark.parametrize("case", MATRICES)
def test_bits_are_those_of_a_weight(case: str, m: int, k: int, n: int, threads: int) -> None:
    """Over runs that each leave another state behind, the first of which finds zeros."""
    if case == "bf16 moved" and n < 3:
        n += 3
    graph = graph_of(case, m, k, n)
    session = ingot.InferenceSession(graph, threads=threads, strict=True)
    (state,) = graph.states
    type = graph.type(state)
    rng = np.random.default_rng(m * k + n)
    held = np.zeros(type.dims, type.dtype.numpy)
    for _ in range(3):
        feeds = {name: rng.standard_normal((m, k)).astype(np.float32) for name in ("x", "z")}
        following = rng.standard_normal(type.dims).astype(np.float32).astype(type.dtype.numpy)
        got = session.run(None, feeds | {"next": following})
        fixed = graph_of(case, m, k, n, held)
        expected = ingot.InferenceSession(fixed, threads=threads, strict=True).run(None, feeds)
        for one, other, exact in zip(got, expected, interpret(fixed, feeds).values(), strict=True):
            assert np.array_equal(one.view(np.uint32), other.view(np.uint32))
            np.testing.assert_allclose(one, exact, rtol=1e-4, atol=1e-4)
        held = following


@pytest.mark.parametrize("case", MATRICES)
def test_it_is_packed_once_and_undecoded(case: str) -> None:
    """Both products read the same panels, of the format that the state holds."""
    session = ingot.InferenceSession(graph_of(case, 5, 33, 32), threads=1)
    session.run(
        None, {"x": np.zeros((5, 33), np.float32), "z": np.zeros((5, 33), np.float32), "next": next_of(session)}
    )
    lowered = session.program.single.lowered
    kernels = [step.kernel for step in lowered.steps]
    stored = "bf16" if case.startswith("bf16") else "f32"
    assert [kernel for kernel in kernels if kernel.startswith("pack_")] == [f"pack_{stored}"]
    assert not [kernel for kernel in kernels if kernel.startswith(("cast_", "matmul_"))]
    packed = next(step for step in lowered.steps if step.kernel.startswith("pack_")).writes[0].tensor
    readers = [step.kernel for step in lowered.steps if packed in [view.tensor for view in step.reads]]
    family = "f32_bf16" if stored == "bf16" else "f32"
    assert readers == [f"gemm_{family}_packed"] * 2
    assert lowered.tensors[packed].kind == "activation" and lowered.tensors[packed].packed_weight is None


def next_of(session: ingot.InferenceSession) -> np.ndarray:
    (state,) = session.graph.states
    type = session.graph.type(state)
    return np.zeros(type.dims, type.dtype.numpy)


# A step of gradient descent on the squared distance of x @ w.T to t: the decoded state is read by the update, too.
TRAINED = """graph trained
input x: f32[4, 24]
input t: f32[4, 40]
weight rate: f32[]
state w: bf16[40, 24] -> next
d = cast(w, dtype=@f32): f32[40, 24]
y = matmul(x, d, transpose_a=false, transpose_b=true, scale=1.0): f32[4, 40]
e = sub(y, t): f32[4, 40]
g = matmul(e, x, transpose_a=true, transpose_b=false, scale=1.0): f32[40, 24]
c = mul(g, rate): f32[40, 24]
u = sub(d, c): f32[40, 24]
next = cast(u, dtype=@bf16): bf16[40, 24]
output y = y
output next = next
"""


def test_a_state_that_is_trained() -> None:
    """Each run's product and update are those of the state that the run before it left."""
    rng = np.random.default_rng(8)
    bf16 = DTYPES["bf16"].numpy
    graph = text.parse(TRAINED, {"rate": np.array(0.02, np.float32)})
    session = ingot.InferenceSession(graph, threads=2, strict=True)
    x, t = rng.standard_normal((4, 24)).astype(np.float32), rng.standard_normal((4, 40)).astype(np.float32)
    w, errors = np.zeros((40, 24), bf16), []
    for _ in range(12):
        y, following = session.run(None, {"x": x, "t": t})
        wide = w.astype(np.float64)
        np.testing.assert_allclose(y, x @ wide.T, rtol=1e-5, atol=1e-5)
        exact = wide - np.float32(0.02) * (x @ wide.T - t).T @ x
        np.testing.assert_allclose(following.astype(np.float64), exact, rtol=0.01, atol=1e-4)
        errors.append(float(np.square(y - t).sum()))
        w = following
    assert errors[-1] < 0.5 * errors[0]
    kernels = [step.kernel for step in session.program.single.lowered.steps]
    assert kernels.count("pack_bf16") == 1 and kernels.count("cast_bf16_f32") == 1
