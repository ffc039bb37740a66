"""Hostile chat templates and messages, each with the error that it must get."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.errors import IngotError, InputError, LimitError, LoadError, UnsupportedError
from ingot.llm.chat import ChatTemplate

# Ways out of a template that have been published for this engine, or that resemble them.
ESCAPES = [
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ lipsum|attr('__globals__') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''['__class__'] }}",
    "{{ ''[['__clas','s__']|join] }}",
    "{{ ''|attr(['__clas','s__']|join) }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "{{ ('{0.__cl' ~ 'ass__}').format('') }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ ('{0.__class__}'|attr('format'))('') }}",
    "{{ [1]|map(attribute='__class__')|list }}",
    "{{ messages|map(attribute='__init__')|list }}",
    "{{ ['']|map('attr', '__class__')|list }}",
    "{{ messages.__class__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ (range|attr('__globals__')) }}",
    "{{ dict.mro() }}",
    "{{ dict.__subclasses__() }}",
    "{% for x in ''.__class__.__mro__ %}{{ x }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{{ caller.__init__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].clear() }}",
    "{{ (messages|first).pop('content') }}",
]

# What needs more time, memory or output than there is.
BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(9) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 'a' * 10**7 }}",
    "{{ '%09999999d' % 1 }}{{ '%0999999999d' % 1 }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ 10**(10**10) }}",
    "{{ 'a'|center(10**10) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}",
    "{{ [1] * 10**10 }}",
    "{{ lipsum(n=99999, min=999, max=9999) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "{{ ('a' * 99999)|wordwrap(1)|replace('a', 'a' * 9999) }}",
]  # fmt: skip

# (template, error type, expression)
FAULTS: list[tuple[str, type[IngotError], str]] = [
    ("{% if %}", LoadError, "not a template, line 1: "),
    ("a\n{% for m in messages %}\n", LoadError, "not a template, line 2: "),
    ("{{ messages", LoadError, "not a template"),
    ("{% generation %}a", LoadError, "not a template"),
    ("{% unknown %}", LoadError, "not a template, line 1: .*unknown"),
    ("{{ messages|unknown }}", LoadError, "not a template, line 1: .*unknown"),
    ("".join(f"{{% for i{n} in [1] %}}" for n in range(30)) + "{% endfor %}" * 30, LoadError, "nested blocks"),
    ("{{ raise_exception('roles must alternate') }}", InputError, "refuses these messages, roles must alternate"),
    ("{{ messages[5].content }}", InputError, "cannot render these messages, .*no element 5"),
    ("{{ messages[0].missing.more }}", InputError, "cannot render these messages, .*missing"),
    ("{{ 1 / 0 }}", InputError, "cannot render these messages, ZeroDivisionError"),
    ("{{ undefined_function() }}", InputError, "cannot render these messages, .*undefined_function"),
    ("{{ undefined_value|tojson }}", InputError, "cannot render these messages, TypeError"),
    ("{% include '/etc/passwd' %}", InputError, "cannot render these messages, TypeError: no loader"),
    ("{% import 'os' as os %}", InputError, "cannot render these messages, TypeError: no loader"),
    ("{% extends 'a' %}", InputError, "cannot render these messages, TypeError: no loader"),
]

# (name, files of the folder, error type, expression)
FOLDERS: list[tuple[str, dict[str, Any], type[IngotError], str]] = [
    ("none", {}, LoadError, "no chat template; add chat_template.jinja"),
    ("null", {"tokenizer_config": {"chat_template": None}}, LoadError, "no chat template"),
    ("empty list", {"tokenizer_config": {"chat_template": []}}, LoadError, "no chat template"),
    ("number", {"tokenizer_config": {"chat_template": 5}}, LoadError, "chat_template: got 5"),
    ("list of texts", {"tokenizer_config": {"chat_template": ["a"]}}, LoadError, r"chat_template\[0\]: got 'a'"),
    ("no source", {"tokenizer_config": {"chat_template": [{"name": "a"}]}}, LoadError, r"chat_template\[0\]"),
    ("name twice", {"tokenizer_config": {"chat_template": [{"name": "a", "template": ""}] * 2}}, LoadError, "new name"),
    ("many", {"tokenizer_config": {"chat_template": [{}] * 99}}, LoadError, "at most 16"),
    ("long", {"tokenizer_config": {"chat_template": "a" * 65537}}, LimitError, "too long, got 65537 bytes"),
    ("long file", {"chat_template": b"a" * 65537}, LimitError, "too large, got 65537 bytes"),
    ("not UTF-8", {"chat_template": b"a\xff"}, LoadError, "not UTF-8"),
    ("token", {"chat_template": b"a", "tokenizer_config": {"bos_token": []}}, LoadError, "bos_token: not a token"),
]  # fmt: skip


def one(**message: Any) -> Callable[[], Any]:
    return lambda: [{"role": "user", "content": "a"}, message]


def nested(depth: int) -> Any:
    value: Any = "a"
    for _ in range(depth):
        value = [value]
    return value


# (what makes the messages, error type, expression)
MESSAGES: list[tuple[Callable[[], Any], type[IngotError], str]] = [
    (list, InputError, "messages: got none, expected at least one"),
    (lambda: None, InputError, "messages: got a NoneType, expected a list"),
    (lambda: "hello", InputError, "messages: got a str, expected a list"),
    (lambda: {"role": "user", "content": "a"}, InputError, "messages: got a dict"),
    (lambda: ["hello"], InputError, r"messages\[0\]: got a str"),
    (one(content="a"), InputError, r"messages\[1\].role: got None"),
    (one(role="", content="a"), InputError, r"messages\[1\].role: got ''"),
    (one(role=5, content="a"), InputError, r"messages\[1\].role: got 5"),
    (one(role="user"), InputError, r"messages\[1\].content: got nothing"),
    (one(role="user", content=None), InputError, r"messages\[1\].content: got nothing"),
    (one(role="user", content=5), InputError, r"messages\[1\].content: got 5"),
    (one(role="user", content=["a"]), InputError, r"messages\[1\].content\[0\]: got 'a'"),
    (one(role="user", content=[{"type": "text"}]), InputError, r"messages\[1\].content\[0\].text: got None"),
    (one(role="user", content=[{"type": "image", "image": "x"}]), UnsupportedError, "part of type 'image'"),
    (one(role="user", content="\ud800"), InputError, r"messages\[1\]: unpaired surrogate"),
    (one(role="user", content="a", extra={1, 2}), InputError, r"messages\[1\]: not JSON"),
    (one(role="user", content="a", extra=float("nan")), InputError, r"messages\[1\]: not JSON"),
    (one(role="user", content="a", extra=nested(100)), LimitError, r"messages\[1\]: nested too deep"),
    (one(role="user", content="a" * (10 << 20)), LimitError, r"messages\[1\]: messages too long up to here"),
    (lambda: [{"role": "user", "content": "a"}] * 10**5, LimitError, "messages: too many, got 100000"),
    (lambda: [{"role": "user", "content": "a" * 1000}] * 2000, LimitError, r"messages\[10\d\d\]: messages too long"),
]


def rendered(source: str, messages: Callable[[], Any]) -> Callable[[Path], None]:
    """Renders messages with a template."""

    def attack(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(source)
        template = ChatTemplate.read(folder)
        try:
            template.render(messages())
        finally:
            template.close()

    return attack


def greeting() -> Any:
    return [{"role": "user", "content": "a"}]


# Without an expression: (name, what to do, error type, fragment of the message)
ATTACKS = [
    *((source, rendered(source, greeting), LoadError, "not allowed in a template") for source in ESCAPES),
    *((source[:40], rendered(source, greeting), LimitError, "template 'default': ") for source in BOMBS),
    *((source[:40], rendered(source, greeting), error, "template 'default': ") for source, error, _ in FAULTS),
    *((words, rendered("a", messages), error, "messages") for messages, error, words in MESSAGES),
]
