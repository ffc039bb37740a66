"""`ingot.ray` on a local cluster of two workers: `make test-ray` runs these tests in an environment with Ray."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve

import ingot
import ingot.ray
from ingot.cli.demo_language import FOLDER

PROMPTS = [f"def f{index}(a, b):\n" for index in range(48)]
OPTIONS = {"max_tokens": 12, "temperature": 0}
LOAD = {"precision": "f32"}
PORT = 18231
os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112 (the name is Ray's; the machine may be busy)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def want() -> list[str]:
    return ingot.LLM(FOLDER, precision="f32", threads=1).generate(PROMPTS, **OPTIONS)


def answered(count: int = 1, **options) -> list[dict]:
    """The rows of a data set with each prompt so many times, in the order of their ids."""
    rows = [{"id": index, "prompt": prompt} for index, prompt in enumerate(PROMPTS * count)]
    data = ray.data.from_items(rows, override_num_blocks=8)
    texts = ingot.ray.generate(data, str(FOLDER), workers=2, batch_size=6, load=LOAD, **OPTIONS, **options)
    return sorted(texts.take_all(), key=lambda row: row["id"])


def test_two_workers_give_the_texts_of_one_process(want):
    rows = answered(output="answer")
    assert [(row["id"], row["answer"]) for row in rows] == list(enumerate(want))
    assert rows[0].keys() == {"id", "prompt", "answer"}


def workers() -> dict[int, str]:
    """The processes of this cluster that run a part of a data set."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (folder / "status").read_text(), (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(folder.name)] = int(status.partition("PPid:")[2].split()[0])
        names[int(folder.name)] = line

    def is_ours(process: int) -> bool:
        while process not in (0, os.getpid()):
            process = parents.get(process, 0)
        return process != 0

    return {process: name for process, name in names.items() if "MapWorker" in name and is_ours(process)}


def test_a_killed_worker_loses_no_row_and_repeats_none(want):
    killed = []

    def kill() -> None:
        while not killed and not over.is_set():
            busy = [process for process, name in workers().items() if ".submit" in name]
            if busy:
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])
            time.sleep(0.005)

    over = threading.Event()
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        rows = answered(8)
    finally:
        over.set()
        thread.join()
    assert killed
    assert [(row["id"], row["text"]) for row in rows] == list(enumerate(want * 8))


@pytest.mark.parametrize("options", [{"workers": 0}, {"threads": 0}, {"batch_size": -1}])
def test_numbers_below_1_are_refused(options):
    with pytest.raises(ingot.InputError, match="expected at least 1"):
        ingot.ray.generate(None, "folder", **options)


def test_errors_name_the_field():
    with pytest.raises(ray.exceptions.RayTaskError, match=r"no such column, got \['id', 'prompt'\], expected 'other'"):
        answered(prompt="other")


def test_replicas_give_the_answers_of_one_process(want):
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    served = ingot.ray.deployment(str(FOLDER), "tiny-lm", replicas=(2, 2), sequences=4, api_keys=["key"], load=LOAD)
    serve.run(served, route_prefix="/")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=300) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["authorization"] = "Bearer key"
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny-lm"
            assert client.post("/v1/completions", json={}).json()["error"]["param"] == "prompt"
            for prompt, text in zip(PROMPTS[:12], want, strict=False):
                body = {"prompt": prompt} | OPTIONS
                assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
                with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as got:
                    lines = [line.removeprefix("data: ") for line in got.iter_lines() if line.startswith("data: ")]
                assert lines[-1] == "[DONE]"
                assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == text
    finally:
        serve.shutdown()
