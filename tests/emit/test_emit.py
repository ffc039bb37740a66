"""Emitted C: built by plain compilers, its outputs are native's to the bit; what it holds and what it must not."""

import datetime
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import models
from emitted_together import LACKS, by
from ingot.emit.c import emit
from ingot.emit.kernels import kernel_source
from ingot.errors import InputError, OutputError, UnsupportedError
from ingot.ir.dim import symbol
from ingot.ir.dtype import DTYPES, f32, i64
from ingot.ir.graph import Graph, TensorType
from ingot.run.library import load
from ingot.run.store import WeightStore
from ingot.support import abi
from op_cases import CASES, build, same_bits, side_by_side

Feeds = dict[str, np.ndarray]

# What an object may leave to the linker: of libc and libm, and of the compiler's own library.
ALLOWED_SYMBOLS = set("memcpy memset memmove fmaf sqrtf copysign copysignf fabs fabsf rintf floorf ceilf".split())
ALLOWED_SYMBOLS |= {"__cpu_model", "__cpu_indicator_init", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
# GCC has intrinsics as macros there, which convert.
UNOPTIMISED = "-O0 -Wno-sign-conversion"
HOSTILE = 'x*/\n#errand "%s\\ ?' + "?/ \u202e"


@dataclass(frozen=True)
class Emitted:
    """A folder of emitted C, inputs for it, and what native makes of them. objects: where compiled models are kept."""

    folder: Path
    feeds: Feeds
    expected: dict[str, np.ndarray]
    objects: Path

    def compiled(self, compiler: str, *flags: str, dispatch: str = "") -> Path:
        """The program. dispatch: as for `object`."""
        model = self.object(compiler, *flags, dispatch=dispatch)
        program = self.folder / f"program_{model.parent.name}"
        command([compiler, *flags, str(model), "main.c", "-lm", "-o", str(program)], self.folder)
        return program

    def object(self, compiler: str, *flags: str, dispatch: str = "") -> Path:
        """model.c compiled, once for all tests and workers that want the same of it.

        dispatch: as for `emitted_together.by`; "" leaves it.
        """
        text = (self.folder / "model.c").read_text()
        edited = by(text, dispatch) if dispatch else text
        key = repr((compiler, flags, edited, (self.folder / "model.h").read_text()))
        folder = self.objects / hashlib.sha256(key.encode()).hexdigest()[:32]
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "model.o").exists():
                (folder / "model.c").write_text(edited)
                shutil.copy(self.folder / "model.h", folder)
                command([compiler, *flags, "-c", "model.c", "-o", "model.o"], folder)
        return folder / "model.o"

    def ports(self) -> tuple[dict[str, dict], dict[str, dict]]:
        """The rows of layout.json for the inputs and the outputs, by their names in C."""
        layout = json.loads((self.folder / "layout.json").read_text())
        rows = {(row["kind"], row["name"]): row for row in layout["tensors"]}
        inputs, outputs = (
            {c: rows[kind, name] for c, name in layout[f"{kind}s"].items()} for kind in ("input", "output")
        )
        return inputs, outputs

    def run(self, program: Path, feeds: Feeds, isa: str = "best") -> dict[str, np.ndarray]:
        """What main.c writes. isa: the best set that a program which goes by it may take."""
        inputs, outputs = self.ports()
        for name, row in inputs.items():
            array = np.asarray(feeds[row["name"]], order="C")
            assert (array.dtype, list(array.shape)) == (DTYPES[row["dtype"]].numpy, row["shape"])
            (self.folder / f"{name}.raw").write_bytes(array.tobytes())
        files = [f"{name}={name}.raw" for name in (*inputs, *outputs)]
        command([str(program), "--weights", "weights.bin", *files], self.folder, LACKS=LACKS[isa])
        return {
            row["name"]: np.fromfile(self.folder / f"{name}.raw", DTYPES[row["dtype"]].numpy).reshape(row["shape"])
            for name, row in outputs.items()
        }

    def check(self, program: Path, isa: str = "best") -> None:
        got = self.run(program, self.feeds, isa)
        assert set(got) == set(self.expected)
        for name, expected in self.expected.items():
            assert got[name].shape == expected.shape
            assert same_bits(got[name], expected), f"{name}: {np.abs(got[name] - expected).max()}"


