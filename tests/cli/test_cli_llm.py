"""`ingot generate`, `chat` and `memory` on the language model that ships."""

import dataclasses
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cli import DIGITS, process

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.cli.interrupt import Interruptible

FUNCTION = "def is_empty(self):\n"
RAMBLING = "import os\nimport sys\n"


@pytest.fixture(scope="module")
def llm() -> ingot.LLM:
    return ingot.LLM(FOLDER)


def test_generate_prints_what_the_model_generates(call, llm):
    code, out, err = call("generate", FOLDER, FUNCTION, "--max-tokens", 40)
    assert (code, out, err) == (0, llm.generate(FUNCTION, max_tokens=40) + "\n", "")


def test_generate_reads_a_prompt_from_stdin(llm):
    child = process("generate", FOLDER, "-", "--max-tokens", 20, stdin=-1)
    out, _ = child.communicate(FUNCTION)
    assert (child.returncode, out) == (0, llm.generate(FUNCTION, max_tokens=20) + "\n")


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    """A command line of a shell, in which `ingot` runs Ingot."""
    ingot = f'ingot() {{ {sys.executable} -c "from ingot.cli import main; main()" "$@"; }}'
    return subprocess.run(["bash", "-c", f"{ingot}; {command}"], capture_output=True, timeout=120)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("command", ["generate", "perplexity", "chat"])
