"""Rules for ops on strings."""

from __future__ import annotations

from ingot.ir.dtype import f32
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import onnx


@onnx("StringConcat")
def string_concat(call: Call) -> str:
    return call.build.string_concat(call[0], call[1])


@onnx("StringNormalizer")
def string_normalizer(call: Call) -> str:
    """The locale is ignored: case follows Unicode."""
    case = call.attr_text("case_change_action", "NONE")
    if case not in ("NONE", "LOWER", "UPPER"):
        raise call.malformed(f"attribute 'case_change_action' is {case!r}, expected 'NONE', 'LOWER' or 'UPPER'")
    ignore = not call.attr_int("is_case_sensitive", 0)
    stopwords = call.attr_texts("stopwords", ())
    return call.build.string_normalize(call[0], stopwords=stopwords, ignore_case=ignore, case=case.lower())


@onnx("StringSplit")
def string_split(call: Call) -> tuple[str, ...]:
    limit = max(-1, call.attr_int("maxsplit", -1))
    return call.build.add_all("string_split", call[0], delimiter=call.attr_text("delimiter", ""), limit=limit)


@onnx("RegexFullMatch")
def regex_full_match(call: Call) -> str:
    return call.build.regex_full_match(call[0], pattern=call.attr_text("pattern"))


@onnx("TfIdfVectorizer")
def tfidf(call: Call) -> str:
    mode = call.attr_text("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise call.malformed(f"attribute 'mode' is {mode!r}, expected 'TF', 'IDF' or 'TFIDF'")
    integers, strings = call.attr_ints("pool_int64s", ()), call.attr_texts("pool_strings", ())
    if bool(integers) == bool(strings):
        raise call.malformed("attributes 'pool_int64s' and 'pool_strings': one of them is expected")
    return call.build.tfidf(
        call[0],
        integers=integers,
        strings=strings,
        starts=call.attr_ints("ngram_counts"),
        columns=call.attr_ints("ngram_indexes"),
        weights=call.attr_floats("weights", ()),
        least=call.attr_int("min_gram_length"),
        most=call.attr_int("max_gram_length"),
        skips=call.attr_int("max_skip_count"),
        mode=mode.lower(),
        dtype=f32,
    )
