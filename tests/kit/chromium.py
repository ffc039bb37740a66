"""A headless Chromium with WebGPU on a CPU, driven through the pipe of its DevTools; and a server of static files.

Chromium reads commands from its file 3 and writes to its file 4: JSON, each with a zero behind it.
"""

from __future__ import annotations

import base64
import fcntl
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--window-size=1000,760",
)  # fmt: skip
_FAR = 64  # file descriptors from there on are in nobody's way
_SECONDS = 120  # that a page may take for one thing


class Chromium:
    """A browser. Raises AssertionError where it does not answer."""

    def __init__(self, profile: Path):
        assert PROGRAM is not None
        theirs, self._commands = _pipe()
        self._answers, written = _pipe()

        def connect() -> None:
            os.dup2(theirs, 3)
            os.dup2(written, 4)

        command, own = [PROGRAM, *_FLAGS, f"--user-data-dir={profile}"], os.environ | {"HOME": str(profile)}
        with open(profile / "log", "wb") as log:
            self._process = subprocess.Popen(
                command, pass_fds=(3, 4), preexec_fn=connect, stdout=log, stderr=log, env=own
            )
        for descriptor in (theirs, written):
            os.close(descriptor)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Ends it."""
        self.call("Browser.close")
        self._process.wait(_SECONDS)
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """What a command gives; what happens meanwhile is noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": given} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]

    def receive(self, seconds: float = _SECONDS) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], seconds)
            assert ready, f"chromium: no answer in {seconds} seconds"
            more = os.read(self._answers, 1 << 20)
            assert more, "chromium: ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


class Tab:
    """A page that is open. errors: what its console, its code and its requests complained of."""

    def __init__(self, browser: Chromium, url: str, *, dark: bool = False):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """What a command on the page gives."""
        return self._browser.call(method, self._session, **given)

    def close(self) -> None:
        """Closes it."""
        self._browser.call("Target.closeTarget", targetId=self._target)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of what it promises. Raises AssertionError for what it throws."""
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = _SECONDS) -> Any:
        """The first value of an expression that is true there."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"{expression}: not in {seconds} seconds; {self.errors}"
            time.sleep(0.05)
        return value

    def reload(self) -> None:
        """Loads the page again, and waits until it is there."""
        before = len(list(self._events("Page.loadEventFired")))
        self.call("Page.reload")
        while len(list(self._events("Page.loadEventFired"))) == before:
            self._browser.receive()

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Draws a line with the mouse, through points of the window."""
        for kind, (x, y) in zip(["mousePressed", *["mouseMoved"] * len(points)], [points[0], *points], strict=True):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        x, y = points[-1]
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, text: str = "") -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def screenshot(self, path: Path) -> None:
        """Writes what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _events(self, method: str) -> Iterator[dict[str, Any]]:
        for event in self._browser.events:
            if event["method"] == method and event.get("sessionId") == self._session:
                yield event["params"]

    @property
    def errors(self) -> list[str]:
        """Errors and warnings."""
        thrown = [str(each["exceptionDetails"]) for each in self._events("Runtime.exceptionThrown")]
        said = [str(each["args"]) for each in self._events("Runtime.consoleAPICalled") if each["type"] != "log"]
        logged = [str(each["entry"]) for each in self._events("Log.entryAdded")]
        return thrown + said + logged

    @property
    def said(self) -> list[str]:
        """What `console.log` was given, first."""
        logged = (each["args"][0] for each in self._events("Runtime.consoleAPICalled") if each["type"] == "log")
        return [str(each.get("value")) for each in logged]

    @property
    def requests(self) -> list[str]:
        """The addresses of all that was asked for."""
        return [each["request"]["url"] for each in self._events("Network.requestWillBeSent")]


def _pipe() -> tuple[int, int]:
    """A pipe whose files have high numbers, so that none is where Chromium looks for its own."""
    low = os.pipe()
    ends = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FAR) for each in low]
    for each in low:
        os.close(each)
    return ends[0], ends[1]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, while the block lasts."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http:{'//'}127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
