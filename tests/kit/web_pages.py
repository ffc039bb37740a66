"""Sites in tests: how they are written, opened and asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ingot
from chromium import Tab
from ingot.cli import main

SITE = Path(ingot.__file__).parent / "emit" / "web" / "site"
BLANK = "blank.html"
READY = "document.getElementById('main')?.inert === false"
STATUS = "document.getElementById('status').textContent"
ANSWER = "document.getElementById('answer').textContent"

Opened = Callable[..., Tab]


def emitted(folder: Path, *arguments: object) -> Path:
    """The folder of a site that the command line has written."""
    main(["emit-web", *map(str, arguments), "-o", str(folder)])
    return folder


def from_library(tab: Tab, body: str) -> Any:
    """What a function over `load` gives, as JSON has it; an error as its kind and text."""
    code = f"""
      import('./model.js').then(({{ load, ModelError }}) => (async () => {{ {body} }})().catch((error) => {{
        if (!(error instanceof ModelError)) throw error;
        return `${{error.kind}}: ${{error.message}}`;
      }})).then(JSON.stringify)"""
    return json.loads(tab.evaluate(code))
