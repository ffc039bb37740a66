"""The ASGI application: routes, errors as JSON, limits of requests, and metrics."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import ingot
from ingot.errors import IngotError, InputError, KindError, LimitError, LoadError, StoppedError, UnsupportedError
from ingot.llm.service import MAX_WAITING, BusyError, Service
from ingot.serve.access import Access, checked_keys
from ingot.serve.errors import refusal
from ingot.serve.limits import body_of
from ingot.serve.log import RequestLog, request_id
from ingot.serve.metrics import Metrics
from ingot.serve.openai import CHAT, TEXT, Form, Send, Served, document, prepared, stream
from ingot.serve.requests import (
    MAX_INPUTS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    Request,
    TokenizeRequest,
)
from ingot.serve.schema import openapi

if TYPE_CHECKING:
    from ingot.llm.model import LLM

PING_SECONDS = 10.0  # the longest silence of a stream
CLIENT_CLOSED = 499  # the status in the log when the client has gone before the response
RETRY_SECONDS = 1  # after which a client tries again when the queue is full

Body = TypeVar("Body")
_PARAMETER = re.compile(r"(?:option )?([a-z_]+)")
_FIELD = re.compile(r"`\$\.([a-z_]+)|missing required field `([a-z_]+)`")
_FIELDS = {name for kind in (ChatRequest, CompletionRequest, EmbeddingRequest) for name in kind.__struct_fields__}


def app(
    llm: LLM,
    name: str = "ingot",
    *,
    api_keys: Collection[str] = (),
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    max_waiting: int = MAX_WAITING,
) -> Starlette:
    """Return an ASGI application that serves a language model by OpenAI's protocol.

    name: the model's name in answers. api_keys: clients must send one of them as `Authorization: Bearer KEY`, except
    for /health and /ready. hosts: the names by which clients may address the server, by default any. origins: the web
    sites whose pages may use the server from browsers, by default none; "*" is any. max_waiting: the most answers that
    wait; others are refused with status 429.

    The application owns a `Service` on the model's engine between its startup and its shutdown.

    Raises InputError for an encoder, and for keys that HTTP cannot carry.
    """
    server = _Server(llm, name, max_waiting)
    posts: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        "/v1/chat/completions": server.chat, "/v1/completions": server.complete, "/v1/embeddings": server.embed,
        "/tokenize": server.tokenize, "/detokenize": server.detokenize,
    }  # fmt: skip
    gets: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        "/v1/models": server.models, "/health": server.health, "/ready": server.health, "/metrics": server.metrics,
        "/openapi.json": server.schema,
    }  # fmt: skip
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    middleware = [Middleware(RequestLog)]
    if origins:
        middleware.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"],
                                     allow_headers=["*"], expose_headers=["x-request-id"]))  # fmt: skip
    middleware.append(Middleware(Access, keys=checked_keys(api_keys), hosts=hosts))
    errors: Any = {
        IngotError: on_error, HTTPException: on_http_error, ClientDisconnect: on_disconnect, Exception: on_bug,
    }  # fmt: skip
    application = Starlette(routes=routes, lifespan=server.lifespan, exception_handlers=errors, middleware=middleware)
    application.state.is_alive, application.state.stop = server.is_alive, server.stop
    return application


class _Server:
    """The endpoints over one model."""

    def __init__(self, llm: LLM, name: str, max_waiting: int):
        self.engine = llm.engine  # raises for an encoder before anything is started
        self.llm, self.name, self.max_waiting = llm, name, max_waiting
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

    def is_alive(self) -> bool:
        """Whether the service draws answers."""
        return self.served.service.is_alive

    def stop(self) -> None:
        """End all answers with an error, and accept no others."""
        self.served.service.close()

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(http, await self._read(http, ChatRequest), CHAT)

    async def complete(self, http: HttpRequest) -> Response:
        """POST /v1/completions."""
        return await self._generate(http, await self._read(http, CompletionRequest), TEXT)

    async def embed(self, http: HttpRequest) -> Response:
        """POST /v1/embeddings: the mean of the last hidden states, of length 1."""
        body = await self._read(http, EmbeddingRequest)
        texts = [body.input] if isinstance(body.input, str) else body.input
        if len(texts) > MAX_INPUTS:
            raise InputError(f"input: too many texts, got {len(texts)}, expected at most {MAX_INPUTS}")
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
            encode, tokenizer = self.llm.chat_template.encode, self.llm.tokenizer
            tokens = await anyio.to_thread.run_sync(encode, tokenizer, body.messages)
        else:
            assert body.prompt is not None
            tokens = await anyio.to_thread.run_sync(self.llm.encode, body.prompt)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.llm.context})

    async def detokenize(self, http: HttpRequest) -> Response:
        """POST /detokenize: the text of ids."""
        body = await self._read(http, DetokenizeRequest)
        return JSONResponse({"prompt": self.llm.tokenizer.decode(body.tokens)})

    async def models(self, http: HttpRequest) -> Response:
        """GET /v1/models."""
        model = {"id": self.name, "object": "model", "created": self.served.created, "owned_by": "ingot",
                 "max_model_len": self.llm.context}  # fmt: skip
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, http: HttpRequest) -> Response:
        """GET /health and /ready: the model is loaded before the server listens, so that both are the same."""
        if not self.is_alive():
            return JSONResponse({"status": "ended"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, http: HttpRequest) -> Response:
        """GET /metrics: text for Prometheus."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def schema(self, http: HttpRequest) -> Response:
        """GET /openapi.json: the paths and the fields of requests."""
        return JSONResponse(openapi(http.app.routes, ingot.__version__))

    def _embedded(self, texts: list[str]) -> tuple[np.ndarray, int]:
        """Return the embeddings of texts, and their number of tokens."""
        return self.llm.embed(texts), sum(len(self.llm.encode(text)) for text in texts)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _read(self, http: HttpRequest, kind: type[Body]) -> Body:
        """Return the body of a request. Raises the errors of `body_of`, and InputError for bad JSON."""
        data = await body_of(http)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            at = _FIELD.search(str(error))
            raise InputError(f"{(at[1] or at[2]) if at else 'body'}: {error}") from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InputError(f"body: not JSON, {error}") from error

    async def _generate(self, http: HttpRequest, request: Request, form: Form) -> Response:
        if request.model not in (None, self.name):
            raise HTTPException(404, f"model: no such model, got {request.model!r}, expected {self.name!r}")
        if request.stream:
            answers = await prepared(self.served, request)

            async def work(send: Send) -> None:
                await stream(self.served, request, answers, form, self.measured.watched(send, answers))

            return StreamingResponse(_events(work), media_type="text/event-stream")
        return JSONResponse(await _unless_gone(http, document(self.served, request, form)))


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


