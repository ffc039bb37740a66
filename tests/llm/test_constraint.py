"""Texts under a constraint: random walks through the masks give texts of the schema, and hostile schemas give errors
in bounded time."""

import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from ingot.errors import InputError, LimitError, UnsupportedError
from ingot.llm.constraint import Constraint, schema_text, token_table
from ingot.llm.sampling import Sampler, Sampling
from ingot.llm.tokenizer import Tokenizer

WIDTH = 450  # of the logits: wider than the vocabulary, and not a multiple of 32
END = 0


def trained_folder(path: Path) -> Path:
    """A model folder with a byte-level BPE tokenizer trained on some JSON; <end> is 0."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    texts = [json.dumps({"name": "Ann", "age": i, "tags": ["a", "b"], "ok": True, "x": i / 7}) for i in range(200)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": END}))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.read(trained_folder(tmp_path_factory.mktemp("model")))


def allowed(constraint: Constraint) -> np.ndarray:
    return np.nonzero(np.unpackbits(constraint.mask.view(np.uint8), bitorder="little"))[0]


def walk(constraint: Constraint, tokenizer: Tokenizer, rng: np.random.Generator) -> str:
    """A text of random tokens that the mask allows, drawn by the sampler; it ends as soon as it may by chance."""
    sampler = Sampler(Sampling(seed=int(rng.integers(2**32))), WIDTH, constraint.mask)
    ids: list[int] = []
    while not constraint.is_complete:
        assert len(ids) < 4000
        token = sampler.sample(rng.normal(0, 3, WIDTH).astype(np.float32))
        assert token < tokenizer.vocab_size
        if constraint.may_end and rng.random() < 0.3:
            token = END
        constraint.accept(token)
        if token == END:
            break
        ids.append(token)
    return tokenizer.decode(ids)


def is_person(value: Any) -> bool:
    return (
        set(value) in ({"name", "age", "tags"}, {"name", "age", "tags", "ok"})
        and re.fullmatch("[a-z]{2,8}", value["name"]) is not None
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 3
        and all(isinstance(tag, str) and len(tag) <= 5 for tag in value["tags"])
        and value.get("ok", True) in (True, False)
    )


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"kids": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/tree"}}},
            "required": ["kids"],
            "additionalProperties": False,
        }
    },
}


def is_tree(value: Any) -> bool:
    return set(value) == {"kids"} and len(value["kids"]) <= 1 and all(is_tree(kid) for kid in value["kids"])


SCHEMAS = [
    (PERSON, is_person),
    (TREE, is_tree),
    ({"enum": ["red", 7, None, ["x"]]}, lambda v: v in ("red", 7, None, ["x"])),
    ({"type": "number", "minimum": -1.5, "maximum": 2}, lambda v: -1.5 <= v <= 2),
    ({"anyOf": [{"type": "integer", "multipleOf": 12}, {"const": "none"}]}, lambda v: v == "none" or v % 12 == 0),
    ({"type": "string", "maxLength": 30}, lambda v: isinstance(v, str) and len(v) <= 30),
    ('{"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "boolean"}}', lambda v: 2 <= len(v) <= 4),
]


@pytest.mark.parametrize("begin", ["", "{", '{"name":', '{"name":"Ann"', '{"name":"Ann","tags":['])
def test_white_space_ends(tokenizer: Tokenizer, begin: str):
    """A model that prefers white space writes at most 40 characters of it between two parts, and none at the end."""
    properties = {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}}
    schema = {"type": "object", "properties": properties, "required": ["name", "tags"], "additionalProperties": False}
    constraint = Constraint.of_schema(schema, tokenizer, WIDTH)
    for token in tokenizer.encode(begin):
        constraint.accept(token)
    blank = [i for i in range(1, tokenizer.vocab_size) if (text := tokenizer.decode([i])) and not text.strip()]
    count = 0
    while found := sorted(set(blank) & set(allowed(constraint))):
        constraint.accept(found[0])
        count += len(tokenizer.decode([found[0]]))
    assert count <= 40
    assert len(allowed(constraint))
    whole = Constraint.of_schema(schema, tokenizer, WIDTH)
    for token in tokenizer.encode('{"name":"Ann","tags":[1]}'):
        whole.accept(token)
    assert not set(blank) & set(allowed(whole))


@pytest.mark.parametrize(("schema", "fulfils"), SCHEMAS, ids=[str(schema)[:30] for schema, _ in SCHEMAS])
def test_random_texts_follow_the_schema(
    schema: Any, fulfils: Any, tokenizer: Tokenizer, rng: np.random.Generator
) -> None:
    texts = [walk(Constraint.of_schema(schema, tokenizer, WIDTH), tokenizer, rng) for _ in range(12)]
    assert all(fulfils(json.loads(text)) for text in texts), texts
    assert len(set(texts)) > 1


def test_random_texts_match_the_pattern(tokenizer: Tokenizer, rng: np.random.Generator) -> None:
    pattern = r"(yes|no|[0-9]{1,3} (apples|pears))\."
    for _ in range(12):
        assert re.fullmatch(pattern, walk(Constraint.of_regex(pattern, tokenizer, WIDTH), tokenizer, rng))


def test_the_mask_keeps_its_address(tokenizer: Tokenizer) -> None:
    """The end is allowed where the text may end, and then nothing else is; the sampler keeps the address."""
    constraint = Constraint.of_schema({"const": "a"}, tokenizer, WIDTH)
    address = constraint.mask.ctypes.data
    assert constraint.mask.dtype == np.uint32 and constraint.mask.shape == (-(-WIDTH // 32),)
    for token in tokenizer.encode('"a"'):
        assert token in allowed(constraint) and END not in allowed(constraint)
        constraint.accept(token)
    assert constraint.may_end and constraint.is_complete
    assert allowed(constraint).tolist() == [END]
    assert constraint.mask.ctypes.data == address


def test_a_token_outside_the_mask_is_refused(tokenizer: Tokenizer) -> None:
    constraint = Constraint.of_schema({"type": "integer"}, tokenizer, WIDTH)
    for token in (END, -1, WIDTH - 1, WIDTH + 100, *tokenizer.encode("x")):
        with pytest.raises(InputError, match=f"not allowed here, got {token}, expected a token of the mask"):
            constraint.accept(token)
    for token in tokenizer.encode("1"):
        constraint.accept(token)
    assert constraint.may_end and not constraint.is_complete


def nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def of_itself() -> dict:
    schema: dict = {}
    schema["items"] = schema
    return schema


def shared(depth: int) -> list:
    return [] if depth == 0 else [shared(depth - 1)] * 10


VOID: list[tuple[Any, Any]] = [
    ({"type": "string", "format": "password"}, {"type": "string"}),
    ({"type": "integer", "format": "int64"}, {"type": "integer"}),
    ({"type": "array", "uniqueItems": False}, {"type": "array"}),
    ({"type": "array", "unevaluatedItems": True}, {"type": "array"}),
    ({"propertyNames": {}, "dependentRequired": {}, "dependentSchemas": {}, "unevaluatedProperties": True}, {}),
    (
        {"properties": {"format": {"type": "string", "format": "password"}, "uniqueItems": {"const": False}}},
        {"properties": {"format": {"type": "string"}, "uniqueItems": {"const": False}}},
    ),
    ({"anyOf": [{"format": "x"}, {"items": {"format": "y"}}]}, {"anyOf": [{}, {"items": {}}]}),
    ({"$defs": {"a": {"format": "x"}}, "$ref": "#/$defs/a"}, {"$defs": {"a": {}}, "$ref": "#/$defs/a"}),
    ({"enum": [{"format": "x", "uniqueItems": False}]}, {"enum": [{"format": "x", "uniqueItems": False}]}),
    ({"format": "date"}, {"format": "date"}),
    ({"format": "idn-email"}, {"format": "idn-email"}),
    ({"uniqueItems": True}, {"uniqueItems": True}),
    ({"uniqueItems": 0}, {"uniqueItems": 0}),
]


@pytest.mark.parametrize(("schema", "expected"), VOID, ids=str)
def test_keywords_that_restrict_nothing(schema: Any, expected: Any) -> None:
    """An unknown format is an annotation, as JSON Schema says; what restricts stays, and so do values."""
    assert json.loads(schema_text(schema)) == expected


def test_annotations_are_accepted(tokenizer: Tokenizer) -> None:
    secret = {"type": "object", "properties": {"key": {"type": "string", "format": "password", "writeOnly": True}}}
    assert Constraint.of_schema(secret, tokenizer, tokenizer.vocab_size).mask.any()


BAD: list[tuple[Any, type[Exception], str]] = [
    (7, InputError, "not a JSON object, got int"),
    ("[1]", InputError, "not a JSON object, got list"),
    ("{", InputError, "not JSON"),
    ("[" * 60000, InputError, "not JSON"),
    ({"const": {1, 2}}, InputError, "not JSON"),
    ({"const": float("nan")}, InputError, "not JSON"),
    ({"type": "wat"}, InputError, "not supported, got Invalid type: wat"),
    ({"uniqueItems": True, "type": "array"}, InputError, "uniqueItems"),
    ({"minimum": 2, "maximum": 1, "type": "integer"}, InputError, "minimum"),
    ({"type": "string", "pattern": "("}, InputError, "not supported"),
    ({"$ref": "#"}, InputError, "not supported"),
    ({"$ref": "file:///etc/passwd"}, InputError, "not supported"),
    (nested(100), LimitError, "too deep"),
    (of_itself(), LimitError, "too deep"),
    ({"enum": shared(12)}, LimitError, "too large"),
    ({"enum": ["x" * 70000]}, LimitError, "too long"),
    (json.dumps({"enum": ["x" * 70000]}), LimitError, "too long"),
    ({"multipleOf": 62622533, "type": "integer"}, LimitError, "too complex to compile"),
    (
        {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(60)]},
        LimitError,
        "too complex to compile",
    ),
]


@pytest.mark.parametrize(("schema", "error", "message"), BAD, ids=[f"{i}-{m}" for i, (_, _, m) in enumerate(BAD)])
def test_bad_schemas(schema: Any, error: type[Exception], message: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(error, match=f"schema: .*{message}.*expected"):
        Constraint.of_schema(schema, tokenizer, WIDTH)


def test_bad_patterns(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="regex: not supported"):
        Constraint.of_regex("(", tokenizer, WIDTH)
    with pytest.raises(LimitError, match="regex: too long, got 65537 bytes"):
        Constraint.of_regex("x" * 65537, tokenizer, WIDTH)


def test_a_model_without_an_end_has_no_constraints(tmp_path: Path) -> None:
    trained_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="no token ends a text"):
        Constraint.of_schema({"type": "integer"}, Tokenizer.read(tmp_path), WIDTH)


def test_logits_narrower_than_the_vocabulary(tokenizer: Tokenizer) -> None:
    width = 100
    constraint = Constraint.of_schema({"type": "boolean"}, tokenizer, width)
    assert constraint.mask.shape == (4,)
    logits = np.zeros(width, np.float32)
    assert tokenizer.decode([Sampler(Sampling(), width, constraint.mask).sample(logits)]).strip()[:1] in ("t", "f", "")


def test_tables_end_with_their_tokenizers(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(trained_folder(tmp_path))
    table = token_table(tokenizer, 400)
    Constraint.of_regex("a+", tokenizer, 400)
    assert token_table(tokenizer, 400) is table
    found = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert found() is None
