"""Log lines and ids of requests. No line contains a prompt, an answer, a key or the text of an error."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import re
import sys
import threading
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from ingot.llm.generation import Generation

# Asked every few seconds: not logged unless they fail.
QUIET = {"/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"}
MAX_PATH = 200  # characters of a path in a log line

LOGGER = logging.getLogger("ingot.serve")
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass
class _Record:
    """A request during its time in the server."""

    id: str
    answers: list[Generation] = field(default_factory=list)


_RECORD: contextvars.ContextVar[_Record | None] = contextvars.ContextVar("ingot request", default=None)


def request_id() -> str | None:
    """The id of the request that the current task answers, or None outside of a request."""
    record = _RECORD.get()
    return None if record is None else record.id


def count_in_log(answers: list[Generation]) -> None:
    """Add answers to the request that the current task answers; its log line has their numbers of tokens."""
    if (record := _RECORD.get()) is not None:
        record.answers += answers


def path_of(scope: Scope) -> str:
    """Return the path of a request in the application, which may be mounted in another one."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class RequestLog:
    """ASGI middleware that gives each request an id, and writes a log line when its answer ends.

    A valid `x-request-id` of the client is the id: 1..128 letters, digits, dots, dashes and underscores.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with `x-request-id`."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        record = _Record(given if _ID.fullmatch(given) else uuid.uuid4().hex)
        _RECORD.set(record)
        begin, status, is_sent, is_complete = time.perf_counter(), 500, False, False

        async def logged(message: MutableMapping[str, Any]) -> None:
            nonlocal status, is_sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.id
            await send(message)
            is_sent = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, logged)
            is_complete = is_sent
        finally:
            if path_of(scope) not in QUIET or status != 200:
                facts = {"method": scope["method"], "path": scope["path"][:MAX_PATH], "status": status,
                         "seconds": round(time.perf_counter() - begin, 4), "complete": is_complete}  # fmt: skip
                LOGGER.info("request", extra={"facts": facts | _tokens(record.answers)})


def _tokens(answers: list[Generation]) -> dict[str, Any]:
    if not answers:
        return {}
    return {
        "prompt_tokens": sum(answer.usage.prompt_tokens for answer in answers),
        "cached_tokens": sum(answer.usage.reused_tokens for answer in answers),
        "completion_tokens": sum(answer.usage.completion_tokens for answer in answers),
        "finish_reasons": sorted({answer.finish_reason or "none" for answer in answers}),
    }


def configure(as_json: bool) -> None:
    """Write log lines of this process on stderr, also about threads that fail: JSON objects, or text for people."""
    written = logging.StreamHandler(sys.stderr)
    written.setFormatter(_JsonLine() if as_json else _Text())
    for name, level in (("ingot.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [written], False
        logger.setLevel(level)

    def failed(ended: threading.ExceptHookArgs) -> None:
        error = ended.exc_value or ended.exc_type()
        LOGGER.error("a thread has ended by a bug", exc_info=error)

    threading.excepthook = failed


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object without a line break."""
        return json.dumps(_facts(record))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return a line of text: the time, the level, the message, and the facts as NAME=VALUE."""
        facts = _facts(record)
        head = [facts.pop(name) for name in ("time", "level", "message")]
        return " ".join([*head, *(f"{name}={json.dumps(value)}" for name, value in facts.items())])


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
    facts: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "message": record.getMessage().strip()}
    if (identity := request_id()) is not None:
        facts["request_id"] = identity
    facts |= getattr(record, "facts", {})
    if record.exc_info and record.exc_info[0] is not None:  # its text may quote a prompt
        frames = extract_tb(record.exc_info[2])
        facts["exception"] = record.exc_info[0].__name__
        facts["frames"] = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
    return facts
