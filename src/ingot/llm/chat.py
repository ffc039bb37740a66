"""Conversations as the text a model was trained on, by the template that comes with it.

A template is a program from the model's folder. It runs in another process (`chat_worker.py`), with limits.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.errors import IngotError, InputError, LimitError, LoadError, ResourceError, UnsupportedError
from ingot.llm.keywords import Message
from ingot.llm.tokenizer import MAX_SETTINGS_BYTES, Tokenizer, token_text
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import MAX_DEPTH, shown
from ingot.support.locks import OwnedLock

MAX_TEMPLATE_BYTES = 64 << 10  # of a chat template
MAX_TEMPLATES = 16  # named templates of a folder
MAX_MESSAGES = 1 << 14  # of a conversation
MAX_CONVERSATION_BYTES = 1 << 20  # of all messages
MAX_OUTPUT_BYTES = 1 << 20  # of the prompt that a template makes
RENDER_SECONDS = 1.0  # of processor time
WALL_SECONDS = 10.0
WORKER_BYTES = 512 << 20

# Variables that a caller may give; no template can be told what its messages or tokens are.
OPTIONS = frozenset(
    """add_vision_id builtin_tools citation_mode clear_thinking controls custom_tools date_string documents
    enable_thinking keep_thinking model_identity preserve_thinking python_tools reasoning_effort safety_mode thinking
    thinking_budget tools_in_user_message xml_tools""".split()
)
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "ingot probes content parts"


class ChatTemplate:
    """The chat templates of a model folder; may be used by many threads, whose renderings queue.

    sources: templates by name; "default", and maybe "tool_use" and others.
    special: texts of special tokens, as the templates name them (`bos_token`).
    """

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str], where: str) -> None:
        self.sources, self.special = dict(sources), dict(special)
        self._where = where
        self._worker = _Worker(self.sources, where)
        self._takes_parts: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<ChatTemplate: {', '.join(self.sources)}>"

    @classmethod
    def read(cls, folder: Folder | str | os.PathLike[str]) -> ChatTemplate:
        """The templates of chat_template.jinja, else those of tokenizer_config.json. Nothing is run yet.

        Raises LoadError when there is none or it is no text, LimitError for one of more than 64 KiB.
        """
        folder = folder if isinstance(folder, Folder) else Folder(folder)
        config_path = folder.where("tokenizer_config.json")
        config = folder.json("tokenizer_config.json", MAX_SETTINGS_BYTES) or {}
        file = folder.text("chat_template.jinja", MAX_TEMPLATE_BYTES)
        where = config_path if file is None else folder.where("chat_template.jinja")
        sources = _sources(config.get("chat_template"), where) if file is None else {"default": file}
        if not sources:
            raise LoadError(
                f"{folder.path}: no chat template; put one into {folder.place('chat_template.jinja')},"
                " or use generate with a prompt"
            )
        for name, source in sources.items():
            size = len(source.encode())
            if size > MAX_TEMPLATE_BYTES:
                raise LimitError(
                    f"{where}: template '{name}': too long, got {size} bytes, expected at most {MAX_TEMPLATE_BYTES}"
                )
        tokens = {key: token_text(config, key, config_path) for key in _SPECIAL}
        return cls(sources, {key: text for key, text in tokens.items() if text is not None}, where)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        **options: Any,
    ) -> str:
        """The text of a conversation, as `apply_chat_template` of transformers gives it.

        messages: {"role": ..., "content": ...} each, and what else the template reads; content is a text or a list of
            {"type": "text", "text": ...}, whose texts are joined by line breaks where the template takes no lists.
        add_generation_prompt: whether the beginning of an answer follows.
        tools: JSON schemas of functions.
        template: its name; else "tool_use", where there are tools and such a template, or "default".
        options: variables of the template, one of OPTIONS.

        Raises InputError for messages that are wrong or that the template refuses, with their place; LoadError for a
        template that is wrong; LimitError beyond the limits of size and time; UnsupportedError for images and such.
        """
        name = self._named(template, tools)
        plain = checked_messages(messages)
        options = checked_options(options)
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(t, Mapping) for t in tools)):
            raise InputError(f"tools: got {shown(tools)}, expected a list of JSON schemas")
        if any(isinstance(message.get("content"), list) for message in plain) and not self._is_for_parts(name):
            plain = [_joined(message) for message in plain]
        variables = {"documents": None} | self.special | options
        variables |= {"tools": None if tools is None else list(tools), "add_generation_prompt": add_generation_prompt}
        for key, value in variables.items():
            checked_json(value, f"chat option {key!r}")
        text = self._worker.render(name, variables | {"messages": plain})
        for index, message in enumerate(plain):
            role = message["role"]
            if role not in ROLES and role not in text and f"'{role}'" not in self.sources[name]:
                raise InputError(f"messages[{index}].role: the template does not take it, got {role!r}")
        return text

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Message], **rest: Any) -> list[int]:
        """The ids of a conversation; arguments are those of `render`.

        Control tokens are those that the template writes. Where a message spells one, it stays text; so do other added
        tokens that the template knows, like `<tool_call>`, unless the model itself wrote them.

        Raises as `render` and `Tokenizer.encode` do.
        """
        source = self.sources[self._named(rest.get("template"), rest.get("tools"))]
        special = frozenset(tokenizer.special)
        known = special | {token for token in tokenizer.added if token in source and not token.isspace()}
        marked = []
        for message in checked_messages(messages):
            control = special if message["role"] == "assistant" else known
            marked.append(_broken(message, tokenizer, control))
        for key, value in rest.items():
            checked_json(value, f"chat option {key!r}")
        rest = {key: _broken(value, tokenizer, known) for key, value in rest.items()}
        text = self.render(marked, **rest)
        ids = tokenizer.encode(text, special=True)
        found = Counter(index for index in ids if index in tokenizer.control)
        for token, index in tokenizer.special.items():
            if found[index] > text.count(token):
                raise InputError(f"messages: text becomes the control token {token!r} when it is normalised")
        return ids

    def close(self) -> None:
        """Ends the process that renders; the next rendering starts another one."""
        self._worker.stop()

    def _named(self, name: str | None, tools: object) -> str:
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise InputError(f"{self._where}: no template {name!r}, expected one of {', '.join(sorted(self.sources))}")
        return name

    def _is_for_parts(self, name: str) -> bool:
        """Whether a template writes the texts of a list of parts, and not the list."""
        if name not in self._takes_parts:
            content = [{"type": "text", "text": _PROBE}]
            variables = self.special | {"tools": None, "documents": None, "add_generation_prompt": True}
            try:
                text = self._worker.render(name, variables | {"messages": [{"role": "user", "content": content}]})
            except InputError:
                text = ""
            self._takes_parts[name] = _PROBE in text and "'type'" not in text and '"type"' not in text
        return self._takes_parts[name]


@dataclass(frozen=True, slots=True)
class _Running:
    """A process that renders, which process it is a child of, and what ends it, once."""

    process: subprocess.Popen[bytes]
    owner: int
    end: weakref.finalize[Any, _Worker]


class _Worker:
    """The process that renders, started when it is first needed and after each time it had to be ended."""

    def __init__(self, sources: Mapping[str, str], where: str) -> None:
        self._first = {
            "templates": dict(sources),
            "seconds": RENDER_SECONDS,
            "nbytes": WORKER_BYTES,
            "output_bytes": MAX_OUTPUT_BYTES,
        }
        self._where = where
        self._lock = OwnedLock("chat template")
        self._running: _Running | None = None

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        where = f"{self._where}: template '{name}'"
        with self._lock.once():
            # Not kept while it is asked: after an exchange that was cut off, the next would get this one's answer.
            running, self._running = self._running, None
            if running is None or running.owner != os.getpid() or running.process.poll() is not None:
                if running is not None:
                    running.end()
                running = self._start()
            answer = self._ask(running, {"template": name, "variables": variables})
            if answer is not None:
                self._running = running
        if answer is None:
            raise LimitError(
                f"{where}: ended while it rendered, expected at most {RENDER_SECONDS:g} s and little memory"
            )
        if "text" in answer:
            return str(answer["text"])
        error, words = _ERRORS[answer["error"]]
        raise error(f"{where}: {words}, {answer['message']}")

    def stop(self) -> None:
        with self._lock.once():
            self._end()

    def _start(self) -> _Running:
        folders = dict.fromkeys(_folder_of(package) for package in ("jinja2", "markupsafe"))
        script = importlib.util.find_spec("ingot.llm.chat_worker")
        assert script is not None and script.origin is not None
        command = [sys.executable, "-I", "-S", script.origin, *folders]
        kept = {name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ}
        try:
            process = subprocess.Popen(  # in a group of its own: a terminal's Ctrl-C is for this process alone
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=kept, bufsize=0,
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise ResourceError(f"{sys.executable}: cannot be started to render a chat template ({error})") from error
        owner = os.getpid()
        running = _Running(process, owner, weakref.finalize(self, _end_process, process, owner))
        if self._ask(running, self._first) is None:
            raise ResourceError(f"{sys.executable}: ended before it could render a chat template")
        return running

    def _ask(self, running: _Running, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None when the process ended or had to be ended."""
        process = running.process
        assert process.stdin is not None and process.stdout is not None
        line, answer = json.dumps(request).encode() + b"\n", None
        try:
            while line:
                line = line[process.stdin.write(line) :]
            answer = _read_line(process.stdout.fileno(), time.monotonic() + WALL_SECONDS)
        except BrokenPipeError:
            pass
        finally:
            if answer is None:
                running.end()
        return None if answer is None else dict(json.loads(answer))

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
        self._running = None


