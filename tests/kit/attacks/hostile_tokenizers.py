"""Hostile tokenizer files, each with the error that it must get."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.errors import IngotError, LimitError, LoadError, UnsupportedError
from small_tokenizers import document, trained, write_folder

Document = dict[str, Any]
Change = Callable[[Document], Document]


def model(**fields: Any) -> Change:
    """The model's fields replaced."""
    return lambda d: d | {"model": d["model"] | fields}


def vocabulary(**tokens: Any) -> Change:
    """Tokens added or given another id."""
    return lambda d: d | {"model": d["model"] | {"vocab": d["model"]["vocab"] | tokens}}


def merges(change: Callable[[list], list]) -> Change:
    return lambda d: d | {"model": d["model"] | {"merges": change(d["model"]["merges"])}}


def pieces(change: Callable[[list], list]) -> Change:
    return lambda d: d | {"model": d["model"] | {"vocab": change(d["model"]["vocab"])}}


def added(**fields: Any) -> Change:
    """The first added token's fields replaced."""
    return lambda d: d | {"added_tokens": [d["added_tokens"][0] | fields, *d["added_tokens"][1:]]}


def section(**sections: Any) -> Change:
    return lambda d: d | sections


def pattern(expression: str) -> Change:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return section(pre_tokenizer={"type": "Sequence", "pretokenizers": [split]})


def nested(depth: int) -> Document:
    part: Document = {"type": "NFC"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


def replace(string: str, content: str) -> Document:
    return {"type": "Replace", "pattern": {"String": string}, "content": content}


# (kind of tokenizer and name, change, error type, fragment of the message)
DOCUMENTS: list[tuple[str, Change, type[IngotError], str]] = [
    ("byte_level no model", lambda d: {}, LoadError, "model: got None"),
    ("byte_level unknown model", model(type="Neural"), UnsupportedError, "model.type: got 'Neural'"),
    ("byte_level empty vocabulary", model(vocab={}), LoadError, "model.vocab: got {}"),
    ("byte_level vocabulary as list", model(vocab=["a"]), LoadError, "model.vocab: got"),
    ("byte_level negative id", vocabulary(x=-1), LoadError, "token 'x': id -1, expected 0 to"),
    ("byte_level id of half", vocabulary(x=1.5), LoadError, "token 'x': id 1.5"),
    ("byte_level id as boolean", vocabulary(x=True), LoadError, "token 'x': id True"),
    ("byte_level huge id", vocabulary(x=2**31), LoadError, "token 'x': id 2147483648"),
    ("byte_level shared id", vocabulary(xyzzy=3), LoadError, "share the id 3"),
    ("byte_level sparse ids", vocabulary(x=2**21), LoadError, "ids up to 2097152 for"),
    ("byte_level long token", vocabulary(**{"x" * 2000: 1000}), LimitError, "characters of a token, got 2000"),
    ("byte_level merge of nothing", merges(lambda m: [*m, ["hel", "nothing"]]), LoadError, "'nothing'] needs '"),
    ("byte_level merge into nothing", merges(lambda m: [*m, ["!", "#"]]), LoadError, "needs '!#', which is no token"),
    ("byte_level merge of three", merges(lambda m: [*m, "a b c"]), LoadError, "expected two tokens"),
    ("byte_level merge of numbers", merges(lambda m: [*m, [1, 2]]), LoadError, "expected two tokens"),
    ("byte_level merge twice", merges(lambda m: [*m, m[0]]), LoadError, "has two ranks"),
    ("byte_level too many merges", merges(lambda m: [0] * (2**21 + 1)), LimitError, "too many merges, got 2097153"),
    ("byte_level merges as object", model(merges={}), LoadError, "model.merges: got {}"),
    ("byte_level dropout", model(dropout=0.5), UnsupportedError, "model.dropout: got 0.5"),
    ("byte_level unknown token missing", model(unk_token="<none>"), LoadError, "model.unk_token: got '<none>'"),
    ("byte_level added id negative", added(id=-5), LoadError, "added_tokens[0]: id: got -5"),
    ("byte_level added id shared", added(id=0), LoadError, "share the id 0"),
    ("byte_level added id after a gap", added(id=420), UnsupportedError, "id 420 after a gap, expected 404"),
    ("byte_level added id far", added(id=10**6), LoadError, "added_tokens: ids up to 1000000"),
    ("byte_level added id huge", added(id=2**40), LoadError, "added_tokens[0]: id: got 1099511627776"),
    ("byte_level added token twice", added(content="hello"), LoadError, "added_tokens[0]: 'hello' has the ids"),
    ("byte_level added token empty", added(content=""), LoadError, "added_tokens[0]: content: got ''"),
    ("byte_level added tokens as object", section(added_tokens={}), LoadError, "added_tokens: got {}"),
    ("byte_level added token as text", section(added_tokens=["<s>"]), LoadError, "added_tokens[0]: content"),
    ("byte_level nested normalizer", section(normalizer=nested(80)), LimitError, "nested too deep"),
    ("byte_level many parts", section(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}),
     LimitError, "too many parts"),
    ("byte_level part as number", section(normalizer=7), LoadError, "normalizer: got 7"),
    ("byte_level unknown part", section(normalizer={"type": "Nothing"}), LoadError, "tokenizer.json: "),
    ("byte_level growing text", section(normalizer={"type": "Sequence", "normalizers": [replace("a", "a" * 50)] * 9}),
     LimitError, "text may grow"),
    ("byte_level replacement of a number",
     section(normalizer={"type": "Replace", "pattern": {"String": -1}, "content": ""}), LoadError, "expected a string"),
    ("byte_level long replacement", section(normalizer=replace("a", "b" * 5000)), LimitError, "characters of content"),
    ("byte_level catastrophic pattern", pattern("(a+)+b"), UnsupportedError, "more than linear time"),
    ("byte_level quadratic pattern", pattern("a+b"), UnsupportedError, "more than linear time"),
    ("byte_level exponential replacement",
     section(normalizer={"type": "Replace", "pattern": {"Regex": "(x|x)*y"}, "content": ""}), UnsupportedError, "time"),
    ("byte_level catastrophic decoder",
     section(decoder={"type": "Replace", "pattern": {"Regex": "x+x+y"}, "content": ""}), UnsupportedError, "linear"),
    ("byte_level pattern as number",
     section(pre_tokenizer={"type": "Split", "pattern": {"Regex": 5}, "behavior": "Isolated"}), LoadError, "got 5"),
    ("byte_fallback signed byte", vocabulary(**{"<0x-1>": 900}), LoadError, "byte token '<0x-1>'"),
    ("byte_fallback plus byte", vocabulary(**{"<0x+F>": 900}), LoadError, "byte token '<0x+F>'"),
    ("byte_fallback byte of letters", vocabulary(**{"<0xGG>": 900}), LoadError, "byte token '<0xGG>'"),
    ("byte_fallback byte of 256", vocabulary(**{"<0x100>": 900}), LoadError, "byte token '<0x100>'"),
    ("unigram token twice", pieces(lambda p: [*p, p[5]]), LoadError, "has the ids 5 and"),
    ("unigram score as text", pieces(lambda p: [*p, ["x", "high"]]), LoadError, "expected [token, score]"),
    ("unigram piece as text", pieces(lambda p: [*p, "x"]), LoadError, "expected [token, score]"),
    ("unigram unknown id", model(unk_id=10**6), LoadError, "model.unk_id: got 1000000"),
    ("word_piece long words", model(max_input_chars_per_word=10**9), LimitError, "too many characters of a word"),
    ("word_piece negative words", model(max_input_chars_per_word=-1), LoadError, "characters of a word: got -1"),
    ("word_piece surroundings missing",
     section(post_processor={"type": "TemplateProcessing", "single": "?", "pair": "?", "special_tokens": {}}),
     LoadError, "tokenizer.json: "),
]  # fmt: skip

