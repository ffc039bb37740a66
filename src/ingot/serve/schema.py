"""/openapi.json: the paths of the server and the fields of their requests, from the types that read the requests."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from ingot.serve.events import Protocol
from ingot.serve.messages import CountRequest
from ingot.serve.requests import DetokenizeRequest, EmbeddingRequest, TemplateRequest, TokenizeRequest
from ingot.serve.rerank import RerankRequest
from ingot.serve.responses import ResponsesRequest
from ingot.serve.tensors import InferRequest

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/messages/count_tokens": CountRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/rerank": RerankRequest,
    "/apply-template": TemplateRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v2/models/{name:path}/infer": InferRequest,
    "/v2/models/{name:path}/versions/{version}/infer": InferRequest,
}  # of the paths that no `Protocol` has
_STATUSES = {
    400: "A field is wrong, or the prompt is longer than the context.",
    401: "The key is wrong.",
    404: "There is no such model or response.",
    408: "The request arrived too slowly.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many answers wait; Retry-After has the seconds.",
    500: "The server has a bug.",
    503: "The server ends, or the model cannot be loaded now.",
}


class Fault(msgspec.Struct):
    """The error of a request."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None


class ErrorDocument(msgspec.Struct):
    """The answer to a request that failed."""

    error: Fault


class MessagesFault(msgspec.Struct):
    """The error of a request of the Messages API."""

    type: str
    message: str


class MessagesErrorDocument(msgspec.Struct):
    """The answer to a request of the Messages API that failed."""

    type: str
    error: MessagesFault
    request_id: str | None


class InferenceErrorDocument(msgspec.Struct):
    """The answer to a request of the Open Inference Protocol that failed."""

    error: str


_ERRORS: dict[str, type[msgspec.Struct]] = {"/v1/messages": MessagesErrorDocument, "/v2": InferenceErrorDocument}


def error_of(path: str) -> type[msgspec.Struct]:
    """Return the type of the errors of a path."""
    return next((kind for prefix, kind in _ERRORS.items() if f"{path}/".startswith(f"{prefix}/")), ErrorDocument)


def openapi(routes: Iterable[BaseRoute], protocols: Mapping[str, Protocol[Any]], version: str) -> dict[str, Any]:
    """Return the document of OpenAPI 3.1 for the routes of a server. protocols: those of the paths for text."""
    bodies = {path: protocol.body for path, protocol in protocols.items()} | BODIES
    kinds: list[type[msgspec.Struct]] = [*dict.fromkeys(bodies.values()), ErrorDocument, *_ERRORS.values()]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                body = bodies.get(route.path) if method == "POST" else None
                paths.setdefault(route.path_format, {})[method.lower()] = _operation(route, body, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ingot", "version": version, "description": "A server of models."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"key": []}, {"header": []}],
    }


def _operation(
    route: Route, body: type[msgspec.Struct] | None, schemas: dict[type[msgspec.Struct], Any]
) -> dict[str, Any]:
    fault = {"application/json": {"schema": schemas[error_of(route.path)]}}
    statuses = _STATUSES if body else {status: _STATUSES[status] for status in (401, 503)}
    answers: dict[str, Any] = {
        str(status): {"description": text, "content": fault} for status, text in statuses.items()
    }
    has_stream = body is not None and "stream" in body.__struct_fields__
    answers["200"] = {"description": "The answer.", "content": {"application/json": {}}}
    if has_stream:
        answers["200"]["content"]["text/event-stream"] = {}
    summary = (
        (inspect.getdoc(getattr(route.endpoint, "func", route.endpoint)) or "").partition(": ")[2].partition("\n")[0]
    )
    operation: dict[str, Any] = {"summary": summary or route.path_format, "responses": answers}
    names = sorted(route.param_convertors)
    if names:
        text = {"type": "string"}
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[body]}}}
    return operation
