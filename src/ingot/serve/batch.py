"""Requests of a file to an application of this process: OpenAI's batch format, without a network.

A request passes through the routes of the server, so that its answer and its errors are those of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal

import msgspec
from starlette.applications import Starlette

from ingot.errors import InputError, OutputError, ResourceError, StoppedError, some
from ingot.load.hf.strict_json import shown
from ingot.serve.answers import together

MAX_WAITING = 1 << 20  # answers that wait; a batch refuses none because others wait
_AHEAD = 2  # prompts in work for each sequence, so that none is idle while a prompt is read
_HEAD = b'{"id":"batch_req_'  # of a line with an answer
_STREAM = "stream: not supported in a batch, got true, expected false"
_REFUSED = {"error": {"message": _STREAM, "type": "invalid_request_error", "param": "stream", "code": None}}


class Prompt(msgspec.Struct, frozen=True):
    """A line of a file of requests. body: the JSON document that the server would receive."""

    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    body: msgspec.Raw


class _Tokens(msgspec.Struct):
    completion_tokens: int = 0


class _Usage(msgspec.Struct):
    usage: _Tokens = msgspec.field(default_factory=_Tokens)


class Answer(msgspec.Struct, frozen=True):
    """The answer to a prompt. document: of the server, as JSON."""

    prompt: Prompt
    status: int
    document: bytes

    @property
    def tokens(self) -> int:
        """The number of tokens that were drawn."""
        return msgspec.json.decode(self.document, type=_Usage).usage.completion_tokens

    @property
    def line(self) -> bytes:
        """The line of a file of answers."""
        response = {
            "status_code": self.status,
            "request_id": f"req_{uuid.uuid4().hex}",
            "body": msgspec.Raw(self.document),
        }
        head = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": self.prompt.custom_id}
        return msgspec.json.encode(head | {"response": response, "error": None}) + b"\n"


class _Answered(msgspec.Struct):
    id: str
    custom_id: str
    response: dict[str, Any]


class _Streamed(msgspec.Struct):
    stream: bool | None = None


def prompts_of(content: bytes, where: str) -> list[Prompt]:
    """Return the prompts of a file's content, in order; empty lines are skipped. where: the file's name, for errors.

    Raises InputError that lists the lines that are no prompts, or whose custom_id an earlier line has.
    """
    found: dict[str, int] = {}
    prompts: list[Prompt] = []
    wrong: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = msgspec.json.decode(line, type=Prompt)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong.append(f"line {number}: {error}")
            continue
        first = found.setdefault(prompt.custom_id, number)
        if first != number:
            wrong.append(f"line {number}: custom_id {shown(prompt.custom_id)} is that of line {first}")
        prompts.append(prompt)
    if wrong:
        raise InputError(f"{where}: {'; '.join(wrong[:3])}{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}")
    return prompts


@contextlib.contextmanager
def answers_file(path: str, prompts: Sequence[Prompt]) -> Iterator[tuple[IO[bytes], set[str]]]:
    """Open a file of answers to append lines to, new or of a run that was ended; yield it and the ids it answers.

    A line at the end that was not written whole is removed.

    Raises InputError for a file with anything else than answers to these prompts, ResourceError while another process
    writes it, OutputError if it cannot be opened.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"{path}: not a file, expected a file, or - for stdout")
    try:
        file = open(path, "a+b")  # noqa: SIM115 - closed below
    except OSError as error:
        raise OutputError(f"{path}: cannot be opened, got {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResourceError(f"{path}: in use by another process") from error
        file.seek(0)
        *lines, rest = file.read().split(b"\n")
        if not rest.startswith(_HEAD[: len(rest)]):
            raise InputError(f"{path}:{len(lines) + 1}: not an answer, expected a file of answers or a new one")
        answered = _ids(path, lines)
        if others := answered - {prompt.custom_id for prompt in prompts}:
            raise InputError(f"{path}: answers to other prompts, got custom_id {some(sorted(map(shown, others)))}")
        file.truncate(file.tell() - len(rest))
        yield file, answered


def _ids(path: str, lines: Iterable[bytes]) -> set[str]:
    found: set[str] = set()
    for number, line in enumerate(lines, 1):
        try:
            answer = msgspec.json.decode(line, type=_Answered)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not an answer, {error}") from error
        if answer.custom_id in found:
            raise InputError(f"{path}:{number}: a second answer to custom_id {shown(answer.custom_id)}")
        found.add(answer.custom_id)
    return found


def run(application: Starlette, prompts: Sequence[Prompt], receive: Callable[[Answer], None], sequences: int) -> None:
    """Answer prompts; pass each answer to `receive` when it is complete. sequences: of the application's model.

    Raises the errors of `receive`, and StoppedError if the service of the model ends.
    """
    embeddings, texts = (
        [prompt for prompt in prompts if (prompt.url == "/v1/embeddings") is is_embedding]
        for is_embedding in (True, False)
    )

    async def answer(prompts: Iterable[Prompt], at_once: int) -> None:
        waiting = iter(prompts)

        async def work() -> None:
            for prompt in waiting:
                receive(await _answer(application, prompt))

        await together(work() for _ in range(at_once))

    async def answer_all() -> None:
        async with application.router.lifespan_context(application):
            await answer(embeddings, sequences)  # each takes a sequence, which no answer may use at that time
            await answer(texts, _AHEAD * sequences)

    asyncio.run(answer_all())


async def _answer(application: Starlette, prompt: Prompt) -> Answer:
    if _is_streamed(prompt.body):
        return Answer(prompt, 400, msgspec.json.encode(_REFUSED))
    status, document = await _post(application, prompt.url, bytes(prompt.body))
    if status == 503:
        failed = msgspec.json.decode(document)["error"]["message"]
        raise StoppedError(f"custom_id {shown(prompt.custom_id)}: no answer, got {failed}")
    return Answer(prompt, status, document)


def _is_streamed(body: msgspec.Raw) -> bool:
    try:
        return msgspec.json.decode(body, type=_Streamed).stream is True
    except msgspec.ValidationError:  # the server names the wrong field
        return False


async def _post(application: Starlette, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and the document with which an application answers a request by ASGI."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "client": None, "server": None,
    }  # fmt: skip
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.Event().wait()  # no client closes this connection
        return unread.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
