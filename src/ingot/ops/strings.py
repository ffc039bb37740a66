"""Ops over strings, and ops that convert strings to numbers."""

from typing import Any, Literal

import numpy as np

from ingot.errors import LimitError, LoadError, ShapeError, UnsupportedError
from ingot.ir.dtype import DType, boolean, f32, i32, i64, string
from ingot.ir.graph import TensorType
from ingot.ops.define import Ints, broadcast, expect_kind, op, sample

MAX_SUBSTRINGS = 2**26  # of a result whose rows are padded to the longest
MAX_FEATURES = 2**28  # columns of a TF-IDF result
MAX_PATTERN_CHARACTERS = 4096  # of a regular expression; RE2 also limits repetitions, levels and memory

Strings = tuple[str, ...]


def _objects(shape, elements):
    array = np.empty(shape, object)
    array.ravel()[:] = elements
    return array


@op(
    infer=broadcast("string_concat", kinds="s"),
    acts_on="element",
    computes=False,
    samples=[sample("a:string[2,3] b:string[3]"), sample("a:string[] b:string[]"), sample("a:string[0] b:string[1]")],
)
def string_concat(a, b):
    """a followed by b, element by element, broadcast as in numpy."""
    return np.asarray(a + b, object)


def _infer_normalize(x, *, stopwords, ignore_case, case):
    expect_kind("string_normalize", x, "s")
    if x.rank not in (1, 2) or (x.rank == 2 and x.shape[0] not in (1, None)):
        raise ShapeError(f"string_normalize: bad shape, got {x}, expected [n] or [1, n]")
    return TensorType(string, (*x.shape[:-1], None if stopwords or x.shape[-1] == 0 else x.shape[-1]))


@op(
    infer=_infer_normalize,
    computes=False,
    samples=[
        sample("x:string[5]", stopwords=("a", "B"), ignore_case=True, case="upper"),
        sample("x:string[1,5]", stopwords=("a",), ignore_case=False, case="none"),
        sample("x:string[5]", stopwords=(), ignore_case=False, case="lower"),
    ],
)
def string_normalize(x, *, stopwords: Strings, ignore_case: bool, case: Literal["none", "lower", "upper"]):
    """x [n] or [1, n] without stop words, in another case; one empty string if nothing is left."""
    stops = {word.lower() if ignore_case else word for word in stopwords}
    remaining = [word for word in x.ravel().tolist() if (word.lower() if ignore_case else word) not in stops] or [""]
    if case != "none":
        remaining = [word.lower() if case == "lower" else word.upper() for word in remaining]
    return _objects((*x.shape[:-1], len(remaining)), remaining)


def _infer_split(x, *, delimiter, limit):
    expect_kind("string_split", x, "s")
    return TensorType(string, (*x.shape, None)), TensorType(i64, x.shape)


@op(
    infer=_infer_split,
    outputs=2,
    computes=False,
    samples=[
        sample("x:string[2,3]", delimiter="a", limit=-1),
        sample("x:string[3]", delimiter="", limit=1),
        sample("x:string[0]", delimiter="a", limit=2),
        sample("x:string[]", delimiter="a", limit=0),
    ],
)
def string_split(x, *, delimiter: str, limit: int):
    """The parts of each string [..., longest], padded with empty strings, and the number of parts.

    delimiter: the separator of parts; "" for any white space, which is also stripped at the ends. limit: the maximum
    number of splits of a string; -1 for no limit.
    """
    parts = [text.split(delimiter or None, limit) for text in x.ravel().tolist()]
    counts = np.array([len(part) for part in parts], np.int64).reshape(x.shape)
    longest = int(counts.max(initial=0))
    if longest * len(parts) > MAX_SUBSTRINGS:
        raise LimitError(
            f"string_split: too many parts, got {len(parts)} strings of up to {longest}, expected {MAX_SUBSTRINGS}"
        )
    filled = [text for part in parts for text in [*part, *[""] * (longest - len(part))]]
    return _objects((*x.shape, longest), filled), counts


def _compiled(pattern: str) -> Any:
    """Compile a regular expression with RE2, which is imported only here.

    Raises UnsupportedError if RE2 is not installed, LoadError for a pattern that RE2 rejects, LimitError for a pattern
    that is too large.
    """
    try:
        import re2
    except ImportError as error:
        raise UnsupportedError("regex_full_match needs RE2: pip install 'ingot-compiler[strings]'") from error
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise LimitError(f"regex: too long, got {len(pattern)} characters, expected at most {MAX_PATTERN_CHARACTERS}")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(_utf8(pattern), options)  # RE2 caches compiled patterns
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")[:100]
        kind = LimitError if reason.startswith("pattern too large") else LoadError
        raise kind(f"regex {pattern[:100]!r}: rejected by RE2, got {reason}") from error


def _utf8(text: str) -> bytes:
    """Encode a text; an unpaired surrogate is one character, as in `str`."""
    return text.encode(errors="surrogatepass")


def _infer_match(x, *, pattern):
    expect_kind("regex_full_match", x, "s")
    _compiled(pattern)
    return TensorType(boolean, x.shape)


@op(
    infer=_infer_match,
    acts_on="element",
    computes=False,
    samples=[
        sample("x:string[2,5]", pattern="[ab ]+"),
        sample("x:string[0]", pattern=""),
        sample("x:string[]", pattern="."),
    ],
)
def regex_full_match(x, *, pattern: str):
    """Whether each whole string matches a regular expression of RE2's syntax."""
    compiled = _compiled(pattern)
    return np.array([compiled.fullmatch(_utf8(text)) is not None for text in x.flat], bool).reshape(x.shape)