def command(words: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        words, cwd=folder, env=os.environ | environment, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, f"{' '.join(words[:9])}\n{done.stderr[:4000]}"
    return done.stdout


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled models, which all workers of a run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"
    folder.mkdir(exist_ok=True)
    return folder


HAS_CLANG = shutil.which("clang") is not None


@pytest.mark.skipif(
    not HAS_CLANG, reason="clang is not installed: emitted C is tried with gcc alone; .ci/run installs it"
)
def test_emitted_c_is_tried_with_clang() -> None:
    """One skip for all tests of emitted C that have no clang to compile with."""


COMPILERS = ["gcc", "clang"] if HAS_CLANG else ["gcc"]


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest) -> str:
    """gcc must be there, clang may be missing."""
    return request.param


# -- models -----------------------------------------------------------------------------------------------------


def odd_mlp() -> models.Built:
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Linear(17, 33), nn.GELU(), nn.Linear(33, 65, bias=False), nn.ReLU(), nn.Linear(65, 300),
            nn.GELU(approximate="tanh"), nn.Linear(300, 7), nn.Softmax(-1),
        )  # fmt: skip

    return models.seeded(net), (torch.randn(5, 17),)


class Contractible(nn.Module):
    """Products that are rounded before something is added to them: a scaled sum with a bias, attention over tiles."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(37, 50)), nn.Parameter(torch.randn(50))

    def forward(self, x, q, k):
        return (x @ self.weight) * 0.37 + self.bias, nn.functional.scaled_dot_product_attention(q, k, k)


def contractible() -> models.Built:
    module = models.seeded(Contractible)
    return module, (torch.randn(9, 37), torch.randn(1, 2, 3, 16), torch.randn(1, 2, 1100, 16))


class Gated(nn.Module):
    """Feed-forwards whose halves gate each other: the gate first without a bias, then last with one."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(40, 80, bias=False), nn.Linear(40, 80, bias=False)
        self.down, self.both = nn.Linear(80, 40), nn.Linear(40, 96)

    def forward(self, x):
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        up, gate = self.both(x).chunk(2, -1)
        return up * nn.functional.gelu(gate)


def gated() -> models.Built:
    return models.seeded(Gated), (torch.randn(2, 7, 40),)


class Several(nn.Module):
    """Outputs of three dtypes, one of them a view, one an input's copy; integer and boolean inputs."""

    def forward(self, x, n, keep):
        scaled = torch.where(keep, x * n.to(torch.float32), -x)
        return scaled, scaled.transpose(0, 1), n % 5 - 3, keep & (x > 0), n, scaled.sum(), scaled.argmax(-1)


def several() -> models.Built:
    torch.manual_seed(0)
    x, n, keep = torch.randn(3, 7), torch.randint(-9, 10, (3, 7)), torch.rand(3, 7) > 0.5
    return Several().eval(), (x, n, keep)


class Specials(nn.Module):
    """Constants and attributes that are hard to write down in C."""

    VALUES = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-45, -1.1754942e-38, 3.4028235e38, 0.1)

    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.tensor(self.VALUES))

    def forward(self, x):
        kept = nn.functional.pad(x, (1, 2), value=float("-inf"))
        clipped = torch.clamp(x, -3.4028235e38, 1e-45)
        return x * self.values, x + self.values, kept, clipped, nn.functional.leaky_relu(x, 1.1754944e-38)


def specials() -> models.Built:
    return Specials().eval(), (torch.tensor([[1.0, -0.0, 2.0, 3.0, -4.0, 5.0, 6.0, float("nan"), 1e-40]]),)