# (other files of the folder, error type, fragment)
SETTINGS: list[tuple[dict[str, Any], type[IngotError], str]] = [
    ({"generation_config": {"bos_token_id": "1"}}, LoadError, "bos_token_id: no id, got '1'"),
    ({"generation_config": {"eos_token_id": True}}, LoadError, "eos_token_id: no id, got True"),
    ({"generation_config": {"eos_token_id": [[1]]}}, LoadError, "eos_token_id: no id"),
    ({"tokenizer_config": {"bos_token": 5}}, LoadError, "bos_token: not a token, got 5"),
    ({"tokenizer_config": {"eos_token": {"content": ["x"]}}}, LoadError, "eos_token: not a token"),
    ({"tokenizer_config": "[1]"}, LoadError, "expected a JSON object"),
    ({"tokenizer_config": "{"}, LoadError, "tokenizer_config.json: not JSON"),
    ({"tokenizer_config": '{"a": 1, "a": 2}'}, LoadError, "appears twice"),
]

# (expression, error type, words)
PATTERNS: list[tuple[str, type[IngotError], str]] = [
    *((text, UnsupportedError, "linear time") for text in (
        "(a+)+b", "(a|a)*b", "(.*a){20}", "a+b", "a*a*b", r"(a)\1", "(?=a*b)c", "(?<=a+)b", "(?R)", "a**", "a.*?b",
        r"\s*[\r\n]+|\s|\s+", r"\s+(?!\S)", r"\d{1,3}(?=(?:\d{3})*\b)", "x{0,60}", "a{1,999}", "(?:a?){60}b", r"\X+",
        "(?i)a+b", "(?>a+)b", "\\", r"\k<x>", "A*b+|A+c*", "^a+b", "a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaa",
    )),
    ("[a", LoadError, "no end"), ("(a", LoadError, "no end"), ("[[[[[[[[[[a", LoadError, "no end"),
    ("a" * 5000, LimitError, "5000 characters"), ("a|" * 100, LimitError, "101 branches"),
]  # fmt: skip


def changed(kind: str, change: Change) -> Callable[[Path], Any]:
    return lambda folder: write_folder(folder, change(document(kind)))


def settled(files: dict[str, Any]) -> Callable[[Path], Any]:
    return lambda folder: write_folder(folder, trained("byte_level"), **files)


# (name, what writes the folder, error type, fragment of the message)
ATTACKS = [
    *((name, changed(name.split()[0], change), error, words) for name, change, error, words in DOCUMENTS),
    *((str(files), settled(files), error, words) for files, error, words in SETTINGS),
]
