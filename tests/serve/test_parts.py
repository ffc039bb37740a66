"""The parts of answers: reasoning, text and calls in the form of each family, cut anywhere, complete or not."""

import json
import random
import re

import pytest

import chat_templates
import ingot
from ingot.cli.demo_language import FOLDER
from ingot.llm.constraint import Constraint
from ingot.llm.text import TextStream
from ingot.serve.grammar import Grammar
from ingot.serve.parts import PartReader
from ingot.serve.reasoning import THINKING, Thinking, thinking_of
from ingot.serve.tools import FORMS, Call, Form, Tool, form_of
from serving import with_template

# ruff: noqa: RUF001 (the markers of DeepSeek have wide bars)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool({"name": "weather", "parameters": PARAMETERS}), Tool({"name": "now"})]
OSLO = Call("weather", {"city": "Oslo", "days": 2})
NOW = Call("now", {})
THINK = Thinking("think>", "<think>", "</think>")

# A text of a template, an answer in the form of its family, and what the answer has: reasoning, text and calls.
ANSWERS = [
    (
        "<tool_call>",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>',
        "",
        [OSLO],
    ),
    (
        "<tool_call>",
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "I look.",
        [OSLO, NOW],
    ),
    (
        "<tool_call>",
        '<tool_call>{"arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 2}", "name": "weather"}',
        "",
        [OSLO],
    ),
    ("<tool_call>", 'a <tool_call>[{"name": "now"}]</tool_call> b', "a b", [NOW]),
    (
        "<function= <parameter=",
        "Yes.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "</function>\n</tool_call>",
        "Yes.",
        [OSLO],
    ),
    (
        "<function= <parameter=",
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n\n  </function>\n</parameter>\n<parameter=tags>\n"
        '["a", "b"]\n</parameter>\n</function>\n</tool_call>',
        "",
        [Call("weather", {"city": "12\n\n  </function>", "tags": ["a", "b"]})],
    ),
    (
        "<arg_key>",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "",
        [OSLO, NOW],
    ),
    (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "",
        [OSLO, NOW],
    ),
    (
        "<｜tool▁calls▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Oslo", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n'
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [OSLO, NOW],
    ),
    (
        "<｜tool▁calls▁begin｜>",
        'So:\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "So:",
        [OSLO, NOW],
    ),
    (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [OSLO, NOW],
    ),
    (
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo", "days": 2}, "id": "VvvODy9mT"},'
        ' {"name": "now", "arguments": {}}]',
        "",
        [OSLO, NOW],
    ),
    (
        "[TOOL_CALLS] [ARGS]",
        'Well. [TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]now[ARGS]{}',
        "Well.",
        [OSLO, NOW],
    ),
    (
        "[TOOL_CALLS] [CALL_ID] [ARGS]",
        '[TOOL_CALLS]weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Oslo", "days": 2}',
        "",
        [OSLO],
    ),
    (
        "<|START_ACTION|>",
        '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo", "days": 2}}'
        "\n]<|END_ACTION|>",
        "",
        [OSLO],
    ),
    (
        "<|tool_call>",
        '<|tool_call>call:weather{city:<|"|>Oslo: "x", {y}<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "",
        [Call("weather", {"city": 'Oslo: "x", {y}', "days": 2}), NOW],
    ),
    (
        "<start_function_call>",
        "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:2}<end_function_call>",
        "",
        [OSLO],
    ),
    (
        "<|/tool|>",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]<|/tool_call|>',
        "",
        [OSLO],
    ),
    ("<|tool_call|>", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]', "", [OSLO]),
    ("<function=", '<function=weather>{"city": "Oslo", "days": 2}</function>', "", [OSLO]),
    ("[func_name1(", "[weather(city='Oslo', days=2), now()]", "", [OSLO, NOW]),
    ("ipython", '{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}', "", [OSLO]),
    ("ipython", '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now"}', "", [NOW, NOW]),
    ("ipython", '<|python_tag|>weather.call(city="Oslo", days=2)', "", [OSLO]),
    ("", '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}', "", [OSLO]),
    ("[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{}", "", [NOW]),
    ("<function= <parameter=", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "", [NOW]),
    ("", '```\n{"name": "weather"}', '```\n{"name": "weather"}', []),
]
# Answers that look like calls, and are text to the last character.
TEXTS = [
    ("<tool_call>", '<tool_call>\n{"name": "weather", "arguments": {"city": "Os'),
    ("<tool_call>", "<tool_call>\n{'name': 'weather'}\n</tool_call>"),
    ("<tool_call>", '<tool_call>\n{"name": "storm", "arguments": {}}\n</tool_call>'),
    ("<tool_call>", '<tool_call>\n{"name": "weather", "arguments": [1]}\n</tool_call>'),
    ("<tool_call>", '<tool_call>\n{"name": "weather", "arguments": {"days": NaN}}\n</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "now"} and {"name": "now"}</tool_call>'),
    ("<tool_call>", "<tool_call></tool_call>"),
    ("<tool_call>", f"<tool_call>{'[' * 100_000}</tool_call>"),
    ("<tool_call>", "a <tool_cal"),
    ("<tool_call>", '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>'),
    ("<tool_call>", '<tool_call>{"name": "now", "arguments": {"a": "\\ud800"}}</tool_call>'),
    ("<tool_call>", f'<tool_call>{{"name": "now", "arguments": {{"a": {"[" * 500}{"]" * 500}}}}}</tool_call>'),
    ("<function= <parameter=", f"<tool_call><function=now>{'<parameter=a>' * 20_000}</function></tool_call>"),
    (
        "<｜tool▁calls▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now" + " " * 50_000,
    ),
    ("[func_name1(", "[weather(city={1})]"),
    ("<function= <parameter=", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</function>\n</tool_call>"),
    ("<arg_key>", "<tool_call>weather\n<arg_key>city</arg_key>\n</tool_call>"),
    ("[TOOL_CALLS] [ARGS]", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{'),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}<｜tool▁calls▁end｜>",
    ),
    ("ipython", '{"name": "Bob", "age": 3}'),
    ("ipython", "<|python_tag|>import os\nprint(os.name)"),
    ("[func_name1(", "[weather('Oslo')]"),
    ("[func_name1(", "[weather(city=os.name)]"),
    ("", '[{"name": "now"}, 3]'),
]
REASONING = [
    ("<think>\nHm.\nYes.\n</think>\n\nFine.\n", False, "Hm.\nYes.", "Fine.\n"),
    ("\nHm.\n</think>\n\nFine.", True, "Hm.", "Fine."),
    ("Hm. < thi", True, "Hm. < thi", ""),
    (" Fine <think> x </think>", False, "", " Fine <think> x </think>"),
    ("<think></think>Fine", False, "", "Fine"),
    ("\n<think>\n\n</think>\n\nFine", False, "", "Fine"),
    ("<thi", False, "", "<thi"),
]
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>analysis<|message|> Yes.<|end|><|start|>assistant<|channel|>commentary"
    ' to=functions.weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}'
)


def read(pieces: list[str], *arguments, **options) -> tuple[str, str, list[Call]]:
    """The reasoning, the text and the calls of an answer that arrives in pieces."""
    reader = PartReader(*arguments, **options)
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
    texts = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "text")}
    assert all(part.text or part.call for part in parts)
    calls = [part.call for part in parts if part.call is not None]
    assert reader.has_calls == bool(calls)
    return texts["reasoning"], texts["text"], calls


