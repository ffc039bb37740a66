"""Servers in this process: of an application, and of tiny-lm, also with the chat templates of other families."""

import contextlib
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve import app
from ingot.serve.connections import Limits, Server


@contextlib.contextmanager
def serving(application: Any, limits: Limits | None = None) -> Iterator[str]:
    """Serve an ASGI application for the block; yield its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        server = Server(application, limits)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the application did not start"
                time.sleep(0.01)
            yield "http://{}:{}".format(*listening.getsockname())
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def served(folder: Path = FOLDER, limits: Limits | None = None, **options: Any) -> Iterator[str]:
    """A server of a folder's model in this process, with options of `app`: its address."""
    llm = ingot.LLM(folder, precision="f32", sequences=4)
    with serving(app(llm, "tiny-lm", **options), limits) as address:
        yield address


def with_template(folder: Path, template: str, control: tuple[str, ...] = ()) -> Path:
    """A copy of tiny-lm with another chat template, and with control tokens instead of its last tokens."""
    shutil.copytree(FOLDER, folder)
    (folder / "chat_template.jinja").write_text(template)
    document = json.loads((folder / "tokenizer.json").read_text())
    model = document["model"]
    size = len(model["vocab"])
    removed = {text for text, index in model["vocab"].items() if index >= size - len(control)}
    model["vocab"] = {text: index for text, index in model["vocab"].items() if text not in removed}
    model["merges"] = [merge for merge in model["merges"] if removed.isdisjoint({*merge, "".join(merge)})]
    for index, text in enumerate(control, size - len(control)):
        model["vocab"][text] = index
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        document["added_tokens"].append({"id": index, "content": text, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def writes(text: str) -> dict[str, Any]:
    """The fields of a request whose answer has this text."""
    return {"structured_outputs": {"regex": re.escape(text).replace("\\\n", r"\n")}}


def events(address: str, path: str, body: dict[str, Any], **headers: str) -> list[tuple[str, Any]]:
    """The events of a stream by name ("" without one), with their data as JSON, or as text if it is none."""
    found, name = [], ""
    with httpx.stream("POST", address + path, json=body | {"stream": True}, headers=headers, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                found.append((name, value if value == "[DONE]" else json.loads(value)))
                name = ""
    return found
