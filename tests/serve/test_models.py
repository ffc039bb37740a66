"""Several models of one server: loaded when they are used, unloaded when they are idle or for others."""

import contextlib
import dataclasses
import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

import ingot
from attacks.hostile_configs import write_llama
from ingot.cli.demo_language import FOLDER
from ingot.cli.serve import usual_name
from ingot.llm import memory_of
from ingot.load.hub import SHIPPED
from ingot.serve import app
from ingot.serve.sources import Opening
from serving import serving

OPTIONS = {
    "context": 256,
    "precision": "f32",
    "cache_dtype": None,
    "threads": 1,
    "executor": "native",
    "template": None,
}
BODY = {"prompt": "def add(a, b):", "max_tokens": 4, "temperature": 0}
LONG = BODY | {"max_tokens": 220, "logit_bias": {"0": -100}, "stream": True}


def opening(budget: int = 1 << 30, **changes: Any) -> Opening:
    return Opening(OPTIONS | changes, 2, 16, budget)


def source(**changes: Any):
    return opening(**changes).source(FOLDER)


@contextlib.contextmanager
def server(names: str = "a b", **options: Any) -> Iterator[httpx.Client]:
    """A client of a server of tiny-lm under several names."""
    with serving(app(dict.fromkeys(names.split(), source()), **options)) as address, client_of(address) as client:
        yield client


def client_of(address: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=300)


def states(client: httpx.Client) -> dict[str, str]:
    return {model["id"]: model["state"] for model in client.get("/v1/models").json()["data"]}


def complete(client: httpx.Client, name: str | None, body: dict[str, Any] = BODY) -> httpx.Response:
    return client.post("/v1/completions", json=body if name is None else body | {"model": name})


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("the condition never held")


def test_models_are_loaded_on_first_use_and_all_are_listed():
    with server("a b c") as client:
        assert states(client) == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
        answers = [complete(client, name).json() for name in ("b", "a", None)]
        assert [answer["model"] for answer in answers] == ["b", "a", "a"]
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        assert states(client) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        one = client.get("/v1/models/b").json()
        assert (one["kind"], one["max_model_len"]) == ("language", 256) and one["nbytes"] > 1 << 20
        assert client.post("/tokenize", json={"prompt": "x", "model": "c"}).json()["max_model_len"] == 256
        assert states(client)["c"] == "loaded"


def test_an_unknown_model_is_an_error_that_names_the_known_ones():
    with server("a b") as client:
        for got in (complete(client, "x"), client.get("/v1/models/x")):
            error = got.json()["error"]
            assert got.status_code == 404 and error["code"] == "model_not_found"
            assert "got 'x', expected 'a', 'b'" in error["message"]
        assert states(client) == {"a": "loaded", "b": "unloaded"}


def test_idle_models_are_unloaded_and_loaded_again():
    with server("a b", idle=0.2) as client:
        first = complete(client, "b").json()["choices"]
        wait_until(lambda: states(client) == {"a": "unloaded", "b": "unloaded"})
        assert client.get("/v1/models/a").json()["nbytes"] == 0
        assert 'ingot_completion_tokens_total{model="b"} 4.0' in client.get("/metrics").text
        assert complete(client, "b").json()["choices"] == first
        assert 'ingot_completion_tokens_total{model="b"} 8.0' in client.get("/metrics").text


def test_a_model_is_unloaded_for_another_only_when_nothing_uses_it():
    need = int(1.5 * source().nbytes())
    with server("a b", memory=need) as client:
        with client.stream("POST", "/v1/completions", json=LONG | {"model": "a"}) as response:
            lines = response.iter_lines()
            next(lines)
            threads = [threading.Thread(target=lambda: results.append(complete(client, "b"))) for _ in range(2)]
            results: list[httpx.Response] = []
            for thread in threads:
                thread.start()
            wait_until(lambda: states(client)["b"] == "loading")
            text = "".join(lines)
            assert '"finish_reason":"length"' in text and text.endswith("data: [DONE]")
        for thread in threads:
            thread.join()
        assert [each.status_code for each in results] == [200, 200]
        assert states(client) == {"a": "unloaded", "b": "loaded"}
        assert complete(client, "a").status_code == 200
        assert states(client) == {"a": "loaded", "b": "unloaded"}


def test_loading_a_model_does_not_delay_the_others():
    begun, may_end, slow = threading.Event(), threading.Event(), source()

    def start(name: str):
        begun.set()
        assert may_end.wait(300)
        return slow.start(name)

    with (
        serving(app({"a": source(), "b": replace(slow, start=start)})) as address,
        client_of(address) as client,
    ):
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(complete(client, "b")))
        thread.start()
        assert begun.wait(300)
        with contextlib.suppress(httpx.ReadTimeout):  # a client that goes away does not stop the loading
            httpx.post(f"{address}/v1/completions", json=BODY | {"model": "b"}, timeout=httpx.Timeout(10, read=0.05))
        assert complete(client, "a").status_code == 200
        assert states(client) == {"a": "loaded", "b": "loading"}
        may_end.set()
        thread.join()
        assert results[0].status_code == 200 and states(client)["b"] == "loaded"


