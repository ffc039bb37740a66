"""The ASGI application: routes, errors as JSON, limits of requests, and metrics."""

from __future__ import annotations

import base64
import contextlib
import functools
import hmac
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ingot.errors import IngotError, InputError
from ingot.llm.service import MAX_WAITING, Service
from ingot.serve.answers import Served
from ingot.serve.chat import prompt_of
from ingot.serve.errors import failure_of, openai_error
from ingot.serve.events import Protocol, Send
from ingot.serve.messages import MESSAGES, CountRequest, count_tokens
from ingot.serve.metrics import Metrics
from ingot.serve.openai import CHAT, TEXT
from ingot.serve.requests import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from ingot.serve.responses import RESPONSES, ResponsesRequest, input_tokens
from ingot.serve.tools import Json

if TYPE_CHECKING:
    from ingot.llm.model import LLM

MAX_BODY_BYTES = 8 << 20  # of a request
PROTOCOLS: dict[str, Protocol[Any]] = {
    "/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES,
}  # fmt: skip

Body = TypeVar("Body")
_FIELD = re.compile(r"`\$\.([a-z_]+)|missing required field `([a-z_]+)`")
_FIELDS = {*EmbeddingRequest.__struct_fields__, *TokenizeRequest.__struct_fields__}


def app(llm: LLM, name: str = "ingot", *, api_key: str | None = None, max_waiting: int = MAX_WAITING) -> Starlette:
    """Return an ASGI application that serves a language model by OpenAI's and Anthropic's protocols.

    name: the model's name in answers. api_key: the key that clients must send as `Authorization: Bearer KEY`, except
    for /health and /ready. max_waiting: the most answers that wait; others are refused with status 429.

    The application owns a `Service` on the model's engine between its startup and its shutdown.

    Raises InputError for an encoder.
    """
    server = _Server(llm, name, api_key, max_waiting)
    posts: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        **{path: functools.partial(server.generate, protocol) for path, protocol in PROTOCOLS.items()},
        "/v1/messages/count_tokens": functools.partial(server.count, CountRequest, count_tokens),
        "/v1/responses/input_tokens": functools.partial(server.count, ResponsesRequest, input_tokens),
        "/v1/embeddings": server.embed, "/tokenize": server.tokenize, "/detokenize": server.detokenize,
    }  # fmt: skip
    gets: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        "/v1/models": server.models, "/health": server.health, "/ready": server.health, "/metrics": server.metrics,
    }  # fmt: skip
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    errors: Any = {IngotError: on_error, HTTPException: on_error}
    return Starlette(routes=routes, lifespan=server.lifespan, exception_handlers=errors)


