"""The report: its data agrees with the other documents, its layout overlaps nowhere, its page works in a browser."""

import base64
import json
import re
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import ingot
from chromium import Chromium, Tab
from ingot.emit.c import HOSTED
from ingot.emit.interface import PREFIX, RUN, interface
from ingot.emit.source import source
from ingot.inspect.model import InspectedModel
from ingot.inspect.plans import measured_run, measured_steps
from ingot.inspect.report import report_document, report_page
from ingot.inspect.report.against import against_document, against_page
from ingot.inspect.report.code import code_document
from ingot.inspect.report.layout import HEIGHT, WIDTH, layout
from inspect_models import DIGITS, TINY_LM, write_large, written_onnx


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, dict]:
    model = InspectedModel(str(DIGITS), assumed=1)
    times, machine = measured_run(str(DIGITS), {"batch": 1}, None, 1, 3)
    found = ingot.compare(DIGITS, threads=1)
    document = report_document(model, times, machine, found)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_page(document))
    return path, document


def data_of(path: Path, part: str = "data") -> dict:
    """The data in a page, or its C."""
    packed = re.search(rf'id="{part}">([^<]*)<', path.read_text())
    assert packed is not None
    return json.loads(zlib.decompress(base64.b64decode(packed.group(1))))


def test_a_page_contains_its_document(page) -> None:
    path, document = page
    whole = json.loads(json.dumps(document, default=str))
    assert data_of(path, "code") == whole.pop("code") and data_of(path) == whole
    text = path.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|https?:", text.partition('id="data"')[0])
    model = InspectedModel(str(DIGITS), assumed=1)
    for stage, shown in document["stages"].items():
        view = model.view(stage)
        assert shown["names"] == list(view.items) and len(shown["x"]) == len(shown["names"])
    plan = model.compiled.segments[0].plan
    assert document["arena"]["bytes"] == plan.arena_bytes and document["arena"]["peak_bytes"] == plan.lower_bound_bytes
    assert {(row[1], row[2]) for row in document["arena"]["rectangles"]} == set(plan.live.values())
    assert sum(row[2] for row in document["weights"]["formats"]) == sum(row[3] for row in document["weights"]["rows"])


def test_numbers_of_nodes_are_those_of_runs_and_plans(page) -> None:
    _, document = page
    plan = document["stages"]["plan"]
    assert set(plan["numbers"]) == {"time", "bytes", "flops", "error"}
    for node, time in ((row["node"], row["nanoseconds"]) for row in document["measured"] if row["node"] == "gelu_1"):
        assert plan["numbers"]["time"][plan["names"].index(node)] == time
        assert document["stages"]["graph"]["numbers"]["time"][document["stages"]["graph"]["names"].index(node)] == time
        assert document["modules"][node] == "classifier.features.2"
    value = ingot.compare(DIGITS, threads=1).value("gelu_1")
    assert plan["numbers"]["error"][plan["names"].index("gelu_1")] == value.local.maximum / value.tolerance
    (refused, *_) = InspectedModel(str(DIGITS), assumed=1, threads=1).explain("gelu_1").choices[0].candidates
    reasons = [text for label, text in plan["details"][plan["names"].index("gelu_1")] if label == "other kernels"]
    assert any(refused[0] in text and refused[1] in text for text in reasons)
    timeline = document["machine"]["timeline"]
    assert timeline["threads"] == 1 and [span[1] for span in timeline["spans"]] == [*range(len(plan["names"]))]
    assert all(begin <= end <= after for (_, _, begin, end), (_, _, after, _) in pairwise(timeline["spans"]))


def test_a_step_has_the_lines_of_the_emitted_file(page) -> None:
    _, document = page
    words = " ".join(source(interface({RUN: InspectedModel(str(DIGITS), assumed=1).compiled}, PREFIX), HOSTED).split())
    code, plan = document["code"], document["stages"]["plan"]
    for (text, loop, layer), kernel in zip(code["steps"], plan["ops"], strict=True):
        assert " ".join(code["texts"][text].split()) in words and f"K({kernel})(&s" in code["texts"][text]
        assert code["texts"][loop] == "" and layer == 0
        assert kernel.removesuffix("_f32") in code["kernels"][kernel]
    assert code["omitted"] == "" and set(code["kernels"]) == set(plan["ops"])