def cuts(text: str) -> list[list[str]]:
    """A text whole, by characters, and cut at random."""
    chance = random.Random(text)
    found = [[text], [*list(text)[:400], text[400:]]]
    for _ in range(8):
        at = sorted(chance.sample(range(len(text) + 1), min(3, len(text))))
        found.append([text[begin:end] for begin, end in zip([0, *at], [*at, len(text)], strict=True)])
    return found


@pytest.mark.parametrize("signs, answer, text, calls", ANSWERS, ids=[f"{a[0]}-{a[1]:.30}" for a in ANSWERS])
def test_calls_of_each_family(signs, answer, text, calls):
    form = form_of(signs)
    for pieces in cuts(answer):
        assert read(pieces, form, TOOLS) == ("", text, calls)
    for pieces in cuts(f"<think>\nHm.\n</think>\n\n{answer}"):
        assert read(pieces, form, TOOLS, THINK) == ("Hm.", text, calls)
    for pieces in cuts(answer):
        assert read(pieces) == ("", answer, [])
        assert read(pieces, form, TOOLS, parallel=False)[2] == calls[:1]


@pytest.mark.parametrize("signs, answer", TEXTS, ids=[f"{a[0]}-{a[1]:.40}" for a in TEXTS])
def test_what_is_no_call_stays_text(signs, answer):
    for pieces in cuts(answer):
        assert read(pieces, form_of(signs), TOOLS) == ("", answer, [])


