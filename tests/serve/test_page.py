"""The page of `ingot serve` in a browser, in front of a real server."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import ingot
from chromium import Chromium, Tab
from ingot.serve.page import document

READY = "document.getElementById('model')?.value === 'tiny-lm'"
IDLE = "document.getElementById('stop').hidden"
SHOWN = "[...document.querySelectorAll('.message')].map((each) => each.querySelector('.bubble, .text').textContent)"
LAST = "document.querySelector('.message:last-child')"
COMMAND = [sys.executable, "-c", "from ingot.cli import main; main()", "serve", "tiny-lm", "--precision", "f32"]
EXACT = {"temperature": 0, "max_tokens": 16}  # settings of an answer that the library repeats


@contextlib.contextmanager
def serving(*options: str) -> Iterator[str]:
    """A server of tiny-lm: its address."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("serving tiny-lm: ").removesuffix("/v1\n")
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--port", "0") as address:
        yield address


class Page:
    """The page in a tab of the browser, with an empty store."""

    def __init__(self, tab: Tab, address: str):
        self.tab, self.address = tab, address
        tab.wait_for("document.readyState === 'complete' && location.protocol === 'http:'")
        self.run("localStorage.clear(); sessionStorage.clear()")
        tab.reload()

    def run(self, code: str):
        return self.tab.evaluate(code)

    def click(self, name: str) -> None:
        """Clicks the last button with a name."""
        assert self.run(
            f"""(() => {{
              const found = [...document.querySelectorAll('button')].filter((each) => each.offsetParent
                && (each.getAttribute('aria-label') ?? each.textContent) === {json.dumps(name)}).at(-1);
              found?.click();
              return Boolean(found);
            }})()"""
        ), name

    def fill(self, identity: str, text: str) -> None:
        self.run(
            f"""(() => {{
              const field = document.getElementById({json.dumps(identity)});
              field.value = {json.dumps(text)};
              field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            }})()"""
        )

    def settings(self, **chosen: object) -> None:
        self.click("Settings")
        for name, value in chosen.items():
            self.fill(f"set-{name}", str(value))
        self.click("Done")

    def send(self, text: str) -> None:
        self.run("document.getElementById('message').focus()")
        self.tab.call("Input.insertText", text=text)
        self.tab.press("Enter", "\r")

    def ask(self, text: str) -> list[str]:
        """Sends a message; the texts of the conversation after its answer."""
        self.send(text)
        return self.answered()

    def answered(self) -> list[str]:
        self.tab.wait_for(IDLE)
        return self.run(SHOWN)

    @property
    def stored(self) -> list[str]:
        """The texts of the only conversation that the browser keeps."""
        (chat,) = self.run("Object.entries(localStorage).filter(([key]) => key.startsWith('ingot.chat.'))")
        return [node["content"] for node in json.loads(chat[1])["nodes"].values()]

    def give(self, identity: str, name: str, text: str) -> None:
        """Picks a file with a file field."""
        self.run(
            f"""(() => {{
              const files = new DataTransfer();
              files.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));
              const field = document.getElementById({json.dumps(identity)});
              field.files = files.files;
              field.dispatchEvent(new Event('change'));
            }})()"""
        )

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)})?.textContent")

    @property
    def errors(self) -> list[str]:
        """Complaints of the console, without those about a status that the test asks for."""
        return [each for each in self.tab.errors if "Failed to load resource" not in each]


@pytest.fixture
def opened(browser: Chromium):
    """Opens the page of a server. Nothing may go wrong there, and nothing be fetched from elsewhere."""
    pages: list[Page] = []

    def open_page(address: str, **options) -> Page:
        pages.append(Page(Tab(browser, f"{address}/", **options), address))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.errors == []
        own = (f"{page.address}/", f"blob:{page.address}/", "data:")
        assert [each for each in page.tab.requests if not each.startswith(own)] == []
        page.tab.close()


