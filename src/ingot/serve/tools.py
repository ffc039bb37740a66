"""Calls of tools: the forms in which model families write them, as a table, and the reader of each kind of form."""

# ruff: noqa: RUF001 (the markers of DeepSeek have wide bars)

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ingot.errors import InputError, LimitError
from ingot.llm.chat import checked_json

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. function: its name, and possibly description, parameters and strict."""

    function: Json

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return str(self.function["name"])

    @property
    def parameters(self) -> Json:
        """The JSON schema of its arguments; without one it has none."""
        return self.function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}

    @property
    def strict(self) -> bool:
        """Whether calls must follow the schema."""
        return bool(self.function.get("strict"))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool with all of its arguments."""

    name: str
    arguments: Json

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return json.dumps(self.arguments, ensure_ascii=False, allow_nan=False)

    @property
    def is_json(self) -> bool:
        """Whether the arguments can be sent and come back: finite numbers, valid text, and not nested too deep."""
        try:
            checked_json(self.arguments, "arguments")
        except (InputError, LimitError):
            return False
        return True


@dataclass(frozen=True)
class Form:
    """How the models of a family write calls.

    signs: texts that the family's chat template contains, all of them.
    begin, end: the markers of a block of calls. Without `end` a block goes up to the end of the answer.
    block: the text of a block with $CALLS, which contains the markers.
    call: the text of a call with $NAME and $ARGUMENTS, and possibly $SERIAL, a number of the model that is ignored.
    separator: the text between the calls of a block; None if a block has one call.
    argument: the text of one argument with $KEY and $VALUE; empty if $ARGUMENTS is a JSON object.
    opens: characters with which an answer begins that is a block without `begin`.
    ids: the characters of a call's identifier, for templates that accept only this number.
    """

    family: str
    signs: tuple[str, ...]
    begin: str
    end: str
    block: str
    call: str
    separator: str | None = None
    argument: str = ""
    opens: str = ""
    ids: int = 24

    @property
    def markers(self) -> str:
        """The texts that are written around names and arguments."""
        return self.block + self.call + self.argument

    @property
    def repeated(self) -> str:
        """The marker if it begins each call, else ""."""
        return self.begin if self.block == "$CALLS" and self.call.startswith(self.begin) else ""

    @property
    def is_written(self) -> bool:
        """Whether a grammar can describe calls of this form."""
        return self.argument != _GEMMA

    def read(self, block: str, tools: Sequence[Tool]) -> list[Call] | None:
        """Return the calls of a block, or None if the text is anything else than complete calls of these tools.

        Other forms with the same markers are tried, too: models of a family write several.
        """
        by_name = {tool.name: tool for tool in tools}
        kin = [form for form in FORMS if (form.begin, form.end) == (self.begin, self.end) and form is not self]
        for form in (self, *kin):
            calls = form._calls(block, by_name)
            if calls and all(call.name in by_name and call.is_json for call in calls):
                return calls
        return None

    def _calls(self, block: str, tools: Mapping[str, Tool]) -> list[Call] | None:
        if not self.call.startswith("{"):
            return self._marked_calls(block, tools)
        inner = block.strip().removeprefix(self.begin).removesuffix(self.end)
        calls = _json_calls(inner)
        return _python_calls(inner) if calls is None and self.opens else calls

    def _marked_calls(self, block: str, tools: Mapping[str, Tool]) -> list[Call] | None:
        head, tail = (part.strip() for part in self.block.split("$CALLS"))
        text = block.strip().removeprefix(head).removesuffix(tail).strip()
        calls = []
        for match in _matches(self._call, text):
            arguments = None if match is None else self._arguments(match["arguments"], tools.get(match["name"]))
            if match is None or arguments is None:
                return None
            calls.append(Call(match["name"], arguments))
        return calls

    def _arguments(self, text: str, tool: Tool | None) -> Json | None:
        if self.argument == _GEMMA:
            return _object(_json_of_gemma(text))
        if not self.argument or text.lstrip().startswith("{"):
            return _object(text)
        arguments = {}
        properties = (tool.parameters.get("properties") or {}) if tool is not None else {}
        for match in _matches(self._argument, text):
            if match is None:
                return None
            arguments[match["key"]] = _value(match["value"], properties.get(match["key"]))
        return arguments

    @cached_property
    def _call(self) -> re.Pattern[str]:
        last, alone = self.call.endswith("$ARGUMENTS"), self.separator is None
        until = rf".*?(?={re.escape(self.begin)}|\Z)" if last else ".*" if alone else ".*?"
        parts = {"$NAME": r"(?P<name>[\w.:/-]+)", "$ARGUMENTS": f"(?P<arguments>{until})", "$SERIAL": r"[\w-]*"}
        return _pattern(self.call, parts)

    @cached_property
    def _argument(self) -> re.Pattern[str]:
        before, after = self.argument.partition("$VALUE")[::2]
        space = "\n?" if after.startswith("\n") else ""
        parts = {"$KEY": r"(?P<key>[^<>\"]+?)"}
        key, rest = _pattern(before.rstrip("\n"), parts).pattern, _pattern(after.lstrip("\n"), parts).pattern
        return re.compile(f"{key}{space}(?P<value>.*?){space}{rest}", re.DOTALL)


