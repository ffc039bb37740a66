"""A token costs no allocation in C and no array in Python, and after ten thousand nothing has grown."""

import ctypes
import gc
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ingot
from attacks.hostile_configs import write_llama
from places import KIT

VOCAB_SIZE = 20_000  # so that an array of logits is much more than all else that a token takes
LOGITS_BYTES = 4 * VOCAB_SIZE
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
EVERYTHING = {
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {3: 1.0},
    "seed": 1,
    "logprobs": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    return write_llama(path, {"max_position_embeddings": 512}, VOCAB_SIZE)


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


# -- in C -------------------------------------------------------------------------------------------------------

COUNTING = """
import ctypes, sys
import ingot
from ingot.llm.sampling import Sampler, Sampling

llm = ingot.LLM(sys.argv[1], threads=2, sequences=3, cache_dtype=sys.argv[2])
process = ctypes.PyDLL(None)  # holds the interpreter's lock: no other thread of Python runs during a call


def allocations(times, entry, *arguments):
    # Of so many calls of a function of six arguments.
    words = (ctypes.c_ssize_t * 6)(*arguments)
    process.count_allocations.argtypes = ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p
    return process.count_allocations(times, entry, ctypes.addressof(words))


c_malloc = ctypes.cast(process.malloc, ctypes.c_void_p).value
assert allocations(1, c_malloc, 64, 0, 0, 0, 0, 0) == 1, "allocations are not counted"
options = eval(sys.argv[3])
for name, mode in llm.engine.modes.items():
    native, rows = mode.native, mode.output.shape[0]
    samplers = [Sampler(Sampling(**options), llm.model.vocab_size) for _ in range(rows)]
    ffi = native.library.ffi
    pointers = ffi.new("ingot_sampler *[]", [sampler.native.struct for sampler in samplers])
    table = native.pointers([*mode.inputs.values(), mode.output])
    addresses = [int(ffi.cast("intptr_t", p)) for p in (native.program, table.rows, table.fault, pointers)]
    arguments = (*addresses[:3], len(mode.inputs), addresses[3], rows)
    run = int(ffi.cast("intptr_t", native.library.entry.ingot_run_sampled))
    allocations(1, run, *arguments)
    print(name, allocations(50, run, *arguments), all(sampler.token >= 0 for sampler in samplers))
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that counts allocations."""
    library = tmp_path_factory.mktemp("counter") / "counter.so"
    source = KIT / "allocation_counter.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("options", [{"temperature": 0.0}, EVERYTHING], ids=["greedy", "everything"])
@pytest.mark.parametrize("cache_dtype", ["f32", "int8", "int4"])
def test_c_allocates_nothing(folder: Path, counter: Path, cache_dtype: str, options: dict[str, object]):
    """Prefill, decode and decode together, with sampling: no malloc, no mmap, in any thread."""
    command = [sys.executable, "-c", COUNTING, str(folder), cache_dtype, repr(options)]
    environment = os.environ | {"LD_PRELOAD": str(counter), "INGOT_CHECK": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.stdout.splitlines() == [f"{name} 0 True" for name in ("decode", "prefill", "batch")], result.stderr


# -- in Python --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["greedy", "everything"])
def test_python_allocates_no_array(folder: Path, together: int, options: dict[str, object]):
    """What Python takes for a token is far below one array of logits, and what it keeps is the token's number."""
    llm = ingot.LLM(folder, threads=1, sequences=3)
    generations = [llm.generation(prompt(i, 20), max_tokens=400, **options) for i in range(together)]
    drawing = llm.run(generations)
    for _ in range(20 * together):
        next(drawing)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        most, held = 0, before
        for _ in range(200 * together):
            tracemalloc.reset_peak()
            next(drawing)
            now, peak = tracemalloc.get_traced_memory()
            most, held = max(most, peak - held), now
    finally:
        tracemalloc.stop()
        drawing.close()
    assert most < LOGITS_BYTES / 8
    # A number, and its positions in two lists that grow; and the logprobs of the last token.
    assert held - before < together * (200 * 64 + 4096)


@pytest.mark.parametrize("together", [1, 3])
def test_python_calls_numpy_for_nothing(folder: Path, together: int):
    """A token sets elements of arrays that are there; no function of numpy makes another."""
    llm = ingot.LLM(folder, threads=1, sequences=3)
    drawing = llm.run([llm.generation(prompt(i, 20), max_tokens=100) for i in range(together)])
    for _ in range(10 * together):
        next(drawing)
    calls = set()

    def note(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and (
            isinstance(getattr(called, "__self__", None), np.ndarray)
            or str(getattr(called, "__module__", "")).startswith("numpy")
        ):
            calls.add(str(called))

    sys.setprofile(note)
    try:
        for _ in range(10 * together):
            next(drawing)
    finally:
        sys.setprofile(None)
        drawing.close()
    assert not calls


# -- over many tokens -------------------------------------------------------------------------------------------


def answers(llm: ingot.LLM, tokens: int) -> int:
    """Draws at least so many tokens as people do: conversations that go on, several prompts at once, streams that are
    left. Returns how many."""
    drawn, turn = 0, 0
    while drawn < tokens:
        turn += 1
        conversation = prompt(turn % 5, 70)
        for _ in range(4):
            answer = list(llm.generate_tokens(conversation, max_tokens=60))
            conversation += [*answer, *prompt(turn, 5)]
            drawn += len(answer)
        together = [llm.generation(prompt(turn + i, 10 + 30 * i), max_tokens=40, **EVERYTHING) for i in range(5)]
        drawn += sum(1 for _ in llm.run(together))
        left = llm.generate_tokens(prompt(turn, 30), max_tokens=200)
        drawn += sum(1 for _ in zip(range(30), left, strict=False))
        left.close()
        drawn += len(list(llm.generate_tokens(prompt(turn, 480))))  # to the end of the context
    return drawn


def used() -> dict[str, int]:
    """What this process has: bytes in memory, open files, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    return {
        "resident": resident,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


@pytest.mark.parametrize("tokens", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_nothing_grows(folder: Path, tokens: int):
    llm = ingot.LLM(folder, threads=2, sequences=3, context=512)
    answers(llm, 1_000)
    before, memory = used(), llm.memory
    assert answers(llm, tokens) >= tokens
    after = used()
    print(before, after)
    assert after["resident"] - before["resident"] < 256 * 1024
    assert (after["files"], after["threads"]) == (before["files"], before["threads"])
    assert llm.memory == memory
