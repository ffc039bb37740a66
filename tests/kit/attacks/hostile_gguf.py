"""Hostile GGUF files, each with the error that it must get: (name, build, error type, fragment of the message).

`build(folder)` writes model.gguf; opening it as a language model with its tokenizer must fail. The numbers G1, ... are
those of a catalogue of bad inputs. ACCEPTED are files that are odd and right.
"""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ingot.errors import IngotError, LimitError, LoadError, UnsupportedError
from ingot.load.gguf.file import MAX_ALIGNMENT, MAX_KEYS, MAX_STRING_BYTES

Attack = tuple[str, Callable[[Path], Any], type[IngotError], str]

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_QUANT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
F32_TENSOR, F16_TENSOR, Q8_0_TENSOR, Q4_K_TENSOR, I64_TENSOR, Q1_0_TENSOR = 0, 1, 8, 12, 27, 41
MOST = (1 << 64) - 1


def text(content: bytes | str, length: int | None = None) -> bytes:
    """A string, whose length may lie."""
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content) if length is None else length) + content


def value(kind: int, content: Any) -> bytes:
    """A value behind its type."""
    return struct.pack("<I", kind) + (text(content) if kind == STRING else struct.pack("<" + _QUANT[kind], content))


def array(kind: int, contents: Sequence[Any], count: int | None = None) -> bytes:
    """An array behind its type, whose count may lie."""
    head = struct.pack("<IIQ", ARRAY, kind, len(contents) if count is None else count)
    if kind == STRING:
        return head + b"".join(map(text, contents))
    return head + struct.pack(f"<{len(contents)}{_QUANT[kind]}", *contents)


def key(name: bytes | str, content: bytes) -> bytes:
    return text(name) + content


def tensor(
    name: bytes | str = "t",
    dims: Sequence[int] = (4,),
    kind: int = F32_TENSOR,
    offset: int = 0,
    rank: int | None = None,
) -> bytes:
    """The entry of a tensor in a file; dims as there, the row's length first."""
    numbers = [dim - (1 << 64) if dim >= 1 << 63 else dim for dim in dims]
    head = struct.pack("<I", len(dims) if rank is None else rank)
    return text(name) + head + struct.pack(f"<{len(dims)}q", *numbers) + struct.pack("<IQ", kind, offset)


def content(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
    alignment: int = 32,
) -> bytes:
    """A file. counts: of tensors and keys, where they lie."""
    count, key_count = counts
    made = magic + struct.pack("<I", version)
    made += struct.pack("<Q", len(tensors) if count is None else count)
    made += struct.pack("<Q", len(keys) if key_count is None else key_count)
    made += b"".join(keys) + b"".join(tensors)
    return made + bytes(-len(made) % alignment) + data


def written(made: bytes) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "model.gguf").write_bytes(made)

    return build


def sparse(made: bytes, size: int) -> Callable[[Path], None]:
    """A file that is filled up with zeros that take no room on the disk."""

    def build(folder: Path) -> None:
        with open(folder / "model.gguf", "wb") as file:
            file.write(made)
            file.truncate(size)

    return build


def aligned(number: Any, kind: int = U32) -> bytes:
    return key("general.alignment", value(kind, number))


def nested(depth: int) -> bytes:
    """Arrays in one another."""
    return struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U8, 0)


HEADERS: list[Attack] = [
    ("G1 another magic", written(content(magic=b"FUGG")), LoadError, "not GGUF"),
    ("G1 an LFS pointer", written(b"version https:" + b"/" * 2 + b"git-lfs.github.com"), LoadError, "Git LFS pointer"),
    ("G1 nothing", written(b""), LoadError, "too short"),
    ("G1 a magic alone", written(b"GGUF"), LoadError, "too short"),
    *((f"G1 version {n}", written(content(version=n)), LoadError, f"version {n}") for n in (0, 1, 4, 0x7FFFFFFF)),
    ("G1 big-endian", written(content(version=3 << 24)), LoadError, "big-endian"),
    *(
        (f"G2 {n} tensors", written(content(counts=(n, None))), LoadError, "too many tensors for the file")
        for n in (1 << 63, MOST, 1 << 20)
    ),
    *(
        (f"G2 {n} keys", written(content(counts=(None, n))), LoadError, "too many keys for the file")
        for n in (1 << 63, MOST, 1 << 20)
    ),
    (
        "G2 keys beyond the limit",
        sparse(content(counts=(None, MAX_KEYS + 1)), 1 << 24),
        LimitError,
        f"too many keys, got {MAX_KEYS + 1}",
    ),
    (
        "G2 more tensors than the limit",
        sparse(content(counts=(1 << 17, None)), 1 << 24),
        LimitError,
        "too many tensors",
    ),
]