_ERRORS: dict[str, tuple[type[IngotError], str]] = {
    "syntax": (LoadError, "not a template"),
    "security": (LoadError, "does what a template may not"),
    "limit": (LimitError, "takes too much"),
    "refused": (InputError, "refuses these messages"),
    "failed": (InputError, "cannot render these messages"),
}


def _end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a process that this one started; a copy of this one, made by fork, leaves it alone."""
    if owner == os.getpid():
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _read_line(descriptor: int, deadline: float) -> bytes | None:
    """A line; None at the end of the file or of the time."""
    parts: list[bytes] = []
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while not parts or not parts[-1].endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not waiting.poll(left * 1000):
            return None
        part = os.read(descriptor, 1 << 20)
        if not part:
            return None
        parts.append(part)
    return b"".join(parts)


def _folder_of(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ResourceError(f"{package} is not installed; run: pip install {package}")
    return str(Path(spec.origin).parents[1])


def has_template(folder: Folder) -> bool:
    """Whether a folder has a chat template. Raises LoadError for a configuration that is no JSON."""
    config = folder.json("tokenizer_config.json", MAX_SETTINGS_BYTES) or {}
    return folder.has("chat_template.jinja") or config.get("chat_template") is not None


def _sources(value: object, where: str) -> dict[str, str]:
    """Templates by name: a text is the default one, a list has named ones."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list) or len(value) > MAX_TEMPLATES:
        raise LoadError(
            f"{where}: chat_template: got {shown(value)}, expected a text or at most {MAX_TEMPLATES} templates"
        )
    sources: dict[str, str] = {}
    for index, entry in enumerate(value):
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str) or name in sources:
            raise LoadError(f"{where}: chat_template[{index}]: got {shown(entry)}, expected a new name and a template")
        sources[name] = source
    return sources