@pytest.fixture
def page(opened, address) -> Page:
    page = opened(address)
    page.tab.wait_for(READY)
    return page


def chat(*contents: str) -> str:
    """A file with one conversation: the user's message, the model's, and so on."""
    nodes, parent = {}, ""
    for number, content in enumerate(contents):
        identity = f"{number:024x}"
        role = ("user", "assistant")[number % 2]
        nodes[identity] = {"id": identity, "parent": parent, "role": role, "content": content}
        parent = identity
    return json.dumps({"format": "ingot-chats", "chats": [{"id": "a" * 24, "nodes": nodes}]})


def test_a_conversation_has_the_answers_of_the_library_and_outlives_a_reload(page, llm):
    page.settings(**EXACT)
    first = [{"role": "user", "content": "def fib(n):"}]
    answer = llm.chat(first, temperature=0, max_tokens=16)
    assert page.ask("def fib(n):") == ["def fib(n):", answer.rstrip()]
    second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "x = 1"}]
    shown = page.ask("x = 1")
    assert page.stored == ["def fib(n):", answer, "x = 1", llm.chat(second, temperature=0, max_tokens=16)]
    assert "16 tokens · " in page.text(".message:nth-child(2) .stats")
    assert "first token after" in page.text(".message:nth-child(2) .stats")
    assert "cut at 16 tokens" in page.text(".message:nth-child(2) .note")
    page.tab.reload()
    page.tab.wait_for(READY)
    assert page.run(SHOWN) == shown
    page.click("New conversation")
    assert page.run(SHOWN) == [] and page.text("#greeting") == "Ask tiny-lm"
    page.click("def fib(n):")
    assert page.run(SHOWN) == shown


def test_escape_stops_an_answer(page):
    page.settings(schema='{"type": "string", "minLength": 5000}')  # fills the context
    page.run(
        """new MutationObserver((_, watch) => {
          if (!document.querySelector('.assistant .text')?.textContent) return;
          watch.disconnect();
          document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
        }).observe(document.getElementById('messages'), { subtree: true, childList: true })"""
    )
    page.send("def read(path):")
    page.tab.wait_for("!document.getElementById('stop').hidden || document.querySelector('.note')")
    shown = page.answered()
    assert page.text(".message:last-child .note") == "Stopped." and shown[1]
    for _ in range(500):
        if re.search(r"ingot_requests_active\{.*\} 0.0", httpx.get(f"{page.address}/metrics", timeout=300).text):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the server goes on")
    page.tab.reload()
    page.tab.wait_for(READY)
    assert page.run(SHOWN) == shown


ASKED = "def add(a,"  # an answer to a complete line may be empty, and is no version then


def test_versions_of_answers_and_messages(page):
    page.settings(temperature=1.5, max_tokens=12)
    _, first = page.ask(ASKED)
    page.click("Regenerate")
    page.tab.wait_for("document.querySelector('.message:last-child .versions')?.textContent === '2/2'")
    _, second = page.answered()
    assert first != second
    page.run("document.querySelector('[aria-label=\"Version before\"]').focus()")
    page.click("Version before")
    assert page.run(SHOWN) == [ASKED, first]
    page.click("Edit this message")
    page.run("document.querySelector('.editor').value = 'import re'")
    page.click("Send this version")
    page.tab.wait_for("document.querySelector('.message:first-child .versions')?.textContent === '2/2'")
    question, _ = page.answered()
    assert question == "import re"
    page.click("Version before")
    assert page.run(SHOWN) == [ASKED, first]
    page.click("Version after")
    page.click("Version before")
    page.tab.reload()
    page.tab.wait_for(READY)
    assert page.run(SHOWN) == [ASKED, first]
    page.click("Edit this answer")
    page.run("document.querySelector('.editor').value = 'mine'")
    page.click("Save")
    assert page.run(SHOWN) == [ASKED, "mine"] and page.text(".message:last-child .versions") == "3/3"


