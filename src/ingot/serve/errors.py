"""Errors of HTTP in OpenAI's shape: of a request that is refused before a model sees it."""

from __future__ import annotations

from typing import Any

from ingot.serve.log import request_id

KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


def refusal(status: int, message: str) -> dict[str, Any]:
    """Return the JSON of an error with this status, and the id of the request that is answered."""
    kind = KINDS.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None, "request_id": request_id()}}