def checked_options(options: object) -> dict[str, Any]:
    """Variables for a template as a dict. Raises InputError for what is none, or not one of OPTIONS."""
    if not isinstance(options, Mapping):
        raise InputError(f"chat options: got {type(options).__name__}, expected a mapping")
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise InputError(f"chat option {unknown!r}: not known, expected one of {', '.join(sorted(OPTIONS))}")
    return dict(options)


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as plain JSON, without keys that are None. Raises InputError, LimitError or UnsupportedError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InputError(f"messages: got a {type(messages).__name__}, expected a list")
    if not messages:
        raise InputError("messages: got none, expected at least one")
    if len(messages) > MAX_MESSAGES:
        raise LimitError(f"messages: too many, got {len(messages)}, expected at most {MAX_MESSAGES}")
    plain, size = [], 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InputError(f"{where}: got a {type(message).__name__}, expected a role and content")
        kept = {key: value for key, value in message.items() if value is not None}
        _check_message(kept, where)
        size += checked_json(kept, where)
        if size > MAX_CONVERSATION_BYTES:
            raise LimitError(f"{where}: messages too long up to here, expected at most {MAX_CONVERSATION_BYTES} bytes")
        reasoning = next((kept[key] for key in _REASONING if key in kept), None)
        plain.append(kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning})
    return plain


def _check_message(message: dict[str, Any], where: str) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InputError(f"{where}.role: got {shown(role)}, expected a text like 'user'")
    if content is None and not message.get("tool_calls"):
        raise InputError(f"{where}.content: got nothing, expected a text, or tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise InputError(f"{where}.content: got {shown(content)}, expected a text or a list of parts")
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InputError(f"{where}.content[{place}]: got {shown(part)}, expected a part with a type")
        if part["type"] != "text":
            raise UnsupportedError(
                f"{where}.content[{place}]: got a part of type {shown(part['type'])}, expected 'text'"
            )
        if not isinstance(part.get("text"), str):
            raise InputError(f"{where}.content[{place}].text: got {shown(part.get('text'))}, expected a text")


def checked_json(value: object, where: str) -> int:
    """The number of bytes that a value has as JSON. Raises InputError when it cannot be JSON, LimitError when deep."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise LimitError(f"{where}: nested too deep, expected at most {MAX_DEPTH} levels")
        level = [
            v for x in level if isinstance(x, dict | list | tuple) for v in (x.values() if isinstance(x, dict) else x)
        ]
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: half a surrogate pair, got {error.object[error.start]!r}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not JSON, {error}") from None


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": "\n".join(part["text"] for part in content)} if isinstance(content, list) else message


def _broken(value: Any, tokenizer: Tokenizer, control: frozenset[str]) -> Any:
    """A value in which no text, and no key, spells a control token."""
    if isinstance(value, str):
        return tokenizer.broken(value, control)
    if isinstance(value, Mapping):
        return {tokenizer.broken(str(key), control): _broken(v, tokenizer, control) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_broken(v, tokenizer, control) for v in value]
    return value