MODELS: dict[str, Callable[[], models.Built]] = {
    "mlp": odd_mlp,
    "block functional": lambda: models.block("functional"),
    "block sdpa causal": lambda: models.block("sdpa", True, rows=29),
    "gpt2": models.gpt2,
    "conv net": models.convnet,
    "LSTM tagger": lambda: models.tagger("LSTM"),
    "contractible": contractible,
    "gated": gated,
    "several": several,
    "specials": specials,
}


@pytest.fixture(scope="session")
def emitted(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Callable[[str], Emitted]:
    """A model of the table, emitted once."""
    done: dict[str, Emitted] = {}

    def get(name: str) -> Emitted:
        if name not in done:
            module, inputs = MODELS[name]()
            session = ingot.InferenceSession(module, example_inputs=inputs)
            feeds = dict(zip((a.name for a in session.get_inputs()), (x.numpy() for x in inputs), strict=True))
            outputs = session.run(None, feeds)
            folder = tmp_path_factory.mktemp("emitted")
            emit(session.graph, session.weights, folder)
            done[name] = Emitted(folder, feeds, dict(zip(session.graph.outputs, outputs, strict=True)), objects)
        return done[name]

    return get


def flags_of_today(model: str, compiler: str) -> list[str]:
    """Return the flags of a model in `make test`: one of the compilers optimises it, on the next day the other.

    Under `slow` all compilers optimise every model: -O2 takes about four times as long as -O0.
    """
    seed = datetime.date.today().toordinal()
    print(f"seed {seed}: the day's number")
    is_optimised = (seed + list(MODELS).index(model) + COMPILERS.index(compiler)) % len(COMPILERS) == 0
    return ["-O2"] if is_optimised else UNOPTIMISED.split()


@pytest.mark.parametrize("model", MODELS)
def test_same_bits_as_native(emitted, compiler: str, model: str) -> None:
    case = emitted(model)
    case.check(case.compiled(compiler, *flags_of_today(model, compiler), *STRICT))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_same_bits_as_native_by_all_optimising_compilers(emitted, compiler: str, model: str) -> None:
    case = emitted(model)
    case.check(case.compiled(compiler, "-O2", *STRICT))


@pytest.mark.parametrize(
    "flags", [UNOPTIMISED, "-O3 -march=native", pytest.param("-Os -std=c11", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "model",
    ["contractible", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "contractible")],
)
def test_same_bits_under_other_flags(emitted, compiler: str, model: str, flags: str) -> None:
    case = emitted(model)
    case.check(case.compiled(compiler, *flags.split(), *STRICT))


@pytest.mark.parametrize("isa", ["portable", *load().isas()])
def test_same_bits_on_every_set(emitted, compiler: str, isa: str) -> None:
    case = emitted("contractible")
    if isa == "portable":
        case.check(case.compiled(compiler, "-O2", *STRICT, dispatch="portable"))
    else:
        case.check(case.compiled(compiler, "-O2", *STRICT, dispatch="told"), isa)


SANITIZED = ["gpt2", "conv net", "several", "specials"]


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=() if name in SANITIZED else pytest.mark.slow) for name in MODELS]
)
def test_sanitizers_find_nothing(emitted, model: str) -> None:
    flags = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    case = emitted(model)
    program = case.compiled("gcc", *flags, dispatch="told")
    for isa in ("scalar", *load().isas()[-1:]):
        case.check(program, isa)


# -- every op ---------------------------------------------------------------------------------------------------


MANY_STEPS = 24


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Emitted:
    """Every op sample that has a kernel, side by side in one model; what takes many steps is made of others."""
    graph, feeds = side_by_side(CASES, MANY_STEPS)
    program = build(graph, isa="scalar", threads=1)
    assert program.single is not None
    expected = dict(zip(graph.outputs, program.run([feeds[name] for name in graph.inputs]), strict=True))
    folder = tmp_path_factory.mktemp("samples")
    emit(graph, WeightStore(), folder)
    return Emitted(folder, feeds, expected, objects)


