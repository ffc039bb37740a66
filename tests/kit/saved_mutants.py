"""Changed saved programs, whose hashes fit again: as whoever may write the folder could make them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import ingot.ops
from ingot.ir.dtype import DTYPES, from_numpy
from ingot.ir.graph import OPS, Graph, Sample, TensorType
from ingot.ops.define import draw
from ingot.run.library import content_hash
from ingot.session.saved_program import row_hash
from random_graphs import random_graph

assert ingot.ops

Manifest = dict[str, Any]
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\w.]*|[A-Za-z_][\w.]*|\s+|\S')
_WORDS = [
    *("0", "-1", "1", "2", "3", "7", "31", "64", "65536", "2147483647", "2147483648", "-2147483648", "4294967296"),
    *("4611686018427387904", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + "0" * 30),
    *("0.5", "-1.5", "1e300", "inf", "-inf", "nan", "?", "none", "true", "false", '"erf"', '"x"', "[]", "[0]"),
    *("[1, 1, 1, 1]", "[-1]", "B", "B*B", "B+1", "B//2", "B//0", "min(B, 2)", "Z", "[[1]]", "{}", "@f32", "@i64", "@"),
    *("(", ")", "[", "]", ",", "=", ":", "->", "sequence<f32[2]>", "base64:AAAA", "output", "input", "weight"),
]
_VALUES = [0, 1, -1, 3, 64, 63, 1 << 20, 1 << 31, 1 << 40, 1 << 62, 1 << 63, 10**30, 1.5, True, None, "x", [], {}]


Case = tuple[Graph, dict[str, np.ndarray]]


def op_case(name: str, sample: Sample, weights: int, rng: np.random.Generator) -> Case:
    """A graph of one op whose last operands are weights, and an array for each input."""
    graph, op, feeds = Graph(name), OPS[name], {}
    operands: list[str | None] = []
    arrays = draw(sample.operands, rng, op.domain)
    for i, array in enumerate(arrays):
        if array is None:
            operands.append(None)
        elif i >= max(len(arrays) - weights, 1):
            operands.append(graph.add_weight(f"w{i}", array))
        else:
            operands.append(graph.add_input(f"x{i}", TensorType(from_numpy(array.dtype), array.shape)))
            feeds[f"x{i}"] = array
    node = graph.add(name, operands, "y", **sample.attributes)
    for i, output in enumerate(node.outputs):
        graph.set_output(f"out{i}", output)
    return graph, feeds


def sources(seed: int) -> list[Case]:
    """A graph of each op that has samples, of one of them, and random ones; and arrays for their inputs."""
    rng = np.random.default_rng(seed)
    cases = []
    for name, op in OPS.items():
        if not op.samples:
            continue
        sample = op.samples[int(rng.integers(len(op.samples)))]
        if ":string" in sample.operands:
            continue  # such a graph is not saved
        cases.append(op_case(name, sample, int(rng.integers(3)), rng))
    return [*cases, *(random_graph(1000 * seed + i) for i in range(20))]


class Mutation:
    """A program under change: its text by tokens, and its manifest."""

    def __init__(self, text: str, manifest: Manifest, blob: bytes, seed: int):
        self.rng = np.random.default_rng(seed)
        self.lines = [_TOKEN.findall(line) for line in text.splitlines()]
        self.manifest = json.loads(json.dumps(manifest))
        self.blob = np.frombuffer(blob, np.uint8)

    def choose(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def made(self) -> tuple[str, str]:
        """The changed text, and the manifest as JSON; nearly always with the hashes that they should have."""
        if self.rng.random() < 0.7:
            self.lines = [_without_type(line) for line in self.lines]
        for _ in range(int(self.choose((1, 1, 1, 2, 3)))):
            self.choose(_CHANGES)(self)
        text = "\n".join("".join(line) for line in self.lines) + "\n"
        if self.rng.random() < 0.95:
            self.manifest["graph_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        rows = self.manifest.get("arrays")
        for key, row in rows.items() if isinstance(rows, dict) else ():
            if isinstance(row, dict) and self.rng.random() < 0.99:
                self._rehash(key, row)
        return text, json.dumps(self.manifest)

    def _rehash(self, key: str, row: dict[str, Any]) -> None:
        shape, offset = row.get("shape"), row.get("offset")
        if not isinstance(shape, list) or row.get("dtype") not in [*DTYPES] or type(offset) is not int:
            return
        if not all(type(n) is int and 0 <= n <= len(self.blob) for n in (*shape, offset)):
            return
        size = DTYPES[row["dtype"]].itemsize
        for n in shape:
            size *= n
        row["hash"] = row_hash(key, row, content_hash(self.blob[offset : offset + size]))

    def place(self, pattern: str) -> tuple[list[str], int] | None:
        """A line, and the index of a matching token in it."""
        found = [(line, i) for line in self.lines for i, token in enumerate(line) if re.fullmatch(pattern, token)]
        return self.choose(found) if found else None

    def names(self) -> list[str]:
        return [token for line in self.lines for token in line if re.fullmatch(r"[A-Za-z_][\w.]*", token)]

    def row(self) -> tuple[str, dict[str, Any]] | None:
        rows = self.manifest.get("arrays")
        found = [pair for pair in rows.items() if isinstance(pair[1], dict)] if isinstance(rows, dict) else []
        return self.choose(found) if found else None


def _without_type(line: list[str]) -> list[str]:
    """A node's line without the types of its values, which are inferred then."""
    end = max((i for i, token in enumerate(line) if token == ")"), default=0)
    return line[: end + 1] if end and line[end + 1 :][:1] == [":"] else line


