"""Text as tokens come is the text of all of them, cut at the first stop string."""

import random
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust

from ingot.errors import InputError, LimitError
from ingot.llm.text import TextStream
from ingot.llm.tokenizer import Tokenizer
from small_tokenizers import TEXT, document, trained, write_folder

KINDS = ("byte_level", "split_byte_level", "byte_fallback", "gemma", "unigram")


@cache
def tokenizer(kind: str) -> Tokenizer:
    rust = Rust.from_str(trained(kind))
    return Tokenizer(rust, 1 + max(rust.get_vocab().values()), 0, kind)


def streamed(kind: str, ids: list[int], stop=()) -> list[str]:
    """What each push gives, and the end."""
    stream = TextStream(tokenizer(kind), stop)
    parts = [stream.push(index) for index in ids]
    return [*parts, stream.finish()]


def cut(text: str, stops) -> str:
    """Up to the stop string that ends first."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


LETTERS = st.one_of(
    st.text(max_size=60),
    st.text("ab ▁", max_size=40),
    st.text("🙂é東\ufffd a", max_size=40),
    st.lists(st.sampled_from(TEXT[:4]), max_size=3).map("".join),
)


@settings(max_examples=400)
@given(kind=st.sampled_from(KINDS), text=LETTERS, stops=st.lists(st.text(min_size=1, max_size=5), max_size=3))
@example(kind="byte_fallback", text="🙂" * 100, stops=[])
@example(kind="byte_level", text="\ufffd" * 100, stops=["\ufffd\ufffdx"])
def test_streamed_text_is_the_text(kind, text, stops):
    ids = tokenizer(kind).encode(text)
    assert "".join(streamed(kind, ids, stops)) == cut(tokenizer(kind).decode(ids), stops)


@settings(max_examples=300)
@given(kind=st.sampled_from(KINDS), text=LETTERS, data=st.data())
def test_stop_strings_of_the_text_itself(kind, text, data):
    ids = tokenizer(kind).encode(text)
    whole = tokenizer(kind).decode(ids)
    place = st.integers(0, max(0, len(whole) - 1))
    stops = [whole[i : i + data.draw(st.integers(1, 8))] for i in data.draw(st.lists(place, max_size=3))]
    stops = [stop for stop in stops if stop]
    assert "".join(streamed(kind, ids, stops)) == cut(whole, stops)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 404), max_size=80), st.sampled_from(["byte_level", "split_byte_level"]))
def test_any_ids_of_byte_level_tokenizers(ids, kind):
    assert "".join(streamed(kind, ids)) == tokenizer(kind).decode(ids)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 300), max_size=80), st.sampled_from(["byte_fallback", "gemma"]))
def test_any_ids_of_byte_fallback_are_text(ids, kind):
    text = "".join(streamed(kind, ids))
    assert text.encode().decode() == text


def test_a_mark_that_is_a_token_itself(tmp_path):
    changed = document("byte_fallback")
    changed["model"]["vocab"]["\ufffd"] = len(changed["model"]["vocab"])
    read = Tokenizer.read(write_folder(tmp_path, changed))
    stream = TextStream(read)
    ids = read.encode("a\ufffd\ufffd🙂\ufffd")
    assert "".join(map(stream.push, ids)) + stream.finish() == "a\ufffd\ufffd🙂\ufffd"


def test_characters_come_whole():
    """Four bytes are four tokens; the character comes with the last, and the end of half a one is U+FFFD."""
    ids = tokenizer("byte_fallback").encode("a🙂b")
    parts = streamed("byte_fallback", ids)
    assert parts.count("") >= 3
    assert "🙂" in parts
    cut_off = ids[: parts.index("🙂")]
    assert "".join(streamed("byte_fallback", cut_off)).rstrip("\ufffd") == "a"
    assert streamed("byte_fallback", cut_off)[-1] == "\ufffd"


def test_text_is_delayed_no_longer_than_necessary():
    stream = TextStream(tokenizer("byte_level"), ["world!"])
    parts = [stream.push(index) for index in tokenizer("byte_level").encode("hello world")]
    assert "".join(parts) == "hello "
    assert stream.finish() == "world"
    assert not stream.stopped


def test_nothing_comes_after_a_stop_string():
    stream = TextStream(tokenizer("byte_level"), "lo w")
    parts = [stream.push(index) for index in tokenizer("byte_level").encode("hello world hello")]
    assert "".join(parts) == "hel"
    assert stream.stopped
    assert stream.push(5) == "" == stream.finish()


def test_control_tokens_are_no_text():
    ids = tokenizer("byte_level").encode("a<|im_end|>b", special=True)
    assert "".join(streamed("byte_level", ids)) == "ab"


def test_ids_without_a_token_are_no_text():
    """A model may have more columns than its tokenizer has tokens."""
    ids = tokenizer("byte_level").encode("ab")
    assert "".join(streamed("byte_level", [100_000, *ids, 4095])) == "ab"


@pytest.mark.parametrize("index", [-1, 2**63, 1.5, None, True])
def test_what_is_no_id(index):
    with pytest.raises(InputError, match="expected 0 to"):
        streamed("byte_level", [index])


@pytest.mark.parametrize(
    ("stop", "error", "words"),
    [
        ([""], InputError, r"stop\[0\]: not a text"),
        (["a", None], InputError, r"stop\[1\]: not a text, got None"),
        (["a"] * 17, LimitError, "too many strings, got 17"),
        (["é" * 129], LimitError, r"stop\[0\]: too long, got 258 bytes"),
    ],
)
def test_stop_strings_that_are_refused(stop, error, words):
    with pytest.raises(error, match=words):
        TextStream(tokenizer("byte_level"), stop)


def test_long_streams_keep_few_ids():
    """Bytes that never become text are decoded as they come, not again and again."""
    generator = random.Random(0)
    for kind in KINDS:
        stream = TextStream(tokenizer(kind))
        for _ in range(3000):
            stream.push(generator.choice([130, 200, 300]))
            assert len(stream._ids) < 200
