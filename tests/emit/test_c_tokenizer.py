"""Tokenizers in C give the ids of those in Python, text for text; what they cannot do is refused by name."""

import json
import random
import struct
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

import ingot
import small_tokenizers
from ingot.emit.c import HOSTED
from ingot.emit.language.normal import normal_tables
from ingot.emit.language.pattern import Automaton, automaton
from ingot.emit.language.vocabulary import c_tokenizer, members
from ingot.errors import InputError, UnsupportedError
from ingot.llm.tokenizer import Tokenizer

SOURCES = Path(ingot.__file__).parent / "emit" / "language"
SHIPPED = Path(ingot.__file__).parent / "models" / "tiny-lm"
STRICT = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
RANDOM_TEXTS = 600

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = small_tokenizers.LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
TWO_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PIECES = [
    *"abcXYZ  \n\n\t'sdtl0123.,!?<>|_-éß東京😀½٣Жſ▁각", "\u0301", "e\u0301", "\u0323\u0307", "\u212a", "\u1100\u1161",
    "\u200d", "\u00a0", "\u3000", "\x7f", "\x00", "\ufdd0", "\U000e0001", "'ll", "don't", "WE'RE", "\r\n", "def ",
    "self.", "<think>", "</think>", "<|im_start|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x41>",
]  # fmt: skip


