"""Hostile model folders, each with the error that it must get: (name, build, error type, fragment of the message).

`build(folder)` fills an empty folder; reading it must fail. The numbers S1, C9, ... are those of a catalogue of bad
inputs: S for weights, C for configurations.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.errors import IngotError, LimitError, LoadError, UnsupportedError

Attack = tuple[str, Callable[[Path], Any], type[IngotError], str]

GOOD = '"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}'
A = "model-00001-of-00002.safetensors"
B = "model-00002-of-00002.safetensors"


def packed(header: str | bytes, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """A safetensors file; `length` may lie."""
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def weights(content: bytes, config: bytes = b"{}") -> Callable[[Path], None]:
    """A folder with these bytes as its weights."""

    def build(folder: Path) -> None:
        (folder / "config.json").write_bytes(config)
        (folder / "model.safetensors").write_bytes(content)

    return build


def header(text: str | bytes, data_bytes: int = 16) -> Callable[[Path], None]:
    return weights(packed(text, bytes(data_bytes)))


def entry(dtype: str = '"F32"', shape: str = "[2,2]", span: str = "[0,16]", data_bytes: int = 16) -> Any:
    return header(f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{span}}}}}', data_bytes)


def several(*rows: tuple[str, int, int], data_bytes: int) -> Callable[[Path], None]:
    """U8 tensors: (name, begin, end)."""
    listed = (f'"{n}":{{"dtype":"U8","shape":[{e - b}],"data_offsets":[{b},{e}]}}' for n, b, e in rows)
    return header("{" + ",".join(listed) + "}", data_bytes)


def sharded(index: Any, shards: dict[str, str], change: Callable[[Path], Any] = lambda folder: None) -> Any:
    """Shards hold one F32 tensor of 16 bytes each; names of one shard are separated by spaces."""

    def build(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        text = index if isinstance(index, str) else json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
        for file, names in shards.items():
            rows = {
                name: {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]}
                for i, name in enumerate(names.split())
            }
            (folder / file).write_bytes(packed(json.dumps(rows), bytes(16 * len(rows))))
        change(folder)

    return build


def config(content: bytes) -> Callable[[Path], None]:
    return weights(packed("{" + GOOD + "}"), content)


def large_config(folder: Path) -> None:
    with open(folder / "config.json", "wb") as file:
        file.truncate(1 << 30)


def linked(target: str, name: str = "model.safetensors") -> Callable[[Path], None]:
    """The file is a symbolic link."""

    def build(folder: Path) -> None:
        config(b"{}")(folder)
        (folder / name).unlink()
        os.symlink(target, folder / name)

    return build


def linked_beside(folder: Path) -> None:
    """Weights outside of the folder, behind a link."""
    (folder.parent / "elsewhere.safetensors").write_bytes(packed("{" + GOOD + "}"))
    linked("../elsewhere.safetensors")(folder)


def fifo(folder: Path) -> None:
    config(b"{}")(folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def directory(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").mkdir()


def pickled(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch touched'\ntR.")


def empty(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


LFS_POINTER = b"version https:" + b"/" * 2 + b"git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

LENGTHS: list[Attack] = [
    *(
        (f"S1 {size} bytes", weights(bytes(size)), LoadError, f"got {size} bytes, expected at least 8")
        for size in range(8)
    ),
    ("S1 N = 0", weights(packed("", length=0)), LoadError, "header is not a JSON object"),
    ("S1 N = 2^64-1", weights(packed("{}", length=2**64 - 1)), LoadError, "header has 18446744073709551615 bytes"),
    ("S1 N = 2^63", weights(packed("{}", length=2**63)), LoadError, "header has 9223372036854775808 bytes"),
    ("S1 N > file", weights(packed("{}", b"", 3)), LoadError, "header has 3 bytes, file has 10"),
    ("S1 N > limit", weights(packed("{}", bytes(1 << 23), (1 << 23) + 1)), LimitError, "header too large"),
    ("S1 HTML", weights(b"<!DOCTYPE html><html><body>404</body></html>"), LoadError, "header has"),
    ("S1 LFS pointer", weights(LFS_POINTER), LoadError, "a Git LFS pointer"),
    ("S2 no brace", header(f" {{{GOOD}}}"), LoadError, "header is not a JSON object"),
    ("S2 list", header(f"[{{{GOOD}}}]"), LoadError, "header is not a JSON object"),
    ("S2 BOM", header(b"\xef\xbb\xbf{" + GOOD.encode() + b"}"), LoadError, "header is not a JSON object"),
    ("S2 newline after", header(f"{{{GOOD}}}\n"), LoadError, "header is not a JSON object"),
    ("S2 NUL after", header(f"{{{GOOD}}}\0"), LoadError, "header is not a JSON object"),
    ("S2 two objects", header(f"{{{GOOD}}}{{}}"), LoadError, "not JSON, Extra data"),
    ("S2 invalid UTF-8", header(GOOD.join("{}").encode().replace(b'"a"', b'"\xff"')), LoadError, "not UTF-8"),
    ("S2 UTF-16", header(GOOD.join("{}").encode("utf-16-le") + b" }"), LoadError, "not JSON"),
    ("S2 ZIP", weights(b"PK\x03\x04\x14\x00\x00\x00" + bytes(30)), LoadError, "header has"),
    ("S2 ZIP behind", weights(packed(f"{{{GOOD}}}", bytes(16) + b"PK\x05\x06" + bytes(18))), LoadError, "take 16"),
    ("S2 pickle", weights(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s."), LoadError, "header has"),
]

HEADERS: list[Attack] = [
    ("S3 tensor twice", header(f"{{{GOOD},{GOOD}}}"), LoadError, "key 'a' appears twice"),
    (
        "S3 twice, sizes apart",
        header('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},' + GOOD + "}"),
        LoadError,
        "key 'a' appears twice",
    ),
    (
        "S3 equal when unescaped",
        header('{"\\u0061":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},' + GOOD + "}"),
        LoadError,
        "key 'a' appears twice",
    ),
    ("S3 dtype twice", entry('"U8","dtype":"F32"'), LoadError, "key 'dtype' appears twice"),
    ("S3 metadata twice", header(f'{{"__metadata__":{{"x":"1","x":"2"}},{GOOD}}}'), LoadError, "key 'x' appears twice"),
    ("S4 bool dim", entry(shape="[true,4]"), LoadError, "tensor 'a': shape is [True, 4]"),
    ("S4 float dim", entry(shape="[4.0]"), LoadError, "tensor 'a': shape is [4.0]"),
    ("S4 text dim", entry(shape='["4"]'), LoadError, "tensor 'a': shape is ['4']"),
    ("S4 -0", entry(shape="[-0]", span="[0,0]", data_bytes=0), LoadError, "number '-0' is not an integer"),
    ("S4 -1", entry(shape="[-1,-4]"), LoadError, "shape is [-1, -4]"),
    ("S4 1e0", entry(shape="[4,1e0]"), LoadError, "shape is [4, 1.0]"),
    ("S4 1e400", entry(shape="[1e400]"), LoadError, "too large or too long"),
    ("S4 5000 digits", entry(shape=f"[{'9' * 5000}]"), LoadError, "is not an integer of at most"),
    ("S4 5000 decimals", entry(shape=f"[4.{'0' * 5000}]"), LoadError, "too large or too long"),
    *((f"S4 {word}", entry(shape=f"[{word}]"), LoadError, "is no JSON number") for word in ("NaN", "-Infinity")),
    ("S4 null shape", entry(shape="null"), LoadError, "shape is None"),
    ("S4 nested", entry(shape="[[4]]"), LoadError, "shape is [[4]]"),
    (
        "S5 deep metadata",
        header(f'{{"__metadata__":{"[" * 10_000}{"]" * 10_000},{GOOD}}}'),
        LimitError,
        "nested too deep",
    ),
    ("S5 deep objects", header('{"a":' * 10_000 + "}"), LimitError, "nested too deep"),
    ("S5 65 levels", header(f'{{"a":{"[" * 64}{"]" * 64}}}'), LimitError, "nested too deep"),
    ("S5 number as metadata", header(f'{{"__metadata__":{{"x":1}},{GOOD}}}'), LoadError, "not an object of strings"),
    ("S5 metadata is a list", header(f'{{"__metadata__":["x"],{GOOD}}}'), LoadError, "not an object of strings"),
    (
        "S5 many keys",
        header('{"__metadata__":{' + ",".join(f'"{i}":""' for i in range(1_000_000)) + "}}"),
        LimitError,
        "header too large",
    ),
    ("entry is a list", header('{"a":[1,2,3]}'), LoadError, "tensor 'a': got [1, 2, 3]"),
    ("entry lacks shape", header('{"a":{"dtype":"F32","data_offsets":[0,16]}}'), LoadError, "expected dtype, shape"),
    ("entry has more", entry('"F32","x":1'), LoadError, "expected dtype, shape and data_offsets"),
    ("dtype is a number", entry("1"), LoadError, "dtype is 1"),
    ("name is empty", header('{"":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'), LoadError, "name has 0 bytes"),
    ("name is long", header(GOOD.join("{}").replace('"a"', f'"{"a" * 5000}"')), LoadError, "name has 5000 bytes"),
    ("half a surrogate", header(GOOD.join("{}").replace('"a"', '"\\ud800"')), LoadError, "surrogate"),
    (
        "terminal codes are escaped",
        header('{"\\u001b[2J\\u202e":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}'),
        LoadError,
        "tensor '\\x1b[2J\\u202e'",
    ),
]

LAYOUTS: list[Attack] = [
    ("S6 negative", entry(span="[-16,0]"), LoadError, "data_offsets is [-16, 0], expected 0 <= begin <= end"),
    ("S6 reversed", entry(span="[16,0]"), LoadError, "data_offsets is [16, 0]"),
    ("S6 one", entry(span="[16]"), LoadError, "expected two integers"),
    ("S6 three", entry(span="[0,8,16]"), LoadError, "expected two integers"),
    ("S6 text", entry(span='["0","16"]'), LoadError, "expected two integers"),
    ("S6 bool", entry(span="[false,16]"), LoadError, "expected two integers"),
    ("S6 float", entry(span="[0,16.0]"), LoadError, "expected two integers"),
    ("S6 beyond the file", entry(shape="[8]", span="[0,32]"), LoadError, "take 32 bytes, the file has 16"),
    ("S6 beyond 2^53", entry(span=f"[{2**53},{2**53 + 16}]"), LoadError, "leaves a gap before it"),
    ("S6 beyond 2^64", entry(span=f"[{2**64},{2**64 + 16}]"), LoadError, "leaves a gap before it"),
    ("S7 overlap", several(("a", 0, 10), ("b", 8, 16), data_bytes=16), LoadError, "'b' overlaps the one before"),
    ("S7 same bytes", several(("a", 0, 16), ("b", 0, 16), data_bytes=16), LoadError, "'b' overlaps the one before"),
    ("S7 inside", several(("a", 0, 16), ("b", 4, 8), data_bytes=16), LoadError, "'b' overlaps the one before"),
    ("S7 hole at the start", several(("a", 4, 16), data_bytes=16), LoadError, "'a' leaves a gap"),
    ("S7 hole", several(("a", 0, 4), ("b", 8, 16), data_bytes=16), LoadError, "'b' leaves a gap before it"),
    ("S7 trailing byte", several(("a", 0, 16), data_bytes=17), LoadError, "take 16 bytes, the file has 17"),
    ("S7 cut off", several(("a", 0, 16), data_bytes=15), LoadError, "take 16 bytes, the file has 15"),
    ("S7 no tensor, but bytes", header("{}", 4), LoadError, "take 0 bytes, the file has 4"),
    ("S8 empty inside another", several(("a", 0, 16), ("b", 8, 8), data_bytes=16), LoadError, "'b' overlaps"),
    ("S8 empty, product vast", entry(shape=f"[0,{2**40},{2**40}]", span="[0,0]", data_bytes=0), LoadError, "2^62"),
    ("S9 product wraps", entry(shape="[4194305,4194305,211106198978564]"), LoadError, "at most 2^62 bytes"),
    ("S9 2^32 * 2^32", entry(shape="[4294967296,4294967296]", span="[0,0]", data_bytes=0), LoadError, "2^62 bytes"),
    ("S9 60 digits", entry(shape=f"[{'9' * 60},{'9' * 60}]"), LoadError, "at most 2^62 bytes"),
    ("S9 wrong product", entry(shape="[5]"), LoadError, "tensor 'a': f32[5] takes 20 bytes, got 16"),
    ("S9 rank 100000", entry(shape=f"[{'1,' * 99_999}4]"), LoadError, "shape has 100000 dims, expected at most 64"),
    ("S9 sub-byte", entry('"F4"', "[3]", "[0,2]", 2), UnsupportedError, "tensor 'a' is 'F4'"),
    ("S10 unknown dtype", entry('"Q4_K"'), UnsupportedError, "tensor 'a' is 'Q4_K'"),
    ("S10 small letters", entry('"f32"'), UnsupportedError, "tensor 'a' is 'f32'"),
    ("S10 float8", entry('"F8_E5M2"', "[16]"), UnsupportedError, "dtypes are BOOL, U8"),
    ("S10 BOOL byte 2", weights(packed(GOOD.replace("F32", "BOOL").replace("2,2", "4,4").join("{}"), b"\2" * 16)),
     LoadError, "tensor 'a' holds 2, expected 0 or 1"),
    ("S9 rank 13", entry(shape="[1,1,1,1,1,1,1,1,1,1,1,1,4]"), UnsupportedError, "rank 13, expected at most 12"),
    ("all at once", header('{"a":{},"b":[],"c":1}', 0), LoadError, "tensor 'b': got []"),
]  # fmt: skip

INDEXES: list[Attack] = [
    *(
        (f"S14 {location}", sharded({"a": A, "b": location}, {A: "a"}), LoadError, "expected the name of a safetensors")
        for location in (
            "../x.safetensors", "/etc/passwd", "/x.safetensors", "sub/../../x.safetensors", "sub/x.safetensors",
            "C:\\x.safetensors", "\\\\host\\x.safetensors", "x\0.safetensors", "", ".", "..", ".safetensors",
            "pytorch_model.bin", "model.safetensors.index.json",
        )
    ),
    ("S14 5000 characters", sharded({"a": "a" * 5000 + ".safetensors"}, {}), LoadError, "does not exist"),
    ("S14 not text", sharded({"a": 1}, {}), LoadError, "tensor 'a' is in 1"),
    ("S14 link out", sharded({"a": A}, {}, lambda f: os.symlink("/etc/passwd", f / A)), LoadError, "leads outside"),
    ("S14 missing", sharded({"a": A, "b": B}, {A: "a"}), LoadError, f"'{B}' does not exist"),
    ("S14 in two", sharded({"a": A, "b": B}, {A: "a", B: "a b"}), LoadError, "tensor 'a' is in"),
    ("S14 in the other", sharded({"a": A, "b": A}, {A: "a", B: "b"}), LoadError, f"tensor 'b' is not in {A}"),
    ("S14 swapped", sharded({"a": B, "b": A}, {A: "a", B: "b"}), LoadError, f"tensor 'a' is in {A}, expected in {B}"),
    ("S14 not there", sharded({"a": A, "b": A}, {A: "a"}), LoadError, f"tensor 'b' is not in {A}"),
    ("S14 not listed", sharded({"a": A}, {A: "a b"}), LoadError, f"tensor 'b' of {A} is not listed"),
    ("S14 all at once", sharded({"a": A, "b": B, "c": A}, {A: "a d"}), LoadError, f"'d' of {A} is not listed; tensor"),
    ("S14 no map", sharded("{}", {}), LoadError, "weight_map is None"),
    ("S14 empty map", sharded({}, {}), LoadError, "weight_map is {}"),
    ("S14 list", sharded("[]", {}), LoadError, "expected a JSON object"),
    ("S14 name twice", sharded(f'{{"weight_map":{{"a":"{A}","a":"{B}"}}}}', {A: "a"}), LoadError, "appears twice"),
    ("S14 many files", sharded({str(i): f"{i}.safetensors" for i in range(10_001)}, {}), LimitError, "too many files"),
]  # fmt: skip

PLACES: list[Attack] = [
    ("S17 link out", linked("/etc/passwd"), LoadError, "leads outside the folder"),
    ("S17 link beside", linked_beside, LoadError, "leads outside the folder"),
    ("S17 config links out", linked("/etc/passwd", "config.json"), LoadError, "config.json: a link that leads outside"),
    ("S17 dangling", linked("nothing.safetensors"), LoadError, "does not exist"),
    ("S17 loop", linked("model.safetensors"), LoadError, "model.safetensors is a symbolic link"),
    ("S17 device", linked("/dev/zero"), LoadError, "leads outside the folder"),
    ("FIFO", fifo, LoadError, "is not a regular file"),
    ("directory", directory, LoadError, "is not a regular file"),
    ("S18 pickled", pickled, LoadError, "pytorch_model.bin), which runs code when read, so they are not read; convert"),
    ("no weights", empty, LoadError, "no weights, expected model.safetensors or model.safetensors.index.json"),
    ("no config", lambda folder: None, LoadError, "not a model folder, it has no config.json"),
]

CONFIGS: list[Attack] = [
    ("C9 empty", config(b""), LoadError, "config.json: not JSON"),
    ("C9 list", config(b"[]"), LoadError, "config.json: got [], expected a JSON object"),
    ("C9 key twice", config(b'{"a":1,"a":2}'), LoadError, "config.json: not JSON, key 'a' appears twice"),
    ("C9 inner key twice", config(b'{"a":[{"b":1,"b":1}]}'), LoadError, "key 'b' appears twice"),
    ("C9 comment", config(b'{"a":1} // one'), LoadError, "config.json: not JSON"),
    ("C9 trailing comma", config(b'{"a":1,}'), LoadError, "config.json: not JSON"),
    ("C9 single quotes", config(b"{'a':1}"), LoadError, "config.json: not JSON"),
    ("C9 UTF-16", config('{"a":1}'.encode("utf-16")), LoadError, "config.json: not UTF-8"),
    ("C9 UTF-16 without a mark", config('{"a":1}'.encode("utf-16-le")), LoadError, "config.json: not JSON"),
    ("C9 BOM", config(b'\xef\xbb\xbf{"a":1}'), LoadError, "config.json: not JSON"),
    ("C9 control character", config(b'{"a":"\n"}'), LoadError, "config.json: not JSON"),
    ("C9 1 GiB", large_config, LimitError, "got 1073741824 bytes, expected at most 1048576"),
    ("C9 deep lists", config(b"[" * 100_000), LimitError, "config.json: nested too deep"),
    ("C9 deep objects", config(b'{"a":' * 100_000), LimitError, "config.json: nested too deep"),
    ("C9 70 levels", config(b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"), LimitError, "at most 64 levels"),
    ("C5 NaN", config(b'{"rope_theta":NaN}'), LoadError, "NaN is no JSON number"),
    ("C5 1e400", config(b'{"rope_theta":1e400}'), LoadError, "number '1e400' is too large"),
]

ATTACKS = [*LENGTHS, *HEADERS, *LAYOUTS, *INDEXES, *PLACES, *CONFIGS]