@pytest.mark.parametrize("answer, opened, reasoning, text", REASONING, ids=[row[0] for row in REASONING])
def test_reasoning(answer, opened, reasoning, text):
    for pieces in cuts(answer):
        assert read(pieces, None, (), THINK, opened) == (reasoning, text, [])


def test_channels():
    for pieces in cuts(HARMONY):
        assert read(pieces, form_of("<|channel|>"), TOOLS, thinking_of("<|channel|>")) == ("Hm.Yes.", "I look.", [OSLO])
    for pieces in cuts("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Fine."):
        assert read(pieces, None, (), thinking_of("<|channel|>")) == ("Hm.", "Fine.", [])


FAMILIES = {
    "QWEN": "Qwen 2.5",
    "LLAMA_3": "Llama 3",
    "MISTRAL": "Mistral",
    "GPT_OSS": "gpt-oss",
    "CHATML": "any other",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_names_its_form(name):
    template = getattr(chat_templates, name)
    assert form_of(template).family.startswith(FAMILIES[name])
    thinks = {"QWEN": "<think>", "GPT_OSS": "<|channel|>analysis<|message|>"}
    thinking = thinking_of(template)
    assert thinks.get(name) == (thinking and thinking.begin)


def test_every_form_and_thinking_can_be_chosen():
    for form in FORMS:
        assert form_of(" ".join(form.signs)) is form
    assert all(thinking_of(thinking.sign) is thinking for thinking in THINKING)


def written(form: Form, calls: list[Call]) -> str:
    """Calls in the text of a form."""
    texts = []
    for call in calls:
        arguments = call.text
        if form.argument:
            items = [form.argument.replace("$KEY", k).replace("$VALUE", str(v)) for k, v in call.arguments.items()]
            arguments = "".join(items)
        texts.append(form.call.replace("$NAME", call.name).replace("$ARGUMENTS", arguments).replace("$SERIAL", "1"))
    blocks = texts if form.separator is None else [form.separator.join(texts)]
    return "\n".join(form.block.replace("$CALLS", block) for block in blocks)


@pytest.fixture(scope="module")
def llm() -> ingot.LLM:
    return ingot.LLM(FOLDER, sequences=1)


def allowed(llm: ingot.LLM, grammar: str, text: str) -> str:
    """How much of a text a grammar allows, with "." at the end if the text may end there."""
    constraint = Constraint.of_grammar(grammar, llm.tokenizer, llm.model.vocab_size)
    tokens = llm.tokenizer.encode(text)
    for index, token in enumerate(tokens):
        if constraint.is_complete or not constraint._allows(token):
            return llm.tokenizer.decode(tokens[:index])
        constraint.accept(token)
    return text + "." * constraint.may_end


WRITTEN = [form for form in FORMS if form.is_written]
BEGINS = ((None, False, ""), (THINK, False, "<think>a</think>\n\n"), (THINK, True, "a</think>"))


@pytest.mark.parametrize("index", range(len(WRITTEN)), ids=[form.family for form in WRITTEN])
def test_grammars_allow_the_calls_of_a_form_alone(llm, index):
    form, (thinking, opened, begin) = WRITTEN[index], BEGINS[index % 3]
    several = [OSLO, NOW] if form.separator is not None or form.end else [OSLO]
    forced = Grammar(llm.tokenizer, thinking, opened)
    forced = forced.text(forced.calls(form, TOOLS, parallel=True, required=True, schema=None))
    for calls in ([OSLO], several):
        text = begin + written(form, calls)
        assert allowed(llm, forced, text) == text + "."
        assert read([text], form, TOOLS, thinking, opened)[2] == calls
    assert len(allowed(llm, forced, begin + "Hello.")) <= len(begin)
    strict = [Tool({**tool.function, "strict": True}) for tool in TOOLS]
    free = Grammar(llm.tokenizer, thinking, opened)
    free = free.text(free.calls(form, strict, parallel=False, required=False, schema=None))
    for text in (begin + "Hello.", begin + written(form, [OSLO])):
        assert allowed(llm, free, text) == text + "."
    for wrong in ([Call("weather", {"days": 2})], *([several] if len(several) > 1 else [])):
        assert len(allowed(llm, free, begin + written(form, wrong))) < len(begin + written(form, wrong))


def test_a_grammar_of_a_document_after_reasoning(llm):
    grammar = Grammar(llm.tokenizer, THINK, False)
    grammar = grammar.text(grammar.document({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}},
                                             "required": ["a"], "$defs": {"A": {"type": "integer"}}}))  # fmt: skip
    for text in ('<think>\nHm.\n</think>\n\n{"a": 1}', '{"a": 1}'):
        assert allowed(llm, grammar, text) == text + "."
    assert allowed(llm, grammar, '{"a": "').endswith('{"a":')