def test_stdin_that_is_not_utf8_is_named_with_the_byte(command: str, locale: str):
    arguments = f"{FOLDER} --context 64" if command == "chat" else f"{FOLDER} - --context 64"
    done = shell(f"export LC_ALL={locale}; printf 'abc\\xff' | ingot {command} {arguments}")
    assert done.returncode == 65 and re.fullmatch(rb"ingot: stdin.*: not UTF-8, .* at byte 3\n", done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed: str):
    """As services leave them; a command that has nowhere to write still ends well."""
    done = shell(f"ingot generate {FOLDER} x --max-tokens 2 --context 64 {closed}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_generate_counts_and_times(call, llm):
    code, out, _ = call("generate", FOLDER, RAMBLING, "--max-tokens", 16, "--threads", 1, "--context", 128, "--json")
    facts = json.loads(out)
    assert (code, facts["completion_tokens"], facts["finish_reason"]) == (0, 16, "length")
    assert facts["prompt_tokens"] == 1 + len(llm.tokenizer.encode(RAMBLING))
    assert len(facts["tokens"]) == 16 and facts["text"] == llm.tokenizer.decode(facts["tokens"])
    assert (facts["context"], facts["threads"], facts["precision"]) == (128, 1, "bf16")
    assert facts["prefill_seconds"] > 0 and facts["decode_seconds"] > 0


def test_generate_samples_by_seed(call):
    options = ("--max-tokens", 30, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01)
    texts = [call("generate", FOLDER, RAMBLING, *options, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_generate_stops_at_a_text(call, llm):
    text = llm.generate(RAMBLING, max_tokens=40)
    stop = text[10:14]
    code, out, _ = call("generate", FOLDER, RAMBLING, "--max-tokens", 40, "--stop", stop)
    assert (code, out) == (0, text[: text.index(stop)] + "\n")


def test_generate_follows_a_schema(call, tmp_path):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    code, out, _ = call("generate", FOLDER, "x = ", "--schema", tmp_path / "schema.json", "--max-tokens", 60)
    assert code == 0 and json.loads(out)["n"] in (1, 2)


@pytest.fixture
def folder(tmp_path):
    """Folders that make commands fail."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "schema.json").write_text("{")
    shutil.copytree(FOLDER, tmp_path / "no-tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(FOLDER, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    return tmp_path


LONG = "x = 1\n" * 200

FAILURES = [
    (("generate", "absent", "x"), 66, "absent"),
    (("chat", "absent"), 66, "absent"),
    (("memory", "absent"), 66, "absent"),
    (("generate", "empty", "x"), 65, "config.json"),
    (("generate", "no-tokenizer", "x"), 65, "tokenizer.json"),
    (("generate", "cut", "x"), 65, "model.safetensors"),
    (("generate", FOLDER, "x", "--schema", "schema.json"), 65, "schema.json"),
    (("generate", FOLDER, "x", "--schema", "absent.json"), 66, "absent.json"),
    (("generate", FOLDER, "x", "--temperature", "-1"), 65, "temperature"),
    (("generate", FOLDER, "x", "--top-p", "0"), 65, "top_p"),
    (("generate", FOLDER, "x", "--precision", "f8"), 2, "f8"),
    (("generate", FOLDER), 2, "PROMPT"),
    (("memory", FOLDER, "--memory", "4 lots"), 2, "4GiB"),
    (("memory", FOLDER, "--memory", "1MiB"), 65, "1048576"),
    *(
        (
            ("memory", FOLDER, "--train", option, value),
            2,
            f"option {option}: not for --train, got {value}, expected none",
        )
        for option, value in (("--sequences", 3), ("--cache-dtype", "int8"), ("--executor", "webgpu"))
    ),
    *(
        (("memory", FOLDER, option, value), 2, f"option {option}: not for ingot memory without --train, got ")
        for option, value in (("--lora", 0), ("--target", "*"), ("--batch", 4), ("--accumulate", 2))
    ),
    (("memory", FOLDER, "--train", "--lora", 0, "--target", "*"), 2, "option --target: not for --lora 0, got ("),
    (("train", FOLDER, "-", "--lora", 0, "--target", "*"), 2, "option --target: not for --lora 0, got ("),
    (("train", FOLDER, "-", "--lora", 0, "--alpha", 0), 2, "option --alpha: not for --lora 0, got 0.0, expected none"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), FAILURES, ids=lambda v: v if isinstance(v, int) else None)
def test_failures_have_their_code_and_say_why(call, folder, monkeypatch, arguments, code, text):
    monkeypatch.chdir(folder)
    got, out, err = call(*arguments)
    assert (got, out) == (code, "")
    assert text in err and "Traceback" not in err


def test_a_prompt_longer_than_the_context_reports_both_numbers(call, llm):
    code, out, err = call("generate", FOLDER, LONG, "--context", 128)
    tokens = 1 + len(llm.tokenizer.encode(LONG))
    assert (code, out) == (65, "") and str(tokens) in err and "128" in err


def answers(llm: ingot.LLM, *messages: str, **options) -> list[str]:
    """What a conversation's answers are."""
    conversation, answers = [], []
    for message in messages:
        conversation.append({"role": "user", "content": message})
        answers.append(llm.chat(conversation, **options))
        conversation.append({"role": "assistant", "content": answers[-1]})
    return answers


def lines(*texts: str) -> str:
    """Texts, each ending its line."""
    return "".join(text if text.endswith("\n") else text + "\n" for text in texts)


def chat(script: str, *options: object) -> tuple[int, str, str]:
    """`ingot chat` with a scripted stdin: (exit code, stdout, stderr)."""
    child = process("chat", FOLDER, "--max-tokens", 12, *options, stdin=-1)
    out, err = child.communicate(script)
    return child.returncode, out, err


def test_chat_answers_and_remembers(llm):
    first, second = "def is_empty(self):", "def __len__(self):"
    assert chat(f"{first}\n{second}\n") == (0, lines(*answers(llm, first, second, max_tokens=12)), "")


def test_chat_forgets_on_reset(llm):
    (answer,) = answers(llm, "import os", max_tokens=12)
    code, out, err = chat("import os\n/reset\n\nimport os\n/exit\nimport os\n")
    assert (code, out, err) == (0, lines(answer, "started a new conversation", answer), "")


def test_chat_joins_lines_and_knows_its_commands(llm):
    (answer,) = answers(llm, "import os\nimport re", max_tokens=12)
    code, out, _ = chat("/help\n/what\nimport os\\\nimport re\n")
    assert code == 0 and out.endswith(f"/what: no such command; /help lists them\n{lines(answer)}")
    assert "/reset" in out and "Ctrl-C" in out


def test_chat_goes_on_after_a_message_that_is_too_long(llm):
    (answer,) = answers(llm, "import os", max_tokens=12)
    code, out, err = chat(LONG.replace("\n", "\\\n").removesuffix("\\\n") + "\nimport os\n", "--context", 128)
    assert (code, out) == (0, lines(answer))
    assert "128" in err and "/reset" in err


def test_an_interrupt_reaches_a_run(llm):
    """Whose thread is in C, where no handler of Python's is called."""
    modes, before = llm.engine.modes, signal.getsignal(signal.SIGINT)
    expected = llm.generate("import os", max_tokens=8)
    with Interruptible(modes) as interruptible:
        signal.raise_signal(signal.SIGINT)
        while not modes.is_stopping:
            time.sleep(0.001)
        assert interruptible.stopped
        assert list(interruptible.until_stopped(llm.stream(RAMBLING))) == []
        with pytest.raises(ingot.StoppedError, match="run: stopped before node"):
            llm.generate(RAMBLING, max_tokens=8)
    assert signal.getsignal(signal.SIGINT) is before and not modes.is_stopping
    assert llm.generate("import os", max_tokens=8) == expected


def test_an_interrupt_stops_the_answer_and_not_the_program():
    """On the slowest kernels, where an answer takes long enough to be interrupted."""
    environment = {**os.environ, "INGOT_ISA": "scalar", "PYTHONPATH": ":".join(sys.path)}
    command = ("chat", FOLDER, "--threads", 1, "--precision", "f32", "--repetition-penalty", 1.3)
    whole, _ = process(*command, stdin=-1, env=environment).communicate("import os\n")
    child = process(*command, stdin=-1, env=environment)
    child.stdin.write("import os\n")
    child.stdin.flush()
    begin = os.read(child.stdout.fileno(), 1).decode()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate("/help\n")
    assert (child.returncode, err) == (0, "")
    answer, _, rest = (begin + out).partition("/reset")
    assert rest and len(answer) < len(whole) and whole.startswith(answer.rstrip("\n"))


def test_an_interrupt_of_generate_ends_with_130():
    environment = {**os.environ, "INGOT_ISA": "scalar", "PYTHONPATH": ":".join(sys.path)}
    child = process("generate", FOLDER, "import os\n", "--threads", 1, "--repetition-penalty", 1.3, env=environment)
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()
    assert (child.returncode, err) == (130, "ingot: interrupted\n")


# (options, whether the answer follows what it should)
CUTS = [
    (("--regex", "[0-9]{30}"), False),
    (("--regex", "[0-9]+"), True),
    (("--schema", "schema.json"), False),
    ((), True),
]


@pytest.mark.parametrize(("options", "follows"), CUTS)
def test_a_truncated_answer_is_reported(options, follows, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text('{"type": "array", "items": {"type": "integer"}, "minItems": 20}')
    for more in ((), ("--json",)):
        command = ("generate", FOLDER, "x = ", *options, "--max-tokens", 3, *more)
        code, out, err = call(*command)
        said = f"{options[0]}: the answer was cut after 3 tokens and does not follow it" if options else ""
        assert (code, err) == (0, "" if follows else f"ingot: {said}\n") and out
        code, again, err = call(*command, "--strict")
        assert (code == 65 and said in err) != follows
        if not more:
            assert again == out


def test_chat_sets_saves_and_goes_on(llm, tmp_path):
    saved = tmp_path / "talk.json"
    first, second = answers(llm, "import os", "import re", max_tokens=5)
    code, out, err = chat(f"/set max_tokens 5\nimport os\n/save {saved}\n/reset\n/load {saved}\nimport re\n/set\n")
    begun = ["max_tokens is 5", first, f"{saved}: 2 messages", "started a new conversation", f"{saved}: 2 messages"]
    assert (code, out, err) == (0, lines(*begun, second, "max_tokens 5"), "")
    assert json.loads(saved.read_text())["messages"][0] == {"role": "user", "content": "import os"}


def test_chat_takes_another_system_message(llm):
    told = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "import os"}]
    expected = llm.chat(told, max_tokens=12)
    _, out, _ = chat("/system\n/system be brief\n/system\nimport os\n")
    assert out == lines("no system message", "started a new conversation", "be brief", expected)


def test_chat_takes_lines_between_quotes(llm):
    (answer,) = answers(llm, "import os\n\n/reset", max_tokens=12)
    assert chat('"""import os\n\n/reset"""\n/?\n')[1].startswith(lines(answer))


def test_pasted_lines_are_one_message_and_lines_are_remembered(llm, tmp_path):
    """On a terminal, which marks pasted text."""
    (answer,) = answers(llm, "import os\nimport re", max_tokens=3)
    child, terminal = chat_on_a_terminal(tmp_path)
    os.write(terminal, b"\x1b[200~import os\nimport re\x1b[201~\r")
    seen = read_until(terminal, "decode 3 tokens").replace("\r", "")
    assert answer.rstrip("\n") in seen and "reading" not in seen.partition(answer)[2]
    os.write(terminal, b"/exit\r")
    read_until(terminal, "")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    remembered = tmp_path / "ingot" / "chat_history"
    assert remembered.read_text() == "import os\nimport re\n/exit\n" and remembered.stat().st_mode & 0o77 == 0


def test_an_interrupt_on_a_terminal_drops_the_line_and_nothing_else(llm, tmp_path):
    """It reaches every process of the terminal's group; the message that follows is rendered all the same."""
    expected = answers(llm, "import os", "import re", max_tokens=3)[1]
    child, terminal = chat_on_a_terminal(tmp_path)
    os.write(terminal, b"import os\r")
    read_until(terminal, "decode 3 tokens", "> ")
    os.write(terminal, b"some")
    read_until(terminal, "some")
    while not select.select([terminal], [], [], 0.2)[0]:  # CPython sees none that comes just before it waits
        os.write(terminal, b"\x03")
    read_until(terminal, "Press Ctrl-D to leave")
    os.write(terminal, b"import re\r/exit\r")
    assert expected.rstrip("\n") in read_until(terminal, "").replace("\r", "")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def chat_on_a_terminal(state: Path) -> tuple[int, int]:
    """`ingot chat` behind its first prompt, with answers of three tokens: its process and its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        command = [sys.executable, "-c", "from ingot.cli import main; main()", "chat", FOLDER, "--max-tokens", "3"]
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "PYTHONPATH": ":".join(sys.path)}
        os.execvpe(command[0], [str(word) for word in command], environment)
    read_until(terminal, "> ")
    return child, terminal


def read_until(terminal: int, *words: str) -> str:
    """What a terminal shows up to some words, one behind another, or, for "", up to its end."""
    shown, pattern = b"", ".*?".join(map(re.escape, words))
    while not pattern or not re.search(pattern, shown.decode(errors="replace"), re.DOTALL):
        assert select.select([terminal], [], [], 300)[0], f"expected {words}, got {shown!r}"
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    return shown.decode(errors="replace")


MISTAKES = [
    ("/set temperature -1", "temperature: not allowed, got -1.0"),
    ("/set temperature hot", "set: temperature: not a number, got 'hot'"),
    ("/set heat 1", "set: unknown option, got 'heat', expected one of max_tokens, temperature"),
    ("/set max_tokens -1", "set: max_tokens: out of range, got -1"),
    ("/save", "save: got no name"),
    ("/load", "load: got no name"),
    ("/load absent.json", "absent.json"),
    ("/load wrong.json", "wrong.json: no conversation, got KeyError"),
    ("/load /", "Is a directory"),
    ("/save absent/talk.json", "absent/talk.json"),
]


def test_mistakes_do_not_end_a_chat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.json").write_text("{}")
    code, out, err = chat("\n".join(line for line, _ in MISTAKES))
    assert (code, err, len(out.splitlines())) == (0, "", len(MISTAKES))
    for line, (_, words) in zip(out.splitlines(), MISTAKES, strict=True):
        assert line.startswith("ingot: ") and words in line


def test_generate_follows_an_expression(call):
    code, out, _ = call("generate", FOLDER, "x = ", "--regex", "[0-9]{3}", "--max-tokens", 60)
    assert code == 0 and len(out.strip()) == 3 and out.strip().isdigit()


def test_weights_that_are_no_numbers_are_named(call, tmp_path):
    for file in Path(FOLDER).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert call("generate", tmp_path, "x", "--max-tokens", 1, "--check-weights")[2] == ""
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-2:] = b"\xc0\x7f"
    (tmp_path / "model.safetensors").write_bytes(content)
    words = call("generate", tmp_path, "x", "--max-tokens", 1, "--check-weights")[2]
    assert "holds 1 NaN and 0 infinite elements" in words and "weight '" in words


def test_memory_is_what_is_allocated(call):
    code, out, _ = call("memory", FOLDER, "--context", 256, "--json")
    llm = ingot.LLM(FOLDER, context=256, sequences=1)
    llm.generate(RAMBLING, max_tokens=4)
    assert (code, json.loads(out)) == (0, dataclasses.asdict(llm.memory) | {"total": llm.memory.total})
    code, out, _ = call("memory", FOLDER, "--context", 256)
    assert code == 0 and f"{llm.memory.total:,}" in out


def test_memory_finds_the_largest_context(call):
    whole = json.loads(call("memory", FOLDER, "--json")[1])
    assert whole["context"] == 512
    less = json.loads(call("memory", FOLDER, "--memory", whole["total"] - 1, "--json")[1])
    assert less["context"] < 512 and less["total"] < whole["total"]
    assert json.loads(call("memory", FOLDER, "--memory", "1GiB", "--json")[1])["context"] == 512


# (command, options, what it prints of a program for one row and for many)
LOOKS = [
    ("explain", (), "model.norm: rms_norm"),
    ("explain", ("model.embed_tokens",), "model.embed_tokens: gather"),
    ("list-nodes", ("--stage", "optimized"), "model.embed_tokens"),
    ("inspect", ("--stage", "optimized", "--text"), "graph llama"),
    ("inspect", ("--stage", "lowered", "--text"), "model.norm"),
    ("inspect", ("--stage", "plan"), "arena "),
    ("inspect", ("--stage", "plan", "--text"), "arena "),
    ("dot", ("--stage", "optimized"), 'digraph "llama"'),
]


@pytest.mark.parametrize(("command", "options", "words"), LOOKS, ids=[" ".join([c, *o]) for c, o, _ in LOOKS])
def test_a_language_model_is_looked_at(command, options, words, call):
    options = (*options, "--threads", 2)
    code, prefill, err = call(command, FOLDER, *options)
    assert (code, err) == (0, "") and words in prefill
    assert call(command, FOLDER, *options, "--mode", "prefill")[1] == prefill
    decode = call(command, FOLDER, *options, "--mode", "decode")[1]
    assert words in decode and (decode != prefill or "model.embed_tokens" in options)


def test_looking_reads_no_weight(call, monkeypatch):
    monkeypatch.setattr("ingot.run.store.WeightStore.prepare", None)
    for command in ("explain", "list-nodes", "inspect", "dot", "validate"):
        assert call(command, FOLDER)[0] == 0


def test_options_that_language_models_lack(call):
    code, _, err = call("explain", FOLDER, "--dim", "rows=2")
    assert code == 65 and "a language model accepts no" in err


@pytest.mark.parametrize("command, option", [("list-nodes", "--executor"), ("explain", "--strict")])
def test_options_that_looking_lacks(command, option, call):
    code, _, err = call(command, FOLDER, option)
    assert code == 2 and "No such option" in err


def test_modes_are_those_of_language_models(call):
    code, _, err = call("explain", DIGITS, "--mode", "decode")
    assert code == 65 and "no modes, got decode" in err
