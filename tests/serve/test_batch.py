"""`ingot batch`: the answers of the server, each exactly once, also after a kill."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import http_server
from ingot.cli.demo_language import FOLDER

COMMAND = [sys.executable, "-c", "from ingot.cli import main; main()"]
MODEL = ("--model", "tiny-lm", "--precision", "f32")
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes"]}}}
EXACT = {"temperature": 0, "max_tokens": 12}
BODIES = [
    (CHAT, {"messages": [{"role": "user", "content": "def f(x):"}], **EXACT}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": SCHEMA, "max_tokens": 30, "n": 2}),
    (CHAT, {"messages": [{"role": "user", "content": "x = 1"}], "seed": 5, "max_tokens": 9, "temperature": 1.5}),
    (CHAT, {"messages": [{"role": "user", "content": "x = 1"}], "seed": 5, "max_tokens": 9, "logprobs": True}),
    (TEXT, {"prompt": ["a = ", "é\u2028"], **EXACT}),
    (TEXT, {"prompt": [5, 6, 7], "model": "tiny-lm", "logprobs": 2, **EXACT}),
    (EMBED, {"input": ["a b", "c"]}),
    (EMBED, {"input": "a b", "encoding_format": "base64"}),
    (TEXT, {"prompt": "x", "model": "other"}),
    (TEXT, {"prompt": "x", "top_p": 7}),
    (TEXT, {"prompt": "x " * 600}),
    (CHAT, {"messages": []}),
    (EMBED, {"input": []}),
    (TEXT, {}),
    (TEXT, [1]),
]  # fmt: skip
VARYING = ("id", "created", "timings")


def line(custom_id: str, url: str = TEXT, body: object = None) -> str:
    body = {"prompt": custom_id, **EXACT} if body is None else body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def answers(path: Path) -> dict[str, dict]:
    """The responses of a file of answers by custom_id; each is there once."""
    read = [json.loads(each) for each in path.read_text().split("\n")[:-1]]
    assert all(each.keys() == {"id", "custom_id", "response", "error"} and each["error"] is None for each in read)
    assert len({each["custom_id"] for each in read}) == len(read) == len({each["id"] for each in read})
    return {each["custom_id"]: each["response"] for each in read}


def steady(document: dict) -> dict:
    """A document without what differs from run to run; the number of cached tokens depends on the order of answers."""
    document.get("usage", {}).pop("prompt_tokens_details", None)
    rest = {key: value for key, value in document.items() if key not in VARYING}
    return rest | {"error": rest["error"] | {"request_id": None}} if "error" in rest else rest


def test_answers_and_errors_are_those_of_the_server(call, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(line(f"é{i}", *each) for i, each in enumerate(BODIES)) + "\n")
    code, out, err = call("batch", prompts, "-o", output, *MODEL)
    assert (code, out) == (0, "") and err == "ingot: 7 answers of 15: an error instead of a text\n"
    found = answers(output)
    with http_server.command("--precision", "f32") as (_, address):
        for index, (url, body) in enumerate(BODIES):
            want = httpx.post(address + url, json=body, timeout=300)
            got = found[f"é{index}"]
            assert got["status_code"] == want.status_code, body
            assert steady(got["body"]) == steady(want.json()), body
            assert (want.status_code == 200) == (index < 8)


def test_a_stream_is_refused(call, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line("a", body={"prompt": "a", "stream": True}) + line("b"))
    code, out, _ = call("batch", prompts, *MODEL)
    first, second = (json.loads(each)["response"] for each in sorted(out.splitlines(), key=lambda each: '"b"' in each))
    assert code == 0 and second["status_code"] == 200
    assert first["status_code"] == 400 and first["body"]["error"]["param"] == "stream"


@pytest.mark.parametrize("torn", [True, False])
def test_a_killed_batch_goes_on(tmp_path, call, torn):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    ids = [f"a{i}" for i in range(60)]
    prompts.write_text("".join(line(each, body={"prompt": each, "max_tokens": 60, "temperature": 0}) for each in ids))
    command = [*COMMAND, "batch", prompts, "-o", output, *MODEL, "--sequences", "2"]
    with subprocess.Popen(command) as process:
        while not output.exists() or output.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
    before = output.read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    assert 3 <= whole.count(b"\n") < len(ids)
    if torn:
        output.write_bytes(whole + whole[:-1].rpartition(b"\n")[2][:90])
    code, _, err = call("batch", prompts, "-o", output, *MODEL)
    assert (code, err) == (0, "") and output.read_bytes().startswith(whole)
    found = answers(output)
    assert sorted(found) == sorted(ids) and all(each["status_code"] == 200 for each in found.values())
    after = output.read_bytes()
    assert call("batch", prompts, "-o", output, "--model", "no-such-model") == (0, "", "")  # all are answered
    assert output.read_bytes() == after


def test_an_interrupted_batch_writes_no_half_answers(tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(line(f"a{i}", body={"prompt": "a", "max_tokens": 400}) for i in range(2000)))
    with subprocess.Popen([*COMMAND, "batch", prompts, "-o", output, *MODEL], stderr=subprocess.PIPE) as process:
        while not output.exists() or not output.read_bytes():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        process.wait()
    assert process.returncode == 130
    assert 0 < len(answers(output)) < 2000 and all(each["status_code"] == 200 for each in answers(output).values())


def test_standard_streams(tmp_path):
    command = [*COMMAND, "batch", "-", *MODEL]
    done = subprocess.run(command, input=line("a") + line("b"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(json.loads(each)["custom_id"] for each in done.stdout.splitlines()) == ["a", "b"]


def test_outputs_that_cannot_be_written(call, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(line(f"a{i}") for i in range(30)))
    for output in (tmp_path / "none" / "a.jsonl", tmp_path, "/dev/null"):
        code, _, err = call("batch", prompts, "-o", output, *MODEL)
        assert code == 73 and str(output) in err
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "batch", prompts, *MODEL], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 73 and "cannot be written, got No space left" in done.stderr, done.stderr
    with subprocess.Popen(
        [*COMMAND, "batch", prompts, *MODEL], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as ended:
        ended.stdout.readline()
        ended.stdout.close()
        assert (ended.wait(), ended.stderr.read()) == (0, b"")


def test_progress_on_a_terminal_alone(tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text("".join(line(f"a{i}") for i in range(4)))
    main, other = pty.openpty()
    with subprocess.Popen([*COMMAND, "batch", prompts, "-o", output, *MODEL], stderr=other) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                shown += os.read(main, 4096)
            except OSError:  # the terminal is closed
                break
    os.close(main)
    assert process.returncode == 0 and b"4/4" in shown and b"tokens/s" in shown


GOOD = line("a")
WRONG = [
    (GOOD + "{\n", "line 2: "),
    (GOOD + "\n\n" + line("b").replace("POST", "GET"), "line 4: Invalid enum value 'GET' - at `$.method`"),
    (line("a", "/v1/images"), "line 1: Invalid enum value '/v1/images' - at `$.url`"),
    (GOOD + line("b") + line("a"), "line 3: custom_id 'a' is that of line 1"),
    ('{"custom_id": 1}', "line 1: Expected `str`, got `int` - at `$.custom_id`"),
    ("[]", "line 1: "),
    ("[" * 100_000, "line 1: "),
    ("{\n" * 5, "; and 2 more"),
]


@pytest.mark.parametrize("text, words", WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_refused_before_anything_runs(call, tmp_path, text, words):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(text)
    code, out, err = call("batch", prompts, "-o", output, "--model", "no-such-model")
    assert (code, out) == (65, "") and f"{prompts}: " in err and words in err, err
    assert not output.exists()


ANSWER = '{"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"request_id":"r","body":{}},"error":null}\n'
OTHERS = [
    ("notes", "not an answer"),
    ("notes\n", "not an answer"),
    (GOOD, "not an answer"),
    (GOOD[:-1], "not an answer"),
    (ANSWER + "{}\n" + ANSWER, ":2: not an answer"),
    (ANSWER.replace('"a"', '"z"'), "answers to other prompts, got custom_id 'z'"),
    (ANSWER * 2, "a second answer to custom_id 'a'"),
]


@pytest.mark.parametrize("text, words", OTHERS, ids=range(len(OTHERS)))
def test_another_file_is_not_overwritten(call, tmp_path, text, words):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(GOOD + line("b"))
    output.write_text(text)
    code, _, err = call("batch", prompts, "-o", output, *MODEL)
    assert code == 65 and words in err, err
    assert output.read_text() == text


def test_two_batches_do_not_write_one_file(call, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(GOOD)
    with open(output, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = call("batch", prompts, "-o", output, *MODEL)
    assert code == 75 and "in use by another process" in err


def test_the_name_of_the_model(call, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line("a", body={"prompt": "a", "model": "gpt", "max_tokens": 2}))
    code, out, _ = call("batch", prompts, "--model", FOLDER, "--name", "gpt")
    assert code == 0 and json.loads(out)["response"]["body"]["model"] == "gpt"