MARKDOWN = [
    ("a **b** *c* ~~d~~ `e`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e</code></p>"),
    ("***a*** _b_ **c *d* e**", "<p><strong><em>a</em></strong> <em>b</em> <strong>c <em>d</em> e</strong></p>"),
    ("a_b_c 2 * 3 * 4 __init__ \\*x\\*", "<p>a_b_c 2 * 3 * 4 __init__ *x*</p>"),
    ("# A *b*\n### C #", "<h3>A <em>b</em></h3><h5>C</h5>"),
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("- a\n- b\n  - c\n- d", '<ul class="tight"><li><p>a</p></li><li><p>b</p><ul class="tight"><li><p>c</p></li></ul>'
     "</li><li><p>d</p></li></ul>"),
    ("3. a\n4. b", '<ol start="3" class="tight"><li><p>a</p></li><li><p>b</p></li></ol>'),
    ("- a\n\n- b", "<ul class=\"tight\"><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("a\n\n---\nb", "<p>a</p><hr><p>b</p>"),
    ("|a|b|\n|-|-:|\n|1|`2`|", '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th class="right">b</th>'
     '</tr></thead><tbody><tr><td>1</td><td class="right"><code>2</code></td></tr></tbody></table></div>'),
    ("<b>a</b><script>x</script>", "<p>&lt;b&gt;a&lt;/b&gt;&lt;script&gt;x&lt;/script&gt;</p>"),
    ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ("[a](javascript:alert(1)) [b](data:text/html,x)", "<p>[a](javascript:alert(1)) [b](data:text/html,x)</p>"),
    ("![a](x.png) <javascript:x>", "<p>![a](x.png) &lt;javascript:x&gt;</p>"),
    ("**a *b `c", "<p>**a *b `c</p>"),
    ("*" * 40, "<hr>"),
    ("```\n<b>\n", None),
    ("`" * 9999 + "[" * 9999 + "*a" * 9999 + "> " * 9999, None),
    ("> " * 9999 + "\n" + "- " * 9999 + "\n" + " \t" * 9999, None),
    ("\n" * 9999 + "- a" + "\n" * 9999 + "|" * 9999 + "\n" + "|-" * 9999, None),
]  # fmt: skip


def test_markdown_is_elements_and_html_is_text(page):
    """Also long texts that a slow parser would take minutes for."""
    page.give("pick-import", "x.json", chat(*(each for text, _ in MARKDOWN for each in ("q", text))))
    page.tab.wait_for("document.querySelectorAll('#chats .open').length === 1")
    page.run("document.querySelector('#chats .open').click()")
    drawn = page.run("[...document.querySelectorAll('.assistant .text')].map((each) => each.innerHTML)")
    for (text, want), got in zip(MARKDOWN, drawn, strict=True):
        assert want is None or got == want, text
    found = page.run("[...document.querySelectorAll('.text *')].map((each) => each.localName)")
    assert not {"script", "img", "b", "iframe", "style", "object", "form"} & set(found)
    code = page.text(".text pre")
    assert code.rstrip() == "<b>"


def test_code_is_copied_and_thoughts_are_folded(page, browser):
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.tab.call("Page.bringToFront")
    file = chat("q", "```py\na = 1\n  b\n```").replace('"content": "```', '"reasoning": "<i>hm</i>", "content": "```')
    page.give("pick-import", "x.json", file)
    page.tab.wait_for("document.querySelectorAll('#chats .open').length === 1")
    page.run("document.querySelector('#chats .open').click()")
    page.run("document.querySelector('.code .copy').click()")
    page.tab.wait_for("document.querySelector('.code .copy').textContent === 'Copied'")
    assert page.run("navigator.clipboard.readText()") == "a = 1\n  b"
    assert page.text(".thoughts div") == "<i>hm</i>"
    assert page.run("document.querySelector('.thoughts').open") is False
    page.click("Show as plain text")
    assert page.text(".plain") == "```py\na = 1\n  b\n```"
    assert page.run("document.querySelectorAll('.code').length") == 0


def test_a_conversation_is_renamed(page):
    page.settings(max_tokens=2)
    page.ask("x")
    page.run("document.getElementById('title').focus()")
    page.run("document.getElementById('title').select()")
    page.tab.call("Input.insertText", text="<b>New</b>")
    page.tab.press("Enter", "\r")
    assert page.text("#chats .open") == "<b>New</b>"
    page.tab.reload()
    assert page.text("#chats .open") == "<b>New</b>"


def test_links_are_addresses_of_the_web_alone(page):
    web = "https:" + "//"
    text = f"[a]({web}a.example/x_(y)) <{web}b.example> {web}c.example/d?e=f&g. [**h**](HTTPS:{web[6:]}i.example)"
    page.give("pick-import", "x.json", chat("q", text))
    page.tab.wait_for("document.querySelectorAll('#chats .open').length === 1")
    page.run("document.querySelector('#chats .open').click()")
    links = page.run("[...document.querySelectorAll('.text a')].map((a) => [a.href, a.textContent, a.rel, a.target])")
    assert [link[:2] for link in links] == [
        [f"{web}a.example/x_(y)", "a"],
        [f"{web}b.example/", f"{web}b.example"],
        [f"{web}c.example/d?e=f&g", f"{web}c.example/d?e=f&g"],
        [f"{web}i.example/", "**h**"],
    ]
    assert all("noopener" in rel and target == "_blank" for *_, rel, target in links)


def test_an_answer_of_html_by_a_schema_is_code(page):
    page.settings(schema='{"enum": ["<img src=x onerror=alert(1)>"]}', max_tokens=60)
    page.ask("x")
    assert page.text(".message:last-child .code pre") == '"<img src=x onerror=alert(1)>"'
    page.settings(schema="{")
    assert page.text("#schema-error").startswith("Not JSON")
    page.send("y")
    assert page.run("document.getElementById('settings').open")
    page.click("Reset")
    page.click("Done")


def test_text_files_are_sent_and_others_refused(page, llm):
    page.settings(**EXACT)
    page.give("pick-files", "a.py", "x = 1\n```")
    page.tab.wait_for("document.querySelectorAll('#files li').length === 1")
    page.give("pick-files", "b.bin", "\0")
    page.tab.wait_for("document.getElementById('toast').textContent === 'b.bin is not a text file.'")
    page.send("go on")
    page.answered()
    content = "a.py:\n````\nx = 1\n```\n````\n\ngo on"
    assert page.stored[1] == llm.chat([{"role": "user", "content": content}], temperature=0, max_tokens=16)
    assert page.text(".file summary") == "a.py, 9 bytes"


def test_export_import_and_delete(page, browser, tmp_path):
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.settings(max_tokens=4)
    shown = page.ask("def f():")
    page.click("Export all")
    file = tmp_path / "ingot-chats.json"
    for _ in range(1000):
        if file.exists():
            break
        time.sleep(0.02)
    page.give("pick-import", "again.json", file.read_text())
    page.tab.wait_for("document.querySelectorAll('#chats .open').length === 2")
    page.click("def f():")
    assert page.run(SHOWN) == shown
    page.run("document.querySelector('#chats [aria-label^=Delete]').click()")
    assert page.run("document.querySelectorAll('#chats .open').length") == 1
    page.click("Undo")
    assert page.run("document.querySelectorAll('#chats .open').length") == 2
    page.tab.reload()
    assert page.run("document.querySelectorAll('#chats .open').length") == 2


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "not JSON"),
        ("[]", '"format" is not'),
        ('{"format": "ingot-chats", "chats": [1]}', "no id"),
        (chat("a", "b").replace('"assistant"', '"king"'), "no role"),
        (chat("a", "b").replace(f'"parent": "{0:024x}"', f'"parent": "{9:024x}"'), "follows none"),
    ],
)
def test_a_damaged_file_is_refused(page, text, words):
    page.give("pick-import", "x.json", text)
    page.tab.wait_for("document.getElementById('toast').textContent")
    assert words in page.text("#toast")
    assert page.run("Object.keys(localStorage)") == []