def _everywhere(m: Mutation) -> None:
    """One number becomes another wherever it occurs, in the manifest's shapes too."""
    found = m.place(r"\d+")
    if found:
        old = found[0][found[1]]
        new = m.choose([*map(str, range(9)), "B", "65536", "2147483648", "4294967296", "1048576"])
        m.lines = [[new if token == old else token for token in line] for line in m.lines]
        rows = m.manifest.get("arrays")
        for row in rows.values() if isinstance(rows, dict) and new.isdigit() else ():
            if isinstance(row, dict) and isinstance(row.get("shape"), list):
                row["shape"] = [int(new) if n == int(old) else n for n in row["shape"]]


def _attribute(m: Mutation) -> None:
    """An attribute, or an item of one, gets another value."""
    places = []
    for line in m.lines:
        inside = 0
        for i, token in enumerate(line):
            inside += (token == "(") - (token == ")")
            if (
                inside
                and i > 4
                and token not in "()[],= "
                and (line[i - 1] in "=[" or "".join(line[i - 2 : i]) == ", ")
            ):
                places.append((line, i))
    if places:
        line, i = m.choose(places)
        line[i] = m.choose(_WORDS[:-20])


def _number(m: Mutation) -> None:
    found = m.place(r"-?\d[\w.]*")
    if found:
        line, i = found
        nearby = [str(int(line[i]) + m.choose((-1, 1, 2)))] if line[i].isdigit() else []
        line[i] = m.choose([*nearby, *nearby, *_WORDS[:24]])


def _word(m: Mutation) -> None:
    found = m.place(r"\S+")
    if found:
        found[0][found[1]] = m.choose(_WORDS)


def _name(m: Mutation) -> None:
    found = m.place(r"[A-Za-z_][\w.]*")
    if found:
        found[0][found[1]] = m.choose(m.names())


def _dtype(m: Mutation) -> None:
    found = m.place("|".join(DTYPES))
    if found:
        found[0][found[1]] = m.choose([*DTYPES])


def _op(m: Mutation) -> None:
    found = m.place("|".join(OPS))
    if found:
        found[0][found[1]] = m.choose([*OPS])


def _token(m: Mutation) -> None:
    found = m.place(r"\S+")
    if found:
        line, i = found
        match m.choose(("remove", "repeat", "insert", "swap")):
            case "remove":
                del line[i]
            case "repeat":
                line.insert(i, line[i])
            case "insert":
                line.insert(i, m.choose(_WORDS))
            case "swap":
                j = int(m.rng.integers(len(line)))
                line[i], line[j] = line[j], line[i]


def _line(m: Mutation) -> None:
    if not m.lines:
        return
    i, j = (int(k) for k in m.rng.integers(len(m.lines), size=2))
    match m.choose(("remove", "repeat", "move", "swap")):
        case "remove":
            del m.lines[i]
        case "repeat":
            m.lines.insert(j, [*m.lines[i]])
        case "move":
            m.lines.insert(j, m.lines.pop(i))
        case "swap":
            m.lines[i], m.lines[j] = m.lines[j], m.lines[i]


def _dims(m: Mutation) -> None:
    """Another shape of a weight, in the text, its own row and that of its packed weight alike."""
    lines = [line for line in m.lines if line[:1] == ["weight"] and "[" in line]
    rows = m.manifest.get("arrays")
    if lines and isinstance(rows, dict):
        line = m.choose(lines)
        name, shape = line[2], [int(m.rng.integers(9)) for _ in range(int(m.rng.integers(4)))]
        line[line.index("[") + 1 :] = [", ".join(map(str, shape)), "]"]
        for key in (f"weight {name}", f"packed_weight raw {name}"):
            if isinstance(rows.get(key), dict):
                rows[key]["shape"] = shape


def _row_field(m: Mutation) -> None:
    found = m.row()
    if found:
        row, field = found[1], m.choose(("dtype", "shape", "offset", "hash"))
        shape = row.get("shape")
        if field == "shape" and isinstance(shape, list) and shape and m.rng.random() < 0.8:
            shape[int(m.rng.integers(len(shape)))] = m.choose(_VALUES)
        elif field == "dtype" and m.rng.random() < 0.8:
            row["dtype"] = m.choose([*DTYPES])
        elif m.rng.random() < 0.1:
            row.pop(field, None)
        else:
            row[field] = m.choose(_VALUES)


def _rows(m: Mutation) -> None:
    one, other = m.row(), m.row()
    if one and other:
        rows = m.manifest["arrays"]
        match m.choose(("swap", "remove", "copy", "rename", "replace")):
            case "swap":
                rows[one[0]], rows[other[0]] = other[1], one[1]
            case "remove":
                del rows[one[0]]
            case "copy":
                rows[m.choose((f"weight {m.choose(m.names())}", f"packed_weight panels {m.choose(m.names())}"))] = one[
                    1
                ]
            case "rename":
                rows[one[0].replace("raw", "panels")] = rows.pop(one[0])
            case "replace":
                rows[one[0]] = m.choose(_VALUES)


def _manifest(m: Mutation) -> None:
    key = m.choose([*m.manifest])
    m.manifest[key] = m.choose(_VALUES)


_CHANGES: list[Callable[[Mutation], None]] = [
    *[_everywhere] * 5, *[_attribute] * 5, *[_number] * 4, _word, *[_name] * 3, *[_dtype] * 2, *[_op] * 3,
    _token, _line, *[_dims] * 3, *[_row_field] * 2, _rows, _manifest,
]  # fmt: skip
