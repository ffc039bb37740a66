"""An ASGI application in this process, and a connection to it, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ingot.errors import InputError

SECONDS = 60  # of an answer


class Application:
    """An application that has started, on a loop of its own."""

    def __init__(self, app: Any):
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._life = app.router.lifespan_context(app)
        self._loop.run_until_complete(self._life.__aenter__())

    def post(self, path: str, body: bytes, kind: str, headers: Mapping[str, str] | None = None) -> int:
        """Post a request; return the status of the answer.

        Raises InputError for a status from 400 on, and what the application does not answer.
        """
        answer = asyncio.wait_for(self._post(path, body, kind, headers or {}), SECONDS)
        status = self._loop.run_until_complete(answer)
        if status >= 400:
            raise InputError(f"status {status}")
        return status

    async def _post(self, path: str, body: bytes, kind: str, headers: Mapping[str, str]) -> int:
        given = {"content-type": kind, "content-length": str(len(body))} | headers
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        over, status = asyncio.Event(), 0

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        await self._app(scope, receive, send)
        over.set()
        return status


class Transport(asyncio.Transport):
    """What the bytes of an answer go to."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)})
        self.is_closed, self.written = False, b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_protocol(self, protocol: Any) -> None:
        pass


class Bytes:
    """Connections to an application that answers every request with nothing."""

    def __init__(self) -> None:
        import uvicorn
        from uvicorn.server import ServerState

        from ingot.serve.connections import Connection

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["type"] == "http.request":
                break
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        self._loop = asyncio.new_event_loop()
        self._failed: list[BaseException] = []
        self._loop.set_exception_handler(lambda _, context: self._failed.append(context["exception"]))
        config = uvicorn.Config(app, http=Connection, ws="none", log_config=None, access_log=False)
        config.load()
        self._made = lambda: Connection(config, ServerState(), {}, self._loop)

    def receive(self, content: bytes) -> None:
        """Receive bytes in two parts, then the end of the connection.

        Raises InputError for bytes that are refused, and what the connection does not handle.
        """
        written = self._loop.run_until_complete(self._receive(content))
        if self._failed:
            raise self._failed.pop()
        if b"HTTP/1.1 4" in written:
            raise InputError("refused")

    async def _receive(self, content: bytes) -> bytes:
        connection, transport = self._made(), Transport()
        connection.connection_made(transport)
        for part in (content[: len(content) // 2], content[len(content) // 2 :]):
            if part and not transport.is_closed:
                connection.data_received(part)
                await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        return transport.written
