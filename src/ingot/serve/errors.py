"""Errors as clients see them: a status, and JSON in the shape of each protocol."""

from __future__ import annotations

import contextvars
import os
import re
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from ingot.errors import IngotError, InputError, LimitError, LoadError, StoppedError, UnsupportedError
from ingot.llm.service import BusyError
from ingot.serve.log import request_id
from ingot.serve.models import UnavailableError, UnknownModelError
from ingot.serve.stored import UnknownResponseError

RETRY_SECONDS = 1  # after which a client tries again where the server has no room

_KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
_PATHS: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("paths of the model", default=())
_PARAMETER = re.compile(r"(?:option )?(([a-z_]+)(?:\[\d+\]|\.[a-z_]+)*)")  # a field, and one inside it


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a request. kind: its type in OpenAI's protocol. parameter: the field that is wrong."""

    status: int
    kind: str
    message: str
    parameter: str | None = None
    code: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a response."""
        return {"retry-after": str(RETRY_SECONDS)} if self.status in (429, 503) else {}


BUG = Failure(500, "server_error", "the server failed; its log has the position")
CUT = Failure(500, "server_error", "the server cut the answer; its log has the position")


def hide_path(path: str) -> None:
    """Show only the last name of a path in the errors of the request that the current task answers."""
    _PATHS.set(tuple(sorted({path, os.path.abspath(path), os.path.realpath(path)}, key=len, reverse=True)))


def message_of(error: Exception) -> str:
    """Return the text of an error as clients see it."""
    text = str(error)
    for path in _PATHS.get():
        text = text.replace(path, os.path.basename(os.path.normpath(path)))
    return text


def failure_of(error: IngotError | HTTPException, fields: set[str]) -> Failure:
    """Return an error of Ingot or of HTTP. fields: the names of a request's fields."""
    text = message_of(error)
    if isinstance(error, HTTPException):
        return refusal(error.status_code, error.detail)
    if isinstance(error, BusyError):
        return refusal(429, text)
    if isinstance(error, UnknownModelError):
        return Failure(404, "invalid_request_error", text, code="model_not_found")
    if isinstance(error, UnknownResponseError):
        is_field = text.startswith("previous_response_id")
        parameter, code = ("previous_response_id", "previous_response_not_found") if is_field else (None, None)
        return Failure(400 if is_field else 404, "invalid_request_error", text, parameter, code)
    if isinstance(error, StoppedError | UnavailableError):
        return Failure(503, "server_error", text)
    if not isinstance(error, InputError | LimitError | LoadError | UnsupportedError):
        return Failure(500, "server_error", text)
    at = _PARAMETER.match(text)
    code = "context_length_exceeded" if "longer than the context" in text else None
    return Failure(400, "invalid_request_error", text, at[1] if at and at[2] in fields else None, code)


def refusal(status: int, message: str) -> Failure:
    """Return the error of a request that is refused before a model gets it."""
    return Failure(status, _KINDS.get(status, "invalid_request_error"), message)


def openai_error(failure: Failure) -> dict[str, Any]:
    """Return an error in OpenAI's shape, with the id of the request that is answered."""
    fields = {"message": failure.message, "type": failure.kind, "param": failure.parameter, "code": failure.code}
    return {"error": {**fields, "request_id": request_id()}}