KEYS: list[Attack] = [
    ("G3 a key of 2^64-1 bytes", written(content([text("k", MOST) + value(U8, 1)] * 2)), LoadError, "beyond the end"),
    ("G3 a key that is too long", written(content([key("k" * 65536, value(U8, 1))])), LimitError, "key 0 is too long"),
    ("G3 an empty key", written(content([key("", value(U8, 1))] * 2)), LoadError, "key 0 is empty"),
    ("G3 a key that is no text", written(content([key(b"\xff\xfe", value(U8, 1))])), LoadError, "not UTF-8"),
    ("G3 a key twice", written(content([key("k", value(U8, 1)), key("k", value(U8, 2))])), LoadError, "appears twice"),
    (
        "G3 a type that is none",
        written(content([text("k") + struct.pack("<IQ", 13, 0)])),
        LoadError,
        "unknown type, got 13",
    ),
    (
        "G3 a string beyond the end",
        written(content([key("k", struct.pack("<I", STRING) + text("x", 99))])),
        LoadError,
        "goes beyond the end",
    ),
    (
        "G3 a string of 2^63 bytes",
        written(content([key("k", struct.pack("<I", STRING) + text("x", 1 << 63))])),
        LoadError,
        "goes beyond the end",
    ),
    (
        "G3 a string that is too long",
        sparse(content([key("k", struct.pack("<I", STRING) + text("", MAX_STRING_BYTES + 1))]), MAX_STRING_BYTES + 999),
        LimitError,
        "is too long",
    ),
    ("G3 arrays in arrays", written(content([key("k", nested(10_000))])), LoadError, "an array of arrays"),
    (
        "G3 an array of no type",
        written(content([key("k", struct.pack("<IIQ", ARRAY, 13, 1) + bytes(8))])),
        LoadError,
        "unknown type, got 13",
    ),
    *(
        (
            f"G3 an array of 2^64-1 of type {kind}",
            written(content([key("k", array(kind, [], MOST))])),
            LoadError,
            "for the file",
        )
        for kind in (U8, U64, F64, STRING)
    ),
    (
        "G3 an array with too many strings",
        sparse(content([key("k", array(STRING, [], (1 << 22) + 1))]), 1 << 26),
        LimitError,
        "too many strings",
    ),
    ("G3 a truth value of 2", written(content([key("k", value(BOOL, 2))])), LoadError, "not a truth value, got 2"),
    ("G3 truth values of 2", written(content([key("k", array(BOOL, [1, 2]))])), LoadError, "not a truth value, got 2"),
    *(
        (f"G4 alignment {n}", written(content([aligned(n)])), LoadError, "expected a power of two")
        for n in (0, 13, 2 * MAX_ALIGNMENT, 1 << 31)
    ),
    ("G4 an alignment of another type", written(content([aligned(32, I32)])), LoadError, "expected a uint32"),
    ("G4 an alignment in words", written(content([aligned("32", STRING)])), LoadError, "got string, expected a uint32"),
    (
        "G4 several alignments",
        written(content([key("general.alignment", array(U32, [32]))])),
        LoadError,
        "array of uint32",
    ),
]

