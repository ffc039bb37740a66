"""Plain models by the Open Inference Protocol: NVIDIA's client, bad requests, and requests that are joined."""

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser
from starlette.applications import Starlette
from starlette.routing import Mount

import ingot
from http_server import opened, post
from ingot.load.hub import SHIPPED
from ingot.serve import app
from ingot.serve.batching import Batcher, joined_dim
from ingot.serve.plain import DATATYPES, Plain
from serving import serving

CLIENTS = Path(sys.prefix) / "clients"
ONNX = {
    "bool": "bool", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "f16": "float16", "f32": "float", "f64": "double", "bf16": "bfloat16",
    "string": "string",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "bool": [[True, False]], "u8": [[0, 255]], "u16": [[0, 65535]], "u32": [[0, 2**32 - 1]], "u64": [[0, 2**64 - 1]],
    "i8": [[-128, 127]], "i16": [[-(2**15), 2**15 - 1]], "i32": [[-(2**31), 2**31 - 1]], "i64": [[-(2**63), 2**63 - 1]],
    "f16": [[0.1, -65504]], "f32": [[0.1, 1e38]], "f64": [[0.1, 1e300]], "bf16": [[0.5, -3]], "string": [["a", "ü\n"]],
}  # fmt: skip
NUMPY = ONNX | {"f16": "f2", "f32": "f4", "f64": "f8", "bf16": "f4", "string": "O"}


def parsed(text: str) -> bytes:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    onnx.checker.check_model(model)
    return model.SerializeToString()


def kinds() -> bytes:
    """Return each input unchanged, one of each dtype."""
    inputs = ", ".join(f"{kind}[n, 2] {name}" for name, kind in ONNX.items())
    outputs = ", ".join(f"{kind}[n, 2] {name}_out" for name, kind in ONNX.items())
    return parsed(f"kinds ({inputs}) => ({outputs}) {{ {' '.join(f'{n}_out = Identity({n})' for n in ONNX)} }}")


DENSE = parsed("""dense (float[batch, 4] x, float[batch, seq, 4] y) => (float[batch, seq, 4] z)
    { one = Constant<value_ints = [1]>() a = Unsqueeze(x, one) b = Add(a, y) z = Exp(b) }""")
COUPLED = parsed("coupled (float[batch, 4] x) => (float[batch, 4] y) { m = ReduceMax(x) y = Sub(x, m) }")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    models = {"digits": ingot.InferenceSession(SHIPPED["digits"]), "kinds": ingot.InferenceSession(kinds())}
    with serving(app(models)) as address:
        yield address


def test_every_datatype_by_the_client_of_triton(address, tmp_path: Path):
    assert (CLIENTS / "tritonclient").is_dir(), f"{CLIENTS} has no tritonclient: see the Makefile"
    arrays = {name: np.array(value, NUMPY[name]) for name, value in VALUES.items()}
    np.savez(tmp_path / "in.npz", **arrays)
    script = Path(__file__).parents[1] / "kit" / "triton_client.py"
    subprocess.run(
        [sys.executable, script, address.partition("//")[2], tmp_path / "in.npz", tmp_path / "out.npz"],
        env=os.environ | {"PYTHONPATH": str(CLIENTS)}, check=True,
    )  # fmt: skip
    got = np.load(tmp_path / "out.npz", allow_pickle=True)
    for name, array in arrays.items():
        for form in ("binary", "json"):
            found = got[f"{form}:{name}"]
            if name == "string":
                found = np.vectorize(lambda each: each.decode() if isinstance(each, bytes) else each)(found)
            np.testing.assert_array_equal(found, array, err_msg=f"{form} {name}", strict=name != "string")
    session = ingot.InferenceSession(SHIPPED["digits"])
    image = np.linspace(0, 1, 192, dtype=np.float32).reshape(3, 1, 8, 8)
    np.testing.assert_array_equal(got["digits"], session.run(None, {"image": image})[0])
    assert "input 'image': wrong shape, got [3, 1, 7, 8], expected [-1, 1, 8, 8]" in str(got["error"])
    metadata = json.loads(str(got["metadata"]))
    assert metadata["inputs"] == [{"name": name, "datatype": DATATYPES[name], "shape": [-1, 2]} for name in ONNX]