def test_a_server_with_a_key(opened):
    with serving("--port", "0", "--api-key", "secret") as address:
        page = opened(address)
        page.tab.wait_for("document.getElementById('key').open")
        page.fill("key-field", "wrong")
        page.click("Use the key")
        page.tab.wait_for("document.getElementById('key-error').textContent === 'The server refuses this key.'")
        page.fill("key-field", "secret")
        page.run("document.getElementById('key-remember').checked = true")
        page.click("Use the key")
        page.tab.wait_for(READY)
        page.settings(max_tokens=4)
        assert len(page.ask("x")) == 2 and page.text(".failure") is None
        page.run("sessionStorage.clear()")
        page.tab.reload()
        page.tab.wait_for(READY)


def test_a_server_that_is_gone_and_comes_back(opened):
    with serving("--port", "0") as address:
        page = opened(address)
        page.tab.wait_for(READY)
    page.settings(max_tokens=4)
    page.ask("x")
    assert page.text(".failure p") == "The server does not answer."
    assert "ingot serve" in page.text("#banner") and page.run("!document.getElementById('banner').hidden")
    with serving("--port", address.rpartition(":")[2]):
        page.tab.wait_for("document.getElementById('banner').hidden")
        page.click("Try again")
        page.tab.wait_for(IDLE)
        assert page.text(".failure") is None and "4 tokens" in page.text(".message:last-child .stats")


