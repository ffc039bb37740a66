"""Chat templates: convert a conversation to the prompt format that a model was trained on.

A template is a program from the model's folder. It runs in a separate process (`chat_worker.py`) with limits.
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
from ingot.llm.special_tokens import MAX_SETTINGS_BYTES, SETTINGS, special_texts
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import MAX_DEPTH, shown
from ingot.support.locks import OwnedLock

MAX_TEMPLATE_BYTES = 64 << 10  # of a chat template
MAX_TEMPLATES = 16  # named templates of a folder
MAX_MESSAGES = 1 << 14  # of a conversation
MAX_CONVERSATION_BYTES = 1 << 20  # of all messages
MAX_OUTPUT_BYTES = 1 << 20  # of a rendered prompt
RENDER_SECONDS = 1.0  # CPU time of a rendering
WALL_SECONDS = 10.0
WORKER_BYTES = 512 << 20

# Template variables that a caller may set; messages and special tokens cannot be overridden.
OPTIONS = frozenset(
    """add_vision_id builtin_tools citation_mode clear_thinking controls custom_tools date_string documents
    enable_thinking keep_thinking model_identity preserve_thinking python_tools reasoning_effort safety_mode thinking
    thinking_budget tools_in_user_message xml_tools""".split()
)
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "ingot probes content parts"


class ChatTemplate:
    """The chat templates of a model folder; may be used by many threads, whose renderings are serialized.

    sources: templates by name; "default", and possibly "tool_use" and others.
    special: texts of special tokens by the names that templates use (`bos_token`).
    """

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, str], where: str) -> None:
        self.sources, self.special = dict(sources), dict(special)
        self._where = where
        self._worker = _Worker(self.sources, where)
        self._accepts_parts: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<ChatTemplate: {', '.join(self.sources)}>"

    @classmethod
    def read(cls, folder: Folder | str | os.PathLike[str]) -> ChatTemplate:
        """Read the templates of chat_template.jinja and additional_chat_templates/, else of tokenizer_config.json. No
        template is run yet.

        Raises LoadError if there is no template or it is not a text, LimitError for a template of more than 64 KiB.
        """
        folder = folder if isinstance(folder, Folder) else Folder(folder)
        config_path = folder.where(SETTINGS)
        config = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
        sources, where = _files(folder), folder.where("chat_template.jinja")
        if not sources:
            sources, where = _sources(config.get("chat_template"), config_path), config_path
        if not sources:
            raise LoadError(
                f"{folder.path}: no chat template; add {folder.location('chat_template.jinja')},"
                " or use generate with a prompt"
            )
        for name, source in sources.items():
            size = len(source.encode())
            if size > MAX_TEMPLATE_BYTES:
                raise LimitError(
                    f"{where}: template '{name}': too long, got {size} bytes, expected at most {MAX_TEMPLATE_BYTES}"
                )
        return cls(sources, special_texts(folder), where)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        **options: Any,
    ) -> str:
        """Return the text of a conversation, as `apply_chat_template` of transformers does.

        messages: {"role": ..., "content": ...} each, and other keys that the template reads; content is a text or a
            list of {"type": "text", "text": ...}, whose texts are joined by line breaks if the template does not
            support lists.
        add_generation_prompt: whether to append the beginning of an answer.
        tools: JSON schemas of functions.
        template: the template's name; by default "tool_use" if there are tools and such a template, else "default".
        options: variables of the template, with names in OPTIONS.

        Raises InputError for messages that are invalid or that the template refuses, with their position; LoadError for
        an invalid template; LimitError beyond the limits of size and time; UnsupportedError for other content, such as
        images.
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
                raise InputError(f"messages[{index}].role: not supported by the template, got {role!r}")
        return text

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Message], **rest: Any) -> list[int]:
        """Return the ids of a conversation; the arguments are those of `render`.

        Only the template can write control tokens. The text of a control token in a message stays text; so does the
        text of other added tokens that the template uses, such as `<tool_call>`, unless the model itself wrote it.

        Raises the errors of `render` and `Tokenizer.encode`.
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
                raise InputError(f"messages: text becomes the control token {token!r} when it is normalized")
        return ids

    def close(self) -> None:
        """End the rendering process; the next rendering starts a new one."""
        self._worker.stop()

    def _named(self, name: str | None, tools: object) -> str:
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        if name not in self.sources:
            raise InputError(f"{self._where}: no template {name!r}, expected one of {', '.join(sorted(self.sources))}")
        return name

    def _is_for_parts(self, name: str) -> bool:
        """Return whether a template supports content as a list of parts: it writes their texts, not the list."""
        if name not in self._accepts_parts:
            content = [{"type": "text", "text": _PROBE}]
            variables = self.special | {"tools": None, "documents": None, "add_generation_prompt": True}
            try:
                text = self._worker.render(name, variables | {"messages": [{"role": "user", "content": content}]})
            except InputError:
                text = ""
            self._accepts_parts[name] = _PROBE in text and "'type'" not in text and '"type"' not in text
        return self._accepts_parts[name]


@dataclass(frozen=True, slots=True)
class _Running:
    """A rendering process, the id of its parent process, and a finalizer that ends it."""

    process: subprocess.Popen[bytes]
    owner: int
    end: weakref.finalize[Any, _Worker]


class _Worker:
    """Owner of the rendering process, which is started on first use and again after it was ended."""

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
            # Cleared during the exchange: after an interrupted exchange the next request would read the old answer.
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
                f"{where}: ended during rendering, expected at most {RENDER_SECONDS:g} s and {WORKER_BYTES} bytes"
            )
        if "text" in answer:
            return str(answer["text"])
        error, summary = _ERRORS[answer["error"]]
        raise error(f"{where}: {summary}, {answer['message']}")

    def stop(self) -> None:
        with self._lock.once():
            self._end()

    def _start(self) -> _Running:
        folders = dict.fromkeys(_folder_of(package) for package in ("jinja2", "markupsafe"))
        script = importlib.util.find_spec("ingot.llm.chat_worker")
        assert script is not None and script.origin is not None
        command = [sys.executable, "-I", "-S", script.origin, *folders]
        environment = {name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ}
        try:
            process = subprocess.Popen(  # in its own process group: a terminal's Ctrl-C must not reach it
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                bufsize=0, process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise ResourceError(f"{sys.executable}: cannot be started to render a chat template ({error})") from error
        owner = os.getpid()
        running = _Running(process, owner, weakref.finalize(self, _end_process, process, owner))
        if self._ask(running, self._first) is None:
            raise ResourceError(f"{sys.executable}: ended before it could render a chat template")
        return running

    def _ask(self, running: _Running, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send a request and return the answer; None if the process ended or had to be ended."""
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
    "security": (LoadError, "not allowed in a template"),
    "limit": (LimitError, "exceeds a limit"),
    "refused": (InputError, "refuses these messages"),
    "failed": (InputError, "cannot render these messages"),
}


