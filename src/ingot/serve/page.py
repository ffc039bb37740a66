"""The page for chats: its parts as one HTML file that fetches nothing but the server's own answers."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from string import Template

from starlette.requests import Request
from starlette.responses import Response

_SITE = Path(__file__).parent / "site"
# Each script imports only scripts before it.
_SCRIPTS = (
    "dom.js", "highlight.js", "markdown.js", "chats.js", "server.js", "connection.js", "settings.js", "files.js",
    "view.js", "main.js",
)  # fmt: skip
_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


async def page(http: Request) -> Response:
    """GET /: the page. It needs no key, as it contains nothing of the model; its requests do."""
    html, policy = document()
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(html, media_type="text/html", headers=headers)


@functools.cache
def document() -> tuple[str, str]:
    """Return the page as HTML, and its Content-Security-Policy, which allows its own script and style alone."""
    style = (_SITE / "style.css").read_text(encoding="utf-8")
    script = "".join(_joined((_SITE / name).read_text(encoding="utf-8")) for name in _SCRIPTS)
    frame = Template((_SITE / "page.html").read_text(encoding="utf-8"))
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return frame.substitute(style=style, script=script), "; ".join(f"{name} {value}" for name, value in policy.items())


def _joined(module: str) -> str:
    """Return a module's text for a script that contains the modules it imports from."""
    return _EXPORT.sub("", _IMPORT.sub("", module))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