def test_a_model_that_cannot_be_loaded_or_is_too_large_leaves_the_others(tmp_path: Path, caplog):
    folder = write_llama(tmp_path / "llama")
    broken = opening(context=8).source(str(folder))
    (folder / "model.safetensors").write_bytes(b"damaged")
    large = replace(source(), nbytes=lambda: 1 << 40)
    with serving(app({"a": source(), "broken": broken, "large": large}, memory=1 << 30)) as address:
        client = client_of(address)
        for name, text in (("broken", "cannot be loaded"), ("large", "too large, got 1099511627776 bytes")):
            got = complete(client, name)
            assert got.status_code == 503 and text in got.json()["error"]["message"], got.text
            assert states(client)[name] == "failed"
            assert str(tmp_path) not in got.text + client.get("/v1/models").text
        assert complete(client, "a").status_code == 200
    assert [(each.message, each.facts["model"]) for each in caplog.records if each.levelname == "ERROR"] == [
        ("a model cannot be loaded", "broken")
    ]
    assert str(folder) in caplog.records[0].facts["reason"]


def test_an_unloaded_model_leaves_no_memory():
    running = source().start("a")
    dropped = [weakref.ref(each) for each in (running.llm, running.llm.engine, running.service)]
    running.close()
    del running
    gc.collect()
    assert [each() for each in dropped] == [None, None, None]


def test_the_context_fits_the_memory():
    budget = ingot.LLM(FOLDER, context=128, sequences=2, threads=1, precision="f32").memory.total
    fitting = opening(budget, context=None)
    assert fitting.source(FOLDER).nbytes() <= budget
    running = fitting.source(FOLDER).start("a")
    assert running.llm.context in (64, 128)
    running.close()
    with pytest.raises(ingot.LimitError, match="too large for a context of 256"):
        opening(budget).source(FOLDER).nbytes()


def test_the_memory_of_a_draft_model_counts():
    plain, drafting = opening(1 << 30), dataclasses.replace(opening(1 << 30), steps={"draft": FOLDER})
    draft = memory_of(FOLDER, context=256, threads=1, sequences=drafting.sequences).total
    assert drafting.source(FOLDER).nbytes() == plain.source(FOLDER).nbytes() + draft
    running = drafting.source(FOLDER).start("a")
    assert running.nbytes > running.llm.memory.total + draft // 2
    running.close()
    with pytest.raises(ingot.LimitError, match="too large for a context of 256"):
        dataclasses.replace(drafting, budget=plain.source(FOLDER).nbytes()).source(FOLDER).nbytes()


def test_the_command_serves_several_by_name(tmp_path: Path):
    file = tmp_path / "small.onnx"
    file.write_bytes(Path(SHIPPED["digits"]).read_bytes())
    command = [sys.executable, "-c", "from ingot.cli import main; main()", "serve"]
    command += ["tiny-lm", "other=tiny-lm", file, "--port", "0", "--idle", "60", "--memory", "1GiB", "--batch", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.fullmatch(r"serving tiny-lm and 2 more: (.*)/v1\n", process.stdout.readline())
            with client_of(found[1]) as client:
                assert states(client) == {"tiny-lm": "loaded", "other": "unloaded", "small": "unloaded"}
                assert complete(client, "other").json()["model"] == "other"
                metadata = client.get("/v2/models/small").json()
                assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
                assert client.get("/v2/models/small/ready").status_code == 200
                assert 'ingot_inferences_total{model="small"} 0.0' in client.get("/metrics").text
                assert complete(client, "small").status_code == 400
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["tiny-lm", "tiny-lm"], "two of one name"),
        (["a=tiny-lm", "b=none.gguf"], "none.gguf: no such file"),
        (["tiny-lm", "--memory", "1MiB"], "the model does not fit"),
    ],
)
def test_the_command_refuses_models_before_it_listens(call, arguments, text):
    code, out, err = call("serve", *arguments)
    assert code != 0 and text in err and out == ""


NAMES = ["a b", "a/b", "ü", "x/infer2", "models", "100%", "a?b#c", "ready", "a..b", ".a"]


def test_every_path_takes_odd_names():
    session = ingot.InferenceSession(SHIPPED["digits"])
    with serving(app(dict.fromkeys(NAMES, session))) as address, client_of(address) as client:
        for name in NAMES:
            for path in (quote(name), quote(name, safe="")):
                assert client.get(f"/v1/models/{path}").json()["id"] == name
                assert client.get(f"/v2/models/{path}").json()["name"] == name
                assert client.get(f"/v2/models/{path}/versions/1/ready").json() == {"name": name, "ready": True}
                assert "input" in client.post(f"/v2/models/{path}/infer", json={"inputs": []}).json()["error"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/../b", "/a", "a/", "a//b", "a/infer", "a/versions/1", "a\n"])
def test_names_that_no_path_can_have_are_refused(name):
    with pytest.raises(ingot.InputError, match="no path can have this name"):
        app({name: source()})


def test_the_name_of_the_current_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "lm").mkdir()
    monkeypatch.chdir(tmp_path / "lm")
    assert usual_name(".") == "lm" and usual_name("../lm/") == "lm"


def test_a_stop_ends_requests_for_models_that_are_being_loaded():
    loading, go_on = threading.Event(), threading.Event()
    first, slow = source(), source()

    def start(name: str):
        loading.set()
        go_on.wait(60)
        return slow.start(name)

    application = app({"a": first, "b": dataclasses.replace(slow, start=start)})
    got = []
    with serving(application) as address, client_of(address) as client:
        asking = threading.Thread(target=lambda: got.append(complete(client, "b")))
        asking.start()
        assert loading.wait(60)
        application.state.stop()
        go_on.set()
        asking.join()
        for _ in range(4):  # over several ticks of the server, which looks for threads that ended by a bug
            got.append(complete(client, "b"))
            time.sleep(0.1)
    assert [each.status_code for each in got] == [503] * 5 and "closed" in got[0].json()["error"]["message"]