# To compile every kernel on every set takes longest of all tests: here without optimisation, which takes a third of the
# time that any other level does. The library is these kernels at -O2, too.
@pytest.mark.parametrize("flags", ["-O0", pytest.param("-O2", marks=pytest.mark.slow)])
def test_every_op_sample(samples: Emitted, compiler: str, flags: str) -> None:
    program = samples.compiled(compiler, flags, "-Wall", "-Werror", dispatch="told")
    for isa in load().isas():
        samples.check(program, isa)


APART = {name for name in abi.kernels() if name.endswith("_bf16_tiles")}  # sums that the library alone makes


def test_every_kernel_compiles_alone(tmp_path: Path, compiler: str) -> None:
    """What is cut out for one kernel compiles without the others; all of them together do too."""
    definitions = [(name, args) for name, args in abi.kernels().items() if name not in APART]
    groups = [dict(definitions[i::12]) for i in range(12)]
    units = []
    for number, group in enumerate([*groups, dict(definitions)]):
        source = kernel_source(group, {*group.values(), "ingot_fault"})
        calls = "".join(f"  K({name})(args, 0, 1);\n" for name in group)
        (tmp_path / f"{number}.c").write_text(f'#include "{number}.h"\n')
        (tmp_path / f"{number}.h").write_text(
            "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
            "#if defined(__x86_64__)\n#include <immintrin.h>\n#endif\n"
            f"#define ISA scalar\n#define ISA_scalar 1\n{source.types}\n{source.kernels}\n"
            f"void run(const void *args);\nvoid run(const void *args) {{\n{calls}}}\n"
        )
        units.append(f"{number}.c")
    command([compiler, "-fsyntax-only", *STRICT, *units], tmp_path)


def source_text(name: str) -> str:
    return (Path(ingot.__file__).parent / "csrc" / name).read_text()


# -- what the C holds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(None, id="of today"),
        *(pytest.param(flags, marks=pytest.mark.slow) for flags in (UNOPTIMISED, "-O2")),
    ],
)
@pytest.mark.parametrize("model", ["block functional", "gpt2", "conv net"])
def test_object_needs_only_libc_and_libm(emitted, compiler: str, model: str, flags: str | None) -> None:
    chosen = flags_of_today(model, compiler) if flags is None else flags.split()
    model_o = emitted(model).object(compiler, *chosen, *STRICT)
    undefined = command(["nm", "-u", model_o.name], model_o.parent).splitlines()
    assert {line.split()[-1].partition("@")[0] for line in undefined} <= ALLOWED_SYMBOLS
    defined = command(["nm", "-g", "--defined-only", model_o.name], model_o.parent).split()
    entries = ["model_init", "model_run", "model_state_bytes", "model_weights_bytes"]
    assert [word for word in defined if word.startswith("model")] == entries and len(defined) == 12


@pytest.mark.parametrize("model", MODELS)
def test_reads_well(emitted, model: str) -> None:
    """No leftovers: every function, type and macro that model.c defines is used in it, lines fit, no stray blanks."""
    folder = emitted(model).folder
    text = (folder / "model.c").read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    uses = re.findall(r"\w+", re.sub(r"^#define (\w+) K\(\1\)|^#undef \w+", "", code, flags=re.MULTILINE))
    defined = set(re.findall(r"^#define (\w+)|^static inline void K\((\w+)\)\(", code, re.MULTILINE))
    assert len(defined) > 30
    assert {name for names in defined for name in names if name and uses.count(name) < 2} == set()
    for name in ("model.c", "model.h", "main.c"):
        content = (folder / name).read_text()
        assert content.isascii() and content.endswith("\n") and not re.search(r"[ \t]$|\n\n\n", content, re.MULTILINE)
        assert max(map(len, content.splitlines())) <= 120
    comments = [c for c in re.findall(r"/\*.*?\*/", text, re.DOTALL) if len(c) > 60]
    assert len(comments) == len(set(comments))


