"""The matrix-vector product as src/ingot/contracts/matvec.yaml states it. `make bench-matvec` checks its speed."""

import re
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import yaml

import ingot
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.support import abi
from kernel_calls import ISAS
from places import ROOT

CONTRACT = yaml.safe_load((ROOT / "src/ingot/contracts/matvec.yaml").read_text())
SHAPES = [tuple(shape) for shape in CONTRACT["properties"]["shapes"]]
TOLERANCE = CONTRACT["properties"]["tolerance"]
KERNEL = CONTRACT["choice"]["kernel"]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")


def product(w: np.ndarray, rows: int = 1, threads: int = 2) -> ingot.InferenceSession:
    """A session on x f32[rows, k] @ w."""
    graph = Graph("product")
    x = graph.add_input("x", TensorType(f32, (rows, w.shape[0])))
    graph.set_output("y", graph.add("matmul", [x, graph.add_weight("w", w)]).output)
    return ingot.InferenceSession(graph, threads=threads)


def apply(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x f32[k] @ w, by the kernel of the contract."""
    session = product(w)
    (row,) = session.explain().to_json()["nodes"]
    assert row["kernel"] == KERNEL
    return session.run(None, {"x": x[None]})[0][0]


@pytest.fixture(params=SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def operands(request, rng) -> tuple[np.ndarray, np.ndarray]:
    """x f32[k] and w f32[k, n]."""
    k, n = request.param
    return rng.standard_normal(k, np.float32), rng.standard_normal((k, n), np.float32)


def error_bound(w: np.ndarray, *xs: np.ndarray) -> np.ndarray:
    """The largest difference of results that are equal except for rounding."""
    return TOLERANCE * sum(np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)) for x in xs)


def test_the_choice_depends_on_the_rows_alone() -> None:
    assert CONTRACT["choice"]["rows"] == 1
    for threads in (1, 2, 5):
        for k, n in SHAPES:
            w = np.ones((k, n), np.float32)
            kernels = [product(w, rows, threads).explain().to_json()["nodes"][0]["kernel"] for rows in (1, 64)]
            assert kernels == [KERNEL, "gemm_f32_packed"]


def test_exact_result(operands) -> None:
    x, w = operands
    expected = x.astype(np.float64) @ w.astype(np.float64)
    assert (np.abs(apply(w, x) - expected) <= error_bound(w, x)).all()


def test_linearity(operands, rng) -> None:
    x, w = operands
    z = rng.standard_normal(len(x), np.float32)
    whole = x + z
    apart = apply(w, x).astype(np.float64) + apply(w, z)
    assert (np.abs(apply(w, whole) - apart) <= error_bound(w, x, z, whole)).all()


def test_scaling_by_a_power_of_two_is_exact_and_by_another_number_nearly(operands) -> None:
    x, w = operands
    y = apply(w, x)
    assert np.array_equal(apply(w, 8 * x), 8 * y)
    assert np.array_equal(apply(w * np.float32(0.25), x), y * np.float32(0.25))
    assert np.array_equal(apply(w, -x), -y)
    scaled = np.float32(3.7) * x
    assert (np.abs(apply(w, scaled) - 3.7 * y.astype(np.float64)) <= 2 * error_bound(w, scaled)).all()


@each_shape
def test_a_unit_vector_picks_its_row(shape, rng) -> None:
    w = rng.standard_normal(shape, np.float32)
    session = product(w)
    for row in {0, shape[0] // 2, shape[0] - 1}:
        unit = np.zeros((1, shape[0]), np.float32)
        unit[0, row] = 1
        assert np.array_equal(session.run(None, {"x": unit})[0][0], w[row])


def test_the_identity_gives_x(rng) -> None:
    for size in (1, 16, 33, 300):
        x = rng.standard_normal(size, np.float32)
        assert np.array_equal(apply(np.eye(size, dtype=np.float32), x), x)


@each_shape
def test_zeros(shape, rng) -> None:
    w = rng.standard_normal(shape, np.float32)
    assert not apply(w, np.zeros(shape[0], np.float32)).any()
    assert not apply(np.zeros_like(w), rng.standard_normal(shape[0], np.float32)).any()


@each_shape
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_zero_hides_nothing(shape, bad) -> None:
    """0 * NaN and 0 * infinity are NaN: no step may be left out because x is zero there. Other columns stay."""
    k, n = shape
    w = np.ones(shape, np.float32)
    w[k // 2, n // 2] = bad
    y = apply(w, np.zeros(k, np.float32))
    assert np.isnan(y[n // 2]) and not np.delete(y, n // 2).any()


def test_bits_are_those_of_one_row_of_a_matmul(operands, rng) -> None:
    """Whatever the row's place, and whether w is packed beforehand or comes as an input."""
    x, w = operands
    y = apply(w, x)
    rows = rng.standard_normal((64, len(x)), np.float32)
    rows[37] = x
    assert product(w, 64).run(None, {"x": rows})[0][37].tobytes() == y.tobytes()
    graph = Graph("both_inputs")
    names = [graph.add_input(name, TensorType(f32, a.shape)) for name, a in (("x", x[None]), ("w", w))]
    graph.set_output("y", graph.add("matmul", names).output)
    (loose,) = ingot.InferenceSession(graph).run(None, {"x": x[None], "w": w})
    assert loose[0].tobytes() == y.tobytes()


def test_dimensions_must_match(rng) -> None:
    w = rng.standard_normal((40, 70), np.float32)
    for wrong in ((1, 39), (1, 41), (1, 70), (2, 40), (40,), (1, 1, 40)):
        with pytest.raises(ingot.InputError, match=r"'x'.*got .*expected"):
            product(w).run(None, {"x": np.ones(wrong, np.float32)})
    graph = Graph("mismatch")
    x = graph.add_input("x", TensorType(f32, (1, 41)))
    with pytest.raises(ingot.ShapeError, match=r"41.*40"):
        graph.add("matmul", [x, graph.add_weight("w", w)])


# -- the inner loop ---------------------------------------------------------------------------------------------------

MULTIPLY_ADD = re.compile(r"\tv?fn?m(?:add|la)\w*\t")
CONDITIONAL_JUMP = re.compile(r"\tj(?!mp)\w+\t(\.L\w+)")
# What moves a float into the flags, a mask register or a general one.
FLOAT_TO_CONDITION = re.compile(
    r"\tv?(?:u?comis[sd]|cmp\w*[ps][sd]|ptest\w*|testp[sd]|p?movmsk\w+|fpclass\w+)\t|\tk(?:or)?test"
)
COUNTING = re.compile(r"\t(?:cmp|test|add|sub|dec|inc)[bwlq]?\t")


def flags_of(isa: str) -> list[str]:
    """The compiler's flags for an instruction set, read from CMakeLists.txt and instruction_sets.def."""
    sets = (ROOT / "src/ingot/csrc/instruction_sets.def").read_text()
    common = re.search(r"^set\(FLAGS (.*?)\)$", (ROOT / "CMakeLists.txt").read_text(), re.M | re.S)
    own = re.search(rf"^\w+\({isa}\b.*?\)$", sets, re.M | re.S)
    assert common is not None and own is not None
    words = f"{common[1]} {own[0]}".replace('"', "").replace(")", " ").split()
    return [word for word in words if word.startswith("-")] + [
        f"-m{each}" for each in abi.instruction_sets()[isa].features
    ]


def assembly(isa: str, source: str) -> list[str]:
    csrc = ROOT / "src/ingot/csrc"
    command = ["gcc", "-std=gnu11", "-S", "-o", "-", *flags_of(isa), f"-DISA={isa}", f"-DISA_{isa}=1", f"-I{csrc}"]
    return subprocess.run([*command, csrc / source], capture_output=True, text=True, check=True).stdout.splitlines()


def innermost_loops(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each loop, from its label to the jump back to it, that has no other loop inside."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    jumps = [(labels[m.group(1)], i) for i, line in enumerate(lines) if (m := CONDITIONAL_JUMP.match(line))]
    back = [(begin, end) for begin, end in jumps if begin < end]
    for begin, end in back:
        if not any(begin <= b and e < end for b, e in back):
            yield lines[begin : end + 1]


@pytest.mark.parametrize("source", CONTRACT["inner_loop"]["sources"])
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in CONTRACT["inner_loop"]["sets"]])
def test_the_inner_loop_branches_on_its_counter_alone(isa: str, source: str) -> None:
    """In the assembly that the library's flags give."""
    lines = assembly(isa, source.format(isa=isa))
    loops = [loop for loop in innermost_loops(lines) if any(map(MULTIPLY_ADD.match, loop))]
    assert loops
    for loop in loops:
        text = "\n".join(loop)
        assert sum(bool(CONDITIONAL_JUMP.match(line)) for line in loop) == 1, text
        assert not any(map(FLOAT_TO_CONDITION.match, loop)), text
        setter = next(line for line in reversed(loop[:-1]) if not line.startswith("\t.") and "\tv" not in line)
        assert COUNTING.match(setter), text