TENSORS: list[Attack] = [
    (
        "G5 a name of 64 bytes",
        written(content([], [tensor("n" * 64)], bytes(32))),
        LimitError,
        "name of tensor 0 is too long",
    ),
    (
        "G5 a name of 2^64-1 bytes",
        written(content([], [text("t", MOST) + bytes(40)])),
        LoadError,
        "goes beyond the end",
    ),
    ("G5 an empty name", written(content([], [tensor("")], bytes(32))), LoadError, "is empty"),
    ("G5 five dims", written(content([], [tensor(dims=[1] * 5)], bytes(32))), LoadError, "too many dims, got 5"),
    ("G5 2^32-1 dims", written(content([], [tensor(rank=(1 << 32) - 1)], bytes(32))), LoadError, "too many dims"),
    ("G5 a dim of -1", written(content([], [tensor(dims=[MOST])], bytes(32))), LoadError, "bad shape, got [-1]"),
    (
        "G5 dims that overflow",
        written(content([], [tensor(dims=[4 * 0x7FFFFFFF] * 2)], bytes(32))),
        LoadError,
        "at most 2^62",
    ),
    (
        "G5 bytes that overflow",
        written(content([], [tensor(dims=[1 << 31, 1 << 30], kind=I64_TENSOR)], bytes(32))),
        LoadError,
        "beyond the end",
    ),
    ("G5 dims that overflow beside 0", written(content([], [tensor(dims=[0, 1 << 62, 8])])), LoadError, "at most 2^62"),
    (
        "G5 two tensors that overflow together",
        written(content([], [tensor("a", [0x3FFFFFFFFFFFFFC0], 24), tensor("b", [0x3FFFFFFFFFFFFFC0], 24)], bytes(32))),
        LoadError,
        "'a': goes beyond the end",
    ),
    *(
        (f"G5 type {n}", written(content([], [tensor(kind=n)], bytes(32))), LoadError, f"unknown type number, got {n}")
        for n in (4, 5, 31, 36, 42, (1 << 32) - 1)
    ),
    (
        "G5 rows that are no blocks",
        written(content([], [tensor(dims=[33], kind=Q8_0_TENSOR)], bytes(64))),
        LoadError,
        "not whole blocks of q8_0",
    ),
    (
        "G5 blocks across rows",
        written(content([], [tensor(dims=[128, 2], kind=Q4_K_TENSOR)], bytes(160))),
        LoadError,
        "not whole blocks of q4_k",
    ),
    (
        "G5 rows that are no blocks of a type that is not read",
        written(content([], [tensor(dims=[192], kind=Q1_0_TENSOR)], bytes(66))),
        UnsupportedError,
        "type is not supported, got q1_0, expected one of f32, f16",
    ),
    (
        "G5 blocks of no dims",
        written(content([], [tensor(dims=[], kind=Q8_0_TENSOR)], bytes(64))),
        LoadError,
        "not whole blocks",
    ),
    ("G5 an offset of 2^64-1", written(content([], [tensor(offset=MOST)], bytes(32))), LoadError, "bad offset"),
    (
        "G5 an offset that is not aligned",
        written(content([], [tensor(), tensor("u", offset=16)], bytes(64))),
        LoadError,
        "bad offset, got 16, expected 32",
    ),
    (
        "G5 an offset with a hole before it",
        written(content([], [tensor(), tensor("u", offset=64)], bytes(96))),
        LoadError,
        "bad offset, got 64, expected 32",
    ),
    (
        "G5 an offset into the one before",
        written(content([], [tensor(), tensor("u", offset=0)], bytes(64))),
        LoadError,
        "bad offset, got 0, expected 32",
    ),
    ("G5 a name twice", written(content([], [tensor(), tensor(offset=32)], bytes(64))), LoadError, "'t' appears twice"),
    (
        "G5 offsets of another alignment than the file says",
        written(content([aligned(64)], [tensor(), tensor("u", offset=32)], bytes(128), alignment=64)),
        LoadError,
        "bad offset, got 32, expected 64",
    ),
    (
        "G5 offsets of alignment 1 in a file of 32",
        written(content([], [tensor(dims=[3]), tensor("u", dims=[3], offset=12)], bytes(64))),
        LoadError,
        "bad offset, got 12, expected 32",
    ),
    (
        "G5 an alignment of 13 and tensors",
        written(content([aligned(13)], [tensor()], bytes(32), alignment=13)),
        LoadError,
        "power of two",
    ),
    ("G5 no bytes at all", written(content([], [tensor()])), LoadError, "goes beyond the end, got 16 bytes"),
    (
        "G5 no bytes, aligned to 1",
        written(content([aligned(1)], [tensor()], alignment=1)),
        LoadError,
        "goes beyond the end",
    ),
    ("G5 a byte too few", written(content([], [tensor()], bytes(15))), LoadError, "cut short, copy or fetch it again"),
    (
        "G5 a byte too few of the last",
        written(content([], [tensor(), tensor("u", offset=32)], bytes(47))),
        LoadError,
        "'u': goes beyond the end",
    ),
    (
        "G5 a header cut off",
        written(content([], [tensor("t" * 40), tensor("u" * 40, offset=32)])[:164]),
        LoadError,
        "beyond the end",
    ),
]

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab"]