def form_of(template: str) -> Form:
    """Return the form of calls of a chat template: the first of the table whose signs the template contains."""
    return next(form for form in FORMS if all(sign in template for sign in form.signs))


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str] | None]:
    """Yield the matches that follow one another up to the end of a text, None where there is none."""
    index = 0
    while rest := text[index:].lstrip():
        match = pattern.match(text, len(text) - len(rest))
        yield match
        if match is None:
            return
        index = match.end()


def _pattern(shape: str, parts: dict[str, str]) -> re.Pattern[str]:
    """Return an expression for a text with named parts, in which white space may have another length."""
    pieces = re.split(r"(\$[A-Z]+|\s+)", shape)
    expressions = [parts.get(piece) or (_SPACE if piece.isspace() else re.escape(piece)) for piece in pieces if piece]
    return re.compile("".join(expressions), re.DOTALL)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_SPACE = r"\s{0,16}"  # bounded, so that no text takes quadratic time
_DECODER = json.JSONDecoder(parse_constant=_refused, strict=False)


def _object(text: str) -> Json | None:
    """Return a text as a JSON object, None if it is none; nothing is an object without members."""
    if not text.strip():
        return {}
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json_calls(text: str) -> list[Call] | None:
    """Return the calls of JSON objects and lists of them, which white space, commas or semicolons separate."""
    values: list[Any] = []
    index = 0
    while rest := text[index:].lstrip(" \t\r\n;,"):
        index = len(text) - len(rest)
        try:
            value, index = _DECODER.raw_decode(text, index)
        except (ValueError, RecursionError):
            return None
        values += value if isinstance(value, list) else [value]
    calls = [_json_call(value) for value in values]
    return [call for call in calls if call is not None] if None not in calls else None


