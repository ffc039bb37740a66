"""Traces of runs: every step of every thread, on each executor, in the formats of browsers' tools."""

import itertools
import json
import mmap
import resource
import threading

import numpy as np
import pytest
from torch import nn, ones, zeros

import ingot
from ingot.errors import InputError, ReferenceWarning, UnsupportedError
from ingot.session.trace import Trace
from ingot.session.trace_formats import FORMATS, QUANTITIES
from ingot.support.counters import counted_events
from ingot.support.spans import recorded, span
from models import block
from onnx_models import text_model

SEGMENTS = "g (float[3] x) => (a, b) { a = Neg (x) i = NonZero (x) b = Abs (x) }"


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", zeros(2))

    def forward(self, x):
        self.n += x
        return self.n + 0


def session(**options) -> tuple[ingot.InferenceSession, dict[str, np.ndarray]]:
    module, (x,) = block()
    made = ingot.InferenceSession(module, example_inputs=(x,), **options)
    return made, {made.get_inputs()[0].name: x.numpy()}


@pytest.mark.parametrize("threads", [1, 2])
def test_each_thread_computes_its_steps_in_order(threads):
    made, feeds = session(threads=threads)
    trace = made.trace(feeds, runs=3)
    assert trace.times.shape == (3, len(made.plan.programs[0].plan.steps), threads, 2)
    times = trace.times[:, :, 0].reshape(3, -1)
    assert times.all() and (np.diff(times) >= 0).all() and (times[1:, 0] >= times[:-1, -1]).all()
    assert 1 <= trace.threads <= threads and len(trace.waiting) == trace.threads
    assert 0 < max(step.nanoseconds for step in trace.steps) <= threads * trace.run_nanoseconds
    assert {step.node for step in trace.steps} == {step.node for step in made.profile(feeds).steps}


def test_a_traced_run_is_a_run():
    """It updates states once, as does a run of a session with a profile."""
    options = ingot.SessionOptions()
    options.enable_profiling = True
    for given in ((), (options,)):
        made = ingot.InferenceSession(Counter(), *given, example_inputs=(ones(2),))
        feeds = {made.get_inputs()[0].name: np.ones(2, np.float32)}
        made.trace(feeds, runs=2)
        assert made.run(None, feeds)[0].tolist() == [3, 3]
        assert made.run(None, feeds)[0].tolist() == [4, 4]


def test_the_interpreter_has_a_step_for_each_node():
    made, feeds = session(executor="interpret")
    trace = made.trace(feeds, runs=2)
    assert [step.node for step in trace.steps] == [node.outputs[0] for node in made.graph.nodes]
    assert (trace.times[..., 1] > trace.times[..., 0]).all() and trace.threads == 1


def test_formats_of_tools(tmp_path):
    with recorded() as spans:
        made, feeds = session(threads=2)
        made.run(None, feeds)
    trace = made.trace(feeds, runs=2).compiled_in(spans)
    for form in FORMATS:
        trace.save(tmp_path / form, form)
    events = json.loads((tmp_path / "chrome").read_text())
    nodes = [each for each in events if each.get("cat") == "Node"]
    assert len(nodes) == (trace.times[..., 1] > 0).sum()
    assert {each["args"]["id"] for each in nodes} == set(range(len(trace.steps)))
    assert {each["name"] for each in events if each.get("cat") == "Compilation"} >= {"load", "passes", "plan memory"}
    for row in {each["tid"] for each in events if each["ph"] == "X" and each["cat"] != "Compilation"}:
        ends = [(each["ts"], each["ts"] + each["dur"]) for each in events if each["tid"] == row and each["ph"] == "X"]
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in itertools.pairwise(ends))
    document = json.loads((tmp_path / "speedscope").read_text())
    assert [each["name"] for each in document["profiles"]][-1] == "compilation"
    for profile in document["profiles"]:
        opened = []
        for event in profile["events"]:
            if event["type"] == "O":
                opened.append(event["frame"])
            else:
                assert opened.pop() == event["frame"]
        assert not opened and profile["events"][0]["at"] == profile["startValue"]
    results = json.loads((tmp_path / "model-explorer").read_text())["results"]
    assert sum(results[step.node]["value"] for step in trace.steps) == pytest.approx(
        sum(step.nanoseconds for step in trace.steps) / 1000
    )