def llama(
    changed: dict[str, bytes | None] | None = None,
    *,
    tensors: Sequence[bytes] | None = None,
    data: bytes = bytes(192),
) -> bytes:
    """A model of one layer without most of its weights. changed: other values of keys; None: without it."""
    keys: dict[str, bytes | None] = {
        "general.architecture": value(STRING, "llama"),
        "llama.context_length": value(U32, 64),
        "llama.embedding_length": value(U32, 8),
        "llama.block_count": value(U32, 1),
        "llama.feed_forward_length": value(U32, 16),
        "llama.attention.head_count": value(U32, 2),
        "llama.attention.head_count_kv": value(U32, 1),
        "llama.attention.layer_norm_rms_epsilon": value(F32, 1e-5),
        "tokenizer.ggml.model": value(STRING, "gpt2"),
        "tokenizer.ggml.pre": value(STRING, "qwen2"),
        "tokenizer.ggml.tokens": array(STRING, TOKENS),
        "tokenizer.ggml.token_type": array(I32, [2, 3, 3, 1, 1, 1]),
        "tokenizer.ggml.merges": array(STRING, ["a b"]),
        "tokenizer.ggml.scores": array(F32, [0, 0, 0, -1, -2, -3]),
        "tokenizer.ggml.bos_token_id": value(U32, 1),
        "tokenizer.ggml.eos_token_id": value(U32, 2),
    }
    keys |= changed or {}
    listed = [key(name, made) for name, made in keys.items() if made is not None]
    tensors = [tensor("token_embd.weight", [8, 6])] if tensors is None else tensors
    return content(listed, tensors, data)


def changed(name: str, made: bytes | None) -> Callable[[Path], None]:
    return written(llama({name: made}))


def numbered(suffix: str, number: Any, kind: int = U32) -> Callable[[Path], None]:
    return changed(f"llama.{suffix}", value(kind, number))


def tokens(name: str, made: bytes | None) -> Callable[[Path], None]:
    return changed(f"tokenizer.ggml.{name}", made)