def test_refusals_are_plain_words(page):
    page.settings(top_p=7)
    page.ask("x")
    assert page.text(".failure p") == "The server refuses the value of top_p."
    page.click("New conversation")
    page.settings(top_p="")
    page.ask("a " * 2000)
    assert "longer than the context" in page.text(".failure p") and "512" in page.text(".failure .detail")
    page.settings(max_tokens=4)
    page.ask("b")
    assert page.text(".message:last-child .failure") is None  # the refused message is not sent again


def test_colours_and_widths(opened, address):
    page = opened(address, dark=True)
    page.tab.wait_for(READY)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.run(ground)
    page.run("document.querySelector('#theme [value=light]').click()")
    light = page.run(ground)
    assert light != dark
    page.tab.reload()
    assert page.run(ground) == light
    page.tab.call("Emulation.setDeviceMetricsOverride", width=340, height=640, deviceScaleFactor=1, mobile=True)
    visible = "document.getElementById('new').checkVisibility({ visibilityProperty: true })"
    page.tab.wait_for(f"!({visible})")
    assert page.run("document.documentElement.scrollWidth") == 340
    page.click("Conversations")
    page.tab.wait_for(visible)
    page.tab.press("Escape")
    page.tab.wait_for(f"!({visible})")


def test_every_control_has_a_name(page):
    page.settings(max_tokens=4)
    page.ask("x")
    tree = page.tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "radio", "checkbox", "spinbutton", "link", "searchbox"}
    controls = [each for each in tree if each.get("role", {}).get("value") in roles and not each["ignored"]]
    assert len(controls) > 12 and all(each["name"].get("value") for each in controls)


def test_the_page_allows_its_own_script_alone(address):
    got = httpx.get(f"{address}/", timeout=300)
    html, policy = document()
    assert (got.text, got.headers["content-security-policy"]) == (html, policy)
    assert "unsafe" not in policy and "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert got.headers["content-type"] == "text/html; charset=utf-8"


def test_the_scripts_read_no_text_as_html():
    scripts = [path.read_text() for path in (Path(ingot.__file__).parent / "serve" / "site").glob("*.js")]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert not any(word in script for script in scripts), word