def test_steps_and_kernels_are_what_the_model_needs(emitted) -> None:
    text = (emitted("block sdpa causal").folder / "model.c").read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert len(re.findall(r"^  /\* \d+: ", text, re.MULTILINE)) == len(
        re.findall(r"^    K\(\w+\)\(&s, 0, 1\);", text, re.MULTILINE)
    )
    assert "attention_f32" in text and "layer_norm_f32" in text
    assert not re.search(r"conv2d|avg_pool|gather|rms_norm|log_softmax|ingot_fault|ingot_program", code)
    assert not re.search(
        r"gemm_bf16|gemm_tile_widened|gemv_bf16|expert_matmul|append_|cached_attention|sample_|topk", code
    )
    assert len(text.splitlines()) < 2000 and "bf16(" not in code


def test_a_block_of_several_threads_is_short(tmp_path: Path) -> None:
    module, inputs = MODELS["block sdpa causal"]()
    session = ingot.InferenceSession(module, example_inputs=inputs)
    emit(session.graph, session.weights, tmp_path, threads=4)
    text = (tmp_path / "model.c").read_text()
    assert "model_pool_barrier(member)" in text and len(text.splitlines()) < 2000


def test_names_reach_the_c_as_identifiers(tmp_path: Path, compiler: str) -> None:
    graph = Graph("graph" + HOSTILE)
    x = graph.add_input("in" + HOSTILE, TensorType(f32, (3, 5)))
    w = graph.add_weight("weight" + HOSTILE, np.ones((5, 4), np.float32))
    node = graph.add("matmul", (x, w), ("marker" + HOSTILE,), transpose_a=False, transpose_b=False, scale=1.0)
    graph.set_output("out" + HOSTILE, graph.add("exp", node.outputs).output)
    emit(graph, WeightStore(), tmp_path)
    for name in ("model.c", "model.h", "main.c"):
        text = (tmp_path / name).read_text(encoding="ascii")
        assert "#errand" not in text and "\\ ?" not in text
    assert re.search(r"\bfloat \*const markerx_errand_s =", (tmp_path / "model.c").read_text())
    assert "#define MODEL_SHAPE_WEIGHTX_ERRAND_S {5, 4}\n" in (tmp_path / "model.h").read_text()
    rows = json.loads((tmp_path / "layout.json").read_text())["tensors"]
    assert {"in" + HOSTILE, "weight" + HOSTILE, "out" + HOSTILE} <= {row["name"] for row in rows}
    assert {row["identifier"] for row in rows} >= {"inx_errand_s", "weightx_errand_s", "outx_errand_s"}
    feeds = {"in" + HOSTILE: np.ones((3, 5), np.float32)}
    case = Emitted(tmp_path, feeds, {}, tmp_path)
    (y,) = case.run(case.compiled(compiler, "-O1", "-Wall", "-Werror"), feeds).values()
    np.testing.assert_allclose(y, np.exp(5.0) * np.ones((3, 4)), rtol=1e-6)


# What means something else where the steps are: to C, its library, its compilers, the kernels, the steps themselves.
RESERVED = """
    int restrict unix signgam gamma index y0 sinhf memcpy size_t uint8_t abs_f32 K INGOT_ACT_none elementwise_args
    INGOT_MAX_RANK call member thread threads layer offsets n0 iteration num_tasks s inputs outputs weights arena kept
    run steps arena_2 a A a_2 \u00e9 1 isnan CHECKED model_run model_state model_inputs model_pool_barrier
""".split()


def test_reserved_names(tmp_path: Path, compiler: str) -> None:
    """Each tensor has its own, without a warning."""
    graph = Graph("taken")
    value = graph.add_input("begin", TensorType(f32, (4,)))
    for number, name in enumerate(RESERVED):
        weight = graph.add_weight(name, np.full(4, number, np.float32))
        value = graph.add("add", (value, weight), (f"{name}+",)).output
    graph.set_output("call", value)
    emit(graph, WeightStore(), tmp_path)
    names = [row["identifier"] for row in json.loads((tmp_path / "layout.json").read_text())["tensors"]]
    assert len({name.upper() for name in names}) == len(names) > len(RESERVED)
    case = Emitted(tmp_path, {}, {}, tmp_path)
    program = case.compiled(compiler, "-O0", "-Wno-sign-conversion", *STRICT)
    (y,) = case.run(program, {"begin": np.ones(4, np.float32)}).values()
    np.testing.assert_array_equal(y, np.full(4, 1 + sum(range(len(RESERVED)))))