MODELS: list[Attack] = [
    (
        "G6 a number of texts",
        changed("general.architecture", value(U32, 1)),
        LoadError,
        "got uint32, expected a string",
    ),
    ("G6 a text for a size", numbered("block_count", "1", STRING), LoadError, "got string, expected an integer"),
    ("G6 a float for a size", numbered("block_count", 1.0, F32), LoadError, "got float32, expected an integer"),
    ("G6 a truth value for a size", numbered("block_count", 1, BOOL), LoadError, "got bool, expected an integer"),
    (
        "G6 a size for each of no layers",
        changed("llama.attention.head_count", array(U32, [])),
        UnsupportedError,
        "differs by layer",
    ),
    (
        "G6 sizes that differ",
        changed("llama.attention.head_count_kv", array(U32, [1, 2])),
        UnsupportedError,
        "differs by layer",
    ),
    ("G7 10^9 layers", numbered("block_count", 10**9), LimitError, "too many, got 1000000000"),
    ("G7 more layers than the limit", numbered("block_count", 1025), LimitError, "expected at most 1024"),
    ("G7 513 layers in a file of one", numbered("block_count", 513), LoadError, "do not fit the template"),
    *(
        (f"G7 {name} of {n}", numbered(name, n, I64), LoadError, f"out of range, got {n}")
        for name in (
            "attention.head_count",
            "attention.head_count_kv",
            "embedding_length",
            "feed_forward_length",
            "context_length",
        )
        for n in (0, -1, 1 << 40)
    ),
    ("G7 no layers", numbered("block_count", 0), LoadError, "out of range, got 0"),
    ("G7 a key length of 0", numbered("attention.key_length", 0), LoadError, "out of range, got 0"),
    ("G7 heads that do not divide", numbered("attention.head_count", 3), LoadError, "8 // 3 leaves a remainder"),
    (
        "G7 heads in no groups",
        written(llama({"llama.attention.head_count_kv": value(U32, 4)}, tensors=[tensor("token_embd.weight", [8, 6])])),
        LoadError,
        "do not divide into groups",
    ),
    ("G7 an epsilon of 0", numbered("attention.layer_norm_rms_epsilon", 0.0, F32), LoadError, "expected above 0"),
    (
        "G7 an epsilon that is none",
        numbered("attention.layer_norm_rms_epsilon", float("nan"), F32),
        LoadError,
        "not finite",
    ),
    ("G7 no layers named", changed("llama.block_count", None), LoadError, "'llama.block_count': missing"),
    ("no architecture", changed("general.architecture", None), LoadError, "missing, expected a string"),
    (
        "an architecture that is no text",
        changed("general.architecture", value(STRING, b"\xff")),
        LoadError,
        "not UTF-8",
    ),
    ("another architecture", changed("general.architecture", value(STRING, "clip")), UnsupportedError, "got 'clip'"),
    ("experts", numbered("expert_count", 8), LoadError, "expert_used_count': missing"),
    (
        "experts of an architecture without",
        written(llama({"general.architecture": value(STRING, "qwen2"), "qwen2.expert_count": value(U32, 8)})),
        UnsupportedError,
        "experts are not supported",
    ),
    ("a part of a model", changed("split.count", value(U16, 3)), LoadError, "one of 3 files"),
    ("scaling of no kind", changed("llama.rope.scaling.type", value(STRING, "odd")), UnsupportedError, "got 'odd'"),
    ("half a head turned", numbered("rope.dimension_count", 2), UnsupportedError, "expected whole heads"),
    (
        "other values than keys",
        numbered("attention.value_length", 8),
        UnsupportedError,
        "got 8, expected the key length",
    ),
    ("no table", written(llama(tensors=[])), LoadError, "no tensor 'token_embd.weight'"),
    (
        "fewer rows than tokens",
        written(llama(tensors=[tensor("token_embd.weight", [8, 5])])),
        LoadError,
        "got 5 rows for 6 tokens",
    ),
    (
        "a type that nothing decodes",
        written(llama(tensors=[tensor("token_embd.weight", [256, 6], Q1_0_TENSOR)], data=bytes(512))),
        UnsupportedError,
        "is q1_0",
    ),
    ("weights that are missing", written(llama()), LoadError, "weights do not fit the template"),
    (
        "factors that are none",
        written(
            llama(tensors=[tensor("token_embd.weight", [8, 4]), tensor("rope_freqs.weight", [4], F16_TENSOR, 128)])
        ),
        LoadError,
        "no tensor 'rope_freqs.weight' of f32",
    ),
    (
        "factors of 0",
        written(
            llama(
                {"tokenizer.ggml.tokens": None},
                tensors=[tensor("token_embd.weight", [8, 4]), tensor("rope_freqs.weight", [2], offset=128)],
            )
        ),
        LoadError,
        "expected finite numbers above 0",
    ),
]


def vocabulary(**changes: bytes | None) -> Callable[[Path], None]:
    """A tokenizer as it should be, but for these keys."""
    return written(llama({f"tokenizer.ggml.{name}": made for name, made in changes.items()}))