def test_steps_of_equal_layers_have_one_text_and_their_loop() -> None:
    model = InspectedModel(TINY_LM, threads=1)
    code, plan = code_document(model), model.view("plan")
    words = " ".join(source(interface({RUN: model.uninterrupted}, PREFIX), HOSTED).split())
    texts = [" ".join(text.split()) for text in code["texts"]]
    assert all(text in words for text in texts) and None not in code["steps"]
    by_text: dict[int, list[int]] = {}
    for text, loop, layer in code["steps"]:
        assert bool(texts[loop]) == ("layer" in texts[text]) or layer == 0
        by_text.setdefault(text, []).append(layer)
    assert all(layers == list(range(len(layers))) for layers in by_text.values())
    assert len(texts) < len(plan.items) and max(map(len, by_text.values())) > 2


def test_a_model_without_c_says_why(tmp_path) -> None:
    path = written_onnx(tmp_path / "words.onnx", "g (string[3] x) => (string[3] y) { y = StringConcat(x, x) }")
    code = code_document(InspectedModel(str(path)))
    assert "no kernel" in code["omitted"] and code["steps"] == [None] and not code["texts"]
    model = InspectedModel(str(DIGITS), assumed=1, executor="webgpu")
    code = code_document(model)
    assert "webgpu" in code["omitted"] and code["steps"] == [None] * len(model.view("plan").items)


def test_the_changes_of_passes_lead_from_one_graph_to_the_other(page) -> None:
    _, document = page
    assert document["passes"][-1]["nodes"] == len(document["stages"]["optimized"]["names"])
    lines = [line for change in document["passes"] for line in change["diff"]]
    assert any(line.startswith("-gelu_1 = mul(") for line in lines) and not any(
        row["more"] for row in document["passes"]
    )
    assert any(line.startswith("+gelu_1 = gelu(") for line in lines)


@pytest.mark.parametrize("seed", range(8))
def test_nodes_are_inside_of_their_groups_and_overlap_nowhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 300))
    paths = [tuple(f"m{i}" for i in rng.integers(0, 3, rng.integers(0, 4))) for _ in range(count)]
    edges = [(int(rng.integers(0, b)), b) for b in range(1, count) for _ in range(int(rng.integers(0, 3)))]
    found = layout(paths, edges)
    boxes = {box.path: box for box in found.boxes}
    for path, (x, y) in zip(paths, found.nodes, strict=True):
        assert x >= 0 and x + WIDTH <= found.width + 1e-6 and y >= 0 and y + HEIGHT <= found.height + 1e-6
        for length in range(1, len(path) + 1):
            box = boxes[path[:length]]
            assert box.x <= x and x + WIDTH <= box.x + box.width and box.y <= y and y + HEIGHT <= box.y + box.height
    ordered = sorted(found.nodes)
    assert len(set(ordered)) == count
    for i, (x, y) in enumerate(ordered):
        for other_x, other_y in ordered[i + 1 : i + 40]:
            assert other_x >= x + WIDTH - 1e-6 or abs(other_y - y) >= HEIGHT - 1e-6


def test_a_chain_is_read_from_top_to_bottom() -> None:
    found = layout([()] * 10, list(pairwise(range(10))))
    assert all(a[1] < b[1] and a[0] == b[0] for a, b in pairwise(found.nodes))


def test_the_command_writes_a_page(call, tmp_path) -> None:
    code, out, err = call("report", TINY_LM, "-o", tmp_path / "lm.html")
    assert (code, err) == (0, "") and "after the passes" in out
    assert set(data_of(tmp_path / "lm.html")["stages"]) == {"graph", "optimized", "plan"}
    assert call("report", TINY_LM, "-o", tmp_path / "lm.html", "--measure")[0] == 2


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Path, dict]:
    """Two precisions of a model."""
    models = [InspectedModel(str(DIGITS), assumed=1, precision=precision, threads=1) for precision in (None, "int8")]
    times = [measured_steps(str(DIGITS), {"batch": 1}, precision, 1, 3)[0] for precision in (None, "int8")]
    document = against_document(models[0], models[1], (times[0], times[1]))
    path = tmp_path_factory.mktemp("against") / "both.html"
    path.write_text(against_page(document))
    return path, document


