"""A hub of models on loopback: the routes that `huggingface_hub` asks for, and what goes wrong on the way to one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class FakeHub:
    """Models by name, each a mapping of files; its commit is a hash of them, and its only branch `main`.

    gated, private: names of models that answer so. cut: paths of files whose content ends after so many bytes, once.
    breaks: whether it gives no more files after that. asked: methods and paths so far.
    """

    models: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    breaks: bool = False
    is_broken: bool = False
    address: str = ""

    def commit(self, name: str) -> str:
        """The hash of a model's commit."""
        digest = hashlib.sha1(name.encode())
        for file, content in sorted(self.models[name].items()):
            digest.update(file.encode() + content)
        return digest.hexdigest()

    def environment(self, home: Path) -> dict[str, str]:
        """What makes a process ask this hub, and keep what it gets below a folder."""
        return {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


class Answers(BaseHTTPRequestHandler):
    """The answer of a hub to one request."""

    hub: FakeHub

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        kind, *words = path.strip("/").split("/")
        name = "/".join(words[1:3] if kind == "api" else [kind, *words[:1]])
        if name in self.hub.gated:
            self.refuse(403, "GatedRepo")
        elif name in self.hub.private or name not in self.hub.models:
            self.refuse(401 if name in self.hub.private else 404, "RepoNotFound")
        elif kind != "api":
            self.give_file(name, words[2], "/".join(words[3:]))
        elif words[3:4] == ["tree"]:
            files = self.hub.models[name].items()
            self.give_json([{"type": "file", "path": f, "size": len(c), "oid": _blob(c)} for f, c in files])
        else:
            self.give_information(name, words[4] if words[3:4] == ["revision"] else "main")

    def give_information(self, name: str, revision: str) -> None:
        if revision not in ("main", self.hub.commit(name)):
            self.refuse(404, "RevisionNotFound")
            return
        files = [{"rfilename": f, "size": len(c), "blobId": _blob(c)} for f, c in self.hub.models[name].items()]
        self.give_json({"id": name, "modelId": name, "sha": self.hub.commit(name), "siblings": files})

    def give_file(self, name: str, revision: str, file: str) -> None:
        content = self.hub.models[name].get(file)
        if content is None or revision != self.hub.commit(name):
            self.refuse(404, "EntryNotFound")
            return
        if self.hub.is_broken:
            self.refuse(503, "Broken")
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{_blob(content)}"')
        self.send_header("X-Repo-Commit", self.hub.commit(name))
        self.end_headers()
        if self.command == "GET":
            end = self.hub.cut.pop(file, None)
            self.hub.is_broken = self.hub.breaks and end is not None
            self.wfile.write(content[start:end])
            self.close_connection = True

    def give_json(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def refuse(self, code: int, kind: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("X-Error-Message", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serves a hub meanwhile."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Answers,), {"hub": hub})) as server:
        host, port = server.server_address[:2]
        hub.address = f"http://{host!s}:{port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a model folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def sharded(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same model with its weights in two files and an index."""
    others = dict(files)
    content = others.pop("model.safetensors")
    length = 8 + int.from_bytes(content[:8], "little")
    tensors = {name: facts for name, facts in json.loads(content[8:length]).items() if name != "__metadata__"}
    names = sorted(tensors, key=lambda name: tensors[name]["data_offsets"])
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file, header, data = f"model-0000{number}-of-00002.safetensors", {}, b""
        for name in part:
            start, end = tensors[name]["data_offsets"]
            header[name] = tensors[name] | {"data_offsets": [len(data), len(data) + end - start]}
            data += content[length + start : length + end]
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        others[file] = len(text).to_bytes(8, "little") + text + data
    others["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return others
