"""Threads, forks and signal handlers over shared sessions: everybody gets the bits that it gets alone. Needs no torch:
runs under the sanitizers too.
"""

import subprocess
import sys

import pytest

import schedules
from places import KIT

pytestmark = pytest.mark.threads


@pytest.mark.parametrize("seed", range(12))
def test_schedule(seed: int) -> None:
    schedules.check(seed)


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Runs it with the names of `schedules`; one that hangs fails."""
    start = f"import sys\nsys.path.append({str(KIT)!r})\nfrom schedules import *\n"
    return subprocess.run([sys.executable, "-c", start + script], capture_output=True, text=True, timeout=120)


FORKS = """
import os, signal
sessions = {name: ingot.InferenceSession(graph(name), threads=2) for name in MODELS}
CASES = [(name, batch, seed) for name in MODELS for batch in (2, 96, 200) for seed in range(2)]
for case in CASES:
    expected(*case)
done = threading.Event()

def keep_running(i):  # more bindings than are kept: one of the threads compiles at any time
    batch = 1
    while not done.is_set():
        batch = batch % 40 + 1
        for name, session in sessions.items():
            session.run(None, feed(name, batch if i else 96 + batch % 2, 0))

threads = [threading.Thread(target=keep_running, args=(i,), daemon=True) for i in range(3)]
sys.setswitchinterval(1e-4)
for thread in threads:
    thread.start()
codes = []
for _ in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        right = all(bits(sessions[name].run(None, feed(name, *case))) == expected(name, *case) for name, *case in CASES)
        os._exit(0 if right else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
print(set(codes))
"""


def test_forks_while_other_threads_run_and_compile() -> None:
    """A forked child finds no lock held by a thread of its parent, and no incomplete program."""
    result = run_script(FORKS)
    assert result.stdout.strip() == "{0}", (result.stdout, result.stderr)


SIGNALS = """
import os, signal, collections
sessions = {name: ingot.InferenceSession(graph(name), threads=2) for name in MODELS}
CASES = [(name, batch, 0) for name in MODELS for batch in (2, 64, 200)]
for case in CASES:
    expected(*case)
seen = collections.Counter()

def right(name, *case):
    return bits(sessions[name].run(None, feed(name, *case))) == expected(name, *case)

def handle(signum, frame):
    case = CASES[sum(seen.values()) % len(CASES)]
    try:
        seen["right" if right(*case) else "wrong"] += 1
    except ingot.InputError as error:
        seen["told" if "as from a signal handler" in str(error) else "wrong"] += 1
    signal.setitimer(signal.ITIMER_REAL, 0.003)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.003)
for turn in range(40):
    for batch in (turn % 20 + 1, 2, 64, 200):  # more bindings than are kept
        for name in sessions:
            case = (name, batch, 0)
            assert bits(sessions[name].run(None, feed(*case))) == expected(*case), case
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert seen["right"] and not seen["wrong"], seen
print("done")
"""


def test_runs_in_signal_handlers() -> None:
    """They get the right bits, or an error that they are inside a call that compiles; the call itself is unharmed."""
    result = run_script(SIGNALS)
    assert (result.returncode, result.stdout.strip()) == (0, "done"), result.stderr


HANDLER_FORKS = """
import os, signal
session = ingot.InferenceSession(graph("cut"), threads=2)
right = {batch: expected("cut", batch, 0) for batch in range(1, 31)}
codes = []

def handle(signum, frame):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # ends a child that hangs
        global is_child
        is_child = True
    else:
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        signal.setitimer(signal.ITIMER_REAL, 0.02)

is_child = False
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.02)
for batch in (*range(1, 31), 1, 2, 3):
    if bits(session.run(None, feed("cut", batch, 0))) != right[batch]:
        os._exit(1)
    if is_child:  # the call in which it forked is done, and another
        os._exit(int(bits(session.run(None, feed("cut", 7, 0))) != right[7]))
print(set(codes))
"""


def test_forks_from_inside_a_call() -> None:
    """The child goes on with the call that its thread was in, whatever lock that holds, and makes others."""
    result = run_script(HANDLER_FORKS)
    assert result.stdout.strip() == "{0}", (result.stdout, result.stderr)
