"""/openapi.json: the paths of the server and the fields of their requests, from the types that read the requests."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from ingot.serve.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_STATUSES = {
    400: "A field is wrong, or the prompt is longer than the context.",
    401: "The key is wrong.",
    404: "There is no such model.",
    408: "The request arrived too slowly.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many answers wait; Retry-After has the seconds.",
    500: "The server has a bug.",
    503: "The server ends.",
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


def openapi(routes: Iterable[BaseRoute], version: str) -> dict[str, Any]:
    """Return the document of OpenAPI 3.1 for the routes of a server."""
    kinds: list[type[msgspec.Struct]] = [*dict.fromkeys(BODIES.values()), ErrorDocument]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(route.path, {})[method.lower()] = _operation(route, method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ingot", "version": version, "description": "A server of language models."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, method: str, schemas: dict[type[msgspec.Struct], Any]) -> dict[str, Any]:
    body = BODIES.get(route.path) if method == "POST" else None
    fault = {"application/json": {"schema": schemas[ErrorDocument]}}
    statuses = _STATUSES if body else {status: _STATUSES[status] for status in (401, 503)}
    answers: dict[str, Any] = {
        str(status): {"description": text, "content": fault} for status, text in statuses.items()
    }
    has_stream = body is not None and "stream" in body.__struct_fields__
    answers["200"] = {"description": "The answer.", "content": {"application/json": {}}}
    if has_stream:
        answers["200"]["content"]["text/event-stream"] = {}
    summary = (inspect.getdoc(route.endpoint) or "").partition(": ")[2].partition("\n")[0]
    operation: dict[str, Any] = {"summary": summary or route.path, "responses": answers}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[body]}}}
    return operation