def test_control_tokens_are_named_by_id(tmp_path):
    llm = ingot.LLM(with_template(tmp_path / "model", "", ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")))
    form, special, encode = form_of("[TOOL_CALLS] [ARGS]"), llm.tokenizer.special, llm.tokenizer.encode
    for required in (True, False):
        grammar = Grammar(llm.tokenizer, thinking_of("[THINK]"), False)
        rules = grammar.text(grammar.calls(form, TOOLS, parallel=True, required=required, schema=None))
        constraint = Constraint.of_grammar(rules, llm.tokenizer, llm.model.vocab_size)
        call = [special["[TOOL_CALLS]"], *encode("now"), special["[ARGS]"], *encode("{}")]
        for token in [special["[THINK]"], *encode("Hm."), special["[/THINK]"], *call, *call]:
            constraint.accept(token)
        assert constraint.may_end


def test_control_tokens_in_a_text(llm):
    (text, index), *_ = llm.tokenizer.special.items()
    ids = [index, *llm.tokenizer.encode("é a"), index, index, *llm.tokenizer.encode(" b")]
    for shown, want in (({index: text}, f"{text}é a{text}{text} b"), (None, "é a b")):
        stream = TextStream(llm.tokenizer, shown=shown)
        assert "".join([*map(stream.push, ids), stream.finish()]) == want
    stopped = TextStream(llm.tokenizer, text, {index: text})
    assert [stopped.push(token) for token in ids[:1]] == [""] and stopped.stopped


def test_a_bad_grammar_is_refused(llm):
    with pytest.raises(ingot.InputError, match="grammar: not supported"):
        llm.generate("a", grammar="start: (")
    assert llm.generate("a", grammar='start: "b" /c{2}/', temperature=0) == "bcc"


def test_arguments_are_json():
    assert json.loads(OSLO.text) == OSLO.arguments and not re.search(r"\\u", Call("a", {"b": "é"}).text)
