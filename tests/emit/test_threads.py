"""Emitted C of several threads: native's bits for every number of them, and a pool that runs anywhere."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
import models
from ingot.emit.c import Vector, emit

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
THREADS = 4


class Tagger(nn.Module):
    """Steps of one part, of as many as there are threads, of fewer, and turns of several."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(96, 128, batch_first=True), nn.Linear(128, 40)
        self.last = nn.Linear(40, 3)

    def forward(self, x):
        h, _ = self.lstm(x)
        return torch.softmax(self.last(self.head(h)), -1)


def tagger() -> models.Built:
    return models.seeded(Tagger), (torch.randn(8, 6, 96),)


def shell(folder: Path, *words: object) -> tuple[int, str, str]:
    """Runs a program in a folder: (exit code, stdout, stderr)."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, a test vector, and what is compiled but for the pool."""
    module, inputs = tagger()
    session = ingot.InferenceSession(module, example_inputs=inputs, threads=1)
    feeds = {session.get_inputs()[0].name: inputs[0].numpy()}
    outputs = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    folder = tmp_path_factory.mktemp("threads")
    emit(session.graph, session.weights, folder, threads=THREADS, vector=Vector(feeds, outputs))
    code, _, err = shell(folder, "cc", "-O1", *STRICT, "-c", "model.c", "main.c")
    assert code == 0, err
    return folder


def as_on_linux(text: str) -> str:
    """The pool over futexes."""
    return text


def elsewhere(text: str) -> str:
    """The pool of systems that are no Linux."""
    assert text.count("defined(__linux__)") == 3
    return text.replace("defined(__linux__)", "0").replace("_GNU_SOURCE", "_POSIX_C_SOURCE 200809L")


def built(folder: Path, pool: Callable[[str], str], *flags: str, rest: tuple[str, ...] = ("model.o", "main.o")) -> str:
    """Compiles a program. pool: what becomes of the pool's text, which cuts no region to the CPUs that there are."""
    program = "_".join((pool.__name__, *(flag.strip("-") for flag in flags)))
    text = (folder / "model_pool.c").read_text()
    edited = text.replace("pool.cpus = usable_cpus();", "pool.cpus = usable_cpus() + POOL_THREADS;")
    assert edited != text
    (folder / f"{program}_pool.c").write_text(pool(edited))
    files = (*rest, f"{program}_pool.c", "-lm", "-pthread", "-o", program)
    code, _, err = shell(folder, "cc", *flags, *STRICT, *files)
    assert code == 0, err
    return f"./{program}"


@pytest.mark.parametrize("pool", [as_on_linux, elsewhere])
def test_bits_are_native_for_every_number_of_threads(tagged: Path, pool: Callable[[str], str]) -> None:
    program = built(tagged, pool, "-O1")
    for threads in (*range(1, THREADS + 1), 2, 1):
        code, out, err = shell(tagged, program, "--threads", threads, "--check", "test")
        assert (code, err) == (0, "") and "the bits of" in out, (threads, out)


@pytest.mark.parametrize("pool", [as_on_linux, elsewhere])
def test_no_two_threads_meet_in_memory(tagged: Path, pool: Callable[[str], str]) -> None:
    flags = ("-O1", "-fsanitize=thread", "-Wno-tsan")
    text = (tagged / "model.c").read_text()
    (tagged / "checked.c").write_text(text.replace("defined(__x86_64__)", "0").replace('"model.c"', '"checked.c"'))
    program = built(tagged, pool, *flags, rest=("checked.c", "main.c"))
    code, out, err = shell(tagged, program, "--check", "test")
    assert (code, err) == (0, "") and "the bits of" in out


def test_steps_say_their_parts_and_wait_for_each_other(tagged: Path) -> None:
    text, header = (tagged / "model.c").read_text(), (tagged / "model.h").read_text()
    assert "(&s, thread, threads);" in text and "(&s, thread, threads < " in text and "  if (thread == 0) {\n" in text
    assert (
        "    const int32_t num_tasks = threads" in text and "(&s, iteration * num_tasks + thread, num_tasks);" in text
    )
    assert "  model_pool_barrier(member);\n" in text
    assert f"#define MODEL_THREADS {THREADS} " in header and "pool" not in header


@pytest.mark.parametrize(("word", "message"), [("0", "got 0, expected 1 to 4"), ("5", "got 5"), ("two", "got two")])
def test_a_number_of_threads_is_one_that_the_plan_was_built_for(tagged: Path, word: str, message: str) -> None:
    code, _, err = shell(tagged, built(tagged, as_on_linux, "-O1"), "--threads", word, "--check", "test")
    assert code == 2 and message in err and err.startswith("--threads: out of range, ")


def test_one_thread_needs_no_pool(tmp_path: Path) -> None:
    """Nor does a model that is not worth a second thread."""
    small = models.seeded(lambda: nn.Linear(3, 4)), (torch.ones(2, 3),)
    for name, (module, inputs), threads in (("one", tagger(), 1), ("small", small, THREADS)):
        session = ingot.InferenceSession(module, example_inputs=inputs)
        emit(session.graph, session.weights, tmp_path / name, threads=threads)
        assert not list((tmp_path / name).glob("*pool*"))
        for file in ("model.c", "model.h", "Makefile"):
            assert not re.search("pool|barrier|pthread", (tmp_path / name / file).read_text()), file