def _infer_label(x, keys, values, default):
    if keys.dtype is not x.dtype or keys.rank != 1 or values.rank != 1 or values.shape != keys.shape:
        raise ShapeError(f"label_encode: bad table, got {keys} and {values} for {x}, expected vectors of one length")
    if x.dtype.kind not in "fiubs" or default.rank != 0 or default.dtype is not values.dtype:
        raise ShapeError(f"label_encode: bad default, got {default} for {values} and {x}, expected one value")
    return TensorType(values.dtype, x.shape)


@op(
    infer=_infer_label,
    computes=False,
    samples=[
        sample("x:string[2,5] k:string[3] v:i64[3] d:i64[]"),
        sample("x:i64[7] k:i64[4] v[4] d[]"),
        sample("x:i64[0] k:i64[4] v:string[4] d:string[]"),
    ],
)
def label_encode(x, keys, values, default):
    """The value of each element's key, or the default; of equal keys the last counts, and NaN is one key."""

    def spelled(elements):
        return ["nan" if element != element else element for element in elements.ravel().tolist()]

    positions = {key: position for position, key in enumerate(spelled(keys))}
    found = np.array([positions.get(element, len(keys)) for element in spelled(x)], np.int64).reshape(x.shape)
    return np.append(values, default)[found]


def _infer_tfidf(x, *, integers, strings, starts, columns, weights, least, most, skips, mode, dtype):
    if x.dtype not in (string, i64, i32) or x.rank not in (1, 2) or (x.dtype is string) != bool(strings):
        raise ShapeError(f"tfidf: bad operand, got {x}, expected [n] or [rows, n] of the dtype of the n-grams")
    pool = strings or integers
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(pool)], strict=False)]
    if any(size < 0 or size % n for n, size in enumerate(sizes, 1)) or not starts or starts[0] != 0:
        raise ShapeError(f"tfidf: bad starts of n-grams, got {list(starts)[:20]} of {len(pool)}")
    count = sum(size // n for n, size in enumerate(sizes, 1))
    if len(columns) != count or (weights and len(weights) != count) or not columns or min(columns) < 0:
        raise ShapeError(
            f"tfidf: bad columns, got {len(columns)}, weights {len(weights)}, expected {count} of 0 or more"
        )
    if max(columns) >= MAX_FEATURES or not 1 <= least <= most <= len(starts) or skips < 0:
        raise ShapeError(f"tfidf: out of range, got n-grams of {least}..{most}, {skips} skips, column {max(columns)}")
    return TensorType(dtype, (*x.shape[:-1], max(columns) + 1))


_NGRAMS = {"starts": (0, 2), "columns": (0, 3, 1), "least": 1, "most": 2, "weights": (0.5, 2.0, 3.0), "dtype": f32}


@op(
    infer=_infer_tfidf,
    computes=False,
    samples=[
        sample("x:i64[2,9]", integers=(1, 2, 3, 4), strings=(), skips=1, mode="tf", **_NGRAMS | {"columns": (0, 3, 1)}),
        sample("x:i32<3[9]", integers=(1, 2, 1, 2), strings=(), skips=0, mode="tfidf", **_NGRAMS),
        sample("x:string[2,9]", integers=(), strings=("a", "b", "a", "b"), skips=2, mode="idf", **_NGRAMS),
        sample("x:string[0]", integers=(), strings=("a", "b", "a", "b"), skips=2, mode="idf", **_NGRAMS),
    ],
)
def tfidf(
    x,
    *,
    integers: Ints,
    strings: Strings,
    starts: Ints,
    columns: Ints,
    weights: tuple[float, ...],
    least: int,
    most: int,
    skips: int,
    mode: Literal["tf", "idf", "tfidf"],
    dtype: DType,
):
    """The number of occurrences of each n-gram of a pool in a row of x [n] or [rows, n]: [rows, 1 + the largest of
    columns].

    integers or strings: the pool, all 1-grams, then all 2-grams, and so on; starts: the index where each length begins.
    columns, weights: the output column and the weight of each n-gram. least, most: the range of lengths that count;
    skips: the maximum number of elements between neighbors, equal within one n-gram. mode: counts, weights of those
    that occur, or their products.
    """
    pool = strings or integers
    ends = [*starts[1:], len(pool)]
    known: list[dict] = []
    number = 0
    for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        ngrams = [pool[i : i + n] for i in range(start, end, n)]
        known.append({gram: number + i for i, gram in enumerate(ngrams)})
        number += len(ngrams)
    rows = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(int(np.prod(x.shape[:-1], dtype=np.int64)), x.shape[-1])
    counts = np.zeros((len(rows), number), dtype.numpy)
    for row, elements in zip(counts, rows.tolist(), strict=True):
        for n in range(least, most + 1):
            for step in range(1, (skips if n > 1 else 0) + 2):
                if not known[n - 1] or (n - 1) * step >= len(elements):
                    break
                for i in range(len(elements) - (n - 1) * step):
                    found = known[n - 1].get(tuple(elements[i : i + (n - 1) * step + 1 : step]))
                    if found is not None:
                        row[found] += 1
    scale = np.array(weights or [1.0] * number, dtype.numpy)
    values = {"tf": counts, "idf": (counts > 0) * scale, "tfidf": counts * scale}[mode]
    result = np.zeros((len(rows), max(columns) + 1), dtype.numpy)
    for column, counts in zip(columns, values.T, strict=True):
        result[:, column] += counts
    return result.reshape(*x.shape[:-1], max(columns) + 1)