def embedding() -> Graph:
    graph = Graph("embedding")
    table = graph.add_weight("table", np.arange(12, dtype=np.float32).reshape(4, 3))
    ids = graph.add_input("ids", TensorType(i64, (5,)))
    graph.set_output("y", graph.add("gather", (table, ids), axis=0).output)
    return graph


@pytest.mark.parametrize(
    ("index", "message"), [(3, ""), (-4, ""), (4, "outside"), (-5, "outside"), (1 << 62, "outside")]
)
def test_an_index_outside_its_table_is_reported(tmp_path: Path, index: int, message: str) -> None:
    emit(embedding(), WeightStore(), tmp_path)
    case = Emitted(tmp_path, {}, {}, tmp_path)
    program = case.compiled("gcc", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    feeds = {"ids": np.array([0, 1, index, 2, 3])}
    if not message:
        table = np.arange(12, dtype=np.float32).reshape(4, 3)
        assert np.array_equal(case.run(program, feeds)["y"], table[feeds["ids"]])
        return
    (tmp_path / "ids").write_bytes(feeds["ids"].tobytes())
    words = [program, "--weights", "weights.bin", "ids=ids", "y=y"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 65 and message in done.stderr and not (tmp_path / "y").exists()


def test_the_host_may_flush_denormals(emitted, tmp_path: Path) -> None:
    """Rounding and denormal modes of the caller change no bit, and are the caller's again afterwards."""
    case = emitted("specials")
    text = (case.folder / "main.c").read_text()
    run = "  const int result = model_run("
    mode = "  const unsigned mode = __builtin_ia32_stmxcsr() | 0xe040;\n  __builtin_ia32_ldmxcsr(mode);\n"
    assert run in text
    text = text.replace(run, mode + run)
    text = text.replace("return is_expected ? 0 : 1;", "return __builtin_ia32_stmxcsr() == mode ? 0 : 3;")
    (tmp_path / "main.c").write_text(text)
    model_o = case.object("gcc", "-O2", *STRICT)
    command(["gcc", "-O2", f"-I{case.folder}", "main.c", str(model_o), "-lm", "-o", "flushing"], tmp_path)
    case.check(tmp_path / "flushing")


DIGITS = str(Path(ingot.__file__).parent / "data" / "digits.onnx")


# -- emission ---------------------------------------------------------------------------------------------------


def test_emission_is_deterministic(tmp_path: Path) -> None:
    code = "import ingot.cli; ingot.cli.main()"
    for seed in ("1", "2"):
        arguments = ["emit-c", DIGITS, "--dim", "batch=1", "-o", str(tmp_path / seed)]
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment, capture_output=True)
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    expected = ".ingot-files.json CMakeLists.txt Makefile layout.json main.c model.c model.cmake model.h model.mk"
    expected += " model.pc model_check.h test weights.bin"
    assert names == expected.split()
    for name in (*names[:-2], names[-1], "test/image.npy", "test/probabilities.npy"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_what_cannot_be_emitted_is_an_error(tmp_path: Path) -> None:
    graph = Graph("symbolic")
    x = graph.add_input("x", TensorType(f32, (symbol("rows"), 4, 4)))
    graph.set_output("y", graph.add("exp", (x,)).output)
    with pytest.raises(InputError, match="rows"):
        emit(graph, WeightStore(), tmp_path / "out")
    graph = graph.bind({"rows": 3})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError):
        emit(graph, WeightStore(), tmp_path / "file")
    graph.set_output("z", graph.add("pairwise_coupling", (x,)).output)
    with pytest.raises(UnsupportedError, match="pairwise_coupling"):
        emit(graph, WeightStore(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_debug_prints_the_source(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("INGOT_DEBUG", "4")
    emit(embedding(), WeightStore(), tmp_path)
    assert (tmp_path / "model.c").read_text() in capsys.readouterr().err