class _Server:
    """The endpoints over one model."""

    def __init__(self, llm: LLM, name: str, api_key: str | None, max_waiting: int):
        self.engine = llm.engine  # raises for an encoder before anything is started
        self.llm, self.name, self.api_key, self.max_waiting = llm, name, api_key, max_waiting
        self.registry = CollectorRegistry()
        self.served: Served

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Start the service with the application, and end it with its answers."""
        service = await anyio.to_thread.run_sync(Service, self.engine, self.max_waiting)
        self.served = Served(self.name, self.llm, service, int(time.time()))
        self.measured = Metrics(self.registry, service)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(service.close)

    async def embed(self, http: HttpRequest) -> Response:
        """POST /v1/embeddings: the mean of the last hidden states, of length 1."""
        body = await self._read(http, EmbeddingRequest)
        texts = [body.input] if isinstance(body.input, str) else body.input
        rows, tokens = await anyio.to_thread.run_sync(self._embedded, texts)
        encoded = [base64.b64encode(row.tobytes()).decode() for row in rows]
        values = encoded if body.encoding_format == "base64" else [row.tolist() for row in rows]
        data = [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(values)]
        counts = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": self.name, "usage": counts})

    async def tokenize(self, http: HttpRequest) -> Response:
        """POST /tokenize: the ids of a prompt, or of a conversation with the beginning of an answer."""
        body = await self._read(http, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            raise InputError("prompt, messages: got both or none, expected one of them")
        if body.messages is not None:
            tokens = await anyio.to_thread.run_sync(prompt_of, self.llm, body.chat())
        else:
            assert body.prompt is not None
            tokens = await anyio.to_thread.run_sync(self.llm.encode, body.prompt)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.llm.context})

    async def count(self, kind: type[Body], counted: Callable[[LLM, Body], Json], http: HttpRequest) -> Response:
        """POST of a request whose prompt's tokens are counted."""
        body = await self._read(http, kind)
        return JSONResponse(await anyio.to_thread.run_sync(counted, self.llm, body))

    async def detokenize(self, http: HttpRequest) -> Response:
        """POST /detokenize: the text of ids."""
        body = await self._read(http, DetokenizeRequest)
        return JSONResponse({"prompt": self.llm.tokenizer.decode(body.tokens)})

    async def models(self, http: HttpRequest) -> Response:
        """GET /v1/models."""
        self._authorize(http)
        model = {"id": self.name, "object": "model", "created": self.served.created, "owned_by": "ingot",
                 "max_model_len": self.llm.context}  # fmt: skip
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, http: HttpRequest) -> Response:
        """GET /health and /ready: the model is loaded before the server listens, so that both are the same."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, http: HttpRequest) -> Response:
        """GET /metrics: text for Prometheus."""
        self._authorize(http)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def _embedded(self, texts: list[str]) -> tuple[np.ndarray, int]:
        """Return the embeddings of texts, and their number of tokens."""
        return self.llm.embed(texts), sum(len(self.llm.encode(text)) for text in texts)

    # -- inside -------------------------------------------------------------------------------------------------

    def _authorize(self, http: HttpRequest) -> None:
        if self.api_key is not None:
            given = http.headers.get("x-api-key") or http.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.api_key.encode()):
                raise HTTPException(401, "authorization: wrong key, expected 'Bearer KEY' with the server's key")

    async def _read(self, http: HttpRequest, kind: type[Body]) -> Body:
        """Return the body of a request. Raises HTTPException for a wrong key, type or size, InputError for bad JSON."""
        self._authorize(http)
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "content-type: expected application/json")
        data = bytearray()
        async for part in http.stream():
            data += part
            if len(data) > MAX_BODY_BYTES:
                raise HTTPException(413, f"body: too large, expected at most {MAX_BODY_BYTES} bytes")
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            at = _FIELD.search(str(error))
            raise InputError(f"{(at[1] or at[2]) if at else 'body'}: {error}") from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InputError(f"body: not JSON, {error}") from error

    async def generate(self, protocol: Protocol[Any], http: HttpRequest) -> Response:
        """POST of a request for text."""
        request = await self._read(http, protocol.body)
        if request.model not in (None, self.name):
            raise HTTPException(404, f"model: no such model, got {request.model!r}, expected {self.name!r}")
        if request.stream:
            answers = await protocol.prepared(self.served, request)

            async def work(send: Send) -> None:
                watched = self.measured.watched(send, [answer.generation for answer in answers])
                await protocol.stream(self.served, request, answers, watched)

            return StreamingResponse(protocol.events(work), media_type="text/event-stream")
        return JSONResponse(await _unless_gone(http, self._document(protocol, request)))

    async def _document(self, protocol: Protocol[Any], request: Any) -> dict[str, Any]:
        return await protocol.document(self.served, request, await protocol.prepared(self.served, request))


async def _unless_gone(http: HttpRequest, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the work. Raises its errors, and ClientDisconnect when the client closes the connection."""
    result: dict[str, Any] = {}
    failed: list[IngotError] = []

    async def watch() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            result = await work
        except IngotError as error:
            failed.append(error)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    if not result:
        raise ClientDisconnect
    return result


async def on_error(http: HttpRequest, error: Exception) -> Response:
    """Return the response for an error of Ingot or of HTTP, in the shape of the path's protocol."""
    assert isinstance(error, IngotError | HTTPException)
    path = http.url.path.removesuffix("/count_tokens").removesuffix("/input_tokens")
    protocol = PROTOCOLS.get(path)
    failure = failure_of(error, _FIELDS if protocol is None else protocol.fields)
    headers = {**(getattr(error, "headers", None) or {}), **failure.headers}
    return JSONResponse((openai_error if protocol is None else protocol.error)(failure), failure.status, headers)
