"""The pool of threads under Python: every run gives the same bits, in a forked child, in a crowd, and at exit."""

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

from ingot.run import library
from ingot.support import abi
from places import KIT
from pool_chain import Chain

pytestmark = [pytest.mark.native, pytest.mark.threads]


@pytest.mark.parametrize("parts", [1, 2, 5, 2000])
@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_threads_and_parts(threads: int, parts: int) -> None:
    chain = Chain(threads, parts)
    assert all(chain.run() for _ in range(20))
    assert chain.run_timed(is_separate=False) and chain.run_timed(is_separate=True)


def test_concurrent_callers() -> None:
    chains = [Chain(threads=1 + i % 4, parts=4, seed=i) for i in range(8)]
    right = [0] * len(chains)

    def call(i: int) -> None:
        for _ in range(100):
            right[i] += chains[i].run()

    callers = [threading.Thread(target=call, args=(i,)) for i in range(len(chains))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [100] * len(chains)


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Runs it with Chain; one that hangs fails."""
    start = f"import os, sys, threading, time\nsys.path.append({str(KIT)!r})\n"
    command = [sys.executable, "-c", f"{start}from pool_chain import Chain\n{script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


FORKS = """
def die_unless(right):
    if not right:
        os._exit(1)

def wait_for(child):
    die_unless(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)

chain, other = Chain(2, 4), Chain(2, 4, seed=2)
done = threading.Event()
def keep_running():
    while not done.is_set():
        die_unless(other.run())
threading.Thread(target=keep_running).start()
for i in range(6):
    die_unless(chain.run())
    child = os.fork()
    if child == 0:
        die_unless(all(chain.run() for _ in range(20)))
        grandchild = os.fork()
        if grandchild == 0:
            die_unless(all(chain.run() for _ in range(20)))
            os._exit(0)
        wait_for(grandchild)
        os._exit(0)
    wait_for(child)
done.set()
print("done")
"""


def test_forked_children_run() -> None:
    result = run_script(FORKS)
    assert (result.returncode, result.stdout.strip()) == (0, "done"), result.stderr


MULTIPROCESSING = """
import multiprocessing
def work(seed):
    return all(Chain(2, 4, seed=seed).run() for _ in range(10))
if __name__ == "__main__":
    right = Chain(2, 4).run()
    with multiprocessing.get_context("fork").Pool(2) as workers:
        print(right, all(workers.map(work, range(8))))
"""


def test_multiprocessing_by_fork() -> None:
    result = run_script(MULTIPROCESSING)
    assert (result.returncode, result.stdout.split()) == (0, ["True", "True"]), result.stderr


def test_one_cpu_and_many_threads() -> None:
    script = """
many = [Chain(8, 8, steps=40), Chain(2, 4)]
before = all(chain.run() for chain in many for _ in range(5))
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
print(before, all(chain.run() for chain in many for _ in range(50)))
"""
    result = run_script(script)
    assert (result.returncode, result.stdout.split()) == (0, ["True", "True"]), result.stderr


@pytest.mark.parametrize("pause", [0, 0.05], ids=["workers still spin", "workers sleep"])
def test_exit_keeps_its_code(pause: float) -> None:
    script = f"""
chain, other = Chain(2, 4), Chain(2, 4, seed=2)
threading.Thread(target=lambda: [other.run() for _ in iter(int, 1)], daemon=True).start()
right = all(chain.run() for _ in range(50))
time.sleep({pause})
sys.exit(3 if right else 1)
"""
    result = run_script(script)
    assert result.returncode == 3, result.stderr


def test_a_bad_index_is_reported_and_then_forgotten() -> None:
    native = library.load()
    ffi = native.ffi
    table, out = np.arange(40, dtype=np.float32).reshape(10, 4), np.zeros((3, 4), np.float32)
    indices = np.array([1, 10, -10], np.int64)
    fault = ffi.new("ingot_fault *")
    args = ffi.new("gather_args *", {"outer": 1, "limit": 10, "inner": 4, "count": 3, "step": 7, "item_bytes": 4})
    args.table, args.out = ffi.cast("void *", table.ctypes.data), ffi.cast("void *", out.ctypes.data)
    args.indices, args.fault = ffi.cast("void *", indices.ctypes.data), fault
    steps = ffi.new("ingot_step[]", [(native.kernel("gather_i64", native.isa()), args, 2, 0, 1)])
    program = ffi.new("ingot_program *", {"steps": steps, "fault": fault, "step_count": 1, "threads": 2})
    assert native.entry.ingot_run(program, ffi.NULL, ffi.NULL) == 1
    assert (fault.code, fault.step, fault.index, fault.limit) == (1, 7, 10, 10)
    indices[1] = -1
    assert native.entry.ingot_run(program, ffi.NULL, ffi.NULL) == 0
    assert fault.code == 0
    np.testing.assert_array_equal(out, table[[1, 9, 0]])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_run_is_stopped_between_two_steps(threads: int) -> None:
    chain = Chain(threads, 4, steps=2000)
    chain.stop[0] = 1
    made = chain.run_stopped()
    assert made == 0
    chain.stop[0] = 0
    assert chain.run_stopped() is None
    made, pauses = None, itertools.cycle(range(40))
    while not made:  # until one was stopped on its way
        chain.stop[0] = 0
        timer = threading.Timer(next(pauses) * 1e-4, chain.stop.__setitem__, (0, 1))
        timer.start()
        made = chain.run_stopped()
        timer.join()
    chain.stop[0] = 0
    assert chain.run()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_step_is_stopped_on_its_way(threads: int) -> None:
    native = library.load()
    ffi = native.ffi
    m, k, n, chunks = 64, 1024, 8192, 64
    a, b, c = np.ones((m, k), np.float32), np.ones((n // 32, k, 32), np.float32), np.empty((m, n), np.float32)
    args = ffi.new("gemm_args *", {"m": m, "n": n, "k": k, "a_stride": k, "c_stride": n, "alpha": 1, "chunks": chunks})
    args.a, args.b, args.c = (ffi.cast("void *", each.ctypes.data) for each in (a, b, c))
    steps = ffi.new("ingot_step[]", [(native.kernel("gemm_f32_packed", native.isa()), args, threads, 0, 1, chunks)])
    stop, fault = np.zeros(1, np.int32), ffi.new("ingot_fault *")
    told = ffi.from_buffer("int32_t[]", stop)
    program = ffi.new("ingot_program *", {"steps": steps, "step_count": 1, "threads": threads, "stop": told})

    def stop_when_begun() -> None:
        while np.isnan(c[0, 0]):
            pass
        stop[0] = 1

    code = 0
    while code == 0:  # until it was seen to begin before it was done
        c.fill(np.nan)
        watcher = threading.Thread(target=stop_when_begun)
        watcher.start()
        code = native.entry.ingot_run(program, ffi.NULL, fault)
        watcher.join()
        stop[0] = 0
    assert code == fault.code == abi.constant("INGOT_STOPPED") and fault.step == 0
    assert np.isnan(c).any()
    assert native.entry.ingot_run(program, ffi.NULL, fault) == 0
    assert (c == k).all()
