"""Grammars of answers: reasoning, then a JSON document or calls of tools in a model's own form.

The grammars are in llguidance's form of Lark. A literal that contains control tokens names them by id, because their
texts are not text of the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ingot.llm.constraint import schema_text
from ingot.llm.tokenizer import Tokenizer
from ingot.serve.reasoning import Thinking
from ingot.serve.tools import Form, Json, Tool

_TEXT = r"/(.|\n)*/"
_WHITE = {"x-guidance": {"whitespace_pattern": r"[ \t\r\n]{0,40}"}}  # no model writes white space forever
_ANY_OBJECT: Json = {"type": "object"}


class Grammar:
    """The rules of one answer. thinking: the reasoning that may come first; opened: whether the prompt began it."""

    def __init__(self, tokenizer: Tokenizer, thinking: Thinking | None, opened: bool):
        self._tokenizer = tokenizer
        self._rules: dict[str, str] = {}
        self._control = re.compile("|".join(map(re.escape, sorted(tokenizer.special, key=len, reverse=True))) or "(?!)")
        self._optional = "" if thinking is None or opened else thinking.begin
        self._thinking = self._reasoning(thinking, opened)

    def text(self, answer: str) -> str:
        """Return the grammar whose texts are reasoning and what a rule describes."""
        rules = {"start": f"{self._thinking} {answer}".strip(), **self._rules}
        return "\n".join(f"{name}: {body}" for name, body in rules.items())

    def document(self, schema: Json) -> str:
        """Return a rule for JSON that follows a schema. Raises InputError or LimitError for a bad schema."""
        self._rules["document"] = _json(schema, "response_format")
        return "document"

    def calls(self, form: Form, tools: Sequence[Tool], *, parallel: bool, required: bool, schema: Json | None) -> str:
        """Return a rule for calls of tools, or for another answer unless they are required.

        parallel: whether there may be several calls. schema: that of another answer, None for any text.
        Raises InputError or LimitError for a bad schema.
        """
        self._rules["call"] = " | ".join(self._call(form, index, tool, required) for index, tool in enumerate(tools))
        before, after = form.block.split("$CALLS")
        calls = "call"
        if parallel and form.separator is not None:
            calls += f" ({self._literal(form.separator + form.repeated)} call)*"
        begin = form.repeated or before  # of a block, with the marker
        several = parallel and form.separator is None and form.end
        if required or schema is not None or form.opens:
            self._rules["block"] = f"{self._literal(begin)} {calls} {self._literal(after)}"
            blocks = 'block ("\\n" block)*' if several else "block"
            if required:
                return blocks
            self._rules["FREE"] = self._unlike_thought(r"/[^ \t\r\n{\[](.|\n)*/")
            return f"({'FREE' if schema is None else self.document(schema)} | {blocks})"
        self._rules["TEXT"] = self._unlike_thought(_TEXT)
        if form.begin in self._tokenizer.special:
            self._rules["trigger"] = f"TEXT? {self._literal(form.begin)}"
        else:
            self._rules["trigger[lazy]"] = f"TEXT {json.dumps(form.begin)}"
        rest = self._literal(begin.removeprefix(form.begin))
        self._rules["block"] = f"trigger {rest} {calls} {self._literal(after)}"
        return "block* TEXT?" if several else "(TEXT | block)"

    # -- inside -------------------------------------------------------------------------------------------------

    def _call(self, form: Form, index: int, tool: Tool, forced: bool) -> str:
        """Return an alternative for a call of one tool, without the marker that begins it."""
        schema = tool.parameters if forced or tool.strict else _ANY_OBJECT
        name = f"arguments_{index}"
        if form.argument:
            self._rules[name] = self._arguments(form, name, schema)
        else:
            self._rules[name] = _json(schema, f"tools[{index}]")
        return self._shape(form.call.removeprefix(form.repeated), {"$NAME": tool.name}, {"$ARGUMENTS": name})

    def _arguments(self, form: Form, name: str, schema: Json) -> str:
        """Return a rule for arguments that are written one by one, in the order of the schema."""
        items = []
        required = schema.get("required") or ()
        after = form.argument.split("$VALUE")[1]
        for index, (key, of_key) in enumerate((schema.get("properties") or {}).items()):
            value, shape = f"{name}_{index}", form.argument
            if isinstance(of_key, dict) and of_key.get("type") == "string" and "enum" not in of_key:
                self._rules[f"{value}[suffix={json.dumps(after)}]"] = _TEXT
                shape = shape.removesuffix(after)
            else:
                document = of_key | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
                self._rules[value] = _json(document, "tools")
            item = self._shape(shape, {"$KEY": key}, {"$VALUE": value})
            items.append(item if key in required else f"({item})?")
        return " ".join(items) or '""'

    def _reasoning(self, thinking: Thinking | None, opened: bool) -> str:
        """Return a rule for the reasoning that comes first, "" if there is none."""
        if thinking is None:
            return ""
        if thinking.end in self._tokenizer.special:
            self._rules["THOUGHT"] = _TEXT
            until = f"THOUGHT? {self._literal(thinking.end)}"
        else:
            self._rules["thought[lazy]"] = f"{_TEXT} {json.dumps(thinking.end)}"
            until = "thought"
        ended = f"{until} /\\n{{0,2}}/"
        return ended if opened else f"({self._literal(thinking.begin)} {ended})?"

    def _unlike_thought(self, text: str) -> str:
        """Return a rule of texts without those that begin as reasoning, which have rules of their own."""
        if not self._optional or self._optional in self._tokenizer.special:
            return text
        return f"{text} & ~({json.dumps(self._optional)} {_TEXT})"

    def _shape(self, shape: str, texts: dict[str, str], rules: dict[str, str]) -> str:
        """Return the rule of a text in which some of the $WORDS are texts and others are rules."""
        rules = {"$SERIAL": "/[A-Za-z0-9]{1,9}/", **rules}
        pieces = re.split(r"(\$[A-Z]+)", shape)
        spelled: list[str] = []
        text = ""
        for piece in pieces:
            if piece in rules:
                spelled += [self._literal(text), rules[piece]]
                text = ""
            else:
                text += texts.get(piece, piece)
        return " ".join([*spelled, self._literal(text)])

    def _literal(self, text: str) -> str:
        """Return a text as a sequence of strings and of control tokens."""
        spelled, index = [], 0
        for match in [*self._control.finditer(text), None]:
            between = text[index : match.start() if match else len(text)]
            spelled += [json.dumps(between, ensure_ascii=False)] if between else []
            if match:
                spelled.append(f"<[{self._tokenizer.special[match[0]]}]>")
                index = match.end()
        return " ".join(spelled)


def _json(schema: Json, where: str) -> str:
    return f"%json {schema_text(schema | _WHITE, where)}"