async def _events(work: Callable[[Send], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Yield what the work sends as server-sent events, and a comment after each silence. An error is the last event."""
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](1)

    async def forward() -> None:
        async with send:
            try:
                await work(send.send)
            except IngotError as error:
                await send.send(error_body(error)[1])

    async with anyio.create_task_group() as group, receive:
        group.start_soon(forward)
        while True:
            try:
                with anyio.fail_after(PING_SECONDS):
                    chunk = await receive.receive()
            except TimeoutError:
                yield b": ping\n\n"
                continue
            except anyio.EndOfStream:
                break
            yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
    yield b"data: [DONE]\n\n"


def error_body(error: IngotError) -> tuple[int, dict[str, Any]]:
    """Return the status of an error and its JSON, in OpenAI's shape."""
    status, kind = 500, "server_error"
    if isinstance(error, BusyError):
        status, kind = 429, "rate_limit_error"
    elif isinstance(error, StoppedError):
        status, kind = 503, "server_error"
    elif isinstance(error, InputError | LimitError | KindError | LoadError | UnsupportedError):
        status, kind = 400, "invalid_request_error"
    at = _PARAMETER.match(str(error)) if status == 400 else None
    code = "context_length_exceeded" if "longer than the context" in str(error) else None
    parameter = at[1] if at and at[1] in _FIELDS else None
    return status, {"error": {"message": str(error), "type": kind, "param": parameter, "code": code,
                               "request_id": request_id()}}  # fmt: skip


async def on_error(http: HttpRequest, error: Exception) -> Response:
    """Return the response for an error of Ingot."""
    assert isinstance(error, IngotError)
    status, body = error_body(error)
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 429 else None
    return JSONResponse(body, status, headers=headers)


async def on_http_error(http: HttpRequest, error: Exception) -> Response:
    """Return the response for an error of HTTP, such as an unknown path."""
    assert isinstance(error, HTTPException)
    return JSONResponse(refusal(error.status_code, error.detail), error.status_code, headers=error.headers)


async def on_disconnect(http: HttpRequest, error: Exception) -> Response:
    """Return the response for the log: the client has closed the connection."""
    return Response(status_code=CLIENT_CLOSED)


async def on_bug(http: HttpRequest, error: Exception) -> Response:
    """Return the response for any other error; the log has its type and position."""
    headers = {"x-request-id": request_id() or ""}
    return JSONResponse(refusal(500, "the server failed; its log has the position"), 500, headers=headers)
