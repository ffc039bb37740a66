"""Models by name: fetched from a hub on loopback, found in the cache without one, and the errors of both."""

import errno
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import process

import ingot
from fake_hub import FakeHub, files_of, serving, sharded
from ingot.cli import commands
from ingot.cli.bench import bench
from ingot.cli.demo_language import FOLDER
from ingot.errors import MissingFileError
from ingot.load.hub import hub_model, located, named_models, shown_name

PROMPT = "def is_empty(self):\n"
# What nobody fetches.
STRANGE = {
    "pytorch_model.bin": b"pickled", "modeling_tiny.py": b"raise SystemExit", "onnx/model.onnx": b"onnx",
    "README.md": b"# Tiny", "consolidated.safetensors": b"again", "..json": b"{}",
}  # fmt: skip
TEMPLATE = "additional_chat_templates/rag.jinja"
SETTINGS = {TEMPLATE, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
OPTIONS = ("--max-tokens", 12, "--threads", 1)


@pytest.fixture(scope="module")
def hub():
    plain = {name: content for name, content in files_of(FOLDER).items() if name != "README.md"}
    models = {
        "acme/tiny": plain | STRANGE,
        "acme/shards": sharded(plain) | STRANGE | {TEMPLATE: b"{{ messages[0].content }}"},
        "acme/later": plain,
        "acme/pickled": {"config.json": b"{}", "pytorch_model.bin": b"", "q4.gguf": b""},
        "acme/gated": plain,
        "acme/private": plain,
        "Qwen/Qwen2.5-0.5B-Instruct": plain,  # by this name, for examples in texts
    }
    with serving(FakeHub(models, gated={"acme/gated"}, private={"acme/private"})) as served:
        yield served


@pytest.fixture(scope="module")
def answer() -> str:
    return ingot.LLM(FOLDER, threads=1).generate(PROMPT, max_tokens=12)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def asked(hub: FakeHub, home: Path, *arguments: object) -> tuple[int, str, str]:
    """A command in a process of its own, with stdin that is no terminal."""
    child = process(*arguments, stdin=subprocess.DEVNULL, env=os.environ | hub.environment(home))
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def snapshot(hub: FakeHub, home: Path, name: str) -> Path:
    return home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / hub.commit(name)


@pytest.mark.parametrize("name", ["acme/tiny", "acme/shards"])
def test_a_model_is_fetched_once_and_found_offline(hub: FakeHub, home: Path, answer: str, name: str) -> None:
    code, out, err = asked(hub, home, "generate", name, PROMPT, *OPTIONS)
    assert (code, out) == (0, answer + "\n"), err
    assert re.fullmatch(rf"{name} is at {hub.commit(name)}: [\d.]+ MiB to fetch into the hub's cache\n", err)
    weights = {file for file in hub.models[name] if file.startswith(("model-", "model."))}
    folder = snapshot(hub, home, name)
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert found == (SETTINGS & set(hub.models[name])) | weights
    before = len(hub.asked)
    unreachable = FakeHub(address="http" + "://127.0.0.1:9")
    assert asked(unreachable, home, "generate", name, PROMPT, *OPTIONS) == (0, answer + "\n", "")
    assert len(hub.asked) == before


def test_python_takes_names_too(hub: FakeHub, home: Path, answer: str) -> None:
    code = f"import ingot; print(ingot.LLM('acme/tiny', threads=1).generate({PROMPT!r}, max_tokens=12))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | hub.environment(home), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, answer + "\n", "")


def test_a_pull_pins_a_branch_until_the_next(hub: FakeHub, home: Path) -> None:
    name, first = "acme/later", hub.commit("acme/later")
    code, out, _ = asked(hub, home, "pull", name)
    assert (code, out) == (0, f"{name}@{first[:8]}\n{snapshot(hub, home, name)}\n")
    before = hub.models[name]
    hub.models[name] = before | {"generation_config.json": b'{"temperature": 0.5}'}
    try:
        second = hub.commit(name)
        assert asked(hub, home, "memory", name)[1].startswith(f"{name}@{first[:8]}, context")
        folder = snapshot(hub, home, name)
        code, out, err = asked(hub, home, "pull", name, "--json")
        assert (code, json.loads(out)) == (0, {"name": name, "commit": second, "folder": str(folder)})
        assert "20 B to fetch" in err
        assert asked(hub, home, "memory", f"{name}@{first}")[1].startswith(f"{name}@{first[:8]}, context")
        assert asked(hub, home, "pull", name, "--revision", second)[1:] == (f"{name}@{second[:8]}\n{folder}\n", "")
    finally:
        hub.models[name] = before
    listed = json.loads(asked(hub, home, "list", "--json")[1])
    assert [row["name"] for row in listed] == ["digits", "tiny-lm", name, f"{name}@{first}"]
    assert [row["dtype"] for row in listed] == [None, "bf16", "bf16", "bf16"]
    assert listed[2]["used"] > 0 and listed[2]["nbytes"] > 5e6


def test_a_broken_connection_is_resumed(hub: FakeHub, home: Path) -> None:
    hub.cut["model.safetensors"] = 3 << 20
    hub.asked.clear()
    code, _, err = asked(hub, home, "pull", "acme/later")
    assert code == 0, err
    assert sum(path.startswith("GET") and path.endswith("model.safetensors") for path in hub.asked) == 2


def test_complete_files_are_preserved_after_an_abort(hub: FakeHub, home: Path, answer: str) -> None:
    hub.cut["model.safetensors"], hub.breaks = 3 << 20, True
    try:
        code, _, err = asked(hub, home, "pull", "acme/later")
        assert code == 74 and "complete files stay cached" in err and "hf download acme/later --include '*.json'" in err
        assert "acme" not in asked(hub, home, "list")[1]
    finally:
        hub.breaks = hub.is_broken = False
    hub.asked.clear()
    code, out, err = asked(hub, home, "generate", "acme/later", PROMPT, *OPTIONS)
    assert (code, out) == (0, answer + "\n"), err
    files = {path.rpartition("/")[2] for path in hub.asked if path.startswith("GET /acme")}
    assert files == {"model.safetensors"}


REFUSALS = [
    ("acme/absent", 66, "no such model on the hub; a private one needs `hf auth login`"),
    ("acme/private", 66, "no such model on the hub; a private one needs `hf auth login`"),
    ("acme/gated", 74, "gated, got no access"),
    ("acme/tiny@v9", 66, "no such revision on the hub, got 'v9'"),
    (
        "acme/pickled",
        65,
        "got pytorch_model.bin, q4.gguf; `hf download acme/pickled q4.gguf`",
    ),
]


def test_refusals_say_why(hub: FakeHub, home: Path) -> None:
    """In one process, which asks for each."""
    program = (
        "import sys, ingot\nfor name in sys.argv[1:]:\n    try:\n        ingot.LLM(name)\n"
        "    except ingot.IngotError as error:\n        print(error.exit_code, error)"
    )
    command = [sys.executable, "-c", program, *(name for name, _, _ in REFUSALS)]
    done = subprocess.run(command, env=os.environ | hub.environment(home), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(REFUSALS), done
    for (name, code, text), line in zip(REFUSALS, lines, strict=True):
        assert line.startswith(f"{code} {name.partition('@v')[0]}") and text in line


PROMPT = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'


def examples() -> list[str]:
    """The commands that `--help` of commands on language models gives, but that of the server, which does not end."""
    found = [command.epilog for command in (*commands.commands.values(), *bench.commands.values()) if command.epilog]
    return [text.removeprefix("Example: ") for text in found if "ingot serve" not in text]


@pytest.mark.parametrize("example", examples())
def test_an_example_of_help_can_be_pasted(hub: FakeHub, home: Path, tmp_path: Path, example: str) -> None:
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from ingot.cli import main; main()" "$@"\n'
    (tmp_path / "ingot").write_text(program)
    (tmp_path / "ingot").chmod(0o755)
    (tmp_path / "prompts.jsonl").write_text(PROMPT)
    environment = os.environ | hub.environment(home) | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", f"set -o pipefail\n{example}"],
        cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout or "chat" in example or "-o" in example


def test_examples_are_of_every_command_on_language_models() -> None:
    assert {example.split("ingot ")[1].split()[0] for example in examples()} >= {
        "generate", "chat", "memory", "perplexity", "quantize", "bench", "pull", "list"
    }  # fmt: skip


def test_without_a_network_the_download_command_is_printed(home: Path) -> None:
    unreachable = FakeHub(address="http" + "://127.0.0.1:9")
    code, out, err = asked(unreachable, home, "chat", "acme/tiny@v1")
    assert (code, out) == (74, "")
    assert err.endswith(
        "Where there is a network: hf download acme/tiny --revision v1 --include '*.json'"
        " --include '*.jinja' --include '*.safetensors'"
        " --include tokenizer.model --include merges.txt --include vocab.txt\n"
    )


@pytest.mark.parametrize(("typed", "code"), [("n\n", 130), ("\n", 0)])
def test_a_terminal_is_asked_first(hub: FakeHub, home: Path, typed: str, code: int) -> None:
    terminal, line = pty.openpty()
    command = [sys.executable, "-c", "from ingot.cli import main; main(['pull', 'acme/tiny'])"]
    environment = os.environ | hub.environment(home) | {"TERM": "dumb"}
    child = subprocess.Popen(command, stdin=line, stdout=line, stderr=line, env=environment)
    os.close(line)
    os.write(terminal, typed.encode())
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError as error:  # how a terminal ends
        assert error.errno == errno.EIO
    os.close(terminal)
    assert child.wait(timeout=60) == code
    assert b"Fetch it? [Y/n]" in shown and (snapshot(hub, home, "acme/tiny") / "model.safetensors").exists() == (
        not code
    )


def test_what_is_no_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme" / "here").mkdir(parents=True)
    assert hub_model("acme/tiny@v1.0/x") is not None
    for path in ("tiny", "acme/tiny.onnx", "acme/tiny/x", "./tiny", "../acme", "acme/..", "acme/a..b", "a/b@../../x"):
        assert hub_model(path) is None, path
        assert located(path) == path
    assert located("acme/here") == "acme/here" and located("tiny-lm") == os.fspath(FOLDER)
    with pytest.raises(MissingFileError, match="no such file or folder"):
        located("acme/there")


def test_what_ships_has_a_name(call) -> None:
    assert [(model.name, model.used) for model in named_models()][:2] == [("digits", None), ("tiny-lm", None)]
    assert shown_name(located("tiny-lm")) == "tiny-lm"
    code, out, _ = call("memory", "tiny-lm")
    assert code == 0 and out.startswith("tiny-lm, context 512")
    assert call("inspect", "tiny-lm", "--stage", "plan")[0] == 0