def test_the_memory_of_a_run_is_a_function_of_a_dim(call, tmp_path) -> None:
    path = str(tmp_path / "sizes.html")
    code, out, _ = call("report", DIGITS, "--sizes", "batch=3..20", "-o", path, "--json")
    assert code == 0
    found = json.loads(out)["sizes"]
    assert (found["dim"], [row["size"] for row in found["rows"]]) == ("batch", [3, 6, 12, 20])
    for row in found["rows"]:
        plan = ingot.InferenceSession(DIGITS, dims={"batch": row["size"]}).plan.layout()
        assert row["arena_bytes"] == plan["arena_bytes"] >= row["lower_bound_bytes"]
    for given, expected in (
        ("batch=2", "expected NAME=FROM..TO"), ("batch=3..2", "expected NAME=FROM..TO"), ("n=1..2", "expected batch"),
    ):  # fmt: skip
        code, _, error = call("report", DIGITS, "--sizes", given, "-o", path)
        assert code != 0 and expected in error
    code, _, error = call("report", TINY_LM, "--sizes", "batch=1..2", "-o", path)
    assert code == 2 and "language model" in error


def test_a_size_that_a_model_refuses_is_shown_with_its_error(call, tmp_path) -> None:
    path = written_onnx(
        tmp_path / "fixed.onnx",
        "g (float[n,4] x) => (float[a,b,c] z) { s = Constant <value_ints = [1,2,2]> () z = Reshape (x, s) }",
    )
    code, out, _ = call("report", path, "--sizes", "n=1..2", "-o", tmp_path / "out.html", "--json")
    first, second = json.loads(out)["sizes"]["rows"]
    assert code == 0 and "arena_bytes" in first and "error" in second


def test_two_models_are_compared_by_the_names_of_nodes(both) -> None:
    path, document = both
    whole = json.loads(json.dumps(document, default=str))
    assert data_of(path, "code") == {side: whole[side].pop("code") for side in "ab"} and data_of(path) == whole
    difference = document["difference"]
    assert difference["a"]["precision"] == "f32" and difference["b"]["precision"] == "int8"
    for stage, marks in difference["marks"].items():
        for side, other in ("ab", "ba"):
            here, there = (document[each]["stages"][stage]["names"] for each in (side, other))
            assert [mark == 2 for mark in marks[side]] == [name not in there for name in here]
    assert not any(difference["marks"]["graph"]["a"]) and any(difference["marks"]["plan"]["a"])
    changed = {row["name"] for row in difference["changed"]}
    for row in difference["nodes"]:
        assert (row["a"]["kernels"] != row["b"]["kernels"]) == (row["name"] in changed)
        for side in "ab":
            own = [each for each in document[side]["measured"] if each["node"] == row["name"]]
            assert row[side]["nanoseconds"] == sum(each["nanoseconds"] for each in own)
    assert sum(row["a"]["bytes"] for row in difference["nodes"]) == difference["a"]["bytes"]