def texts() -> Iterator[str]:
    """Texts with all that a tokenizer treats in a way of its own, and random ones over all of Unicode."""
    yield from ("", " ", "\n", " " * 60, "a" * 300, "ab " * 200, "<|im_<|im_start|>start|>", " <think> x", "▁▁ a")
    draw = random.Random(1)
    for _ in range(RANDOM_TEXTS):
        yield "".join(draw.choices(PIECES, k=draw.randrange(1, 40)))
    ranges = [range(0x20, 0x7F), range(0x80, 0x3000), range(0x3000, 0xD800), range(0xE000, 0x20000)]
    for _ in range(RANDOM_TEXTS // 3):
        yield "".join(chr(draw.choice(draw.choice(ranges))) for _ in range(draw.randrange(1, 20)))
    yield Path(__file__).read_text()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenize.c over tokenizer.c, which ends where memory is misused."""
    path = tmp_path_factory.mktemp("tokenize") / "tokenize"
    driver = Path(__file__).parents[1] / "kit" / "text" / "tokenize.c"
    command = [
        "cc",
        *STRICT,
        *SANITIZED,
        f"-I{SOURCES}",
        driver,
        SOURCES / "model_tokenizer.c",
        SOURCES / "model_normal.c",
        "-o",
        path,
    ]
    subprocess.run(command, check=True)
    return path


def tokenized(program: Path, table: Path, rows: list[tuple[int, str]]) -> list[str]:
    """A line of ids for each (whether special tokens are, text)."""
    frames = b"".join(struct.pack("<ii", form, len(text.encode())) + text.encode() for form, text in rows)
    done = subprocess.run([program, table], input=frames, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[:4000]
    return [line.strip() for line in done.stdout.decode().splitlines()]


def expected(tokenizer: Tokenizer, form: int, text: str) -> str:
    try:
        return " ".join(map(str, tokenizer.encode(text, special=bool(form))))
    except InputError:
        return "refused"


def metaspace(**changes: Any) -> dict[str, Any]:
    """As newer Llama files have it: a part of the pre-tokenizer replaces spaces."""
    part = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return small_tokenizers.document("byte_fallback") | {"normalizer": None, "pre_tokenizer": part | changes}


def ignoring_merges() -> dict[str, Any]:
    """As Llama 3: a word that is a token needs no merges. And a token that includes adjacent white space."""
    document = small_tokenizers.document("split_byte_level")
    document["model"]["ignore_merges"] = True
    document["added_tokens"][-1] |= {"lstrip": True, "rstrip": True}
    return document


def composing() -> dict[str, Any]:
    """As Qwen 2: texts are in normalisation form C, but for added tokens that are found before."""
    document = small_tokenizers.document("split_byte_level") | {"normalizer": {"type": "NFC"}}
    document["added_tokens"].append(
        {
            **document["added_tokens"][-1],
            "id": 1 + document["added_tokens"][-1]["id"],
            "content": "e\u0301K",
            "normalized": True,
        }
    )
    return document


FORMS: dict[str, Any] = {
    "shipped": lambda: json.loads((SHIPPED / "tokenizer.json").read_text()),
    **{
        kind: lambda kind=kind: small_tokenizers.document(kind)
        for kind in ("byte_level", "split_byte_level", "byte_fallback", "gemma")
    },
    "metaspace": metaspace,
    "metaspace_split": lambda: metaspace(prepend_scheme="always", split=True),
    "ignoring_merges": ignoring_merges,
    "composing": composing,
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_are_those_of_python(form: str, program: Path, tmp_path: Path):
    tokenizer = Tokenizer.read(small_tokenizers.write_folder(tmp_path / form, FORMS[form]()))
    table = tmp_path / "tokenizer.bin"
    table.write_bytes(c_tokenizer(tokenizer, (), form, HOSTED))
    rows = [(special, text) for text in texts() for special in (0, 1)]
    wrong = [
        (form, special, text, got, wanted)
        for (special, text), got in zip(rows, tokenized(program, table, rows), strict=True)
        if got != (wanted := expected(tokenizer, special, text))
    ]
    assert not wrong, wrong[:3]


def marked_texts() -> Iterator[str]:
    """Every character, and random strings of those that compose, decompose or mark others."""
    yield "\n".join(map(chr, (code for code in range(0x110000) if not 0xD800 <= code < 0xE000)))
    tables = normal_tables()
    found = {*tables[0].reshape(-1).tolist(), *tables[2][tables[2][:, 1] > 0, 0].tolist(), *range(0x1100, 0x1200)}
    letters = [chr(code) for code in sorted(found - {0})] + ["a", "\uac00", "\uac01"] * 50
    draw = random.Random(3)
    yield "\n".join("".join(draw.choices(letters, k=draw.randrange(1, 12))) for _ in range(20000))


def test_normalisation_form_c_is_unicodes(tmp_path: Path):
    """As Python has it."""
    driver = Path(__file__).parents[1] / "kit" / "text" / "normalise.c"
    sources = [driver, SOURCES / "model_normal.c", SOURCES / "model_tokenizer.c"]
    subprocess.run(["cc", *STRICT, *SANITIZED, f"-I{SOURCES}", *sources, "-o", tmp_path / "normalise"], check=True)
    tables = normal_tables()
    counts = np.array([len(table) for table in tables], np.int32)
    (tmp_path / "tables").write_bytes(b"".join(array.tobytes() for array in (counts, *tables)))
    for text in marked_texts():
        done = subprocess.run([tmp_path / "normalise", tmp_path / "tables"], input=text.encode(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        wrong = [
            (given, got)
            for given, got in zip(text.split("\n"), done.stdout.decode().split("\n"), strict=True)
            if got != unicodedata.normalize("NFC", given)
        ]
        assert not wrong, wrong[:3]


def test_a_damaged_table_is_refused(program: Path, tmp_path: Path):
    tokenizer = Tokenizer.read(small_tokenizers.write_folder(tmp_path / "model", FORMS["gemma"]()))
    whole = c_tokenizer(tokenizer, (), "here", HOSTED)
    path = tmp_path / "tokenizer.bin"
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (b"", b"INGOT", whole[:-1], whole + b"\0", b"X" + whole[1:], bytes(flipped), whole[:24]):
        path.write_bytes(content)
        assert subprocess.run([program, path], input=b"").returncode == 1


def test_other_tokenizers_are_refused_by_name(tmp_path: Path):
    byte_level = small_tokenizers.document("byte_level")
    fallback = small_tokenizers.document("byte_fallback")
    lazy = {"type": "Split", "pattern": {"Regex": r"\p{N}++"}, "behavior": "Isolated", "invert": False}
    end = {**byte_level["pre_tokenizer"], "use_regex": False}
    removed = {**lazy, "pattern": {"Regex": r"\s+"}, "behavior": "Removed"}
    cases = {
        "model": small_tokenizers.document("unigram"),
        "WordPiece": small_tokenizers.document("word_piece"),
        "normalizer: emit has no such tokenizer, got NFKC": byte_level | {"normalizer": {"type": "NFKC"}},
        "normalizer: emit has no such tokenizer, got NFD": byte_level | {"normalizer": {"type": "NFD"}},
        "lazy or possessive": byte_level | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [lazy, end]}},
        "got Removed": byte_level | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [removed, end]}},
        "got Whitespace": fallback | {"pre_tokenizer": {"type": "Whitespace"}},
        "decoder": fallback | {"decoder": {"type": "Fuse"}},
        "end_of_word_suffix": byte_level | {"model": byte_level["model"] | {"end_of_word_suffix": "</w>"}},
    }
    for place, (words, document) in enumerate(cases.items()):
        tokenizer = Tokenizer.read(small_tokenizers.write_folder(tmp_path / str(place), document))
        with pytest.raises(UnsupportedError, match=words):
            c_tokenizer(tokenizer, (), "here", HOSTED)


def matches(found: Automaton, text: str) -> list[tuple[int, int]]:
    """The pieces that an automaton cuts a text into."""
    pieces, begin, at = [], 0, 0
    while at < len(text):
        state, end, place = 1, 0, at
        while state:
            code = ord(text[place]) if place < len(text) else -1
            kind = max(i for i, start in enumerate(found.starts) if start <= code) if code >= 0 else None
            row = found.transitions[state * found.width + (found.width - 1 if kind is None else found.classes[kind])]
            end = place if row & 1 else end
            state, place = row >> 1 if code >= 0 else 0, place + 1
        if not end:
            at += 1
            continue
        pieces += [(begin, at)] * (begin < at) + [(at, end)]
        begin = at = end
    return pieces + [(begin, at)] * (begin < at)


@pytest.mark.parametrize("pattern", [GPT_2, QWEN, TWO_CASES, r"a(?:b|bc)?c|\x{62}{2,}", r"(?i:ss)|x{0,2}y"])
def test_an_automaton_cuts_as_the_expression_does(pattern: str):
    found = automaton(pattern, members, "here")
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    draw = random.Random(2)
    letters = [*"abcxyS's  \n\tÉ1½!/", "\u017f", "ǅ"]
    for _ in range(150):
        text = "".join(draw.choices(letters, k=draw.randrange(1, 14)))
        assert matches(found, text) == [place for _, place in split.pre_tokenize_str(text)], text


@pytest.mark.parametrize(
    "pattern", ["a*", "a|", "(a", "a)", "(?=a)b", "a*?b", "^a", "a$", r"\qa", "[a", "a++b", "(?<x>a)"]
)
def test_expressions_of_other_forms_are_refused(pattern: str):
    with pytest.raises(UnsupportedError, match="pattern"):
        automaton(pattern, members, "here")