def test_a_request_of_json_alone(address):
    image = np.full((1, 1, 8, 8), 0.5, np.float32)
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    want = ingot.InferenceSession(SHIPPED["digits"]).run(None, {"image": image})[0]
    for data in (image.tolist(), image.ravel().tolist()):
        got = httpx.post(f"{address}/v2/models/digits/versions/1/infer", json={"inputs": [tensor | {"data": data}]})
        answer = got.json()
        assert (answer["model_name"], answer["model_version"]) == ("digits", "1")
        (output,) = answer["outputs"]
        assert (output["datatype"], output["shape"]) == ("FP32", [1, 10])
        np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(1, 10), want)


def tensor(name: str = "x", **changes: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} | changes


STRINGS = tensor("s", datatype="BYTES", shape=[1, 1], data=["a"])
COUNTS = tensor("i", datatype="INT8", shape=[1, 2], data=[1, 2])
GOOD = [tensor(), STRINGS, COUNTS]


def changed(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(**changes), STRINGS, COUNTS]}


def counts(**changes: Any) -> dict[str, Any]:
    return {"inputs": [tensor(), STRINGS, COUNTS | changes]}


BAD = [
    ({}, "missing required field `inputs`"),
    ({"inputs": 1}, "inputs"),
    ({"inputs": GOOD[1:]}, "input 'x': missing"),
    ({"inputs": [*GOOD, tensor()]}, "input 'x': given twice"),
    ({"inputs": [*GOOD, tensor("z")]}, "input 'z': unknown"),
    (changed(datatype="FP64"), "input 'x': wrong datatype, got 'FP64', expected FP32"),
    (changed(shape=[4]), "input 'x': wrong shape, got [4], expected [-1, 4]"),
    (changed(shape=[-1, 4]), "input 'x': wrong shape"),
    (changed(shape=[2**40, 4]), "input 'x': too large"),
    (changed(shape=[2, 4]), "input 'x': wrong size, got 4 values, expected 8"),
    (changed(shape=[1.5, 4]), "shape"),
    (changed(data=[1, 2, 3, "a"]), "input 'x': wrong value, got 'a', expected FP32"),
    (changed(data=[1, 2, 3, None]), "input 'x': wrong value"),
    (changed(data=[[1, 2], [3]]), "input 'x': lists of different lengths"),
    (changed(data=[[1, 2, 3], 4]), "input 'x': lists and values"),
    (changed(data=[1, 2, 3, True]), "input 'x': wrong value"),
    (changed(data=[1, 2, 3, 10**400]), "input 'x': out of range"),
    (changed(parameters={"binary_data_size": 16}), "input 'x': got both"),
    (changed(parameters={"shared_memory_region": "a"}), "input 'x': parameter 'shared_memory_region'"),
    (counts(data=[1, 200]), "input 'i': out of range, got 200, expected -128..127"),
    (counts(data=[1, 1.5]), "input 'i': wrong value, got 1.5, expected INT8"),
    ({"inputs": [tensor(), STRINGS | {"data": [1]}, COUNTS]}, "input 's': no text"),
    ({"inputs": GOOD, "outputs": [{"name": "z"}]}, "output 'z': unknown, expected some of y"),
    ({"inputs": GOOD, "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y': given twice"),
    ({"inputs": GOOD, "outputs": [{"name": "y", "parameters": {"classification": 2}}]}, "output 'y': parameter"),
    ({"inputs": GOOD, "parameters": {"binary_data_output": 1}}, "binary_data_output: got 1"),
    ({"inputs": GOOD, "parameters": {"sequence_id": 3}}, "parameters: 'sequence_id' is not supported"),
    ({"inputs": [tensor(data=[0, 1, 2, 3]), STRINGS, COUNTS]}, "output 'y': NaN or infinity"),
]
BINARY = [
    ([16, 5, 2], 23, "", ""),
    ([15, 5, 2], 22, "", "input 'x': wrong size, got 15 bytes, expected 16"),
    ([16, 5, 2], 24, "", "1 bytes after the last tensor"),
    ([16, 5, 3], 23, "", "input 'i': binary_data_size out of range"),
    ([16, -1, 2], 23, "", "input 's': binary_data_size out of range"),
    ([16, 3, 2], 21, "", "input 's': element 0 is cut"),
    ([16, 6, 2], 24, "", "input 's': wrong size"),
    ([16, 5, 2], 23, "99999", "Inference-Header-Content-Length"),
    ([16, 5, 2], 23, "-1", "Inference-Header-Content-Length"),
]


@pytest.fixture(scope="module")
def checked() -> Iterator[str]:
    text = """checked (float[n, 4] x, string[n, 1] s, int8[n, 2] i) => (float[n, 4] y)
        { u = Identity(s) j = Identity(i) y = Reciprocal(x) }"""
    with serving(app({"checked": ingot.InferenceSession(parsed(text)), "lm": ingot.LLM("tiny-lm")})) as address:
        yield f"{address}/v2/models"


@pytest.mark.parametrize("body, text", BAD, ids=[text for _, text in BAD])
def test_bad_requests_name_the_tensor(checked, body, text):
    got = httpx.post(f"{checked}/checked/infer", json=body)
    assert got.status_code == 400 and text in got.json()["error"], got.text
    assert httpx.post(f"{checked}/checked/infer", json={"inputs": GOOD}).status_code == 200


@pytest.mark.parametrize("sizes, total, length, text", BINARY)
def test_bad_binary_tensors_name_the_tensor(checked, sizes, total, length, text):
    inputs = [{k: v for k, v in each.items() if k != "data"} for each in GOOD]
    inputs = [each | {"parameters": {"binary_data_size": size}} for each, size in zip(inputs, sizes, strict=True)]
    head = json.dumps({"inputs": inputs}).encode()
    content = np.ones(4, "<f4").tobytes() + struct.pack("<I", 1) + b"a" + b"\1\2" + b"\0" * 9
    got = httpx.post(
        f"{checked}/checked/infer", content=head + content[:total],
        headers={"Inference-Header-Content-Length": length or str(len(head))},
    )  # fmt: skip
    assert got.status_code == (400 if text else 200) and text in got.text, got.text


@pytest.mark.parametrize(
    "path, status, text",
    [
        ("none", 404, "got 'none', expected 'checked', 'lm'"),
        ("checked/versions/2", 404, "got '2', expected '1'"),
        ("lm", 400, "got a language model, expected a plain model"),
    ],
)
def test_paths_of_no_plain_model(checked, path, status, text):
    for got in (httpx.get(f"{checked}/{path}"), httpx.post(f"{checked}/{path}/infer", json={"inputs": GOOD})):
        assert got.status_code == status and text in got.json()["error"]


@pytest.mark.parametrize("content", [b"{", b'{"inputs": ' + b"[" * 10_000, b"\xff", b""])
def test_bad_bodies(checked, content):
    assert httpx.post(f"{checked}/checked/infer", content=content).status_code == 400
    for headers in ({"content-type": "text/plain"}, {"origin": "null"}, {"content-encoding": "gzip"}):
        assert httpx.post(f"{checked}/checked/infer", content=content, headers=headers).status_code == 415


def test_outputs_that_are_named_and_binary_ones(address):
    inputs = []
    for name in ONNX:
        parameters = {} if name != "bf16" else {"parameters": {"binary_data_size": 4}}
        data = {} if name == "bf16" else {"data": VALUES[name]}
        inputs.append({"name": name, "datatype": DATATYPES[name], "shape": [1, 2], **data, **parameters})
    outputs = [{"name": "bf16_out", "parameters": {"binary_data": True}}, {"name": "bool_out"}]
    head = json.dumps({"inputs": inputs, "outputs": outputs, "id": "a"}).encode()
    got = httpx.post(
        f"{address}/v2/models/kinds/infer", content=head + np.array([0.5, -3], ml_dtypes.bfloat16).tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )  # fmt: skip
    length = int(got.headers["inference-header-content-length"])
    answer = json.loads(got.content[:length])
    assert answer["id"] == "a" and [each["name"] for each in answer["outputs"]] == ["bf16_out", "bool_out"]
    assert answer["outputs"][1]["data"] == [True, False]
    np.testing.assert_array_equal(np.frombuffer(got.content[length:], ml_dtypes.bfloat16), [0.5, -3])


# -- joined requests --------------------------------------------------------------------------------------------------


def together(batcher: Batcher, feeds: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Submit runs while the thread of the batcher waits for its lock, so that they wait together."""
    with batcher._changed:
        futures = [batcher.submit(feed) for feed in feeds]
    return [future.result(300) for future in futures]


def test_waiting_requests_are_joined_and_get_the_bits_that_they_have_alone():
    session, generator = ingot.InferenceSession(DENSE), np.random.default_rng(0)
    batcher = Batcher(session, most_rows=8)
    feeds = [
        {"x": generator.normal(size=(rows, 4)).astype("f4"), "y": generator.normal(size=(rows, seq, 4)).astype("f4")}
        for rows, seq in [(1, 3), (2, 3), (1, 5), (9, 3), (1, 3), (4, 3), (1, 5)]
    ]
    for _ in range(8):
        for got, feed in zip(together(batcher, feeds), feeds, strict=True):
            np.testing.assert_array_equal(got[0], session.run(None, feed)[0], strict=True)
    runs = batcher.runs
    together(batcher, feeds)
    assert batcher.runs - runs == 3 and batcher.joins  # 1 + 2 + 1 + 4 rows, 1 + 1 rows, and 9 rows
    batcher.close()
    with pytest.raises(ingot.StoppedError):
        batcher.submit(feeds[0])


def test_a_model_that_mixes_its_rows_is_never_joined():
    session = ingot.InferenceSession(COUPLED)
    batcher = Batcher(session)
    assert batcher.joins
    same = [{"x": np.ones((1, 4), np.float32)}] * 2  # equal inputs do not reveal it
    for got in together(batcher, same):
        np.testing.assert_array_equal(got[0], np.zeros((1, 4)))
    feeds = [{"x": np.full((1, 4), value, np.float32)} for value in (1, 2, 3)]
    for got in together(batcher, feeds):
        np.testing.assert_array_equal(got[0], np.zeros((1, 4)))
    assert not batcher.joins
    batcher.close()


def test_a_bad_request_fails_alone():
    table = parsed("""table (int64[n] i) => (float[n, 1] y)
        { t = Constant<value = float[3, 1] {1, 2, 3}>() y = Gather(t, i) }""")
    batcher = Batcher(ingot.InferenceSession(table))
    with batcher._changed:
        futures = [batcher.submit({"i": np.array([index])}) for index in (0, 9, 2)]
    assert [futures[0].result()[0][0], futures[2].result()[0][0]] == [1, 3]
    with pytest.raises(ingot.InputError):
        futures[1].result()
    batcher.close()


JOINED = [
    ("float[n, 2] x", "float[n, 2] y", "y = Exp(x)", "n"),
    ("float[n, n] x", "float[n, n] y", "y = Exp(x)", None),
    ("float[2, n] x", "float[2, n] y", "y = Exp(x)", None),
    ("float[n, 2] x, float[m, 2] z", "float[n, 2] y", "y = Exp(x) u = Exp(z)", None),
    ("float[n, 2] x", "float[2] y", "y = ReduceSum<keepdims = 0>(x, a) ", None),
    ("float x", "float y", "y = Exp(x)", None),
]


@pytest.mark.parametrize("inputs, outputs, nodes, want", JOINED)
def test_the_dim_along_which_requests_are_joined(inputs, outputs, nodes, want):
    text = f"m ({inputs}) => ({outputs}) {{ a = Constant<value_ints = [0]>() {nodes} }}"
    assert joined_dim(ingot.InferenceSession(parsed(text))) == want


def test_many_clients_get_the_answers_of_one(address):
    session, answers = ingot.InferenceSession(SHIPPED["digits"]), {}
    images = np.random.default_rng(1).uniform(size=(24, 1, 1, 8, 8)).astype(np.float32)

    def ask(index: int) -> None:
        data = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": images[index].ravel().tolist()}
        got = httpx.post(f"{address}/v2/models/digits/infer", json={"inputs": [data]}, timeout=300)
        answers[index] = np.array(got.json()["outputs"][0]["data"], np.float32)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, image in enumerate(images):
        np.testing.assert_array_equal(answers[index], session.run(None, {"image": image})[0][0])


def test_the_json_of_a_request_is_limited(monkeypatch):
    with serving(app(ingot.InferenceSession(COUPLED), "m")) as address:
        path = f"{address}/v2/models/m/infer"
        deep = b'{"inputs": ' + b"[" * 100 + b"]" * 100 + b"}"
        got = httpx.post(path, content=deep)
        assert got.status_code == 400 and "too deep" in got.json()["error"]
        monkeypatch.setattr("ingot.serve.infer.MAX_JSON_BYTES", 1000)
        got = httpx.post(path, content=b'{"inputs": []}' + b" " * 1000)
        assert got.status_code == 413 and "JSON too large" in got.json()["error"]


def test_the_bodies_of_all_requests_are_limited_together(monkeypatch):
    monkeypatch.setattr("ingot.serve.infer.MAX_BODY_BYTES", 1000)
    with serving(app(ingot.InferenceSession(COUPLED), "m")) as address:
        path = "/v2/models/m/infer"
        with opened(address) as slow:
            slow.sendall(post(path, b" " * 900)[:-1])
            while (got := httpx.post(address + path, content=b" " * 200)).status_code != 429:
                assert got.status_code == 400
            assert "of all requests in progress" in got.json()["error"] and got.headers["retry-after"]
        while (got := httpx.post(address + path, content=b" " * 200)).status_code == 429:
            pass
        assert got.status_code == 400


def test_a_model_that_cannot_be_served_leaves_no_thread():
    sequence = parsed("s (seq(float[n]) x) => (int64 y) { y = SequenceLength(x) }")
    before = threading.active_count()
    with serving(app({"lm": ingot.InferenceSession(COUPLED)})) as address:
        threads = threading.active_count()
        for _ in range(3):
            with pytest.raises(ingot.UnsupportedError):
                Plain("s", ingot.InferenceSession(sequence))
        assert threading.active_count() == threads
        assert httpx.get(f"{address}/v2/health/ready").json() == {"live": True, "ready": True}
    assert threading.active_count() <= before + 1


def test_keys_and_a_mounted_application():
    inner = app(ingot.InferenceSession(COUPLED), "m", api_keys=["secret"])
    outer = Starlette(routes=[Mount("/models", inner)], lifespan=lambda _: inner.router.lifespan_context(inner))
    outer.state = inner.state
    with serving(outer) as address, httpx.Client(base_url=f"{address}/models") as client:
        for path in ("/v2", "/v2/models/m", "/v2/models/m/ready", "/v2/models/m/versions/1"):
            refused = client.get(path)
            assert refused.status_code == 401 and "wrong key" in refused.json()["error"], path
            assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200, path
        assert client.post("/v2/models/m/infer", json={"inputs": []}).status_code == 401
        assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200


def test_a_full_queue_is_refused():
    with serving(app(ingot.InferenceSession(COUPLED), "m", max_waiting=1)) as address:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
        assert httpx.post(f"{address}/v2/models/m/infer", json=body).status_code == 200
    batcher = Batcher(ingot.InferenceSession(COUPLED), max_waiting=1)
    with batcher._changed:
        first = batcher.submit({"x": np.ones((1, 4), np.float32)})
        with pytest.raises(ingot.ResourceError, match="busy"):
            batcher.submit({"x": np.ones((1, 4), np.float32)})
    assert first.result()
    batcher.close()