def test_the_command_writes_two_models(call, tmp_path) -> None:
    path = tmp_path / "same.html"
    code, out, _ = call("report", DIGITS, "--against", DIGITS, "-o", path)
    assert code == 0 and "nodes of B that differ: 0 as loaded, 0 after the passes, 0 lowered" in out
    assert not data_of(path)["difference"]["changed"]
    code, out, _ = call("report", DIGITS, "--b-precision", "int8", "-o", path, "--json")
    assert code == 0 and json.loads(out)["b"]["arena"]["bytes"] < json.loads(out)["a"]["arena"]["bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_of_two_works_in_a_browser(browser: Chromium, both, width: int, dark: bool) -> None:
    path, document = both
    tab = Tab(browser, f"file:{'//'}{path}", dark=dark)
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    tab.wait_for("window.report")
    for number in range(4):
        tab.evaluate(f"document.querySelectorAll('#tabs button')[{number}].click()")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.evaluate("document.querySelectorAll('#tabs button')[1].click()")
    tab.wait_for("report.drawings.a.painted > 0 && report.drawings.b.painted > 0")
    tab.evaluate("document.getElementById('differing').click()")
    shown = [tab.evaluate(f"document.getElementById('details-{side}').textContent") for side in "ab"]
    (first, *_) = (row for row in document["difference"]["changed"])
    assert all(first["name"] in text for text in shown) and shown[0] != shown[1]
    assert tab.wait_for("document.querySelectorAll('#details-a .code, #details-b .code').length") > 1
    assert not tab.errors and tab.requests == [f"file:{'//'}{path}"]
    tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_works_in_a_browser(browser: Chromium, page, width: int, dark: bool) -> None:
    path, document = page
    tab = Tab(browser, f"file:{'//'}{path}", dark=dark)
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    tab.wait_for("window.report && window.report.drawing.painted > 0")
    tab.evaluate("document.getElementById('search').value = 'gelu_1'")
    tab.evaluate("document.getElementById('search').dispatchEvent(new Event('input'))")
    assert "gelu_1" in tab.evaluate("document.getElementById('details').textContent")
    for quantity in ("time", "bytes", "flops", "error"):
        tab.evaluate(f"paint.value = '{quantity}', paint.dispatchEvent(new Event('change'))")
        assert tab.evaluate("new Set(report.data.stages.plan.names.map((_, i) => report.drawing.fill(i))).size") > 1
    assert "K(conv2d_f32" in tab.wait_for("document.querySelector('.code')?.textContent")
    for number in range(7):
        tab.evaluate(f"document.querySelectorAll('#tabs button')[{number}].click()")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("document.querySelectorAll('#passes details').length") == len(document["passes"])
    assert tab.evaluate("document.querySelectorAll('#errors canvas, #time canvas').length") > 2
    rows = tab.evaluate("document.querySelectorAll('#warnings table tbody tr').length")
    assert rows == sum(kind["count"] for kind in document["warnings"])
    tab.evaluate("document.querySelector('#warnings .link').click()")
    assert document["warnings"][0]["rows"][0][0] in tab.evaluate("document.getElementById('details').textContent")
    rows = tab.evaluate("document.querySelectorAll('#weights table')[1].rows.length")
    assert rows == document["weights"]["count"] + 1
    assert not tab.errors and tab.requests == [f"file:{'//'}{path}"]
    tab.close()


_PANNED = """(() => {
  const {drawing} = report, {canvas} = drawing;
  const pixels = () => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  drawing.scale = 0.2;
  drawing.left = drawing.top = 500;
  drawing.paint();
  for (const [dx, dy] of [[40, 0], [-13, 7], [-90, -60], [0, 25]]) {
    drawing.pan(dx, dy);
    drawing.scroll(dx, dy);
    drawing.moved = null;
  }
  const panned = pixels();
  drawing.paint();
  return pixels().reduce((most, each, i) => Math.max(most, Math.abs(each - panned[i])), 0);
})()"""


@pytest.mark.slow
def test_twenty_thousand_nodes_are_drawn(browser: Chromium, tmp_path) -> None:
    model = InspectedModel(str(write_large(tmp_path / "large.onnx", 4000)), assumed=1)
    path = tmp_path / "large.html"
    path.write_text(report_page(report_document(model)))
    tab = Tab(browser, f"file:{'//'}{path}")
    tab.wait_for("window.report && window.report.drawing.painted > 0")
    tab.evaluate("report.drawing.fit(), report.drawing.paint()")
    assert tab.evaluate("report.drawing.painted") == 20_000
    assert path.stat().st_size < 4e6 and not tab.errors
    tab.evaluate("report.drawing.select(report.data.stages.graph.names.indexOf('layers.1999.relu'))")
    assert "K(gemv_f32_packed)" in tab.wait_for("document.querySelector('.code')?.textContent")
    assert tab.evaluate(_PANNED) <= 32  # of 255: antialiasing depends on how many lines are painted together
    tab.close()
