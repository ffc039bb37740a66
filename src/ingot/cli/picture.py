"""Render Graphviz text as a picture with the program `dot`."""

from __future__ import annotations

import shutil
import subprocess

from ingot.errors import OutputError, UnsupportedError

FORMATS = ("svg", "png", "pdf")  # file name extensions of pictures
_SHOWN = 500  # characters of the program's error output in a message


def expect_graphviz() -> str:
    """Return the path of Graphviz's program `dot`. Raises UnsupportedError if it is not installed."""
    found = shutil.which("dot")
    if found is None:
        raise UnsupportedError(
            "dot: a picture needs Graphviz, got no program `dot` in PATH, expected it to be installed (Debian: apt"
            " install graphviz; macOS: brew install graphviz), or -o NAME.dot for Graphviz text"
        )
    return found


def picture(text: str, form: str) -> bytes:
    """Render Graphviz text in one of FORMATS. Raises UnsupportedError, OutputError."""
    ran = subprocess.run([expect_graphviz(), f"-T{form}"], input=text.encode(), capture_output=True, check=False)
    if ran.returncode:
        reason = ran.stderr.decode(errors="replace").strip()[:_SHOWN]
        raise OutputError(f"dot: Graphviz cannot write {form}, got exit code {ran.returncode}: {reason}")
    return ran.stdout
