"""Who may use the server: keys of clients, and names under which browsers may address it."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ingot.errors import InputError, ResourceError
from ingot.serve.errors import Failure, refusal
from ingot.serve.log import path_of

OPEN = {"/", "/health", "/ready", "/v2/health/live", "/v2/health/ready"}  # without a key
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")  # names of a server that only this machine reaches


class Access:
    """ASGI middleware that refuses requests without a key (status 401), and to another host (status 421).

    keys: clients send one as `Authorization: Bearer KEY` or `x-api-key: KEY`; without keys everybody may ask.
    hosts: allowed names in `Host`, without the port; without hosts every name. A page of another site whose name an
    attacker lets point to this machine (DNS rebinding) sends its own name. shaped: returns an error as JSON in the
    shape of a path's protocol.
    """

    def __init__(
        self,
        app: ASGIApp,
        shaped: Callable[[str, Failure], dict[str, Any]],
        keys: Collection[str] = (),
        hosts: Collection[str] = (),
    ):
        self.app, self.shaped = app, shaped
        self.keys = [key.encode() for key in keys]
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        answer = self.app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "").lower()
            if self.hosts and host and _name(host) not in self.hosts:
                answer = self._refused(scope, refusal(421, "host: not a name of this server"))
            elif path_of(scope) not in OPEN and not self._has_key(headers):
                message = "authorization: wrong key, expected 'Bearer KEY' or x-api-key with a key of the server"
                answer = self._refused(scope, refusal(401, message), {"www-authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _refused(self, scope: Scope, failure: Failure, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse(self.shaped(path_of(scope), failure), failure.status, headers)

    def _has_key(self, headers: Headers) -> bool:
        """Whether a request has a key. The time does not depend on which key, nor on the position of a difference."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        equal = [hmac.compare_digest(given.strip().encode(), key) for key in self.keys]
        return not self.keys or any(equal)


def _name(host: str) -> str:
    """The name of a host without its port."""
    end = host.find("]") + 1 if host.startswith("[") else host.find(":")
    return host if end < 1 else host[:end]


def keys_of_file(path: Path) -> list[str]:
    """Return the keys of a file with one key in each line; empty lines and lines with `#` are skipped.

    Raises ResourceError for a file that cannot be read, InputError for a file without keys.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ResourceError(f"api-key-file: cannot be read, got {error}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise InputError("api-key-file: no key, expected one in each line")
    return keys


def checked_keys(keys: Collection[str]) -> Collection[str]:
    """Return keys. Raises InputError for one that HTTP cannot carry."""
    for index, key in enumerate(keys):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(f"api_keys: key {index} is wrong, expected printable ASCII characters without spaces")
    return keys
