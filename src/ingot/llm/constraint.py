"""Constrained decoding: a JSON schema, a regular expression or a grammar as a mask of the allowed next tokens."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.errors import InputError, LimitError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    import llguidance

    from ingot.llm.tokenizer import Tokenizer

MAX_TEXT_BYTES = 1 << 16  # of a schema or grammar
MAX_DEPTH = 64  # nesting levels of a schema
MAX_VALUES = 10_000  # values in a schema
CHECK_SECONDS = 3  # CPU time to compile one grammar
CHECK_WALL_SECONDS = 30
CHECK_BYTES = 1 << 30

# Formats that JSON Schema defines; another format is an annotation and restricts nothing.
_FORMATS = frozenset(
    """date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference
    uuid uri-template json-pointer relative-json-pointer regex""".split()
)
# Values of keywords, which llguidance lacks, that restrict nothing.
_VOID: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,), "unevaluatedProperties": (True, {}), "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}), "dependentRequired": ({},), "dependentSchemas": ({},),
}  # fmt: skip
# Keywords whose values are a schema, a list of schemas, or schemas by name.
_INNER = frozenset(
    """items additionalItems additionalProperties unevaluatedItems unevaluatedProperties contains propertyNames not if
    then else allOf anyOf oneOf prefixItems""".split()
)
_INNER_BY_NAME = frozenset("properties patternProperties dependentSchemas $defs definitions".split())

# The tables of tokenizers, by the size of the model's vocabulary.
_tables: weakref.WeakKeyDictionary[Tokenizer, dict[int, llguidance.LLTokenizer]] = weakref.WeakKeyDictionary()


class Constraint:
    """The allowed next tokens of one text.

    mask: uint32[ceil(vocab_size / 32)], rewritten in place by each `accept`; bit i % 32 of word i // 32 allows token i.
    An id that ends the text is allowed when the text may end. Ids above the tokenizer's vocabulary are never allowed.
    """

    def __init__(self, tokens: llguidance.LLTokenizer, grammar: str, vocab_size: int) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
        self._matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
        self._words = np.zeros(-(-tokens.vocab_size // 32), np.uint32)
        self.mask = self._words[: -(-vocab_size // 32)]
        self._fill()

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any] | str, tokenizer: Tokenizer, vocab_size: int) -> Constraint:
        """Return a constraint to JSON that follows a schema, given as a mapping or as JSON text.

        vocab_size: the width of the logits. Raises InputError for a schema that is malformed, unsatisfiable or uses
        keywords that are not implemented; LimitError for a schema that is too large or takes too long to compile;
        UnsupportedError for a tokenizer that cannot be used; ResourceError without the package llguidance.
        """
        text = schema_text(schema)
        return cls(token_table(tokenizer, vocab_size), _grammar("schema", text), vocab_size)

    @classmethod
    def of_regex(cls, pattern: str, tokenizer: Tokenizer, vocab_size: int) -> Constraint:
        """Return a constraint to texts that match a regular expression completely. Errors as for `of_schema`."""
        if not isinstance(pattern, str):
            raise InputError(f"regex: not a text, got {type(pattern).__name__}, expected an expression")
        if len(pattern.encode()) > MAX_TEXT_BYTES:
            raise LimitError(f"regex: too long, got {len(pattern.encode())} bytes, expected at most {MAX_TEXT_BYTES}")
        return cls(token_table(tokenizer, vocab_size), _grammar("regex", pattern), vocab_size)

    @classmethod
    def of_grammar(cls, grammar: str, tokenizer: Tokenizer, vocab_size: int) -> Constraint:
        """Return a constraint to texts of a grammar in llguidance's form of Lark. Errors as for `of_schema`."""
        if not isinstance(grammar, str):
            raise InputError(f"grammar: not a text, got {type(grammar).__name__}, expected a grammar")
        if len(grammar.encode()) > MAX_TEXT_BYTES:
            raise LimitError(f"grammar: too long, got {len(grammar.encode())} bytes, expected at most {MAX_TEXT_BYTES}")
        return cls(token_table(tokenizer, vocab_size), _grammar("grammar", grammar), vocab_size)

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and no token may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """Whether the text is complete; more tokens may follow."""
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> None:
        """Add a token to the text and update the mask.

        Raises InputError for a token that the mask forbids, LimitError if the mask takes too long to compute.
        """
        if not self._allows(token):
            raise InputError(f"constraint: token is not allowed here, got {token}, expected a token of the mask")
        self._matcher.consume_token(token)
        self._fill()

    def _allows(self, token: int) -> bool:
        return 0 <= token < 32 * self.mask.size and bool(self.mask[token // 32] >> np.uint32(token % 32) & 1)

    def _fill(self) -> None:
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise LimitError(f"constraint: too complex, got {_line(self._matcher.get_error())}")


def _line(text: str) -> str:
    return text.strip().partition("\n")[0]


def schema_text(schema: Any, where: str = "schema") -> str:
    """Return a schema as JSON text. Raises InputError for another value, LimitError for a too large or deep one."""
    try:
        if isinstance(schema, str):
            if len(schema) > MAX_TEXT_BYTES:
                raise LimitError(f"{where}: too long, got {len(schema)} bytes, expected at most {MAX_TEXT_BYTES}")
            schema = json.loads(schema)
        if not isinstance(schema, Mapping):
            raise InputError(f"{where}: not a JSON object, got {type(schema).__name__}, expected a schema")
        _check_size(schema, where)
        text = json.dumps(_restricting(schema), allow_nan=False)
    except InputError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON, got {_line(str(error))}, expected JSON values") from error
    if len(text) > MAX_TEXT_BYTES:
        raise LimitError(f"{where}: too long, got {len(text)} bytes, expected at most {MAX_TEXT_BYTES}")
    return text


def _restricting(schema: Any) -> Any:
    """Return a schema, or a list of schemas, without keywords that restrict nothing and that llguidance refuses."""
    if isinstance(schema, list | tuple):
        return [_restricting(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[Any, Any] = {}
    for key, value in schema.items():
        if any(type(value) is type(void) and value == void for void in _VOID.get(key, ())):
            continue
        if key == "format" and isinstance(value, str) and value not in _FORMATS:
            continue
        if key in _INNER_BY_NAME and isinstance(value, Mapping):
            found[key] = {name: _restricting(each) for name, each in value.items()}
        else:
            found[key] = _restricting(value) if key in _INNER else value
    return found


def _check_size(value: Any, where: str) -> None:
    """Raise LimitError for too many values or levels, which also ends cyclic and shared structures."""
    level, depth, count = [value], 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_DEPTH:
            raise LimitError(f"{where}: too deep, got more than {MAX_DEPTH} levels, expected at most {MAX_DEPTH}")
        if count > MAX_VALUES:
            raise LimitError(f"{where}: too large, got more than {MAX_VALUES} values, expected at most {MAX_VALUES}")
        inner: list[Any] = []
        for item in level:
            inner += item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
        level = inner


@functools.lru_cache(maxsize=64)
def _grammar(kind: str, text: str) -> str:
    """Return the compiled grammar. Another process compiles it first, to check that this ends within the limits."""
    worker = importlib.util.find_spec("ingot.llm.schema_worker")
    assert worker is not None and worker.origin is not None
    request = {"kind": kind, "text": text, "seconds": CHECK_SECONDS, "nbytes": CHECK_BYTES}
    command = [sys.executable, "-P", worker.origin]
    try:
        result = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=CHECK_WALL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise LimitError(f"{kind}: takes too long, got more than {CHECK_WALL_SECONDS} s, expected less") from error
    except OSError as error:
        raise ResourceError(f"{kind}: cannot be checked, got {error}, expected to start '{sys.executable}'") from error
    if result.returncode < 0:
        raise LimitError(
            f"{kind}: too complex to compile, got stopped by signal {-result.returncode},"
            f" expected at most {CHECK_SECONDS} s and {CHECK_BYTES} bytes"
        )
    if result.returncode:
        raise ResourceError(f"{kind}: cannot be checked, got {_line(result.stderr[-400:])}, expected an answer")
    answer = json.loads(result.stdout)
    if answer["error"]:
        raise InputError(f"{kind}: not supported, got {_line(answer['error'])}, expected a supported {kind}")
    return str(answer["grammar"])


def token_table(tokenizer: Tokenizer, vocab_size: int) -> llguidance.LLTokenizer:
    """Return the table that the constraints of a model share; it exists as long as the tokenizer. Building it takes
    seconds for a large vocabulary and stops the other threads of Python meanwhile.

    Raises ResourceError without llguidance, UnsupportedError for a tokenizer that allows no constraints.
    """
    tables = _tables.setdefault(tokenizer, {})
    if vocab_size not in tables:
        tables[vocab_size] = _built(tokenizer, vocab_size)
    return tables[vocab_size]


def _built(tokenizer: Tokenizer, vocab_size: int) -> llguidance.LLTokenizer:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise ResourceError(
            "constraint: llguidance is missing, got no package; run: pip install 'ingot-compiler[llm]'"
        ) from error
    ends = sorted(token for token in tokenizer.eos if token < vocab_size)
    if not ends:
        raise UnsupportedError(
            "constraint: no token ends a text, got no eos_token_id, expected one in the configuration"
        )
    try:
        return LLTokenizer(tokenizer.to_json(), n_vocab=max(vocab_size, tokenizer.vocab_size), eos_token=ends)
    except ValueError as error:
        raise UnsupportedError(f"constraint: tokenizer cannot be used, got {_line(str(error))}") from error
