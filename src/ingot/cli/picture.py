"""Graphviz text -> a picture, by Graphviz's own program."""

from __future__ import annotations

import shutil
import subprocess

from ingot.errors import OutputError, UnsupportedError

FORMATS = ("svg", "png", "pdf")  # endings of names of files that are pictures
_SHOWN = 500  # characters of what the program says


def expect_graphviz() -> str:
    """The path of Graphviz's program. Raises UnsupportedError where there is none."""
    found = shutil.which("dot")
    if found is None:
        raise UnsupportedError(
            "dot: a picture needs Graphviz, got no program `dot` in PATH, expected it to be installed (Debian: apt"
            " install graphviz; macOS: brew install graphviz), or -o NAME.dot for text that any viewer draws"
        )
    return found


def picture(text: str, form: str) -> bytes:
    """A picture of a graph in Graphviz's language, in one of FORMATS. Raises UnsupportedError, OutputError."""
    ran = subprocess.run([expect_graphviz(), f"-T{form}"], input=text.encode(), capture_output=True, check=False)
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()[:_SHOWN]
        raise OutputError(f"dot: Graphviz draws no {form}, got exit code {ran.returncode}: {said}")
    return ran.stdout
