"""The ASGI application: routes, errors as JSON, limits of requests, and metrics."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import anyio
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Send as SendMessage

import ingot
from ingot.errors import IngotError, InputError
from ingot.llm.chat import has_template
from ingot.llm.service import MAX_WAITING
from ingot.serve.access import Access, checked_keys
from ingot.serve.answers import Served
from ingot.serve.chat import prompt_of, prompt_text
from ingot.serve.embeddings import Embedding, embeddings
from ingot.serve.errors import BUG, Failure, failure_of, hide_path, openai_error
from ingot.serve.events import EventResponse, Events, Protocol, Send
from ingot.serve.infer import PREFIX, Inference, inference_error
from ingot.serve.limits import expect_shallow, json_of
from ingot.serve.log import RequestLog, path_of, request_id
from ingot.serve.messages import MESSAGES, CountRequest, count_tokens
from ingot.serve.metrics import Metrics
from ingot.serve.models import Kind, Model, Models, Source
from ingot.serve.openai import CHAT, TEXT
from ingot.serve.page import page
from ingot.serve.requests import DetokenizeRequest, EmbeddingRequest, TemplateRequest, TokenizeRequest
from ingot.serve.rerank import Reranking, RerankRequest, reranked
from ingot.serve.responses import RESPONSES, ResponsesRequest, input_tokens
from ingot.serve.schema import BODIES, openapi
from ingot.serve.sources import Servable, kept, usual_budget
from ingot.serve.stored import Store
from ingot.serve.stored import page as items_page
from ingot.serve.threads import LONG_BYTES, aside, note_bytes
from ingot.serve.tools import Json

if TYPE_CHECKING:
    from ingot.llm.model import LLM

TEXT_KINDS: tuple[Kind, ...] = ("language", "embedding")
KINDS: tuple[Kind, ...] = get_args(Kind)
PROTOCOLS: dict[str, Protocol[Any]] = {
    "/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES,
}  # fmt: skip
_HELD = "ingot.held"  # the key of a request's models in its scope
CLIENT_CLOSED = 499  # the status in the log when the client has gone before the response

Body = TypeVar("Body")
Result = TypeVar("Result")
_FIELD = re.compile(r"`\$\.([a-z_]+)|missing required field `([a-z_]+)`")


def app(
    models: Servable | Mapping[str, Servable | Source],
    name: str = "ingot",
    *,
    api_keys: Collection[str] = (),
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    max_waiting: int = MAX_WAITING,
    memory: int | None = None,
    idle: float | None = None,
) -> Starlette:
    """Return an ASGI application that serves models.

    models: a model, or several by their names; a `Source` is loaded when a request needs it. name: the name of a single
    model. api_keys: clients must send one of them as `Authorization: Bearer KEY`, except for the page, /health and
    /ready. hosts: the names by which clients may address the server, by default any. origins: the web sites whose pages
    may use the server from browsers, by default none; "*" is any. max_waiting: the most answers of a model that wait;
    others are refused with status 429. memory: the bytes of all loaded models; by default 80 % of the memory that this
    process may use. idle: the seconds without a request after which a model of a `Source` is unloaded.

    The application owns the threads of the models, such as a `Service`, between its startup and its shutdown.

    Raises InputError for a model that cannot be served, and for keys that HTTP cannot carry.
    """
    named = models if isinstance(models, Mapping) else {name: models}
    sources = {key: model if isinstance(model, Source) else kept(model, max_waiting) for key, model in named.items()}
    budget = usual_budget() if memory is None else memory
    return application(Models(sources, budget, idle), api_keys, hosts, origins)


def application(
    models: Models, api_keys: Collection[str] = (), hosts: Collection[str] = (), origins: Collection[str] = ()
) -> Starlette:
    """Return the ASGI application of a set of models, with the other arguments of `app`."""
    server = _Server(models)
    posts: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        **{path: functools.partial(server.generate, protocol) for path, protocol in PROTOCOLS.items()},
        "/v1/messages/count_tokens": functools.partial(server.count, CountRequest, count_tokens),
        "/v1/responses/input_tokens": functools.partial(server.count, ResponsesRequest, input_tokens),
        "/v1/embeddings": server.embed, "/v1/rerank": server.rerank, "/rerank": server.rerank,
        "/tokenize": server.tokenize, "/detokenize": server.detokenize, "/apply-template": server.apply_template,
    }  # fmt: skip
    gets: dict[str, Callable[[HttpRequest], Awaitable[Response]]] = {
        "/": page, "/v1/models": server.listed, "/v1/models/{name:path}": server.listed_one,
        "/health": server.health, "/ready": server.ready, "/metrics": server.metrics,
        "/openapi.json": server.schema, "/props": server.props, "/v1/responses/{name}": server.response,
        "/v1/responses/{name}/input_items": server.input_items,
    }  # fmt: skip
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
    routes.append(Route("/v1/responses/{name}", server.drop_response, methods=["DELETE"]))
    routes += Inference(models, server.use).routes()
    middleware = [Middleware(RequestLog)]
    if origins:
        middleware.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"],
                                     allow_headers=["*"], expose_headers=["x-request-id"]))  # fmt: skip
    middleware.append(Middleware(Access, keys=checked_keys(api_keys), hosts=hosts, shaped=shaped))
    middleware.append(Middleware(_Holding))
    errors: Any = {
        IngotError: on_error, HTTPException: on_error, ClientDisconnect: on_disconnect, Exception: on_bug,
    }  # fmt: skip
    application = Starlette(routes=routes, lifespan=server.lifespan, exception_handlers=errors, middleware=middleware)
    application.state.is_alive, application.state.stop = models.is_alive, models.stop
    application.state.is_ending = False
    return application


class _Server:
    """The endpoints over a set of models."""

    def __init__(self, models: Models):
        self.models = models
        self.created = int(time.time())
        self.registry = CollectorRegistry()
        self.measured = Metrics(self.registry, models)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Load the first model with the application, and close all at its end."""
        async with self.models.open():
            yield

    async def embed(self, http: HttpRequest) -> Response:
        """POST /v1/embeddings."""
        body = await self._read(http, EmbeddingRequest)
        served: Embedding | Served = await self.use(http, body.model, TEXT_KINDS)
        return JSONResponse(await _unless_gone(http, embeddings(served, body)))

    async def rerank(self, http: HttpRequest) -> Response:
        """POST /v1/rerank and /rerank."""
        body = await self._read(http, RerankRequest)
        served: Reranking = await self.use(http, body.model, ["rerank"])
        return JSONResponse(await _unless_gone(http, reranked(served, body)))

    async def tokenize(self, http: HttpRequest) -> Response:
        """POST /tokenize: the ids of a prompt, or of a conversation with the beginning of an answer."""
        body = await self._read(http, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            raise InputError("prompt, messages: got both or none, expected one of them")
        llm: LLM = (await self.use(http, body.model, TEXT_KINDS)).llm
        if body.messages is not None:
            tokens = await aside(prompt_of, llm, body.chat())
        else:
            assert body.prompt is not None
            tokens = await aside(llm.encode, body.prompt)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": llm.context})

    async def apply_template(self, http: HttpRequest) -> Response:
        """POST /apply-template: the text of a conversation with the beginning of an answer."""
        body = await self._read(http, TemplateRequest)
        llm: LLM = (await self.use(http, body.model, ["language"])).llm
        return JSONResponse({"prompt": await aside(prompt_text, llm, body.chat())})

    async def props(self, http: HttpRequest) -> Response:
        """GET /props: the context, the answers drawn together and the chat template of a model, `?model=NAME`."""
        served: Served = await self.use(http, http.query_params.get("model"), ["language"])
        return JSONResponse(properties(served))

    async def count(self, kind: type[Body], counted: Callable[[Served, Body], Json], http: HttpRequest) -> Response:
        """POST of a request whose prompt's tokens are counted."""
        body: Any = await self._read(http, kind)
        served: Served = await self.use(http, body.model, ["language"])
        return JSONResponse(await aside(counted, served, body))

    async def detokenize(self, http: HttpRequest) -> Response:
        """POST /detokenize: the text of ids."""
        body = await self._read(http, DetokenizeRequest)
        llm: LLM = (await self.use(http, body.model, TEXT_KINDS)).llm
        text = await aside(llm.tokenizer.decode, body.tokens)
        return JSONResponse({"prompt": text})

    async def listed(self, http: HttpRequest) -> Response:
        """GET /v1/models: every model, loaded or not."""
        return JSONResponse({"object": "list", "data": [self._listed(model) for model in self.models]})

    async def listed_one(self, http: HttpRequest) -> Response:
        """GET /v1/models/NAME."""
        return JSONResponse(self._listed(self.models.find(http.path_params["name"], KINDS)))

    def _listed(self, model: Model) -> dict[str, Any]:
        facts = {"id": model.name, "object": "model", "created": self.created, "owned_by": "ingot",
                 "kind": model.kind, "state": model.state, "nbytes": model.nbytes}  # fmt: skip
        if isinstance(model.running, Served):
            facts["max_model_len"] = model.running.llm.context
        elif isinstance(model.running, Embedding):
            facts["max_model_len"] = model.running.embedder.longest
        elif isinstance(model.running, Reranking):
            facts["max_model_len"] = model.running.reranker.context
        return facts | ({"error": model.error} if model.error else {})

    async def response(self, http: HttpRequest) -> Response:
        """GET /v1/responses/NAME: a stored response."""
        name = http.path_params["name"]
        return JSONResponse(self._stored(name).response(name))

    async def input_items(self, http: HttpRequest) -> Response:
        """GET /v1/responses/NAME/input_items: the items of its input; `order`, `limit`, `after`."""
        name = http.path_params["name"]
        return JSONResponse(items_page(self._stored(name).items(name), http.query_params))

    async def drop_response(self, http: HttpRequest) -> Response:
        """DELETE /v1/responses/NAME: drop a stored response."""
        name = http.path_params["name"]
        self._stored(name).drop(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    def _stored(self, name: str) -> Store:
        """Return the store that has a response, or any one."""
        stores = [model.running.stored for model in self.models if isinstance(model.running, Served)]
        return next((store for store in stores if name in store), Store())

    async def health(self, http: HttpRequest) -> Response:
        """GET /health: whether no model has ended by a bug."""
        is_alive = self.models.is_alive()
        return JSONResponse({"status": "ok" if is_alive else "ended"}, 200 if is_alive else 503)

    async def ready(self, http: HttpRequest) -> Response:
        """GET /ready: whether the server takes further requests; the first model is loaded before it listens."""
        if http.app.state.is_ending:
            return JSONResponse({"status": "ending"}, 503)
        return await self.health(http)

    async def metrics(self, http: HttpRequest) -> Response:
        """GET /metrics: text for Prometheus."""
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def schema(self, http: HttpRequest) -> Response:
        """GET /openapi.json: the paths and the fields of requests."""
        return JSONResponse(openapi(http.app.routes, PROTOCOLS, ingot.__version__))

    # -- inside -------------------------------------------------------------------------------------------------

    async def use(self, http: HttpRequest, name: str | None, kinds: Collection[Kind]) -> Any:
        """Return a loaded model, which stays loaded until the response has ended. Raises the errors of `Models.use`."""
        held: contextlib.AsyncExitStack = http.scope[_HELD]
        running = await held.enter_async_context(self.models.use(name, kinds))
        if isinstance(running, Served | Embedding):
            hide_path(running.llm.folder.path)
        return running

    async def _read(self, http: HttpRequest, kind: type[Body]) -> Body:
        """Return the body of a request. Raises the errors of `json_of`, and InputError for JSON that is bad or deep."""
        data = await json_of(http)
        note_bytes(len(data))
        return _decoded(kind, data) if len(data) <= LONG_BYTES else await aside(_decoded, kind, data)

    async def generate(self, protocol: Protocol[Any], http: HttpRequest) -> Response:
        """POST of a request for text."""
        request = await self._read(http, protocol.body)
        served: Served = await self.use(http, request.model, ["language"])
        protocol = protocol.chosen(http.headers)
        if request.stream:
            answers = await _unless_gone(http, protocol.prepared(served, request))

            async def work(send: Send) -> None:
                watched = self.measured.watched(served.name, send, [answer.generation for answer in answers])
                await protocol.stream(served, request, answers, watched)

            return EventResponse(Events(protocol, work))

        async def whole() -> Json:
            return await protocol.document(served, request, await protocol.prepared(served, request))

        return JSONResponse(await _unless_gone(http, whole()))


def properties(served: Served) -> Json:
    """Return the facts of a language model in the words of llama.cpp's server."""
    llm = served.llm
    sources = llm.chat_template.sources if has_template(llm.folder) else {}
    return {
        "model_alias": served.name,
        "default_generation_settings": {"n_ctx": llm.context},
        "total_slots": llm.engine.sequences.count,
        "chat_template": sources.get("default", ""),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"ingot {ingot.__version__}",
    }


def _decoded(kind: type[Body], data: bytes) -> Body:
    """Return the body of a request. Raises InputError for JSON that is bad or too deep."""
    expect_shallow(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        at = _FIELD.search(str(error))
        raise InputError(f"{(at[1] or at[2]) if at else 'body'}: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"body: not JSON, {error}") from error


class _Holding:
    """A layer of the application that ends the use of a request's models when its response has ended."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        async with contextlib.AsyncExitStack() as held:
            scope[_HELD] = held
            await self._app(scope, receive, send)


async def _unless_gone(http: HttpRequest, work: Awaitable[Result]) -> Result:
    """Return the result of the work. Raises its errors, and ClientDisconnect when the client closes the connection."""
    results: list[Result] = []
    failed: list[IngotError] = []

    async def watch() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            results.append(await work)
        except IngotError as error:
            failed.append(error)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    if not results:
        raise ClientDisconnect
    return results[0]


async def on_error(http: HttpRequest, error: Exception) -> Response:
    """Return the response for an error of Ingot or of HTTP, in the shape of the path's protocol."""
    assert isinstance(error, IngotError | HTTPException)
    path = path_of(http.scope)
    protocol = protocol_of(path)
    body = BODIES.get(path)
    fields = set(() if body is None else body.__struct_fields__) if protocol is None else protocol.fields
    failure = failure_of(error, fields)
    headers = {**(getattr(error, "headers", None) or {}), **failure.headers}
    return JSONResponse(shaped(path, failure), failure.status, headers)


def protocol_of(path: str) -> Protocol[Any] | None:
    """Return the protocol of a path for text, and None for other paths."""
    known = next((known for known in PROTOCOLS if path == known or path.startswith(f"{known}/")), None)
    return None if known is None else PROTOCOLS[known]


def shaped(path: str, failure: Failure) -> dict[str, Any]:
    """Return an error as JSON in the shape of the path's protocol."""
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        return inference_error(failure)
    protocol = protocol_of(path)
    return openai_error(failure) if protocol is None else protocol.error(failure)


async def on_disconnect(http: HttpRequest, error: Exception) -> Response:
    """Return the response for the log: the client has closed the connection."""
    return Response(status_code=CLIENT_CLOSED)


async def on_bug(http: HttpRequest, error: Exception) -> Response:
    """Return the response for any other error; the log has its type and position."""
    return JSONResponse(shaped(path_of(http.scope), BUG), BUG.status, headers={"x-request-id": request_id() or ""})