def _end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process that this process started; a forked child only closes the pipes."""
    if owner == os.getpid():
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _read_line(descriptor: int, deadline: float) -> bytes | None:
    """Read a line; return None at the end of the file or at the deadline."""
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
    """Return whether a folder has a chat template. Raises LoadError for a configuration that is not JSON."""
    config = folder.json(SETTINGS, MAX_SETTINGS_BYTES) or {}
    return folder.has("chat_template.jinja") or bool(folder.templates()) or config.get("chat_template") is not None


def _files(folder: Folder) -> dict[str, str]:
    """Return the templates that are files of a folder by name. Raises LoadError, LimitError."""
    names = [*filter(folder.has, ["chat_template.jinja"]), *folder.templates()]
    if len(names) > MAX_TEMPLATES:
        raise LimitError(f"{folder.path}: too many chat templates, got {len(names)}, expected at most {MAX_TEMPLATES}")
    sources: dict[str, str] = {}
    for name in names:
        text = folder.text(name, MAX_TEMPLATE_BYTES)
        assert text is not None
        sources[Path(name).stem if "/" in name else "default"] = text
    return sources


def _sources(value: object, where: str) -> dict[str, str]:
    """Return templates by name: a text is the default template, a list contains named templates."""
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
    """Return template variables as a dict. Raises InputError for another type, and for a name not in OPTIONS."""
    if not isinstance(options, Mapping):
        raise InputError(f"chat options: got {type(options).__name__}, expected a mapping")
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise InputError(f"chat option {unknown!r}: unknown, expected one of {', '.join(sorted(OPTIONS))}")
    return dict(options)


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages as plain JSON, without keys that are None. Raises InputError, LimitError, UnsupportedError."""
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
        given = {key: value for key, value in message.items() if value is not None}
        _check_message(given, where)
        size += checked_json(given, where)
        if size > MAX_CONVERSATION_BYTES:
            raise LimitError(f"{where}: messages too long up to here, expected at most {MAX_CONVERSATION_BYTES} bytes")
        reasoning = next((given[key] for key in _REASONING if key in given), None)
        plain.append(given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning})
    return plain


def _check_message(message: dict[str, Any], where: str) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InputError(f"{where}.role: got {shown(role)}, expected a text like 'user'")
    if content is None and not message.get("tool_calls"):
        raise InputError(f"{where}.content: got nothing, expected a text, or tool_calls")
    if content is not None and not isinstance(content, str | list):
        raise InputError(f"{where}.content: got {shown(content)}, expected a text or a list of parts")
    for i, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InputError(f"{where}.content[{i}]: got {shown(part)}, expected a part with a type")
        if part["type"] != "text":
            raise UnsupportedError(f"{where}.content[{i}]: got a part of type {shown(part['type'])}, expected 'text'")
        if not isinstance(part.get("text"), str):
            raise InputError(f"{where}.content[{i}].text: got {shown(part.get('text'))}, expected a text")


def checked_json(value: object, where: str) -> int:
    """Return a value's size as JSON, in bytes. Raises InputError if it is not JSON, LimitError if nested too deep."""
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
        raise InputError(f"{where}: unpaired surrogate, got {error.object[error.start]!r}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not JSON, {error}") from None


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return message | {"content": "\n".join(part["text"] for part in content)} if isinstance(content, list) else message


def _broken(value: Any, tokenizer: Tokenizer, control: frozenset[str]) -> Any:
    """Return a value with BREAK inserted into control tokens in its texts and keys, so that they stay text."""
    if isinstance(value, str):
        return tokenizer.broken(value, control)
    if isinstance(value, Mapping):
        return {tokenizer.broken(str(key), control): _broken(v, tokenizer, control) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_broken(v, tokenizer, control) for v in value]
    return value
