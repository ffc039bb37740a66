"""Hostile ONNX files under limits of memory and time, each in a process that a signal would end."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from attacks import hostile_families, hostile_onnx, hostile_subgraphs, hostile_types, hostile_values
from attacks.hostile_values import ENDLESS, RUNS
from forked import Say, batch, limited
from ingot.errors import IngotError
from ingot.load.onnx import load_onnx
from ingot.session.inference import InferenceSession
from onnx_models import text_model
from places import KIT

SECONDS = 20
LOADED = [
    *(*hostile_onnx.FILES, *hostile_onnx.GRAPHS, *hostile_onnx.TENSORS, *hostile_onnx.ATTRIBUTES, *hostile_onnx.BOMBS),
    *(*hostile_subgraphs.SUBGRAPHS, *hostile_types.TYPES, *hostile_families.FAMILIES, *hostile_values.VALUES),
]


def told(error: IngotError, wanted: type, *fragments: str) -> str:
    text = str(error)
    right = type(error) is wanted and all(fragment in text for fragment in fragments) and len(text) < 2000
    return "refused" if right else f"! {type(error).__name__}: {error}"


def judge_load(index: int, say: Say) -> str:
    _, build, error, fragment = LOADED[index]
    source = build()
    say("! slow")
    with limited(SECONDS), tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(source if isinstance(source, bytes) else source.SerializeToString())
        file.flush()
        try:
            load_onnx(file.name)
        except IngotError as caught:
            return told(caught, error, fragment, Path(file.name).name)
    return "! nothing was raised"


def judge_run(index: int, say: Say) -> str:
    _, build, feeds, error, fragment = RUNS[index]
    say("! slow")
    try:
        with limited(SECONDS):
            InferenceSession(build(), threads=1).run(None, feeds)
    except IngotError as caught:
        places = ("node '", "input '", "output '")
        return told(caught, error, fragment, next((p for p in places if p in str(caught)), "a place"))
    return "! nothing was raised"


@pytest.mark.parametrize(("attacks", "judge"), [(LOADED, judge_load), (RUNS, judge_run)], ids=["loads", "runs"])
def test_attacks_end_with_their_error(attacks: list, judge) -> None:
    outcomes = batch(range(len(attacks)), judge)
    assert len(outcomes) == len(attacks)
    assert not {attacks[i][0]: outcome for i, outcome in outcomes.items() if outcome != "refused"}


NARROW = """g (float[64] x) => (y) {
    a = Cast<to=22>(x)  b = Cast<to=1>(a)  c = Cast<to=21>(b)  d = Cast<to=1>(c)  e = Add(b, d)
    f = Cast<to=22>(e)  g = Cast<to=1>(f)  h = Exp(g)  y = Add(h, d) }"""


def judge_narrow(seed: int, say: Say) -> str:
    """INT4 and UINT4 between floats that lie where they lay; INGOT_CHECK=3 has canaries behind each."""
    say("! slow")
    os.environ["INGOT_CHECK"] = "3"
    feeds = {"x": np.random.default_rng(seed).uniform(-9, 9, 64).astype(np.float32)}
    with limited(SECONDS):
        session = InferenceSession(text_model(NARROW, 21), threads=1, strict=True)
        wanted = InferenceSession(text_model(NARROW, 21), executor="interpret").run(None, feeds)[0]
        right = np.allclose(session.run(None, feeds)[0], wanted, rtol=1e-5)
    regions = {each["offset"] for each in session.plan.layout()["tensors"] if each["region"].startswith("arena")}
    return "right" if right and len(regions) < 6 else f"! {right}, {len(regions)} places"


def test_memory_of_low_precision_values_is_reused() -> None:
    assert set(batch(range(5), judge_narrow).values()) == {"right"}


MILLION = """
import resource
from onnx import TensorProto, helper
from ingot.load.onnx import load_onnx
count = 1_000_000
names = ["x", *(f"h{i}" for i in range(count - 1)), "y"]
ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
nodes = [helper.make_node("Relu" if i % 2 else "Neg", [names[i]], [names[i + 1]]) for i in range(count)]
model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), ir_version=10)
content = model.SerializeToString()
del model, nodes
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
print(len(load_onnx(content)))
"""


@pytest.mark.slow
def test_a_million_nodes() -> None:
    command = [sys.executable, "-c", MILLION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1000000"), done.stderr


SCRIPT = """
import signal, sys
sys.path.insert(0, {kit!r})
from attacks.hostile_values import ENDLESS, ENDLESS_FEEDS
from ingot.session.inference import InferenceSession
session = InferenceSession(ENDLESS[{name!r}](), threads=1, executor={executor!r})
feeds = {{i.name: ENDLESS_FEEDS[i.name] for i in session.get_inputs()}}
signal.setitimer(signal.ITIMER_REAL, 0.5)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    session.run(None, feeds)
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.parametrize(("name", "executor"), [(name, "native") for name in ENDLESS] + [("by its count", "interpret")])
def test_a_loop_without_end_is_interrupted(name: str, executor: str) -> None:
    script = SCRIPT.format(kit=str(KIT), name=name, executor=executor)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 7, result.stderr