def test_node_data_count_each_step_once():
    """The last of a step's nodes of the file has its number, the others 0: sums over groups are right."""
    model = text_model(
        "g (float[4,8] x) => (float[4,8] y) <float[8,8] w = {" + ",".join(["1"] * 64) + "}> "
        "{ [matmul] m = MatMul (x, w) [relu] r = Relu (m) [neg] y = Neg (r) }"
    )
    made = ingot.InferenceSession(model, threads=1)
    trace = made.trace({"x": np.ones((4, 8), np.float32)}, runs=3)
    for quantity in QUANTITIES:
        document = trace.node_data(quantity)
        values = {name: document["results"][name]["value"] for name in ("matmul", "relu", "neg")}
        assert {name for name, value in values.items() if value} <= {step.sources[-1].name for step in trace.steps}
        assert sum(values.values()) == pytest.approx(
            sum(document["results"][each.node]["value"] for each in trace.steps)
        )
    assert document["gradient"][0]["stop"] == 0 and document["gradient"][-1]["stop"] == 1


def test_spans_are_recorded_where_a_caller_asks():
    with span("nobody asks"):
        pass
    with recorded() as spans, span("outer"), span("inner"):
        pass
    assert [each.name for each in spans] == ["inner", "outer"]
    assert spans[1].begin <= spans[0].begin <= spans[0].end <= spans[1].end


def test_what_cannot_be_traced():
    made, feeds = session(threads=1)
    with pytest.raises(InputError, match="option runs: out of range, got 0"):
        made.trace(feeds, runs=0)
    with pytest.warns(ReferenceWarning), pytest.raises(UnsupportedError, match="segments, expected one"):
        parts = ingot.InferenceSession(text_model(SEGMENTS.replace("(a, b)", "(a, b, i)")), threads=1)
        parts.run(None, {"x": np.ones(3, np.float32)})
        parts.trace({"x": np.ones(3, np.float32)})


def test_a_trace_is_printed():
    made, feeds = session(threads=1)
    trace = made.trace(feeds)
    assert isinstance(trace, Trace) and repr(trace).startswith("<Trace: 1 run, ")
    assert str(trace).count("\n") == len(trace.steps) + 1


def test_the_command(call, tmp_path):
    code, out, _ = call("profile", "digits", "--runs", 2, "--top", 3, "-o", tmp_path / "trace.json")
    assert code == 0 and "compilation: load " in out and "Perfetto" in out
    assert json.loads((tmp_path / "trace.json").read_text())
    code, out, _ = call("profile", "digits", "--runs", 2, "--json", "--executor", "interpret")
    document = json.loads(out)
    assert ("cycles" in document["counters"]) != bool(document["no_counters"])
    assert code == 0 and document["executor"] == "interpret" and document["runs"] == 2 and document["compilation"]


def test_counters_count_all_threads():
    """Page faults need no hardware; their number is known to another part of the kernel, too."""
    threads, pages = 3, 500
    begin, touched = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def touch() -> None:
        begin.wait()
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1
        touched.wait()

    running = [threading.Thread(target=touch) for _ in range(threads)]
    for each in running:
        each.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with counted_events() as counters:
        begin.wait()
        touched.wait()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for each in running:
        each.join()
    assert bool(counters.refusal) == ("cycles" not in counters.totals)
    if "page_faults" in counters.totals:  # a container may refuse perf events
        assert threads * pages <= counters.totals["page_faults"] <= after - before
