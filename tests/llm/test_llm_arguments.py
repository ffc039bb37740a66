"""Errors of LLM for invalid arguments, and for a generation_config.json that it does not support."""

import json

import pytest

import ingot
from small_tokenizers import document, write_folder
from tiny_language_models import random_llama

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = document("byte_level")
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    random_llama(folder, vocab_size=1 + max(ids))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return write_folder(folder, tokenizer)


@pytest.mark.parametrize(
    "source, kind, message",
    [
        (None, TypeError, "folder: cannot be read, got NoneType"),
        ("", ValueError, "path of a model: empty"),
        ("tiny-l", FileNotFoundError, "no such file, expected perhaps 'tiny-lm'"),
        (__file__, ValueError, "no language model, got a file, expected a model folder or a GGUF file"),
    ],
    ids=["nothing", "no path", "misspelt", "a file"],
)
def test_sources_that_are_none(source, kind, message):
    with pytest.raises(kind, match=message) as caught:
        ingot.LLM(source)
    assert isinstance(caught.value, ingot.IngotError)


@pytest.fixture(scope="module")
def llm(folder):
    return ingot.LLM(folder, sequences=1, context=64)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda llm: llm.generate(None), "prompt: wrong type, got NoneType, expected a text or a list of texts"),
        (lambda llm: llm.generate([5]), "prompt: wrong type, got int, expected a text"),
        (lambda llm: llm.generate(""), "prompt: empty"),
        (lambda llm: llm.generate("a" * 99), "longer than the context, got .* expected at most 64"),
        (lambda llm: llm.generate("a", stop=5), "stop: wrong type, got int, expected a string or a list of strings"),
        (lambda llm: llm.generate("a", stop=[5]), r"stop\[0\]: not a text, got 5"),
        (lambda llm: llm.generate("a", schema="x"), "schema: not JSON"),
        (lambda llm: llm.generate("a", grammar=3), "grammar: not a text"),
        (lambda llm: llm.generate("a", schema={}, regex="a"), "options schema, regex: got 2, expected at most one"),
        (lambda llm: llm.generate("a", regex=5), "regex: not a text, got int"),
        (lambda llm: llm.generate("a", schema=5), "schema: not a JSON object, got int"),
        (lambda llm: llm.generate("a", max_tokens="5"), "max_tokens: out of range, got '5', expected an integer"),
        (lambda llm: llm.generate("a", temperature=None), "temperature: not allowed, got None, expected a number"),
        (lambda llm: llm.generate("a", logit_bias={"5": 1}), "logit_bias: not a token, got '5', expected an integer"),
        (lambda llm: llm.generate("a", top=1), "options: unknown, got top, expected some of .*top_k"),
        (lambda llm: llm.complete(["a"]), "prompt: wrong type, got list, expected a text"),
        (lambda llm: llm.chat(None), "messages: got a NoneType, expected a list"),
        (lambda llm: llm.chat(MESSAGES, tools=5), "tools: got 5, expected a list of JSON schemas"),
        (lambda llm: llm.chat(MESSAGES, tools=["x"]), r"tools: got \['x'\], expected a list of JSON schemas"),
        (lambda llm: llm.chat(MESSAGES, template_options=5), "chat options: got int, expected a mapping"),
        (lambda llm: llm.chat(MESSAGES, template_options={"messages": 1}), "chat option 'messages': unknown"),
        (lambda llm: llm.chat(MESSAGES, template_options={5: 1}), "chat option 5: unknown, expected one of"),
        (lambda llm: llm.embed([]), "text: got none, expected at least one"),
        (lambda llm: llm.embed(5), "text: wrong type, got int, expected a text or a list of texts"),
        (lambda llm: llm.embed("a", pooling="max"), "option pooling: unknown value, got 'max'"),
        (lambda llm: llm.generate_tokens(None), "prompt: not ids, got None, expected a list of integers"),
        (lambda llm: llm.generate_tokens([1.5]), r"prompt: not ids, got \[1.5\]"),
        (lambda llm: llm.logits("abc"), "prompt: not ids, got 'abc'"),
        (lambda llm: llm.save_sequence("state"), "sequence: none is cached"),
    ],
)
def test_wrong_arguments(llm, call, message):
    with pytest.raises(ingot.InputError, match=message):
        call(llm)


def test_scored_or_embedded_texts_are_not_cached(llm, tmp_path):
    llm.embed("a sentence")
    llm.logits([5, 6])
    with pytest.raises(ingot.InputError, match="none is cached"):
        llm.save_sequence(tmp_path / "state")


def test_defaults_come_from_the_folder(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "generation_config.json"

    def sampling(values, **options):
        config.write_text(json.dumps(values))
        return ingot.LLM(tmp_path, sequences=1).generation([5], **options).sampler.sampling

    assert sampling({}).temperature == 0
    greedy = sampling({"temperature": 0.5, "repetition_penalty": 1.5})
    assert (greedy.temperature, greedy.repetition_penalty) == (0, 1.5)
    drawn = sampling({"do_sample": True, "temperature": 0.5, "top_k": None, "top_p": 0.9}, top_p=0.8)
    assert (drawn.temperature, drawn.top_k, drawn.top_p) == (0.5, 0, 0.8)
    with pytest.raises(ingot.LoadError, match=r"generation_config.json: top_k: not allowed, got -1"):
        sampling({"do_sample": True, "top_k": -1})
    with pytest.raises(ingot.InputError, match="top_k: not allowed, got -2"):
        sampling({"do_sample": True, "top_k": -1}, top_k=-2)
    assert sampling({"do_sample": True, "top_k": -1}, top_k=3).top_k == 3


def test_a_budget_is_a_number_of_bytes(folder):
    with pytest.raises(ingot.InputError, match="option budget: out of range, got '1'"):
        ingot.llm.memory_of(folder, budget="1")
