"""The formats of chat templates: they write what the templates render; templates of no one form are refused."""

from collections.abc import Iterator

import pytest

from chat_templates import TEMPLATES
from ingot.emit.language.chat import chat_format, written
from ingot.emit.language.program import ChatFormat
from ingot.errors import UnsupportedError
from ingot.llm.chat import ChatTemplate

CONVERSATIONS = (
    ["hello"],
    ["  two lines\nand spaces \t", "an answer \n", "once more"],
    ["a", "<think>hm\n</think>\n\nso be it", "b", "no thought", "c"],
    ["a", "", "\u00a0x\u2003"],
)
# Families whose templates give a system message no place of its own.
UNTOLD = {"llama_2", "mistral", "gemma", "smollm"}
# One that leaves an empty answer out.
FORMLESS = {"gpt_oss"}
FAMILIES = [name for name in TEMPLATES if name not in FORMLESS]


@pytest.fixture(scope="module")
def formats() -> Iterator[dict[str, tuple[ChatTemplate, ChatFormat]]]:
    found = {}
    for name in FAMILIES:
        template = ChatTemplate({"default": TEMPLATES[name]}, {"bos_token": "<s>", "eos_token": "</s>"}, name)
        found[name] = template, chat_format(template, name)
    yield found
    for template, _ in found.values():
        template.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_format_writes_what_the_template_renders(name: str, formats: dict[str, tuple[ChatTemplate, ChatFormat]]):
    template, found = formats[name]
    assert (found.before_system is None) == (name in UNTOLD)
    for said in CONVERSATIONS:
        for system in (None, " be brief \n")[: 1 if name in UNTOLD else 2]:
            messages = [] if system is None else [{"role": "system", "content": system}]
            messages += [
                {"role": "assistant" if place % 2 else "user", "content": words} for place, words in enumerate(said)
            ]
            assert written(found, system, said) == template.render(messages)


@pytest.mark.parametrize(
    "source",
    [
        *(TEMPLATES[name] for name in FORMLESS),
        "{{ messages | length }}{% for m in messages %}{{ m.content }}|{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}|{% endfor %}",
        "{% for m in messages %}{{ m.content if loop.last else '' }}|{% endfor %}",
        "{% for m in messages %}{{ m.content | replace('</think>', '') }}|{% endfor %}",
        "{% for m in messages %}{{ m.content | trim if loop.first else m.content }}|{% endfor %}",
    ],
)
def test_templates_of_no_one_form_are_refused(source: str):
    template = ChatTemplate({"default": source}, {}, "here")
    with pytest.raises(UnsupportedError, match="here: chat template"):
        chat_format(template, "here")
    template.close()