def _json_call(value: Any) -> Call | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool_name"))
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object(arguments)
    return Call(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _python_calls(text: str) -> list[Call] | None:
    """Return the calls of `[f(a=1), g()]` and of `f.call(a=1)`, whose values are literals."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        elements = body.elts if isinstance(body, ast.List) else [body]
        calls = []
        for element in elements:
            if not isinstance(element, ast.Call) or element.args:
                return None
            name = ast.unparse(element.func).removesuffix(".call")
            arguments = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in element.keywords}
            calls.append(Call(name, arguments))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    return calls


def _value(text: str, schema: Any) -> Any:
    """Return an argument that is written without quotes: text if its schema allows text alone, else JSON if it is."""
    types = schema.get("type") if isinstance(schema, dict) else None
    types = types if isinstance(types, list) else [types]
    if types == ["string"]:
        return text
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)
    return text if "string" in types and value is not None else value


_GEMMA = "$KEY:$VALUE"
_GEMMA_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|<escape>(.*?)<escape>|([A-Za-z_][\w.-]*)(?=\s*:)', re.DOTALL)


def _json_of_gemma(text: str) -> str:
    """Return the JSON of `a:<escape>text<escape>,b:[1]`: Gemma writes keys bare and texts between tokens."""

    def quoted(match: re.Match[str]) -> str:
        return json.dumps(next(group for group in match.groups() if group is not None))

    return "{" + _GEMMA_TOKEN.sub(quoted, text) + "}"


_JSON_CALL = '{"name": "$NAME", "arguments": $ARGUMENTS}'
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜>$CALLS<｜tool▁calls▁end｜>")
_MISTRAL = ("[TOOL_CALLS]", "")

# The first form whose signs a template contains is used, so that special cases go before general ones.
FORMS = (
    Form("Qwen3-Coder", ("<function=", "<parameter="), "<tool_call>", "</tool_call>",
         "<tool_call>\n$CALLS\n</tool_call>", "<function=$NAME>\n$ARGUMENTS</function>",
         argument="<parameter=$KEY>\n$VALUE\n</parameter>\n"),
    Form("GLM 4.5", ("<arg_key>",), "<tool_call>", "</tool_call>", "<tool_call>$CALLS</tool_call>",
         "$NAME\n$ARGUMENTS", argument="<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n"),
    Form("MiniMax M2", ("<minimax:tool_call>",), "<minimax:tool_call>", "</minimax:tool_call>",
         "<minimax:tool_call>\n$CALLS</minimax:tool_call>", '<invoke name="$NAME">\n$ARGUMENTS</invoke>\n', "",
         argument='<parameter name="$KEY">$VALUE</parameter>\n'),
    Form("DeepSeek V3 and R1", ("<｜tool▁calls▁begin｜>", "```json"), *_DEEPSEEK,
         "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGUMENTS\n```<｜tool▁call▁end｜>", "\n"),
    Form("DeepSeek V3.1", ("<｜tool▁calls▁begin｜>",), *_DEEPSEEK,
         "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGUMENTS<｜tool▁call▁end｜>", ""),
    Form("Kimi K2", ("<|tool_calls_section_begin|>",), "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
         "<|tool_calls_section_begin|>$CALLS<|tool_calls_section_end|>",
         "<|tool_call_begin|>functions.$NAME:$SERIAL<|tool_call_argument_begin|>$ARGUMENTS<|tool_call_end|>", ""),
    Form("Mistral with ids", ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), *_MISTRAL, "$CALLS",
         "[TOOL_CALLS]$NAME[CALL_ID]$SERIAL[ARGS]$ARGUMENTS", "", ids=9),
    Form("Mistral with arguments after a name", ("[TOOL_CALLS]", "[ARGS]"), *_MISTRAL, "$CALLS",
         "[TOOL_CALLS]$NAME[ARGS]$ARGUMENTS", "", ids=9),
    Form("Mistral", ("[TOOL_CALLS]",), *_MISTRAL, "[TOOL_CALLS] [$CALLS]", _JSON_CALL, ", ", ids=9),
    Form("gpt-oss", ("<|channel|>",), "<|channel|>commentary to=functions.", "", "$CALLS",
         "<|channel|>commentary to=functions.$NAME <|constrain|>json<|message|>$ARGUMENTS"),
    Form("Command R7B", ("<|START_ACTION|>",), "<|START_ACTION|>", "<|END_ACTION|>",
         "<|START_ACTION|>[\n$CALLS\n]<|END_ACTION|>",
         '{"tool_call_id": "$SERIAL", "tool_name": "$NAME", "parameters": $ARGUMENTS}', ",\n"),
    Form("Gemma 4", ("<|tool_call>",), "<|tool_call>", "<tool_call|>", "<|tool_call>$CALLS<tool_call|>",
         "call:$NAME{$ARGUMENTS}", argument=_GEMMA),
    Form("FunctionGemma", ("<start_function_call>",), "<start_function_call>", "<end_function_call>",
         "<start_function_call>$CALLS<end_function_call>", "call:$NAME{$ARGUMENTS}", argument=_GEMMA),
    Form("Phi-4-mini", ("<|/tool|>",), "<|tool_call|>", "<|/tool_call|>", "<|tool_call|>[$CALLS]<|/tool_call|>",
         _JSON_CALL, ", "),
    Form("Granite 3", ("<|tool_call|>",), "<|tool_call|>", "", "<|tool_call|>[$CALLS]", _JSON_CALL, ", "),
    Form("Functionary 3.1", ("<function=",), "<function=", "</function>", "$CALLS",
         "<function=$NAME>$ARGUMENTS</function>"),
    Form("Qwen 2.5, Qwen 3, Hermes and Granite 4", ("<tool_call>",), "<tool_call>", "</tool_call>",
         "<tool_call>\n$CALLS\n</tool_call>", _JSON_CALL),
    Form("Llama 4 and 3.2, as Python", ("[func_name1(",), "<|python_tag|>", "", "[$CALLS]", _JSON_CALL, ", ",
         opens="{["),
    Form("Llama 3", ("ipython",), "<|python_tag|>", "", "$CALLS", '{"name": "$NAME", "parameters": $ARGUMENTS}', "; ",
         opens="{"),
    Form("any other model", (), "", "", "$CALLS", _JSON_CALL, "\n", opens="{["),
)  # fmt: skip
