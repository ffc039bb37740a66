"""The Open Inference Protocol, version 2, for models without a state: health, metadata, and inference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import ingot
from ingot.errors import InputError
from ingot.serve.errors import Failure
from ingot.serve.limits import BodyBytes, body_of, expect_shallow
from ingot.serve.models import Models
from ingot.serve.plain import VERSION, Plain
from ingot.serve.tensors import InferRequest, feed_of, response_of, wanted_outputs

MAX_TENSOR_BYTES = 256 << 20  # of a request for inference
MAX_JSON_BYTES = 32 << 20  # of a request for inference, without binary tensors
MAX_BODY_BYTES = 1 << 30  # of all requests for inference in progress
PREFIX = "/v2"
_EXTENSIONS = ["binary_tensor_data"]
_LENGTH = "inference-header-content-length"
_JSON = ("application/json", "application/octet-stream")

Use = Callable[[HttpRequest, str, list[Any]], Awaitable[Any]]


def inference_error(failure: Failure) -> dict[str, str]:
    """Return an error in the protocol's shape."""
    return {"error": failure.message}


class Inference:
    """The endpoints of the protocol.

    use: load a model for the time of a request.
    """

    def __init__(self, models: Models, use: Use):
        self._models, self._use = models, use
        self._bodies = BodyBytes(MAX_BODY_BYTES)

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = PREFIX + "/models/{name:path}"
        gets = {PREFIX: self.server, f"{PREFIX}/health/live": self.live, f"{PREFIX}/health/ready": self.live}
        posts = {}
        for path in (one + "/versions/{version}", one):
            posts[f"{path}/infer"] = self.infer
            gets |= {f"{path}/ready": self.ready, path: self.metadata}
        of_models = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
        return of_models + [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]

    async def server(self, http: HttpRequest) -> Response:
        """GET /v2."""
        return JSONResponse({"name": "ingot", "version": ingot.__version__, "extensions": _EXTENSIONS})

    async def live(self, http: HttpRequest) -> Response:
        """GET /v2/health/live and /v2/health/ready: the first model is loaded before the server listens."""
        is_live = self._models.is_alive()
        is_ready = is_live and not http.app.state.is_ending
        is_right = is_ready if http.url.path.endswith("ready") else is_live
        return JSONResponse({"live": is_live, "ready": is_ready}, 200 if is_right else 503)

    async def ready(self, http: HttpRequest) -> Response:
        """GET /v2/models/NAME/ready: whether a request would be answered, if need be after loading the model."""
        name = _name(http)
        model = self._models.find(name, [*{each.kind for each in self._models}])
        return JSONResponse({"name": name, "ready": model.state != "failed"}, 503 if model.state == "failed" else 200)

    async def metadata(self, http: HttpRequest) -> Response:
        """GET /v2/models/NAME."""
        plain: Plain = await self._use(http, _name(http), ["plain"])
        return JSONResponse(plain.metadata())

    async def infer(self, http: HttpRequest) -> Response:
        """POST /v2/models/NAME/infer."""
        _expect_no_form(http)
        with self._bodies.request() as count:
            return await self._answer(http, _name(http), memoryview(await body_of(http, MAX_TENSOR_BYTES, count)))

    async def _answer(self, http: HttpRequest, name: str, body: memoryview) -> Response:
        """Return the response to a body."""
        length = _header_length(http, len(body))
        if length > MAX_JSON_BYTES:
            raise HTTPException(
                413, f"body: JSON too large, expected at most {MAX_JSON_BYTES} bytes and binary tensors"
            )
        request = await anyio.to_thread.run_sync(_parsed, bytes(body[:length]))
        plain: Plain = await self._use(http, name, ["plain"])
        wanted_outputs(plain, request)
        feed = await anyio.to_thread.run_sync(feed_of, plain, request, body[length:])
        results = await self._results(http, plain, feed)
        head, parts = await anyio.to_thread.run_sync(response_of, plain, request, results)
        content = msgspec.json.encode(head)
        if not parts:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(len(content))}
        return Response(b"".join([content, *parts]), media_type="application/octet-stream", headers=headers)

    async def _results(self, http: HttpRequest, plain: Plain, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the results of a run; a client that closes its connection before the run cancels it."""
        run = asyncio.wrap_future(plain.queue.submit(feed))
        watch = asyncio.ensure_future(_closed(http))
        either: list[asyncio.Future[Any]] = [run, watch]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                raise ClientDisconnect
            return run.result()
        finally:
            watch.cancel()
            run.cancel()


async def _closed(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _name(http: HttpRequest) -> str:
    """Return the model's name in a path. Raises HTTPException for an unknown version."""
    version = http.path_params.get("version", VERSION)
    if version != VERSION:
        raise HTTPException(404, f"version: no such version, got {version!r}, expected {VERSION!r}")
    return str(http.path_params["name"])


def _expect_no_form(http: HttpRequest) -> None:
    """Raise HTTPException for a content type that a page of another site may send without asking, and for a compressed
    body. Clients of the protocol send JSON without a content type.
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _JSON and (kind or "origin" in http.headers):
        raise HTTPException(415, f"content-type: expected one of {', '.join(_JSON)}")
    if http.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "content-encoding: expected none")


def _header_length(http: HttpRequest, size: int) -> int:
    """Return the bytes of a body that are JSON. Raises InputError."""
    text = http.headers.get(_LENGTH)
    if text is None:
        return size
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or int(text) > size:
        raise InputError(f"Inference-Header-Content-Length: got {text[:20]!r}, expected 0..{size}")
    return int(text)


def _parsed(content: bytes) -> InferRequest:
    expect_shallow(content)
    try:
        return msgspec.json.decode(content, type=InferRequest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"body: {error}") from error