PIECES = value(STRING, "llama")
TOKENIZERS: list[Attack] = [
    ("G6 narrow numbers for types", tokens("token_type", array(F32, [1] * 6)), LoadError, "array of float32"),
    (
        "G6 truth values for scores",
        written(llama({"tokenizer.ggml.model": value(STRING, "llama"), "tokenizer.ggml.scores": array(BOOL, [1] * 6)})),
        LoadError,
        "array of bool",
    ),
    (
        "G6 numbers for tokens",
        tokens("tokens", array(U8, [1] * 6)),
        LoadError,
        "array of uint8, expected an array of strings",
    ),
    ("G6 one token", tokens("tokens", value(STRING, "a")), LoadError, "got string, expected an array"),
    ("no tokens", vocabulary(tokens=array(STRING, [])), LoadError, "missing or empty"),
    (
        "a token twice, and the name of the first",
        vocabulary(tokens=array(STRING, [*TOKENS[:-2], "a", f"[EQUAL_{TOKENS.index('a')}]"])),
        LoadError,
        "is the name of an id with an equal text",
    ),
    ("a token that is no text", vocabulary(tokens=array(STRING, [*TOKENS[:-1], b"\xff"])), LoadError, "not UTF-8"),
    (
        "a token that is too long",
        vocabulary(tokens=array(STRING, [*TOKENS[:-1], "x" * 1025])),
        LimitError,
        "too many characters of a token",
    ),
    ("fewer types than tokens", vocabulary(token_type=array(I32, [1])), LoadError, "got 1 values, expected 6"),
    ("another model", vocabulary(model=value(STRING, "t5")), UnsupportedError, "got 't5', expected gpt2 or llama"),
    ("no model", vocabulary(model=None), UnsupportedError, "got None"),
    ("words of no kind", vocabulary(pre=value(STRING, "odd")), UnsupportedError, "got 'odd'"),
    ("no merges", vocabulary(merges=None), LoadError, "'tokenizer.ggml.merges': missing"),
    ("a merge of three", vocabulary(merges=array(STRING, ["a b c"])), LoadError, "expected two tokens"),
    ("a merge of nothing", vocabulary(merges=array(STRING, ["b a"])), LoadError, "needs 'ba', which is no token"),
    ("a merge twice", vocabulary(merges=array(STRING, ["a b", "a b"])), LoadError, "has two ranks"),
    (
        "a beginning that is not named",
        vocabulary(add_bos_token=value(BOOL, 1), bos_token_id=None),
        LoadError,
        "no such token",
    ),
    ("pieces without scores", vocabulary(model=PIECES, scores=None), LoadError, "does not fit the tokens, got nothing"),
    ("pieces with fewer scores", vocabulary(model=PIECES, scores=array(F32, [1])), LoadError, "got 1 values"),
    (
        "scores that are none",
        vocabulary(model=PIECES, scores=array(F32, [float("nan")] * 6)),
        LoadError,
        "not a number",
    ),
    (
        "a piece that is too long",
        vocabulary(model=PIECES, tokens=array(STRING, [*TOKENS[:-1], "x" * 257])),
        LimitError,
        "too long, got 257",
    ),
]

ATTACKS = [*HEADERS, *KEYS, *TENSORS, *MODELS]

# Files that are odd and right: (name, bytes, keys, tensors).
ACCEPTED: list[tuple[str, bytes, int, dict[str, tuple[int, ...]]]] = [
    ("nothing in it", content(), 0, {}),
    ("nothing in it, filled up no further", content(alignment=1), 0, {}),
    ("version 2", content(version=2), 0, {}),
    (
        "a key of each type",
        content(
            [key(f"k{kind}", value(kind, 1)) for kind in _QUANT]
            + [key(f"a{kind}", array(kind, [1, 0])) for kind in _QUANT]
            + [key("s", value(STRING, "x")), key("as", array(STRING, ["x", "", b"\xff"])), key("e", array(F64, []))]
        ),
        25,
        {},
    ),
    ("a tensor", content([], [tensor(dims=[4, 2])], bytes(32)), 0, {"t": (2, 4)}),
    ("a tensor of no dims", content([], [tensor(dims=[])], bytes(4)), 0, {"t": ()}),
    ("blocks", content([], [tensor(dims=[64, 3], kind=Q8_0_TENSOR)], bytes(204)), 0, {"t": (3, 64)}),
    ("a dim of 0", content([], [tensor(dims=[4, 0]), tensor("u", [0, 3])]), 0, {"t": (0, 4), "u": (3, 0)}),
    (
        "alignment 1",
        content([aligned(1)], [tensor(dims=[3]), tensor("u", offset=12)], bytes(28), alignment=1),
        1,
        {"t": (3,), "u": (4,)},
    ),
    (
        "no filling behind the last",
        content([], [tensor(), tensor("u", offset=32)], bytes(48)),
        0,
        {"t": (4,), "u": (4,)},
    ),
    ("bytes behind the last", content([], [tensor()], bytes(999)), 0, {"t": (4,)}),
]
