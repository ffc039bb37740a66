"""A request for answers to a conversation, in the one form into which each protocol is read, and its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ingot.errors import InputError
from ingot.llm.chat import checked_options
from ingot.llm.model import LLM
from ingot.llm.text import checked_stops
from ingot.load.hf.strict_json import shown
from ingot.serve.answers import Answer
from ingot.serve.grammar import Grammar
from ingot.serve.parts import PartReader
from ingot.serve.reasoning import Thinking, thinking_of
from ingot.serve.tools import FORMS, Form, Json, Tool, form_of

MAX_TOOLS = 256  # of a request
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


@dataclass(frozen=True)
class Chat:
    """A request for answers to a conversation.

    messages: as chat templates read them. choice: "auto", "none", "required", or the name of a tool after "=". allowed:
    the names of the tools that may be called, None for all. parallel: whether an answer may have several calls, unless
    a tool is named. schema: that of the answer's text, after reasoning. options: those of `LLM.generation`. variables:
    those of the chat template.
    """

    messages: Sequence[Json]
    tools: Sequence[Tool] = ()
    choice: str = "auto"
    allowed: frozenset[str] | None = None
    parallel: bool = True
    schema: Json | None = None
    options: Json = field(default_factory=dict)
    variables: Json = field(default_factory=dict)
    choices: int = 1
    stops: Sequence[str] = ()
    priority: int = 0

    @property
    def callable(self) -> list[Tool]:
        """The tools that the answer may call."""
        if self.choice.startswith("="):
            return [tool for tool in self.tools if tool.name == self.choice[1:]]
        allowed = self.allowed
        return [t for t in self.tools if self.choice != "none" and (allowed is None or t.name in allowed)]


def prompt_of(llm: LLM, chat: Chat) -> list[int]:
    """Return the ids of a conversation and the beginning of an answer. Raises the errors of `ChatTemplate.encode`."""
    messages, rest = _for_template(llm, chat)
    return llm.chat_template.encode(llm.tokenizer, messages, **rest)


def prompt_text(llm: LLM, chat: Chat) -> str:
    """Return the text of a conversation and the beginning of an answer. Raises the errors of `ChatTemplate.render`."""
    messages, rest = _for_template(llm, chat)
    return llm.chat_template.render(messages, **rest)


def _for_template(llm: LLM, chat: Chat) -> tuple[list[Json], Json]:
    """Return the messages of a request for the chat template, and its other arguments."""
    tools = [] if chat.choice == "none" else [{"type": "function", "function": tool.function} for tool in chat.tools]
    messages = [template_message(message, f"messages[{index}]") for index, message in enumerate(chat.messages)]
    if not any("developer" in source for source in llm.chat_template.sources.values()):
        messages = [m | {"role": "system"} if m.get("role") == "developer" else m for m in messages]
    return messages, {"tools": tools or None, **checked_options(chat.variables)}


def answers_of(llm: LLM, chat: Chat) -> list[Answer]:
    """Return the answers of a request, without tokens.

    Raises the errors of `LLM.generation` and `ChatTemplate.encode`, and InputError for bad tools.
    """
    checked_stops(chat.stops)
    _check_tools(chat)
    source = "\n".join(llm.chat_template.sources.values())
    tools = chat.callable
    form = form_of(source) if tools else None
    thinking = thinking_of(source)
    prompt = prompt_of(llm, chat)
    state = "" if thinking is None else thinking.state(llm.tokenizer, prompt)
    if state == "closed":
        thinking = None
    forced = chat.choice not in ("auto", "none")
    parallel = chat.parallel and not chat.choice.startswith("=")
    if form is not None and not form.is_written and (forced or any(tool.strict for tool in tools)):
        form = FORMS[-1]
    options = dict(chat.options)
    if form is not None and (forced or any(tool.strict for tool in tools)):
        grammar = Grammar(llm.tokenizer, thinking, state == "open")
        rule = grammar.calls(form, tools, parallel=parallel, required=forced, schema=chat.schema)
        options["grammar"] = grammar.text(rule)
    elif chat.schema is not None and thinking is not None:
        grammar = Grammar(llm.tokenizer, thinking, state == "open")
        options["grammar"] = grammar.text(grammar.document(chat.schema))
    elif chat.schema is not None:
        options["schema"] = chat.schema
    shown = control_shown(llm, form, thinking)
    answers = []
    for index in range(chat.choices):
        if "seed" in options:
            options["seed"] = chat.options["seed"] + index  # answers of one request differ
        reader = PartReader(form, tools, thinking, state == "open", parallel)
        generation = llm.generation(prompt, **options)
        answers.append(Answer(generation, chat.stops, chat.priority, reader, shown, 24 if form is None else form.ids))
    return answers


def control_shown(llm: LLM, form: Form | None, thinking: Thinking | None) -> dict[int, str]:
    """Return the control tokens, with their texts, that mark calls and reasoning in an answer."""
    markers = ("" if form is None else form.begin + form.end + form.markers) + (thinking.markers if thinking else "")
    return {index: text for text, index in llm.tokenizer.special.items() if text in markers}


def template_message(message: Json, where: str) -> Json:
    """Return a message as chat templates read it: the arguments of its calls as objects.

    Raises InputError for arguments that are no JSON object.
    """
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InputError(f"{where}.tool_calls: got {shown(calls)}, expected a list")
    read = []
    for index, call in enumerate(calls):
        at = f"{where}.tool_calls[{index}].function"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(f"{at}: got {shown(function)}, expected a name and arguments")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{at}.arguments: not JSON, {error}") from error
        if not isinstance(arguments, dict):
            raise InputError(f"{at}.arguments: got {shown(arguments)}, expected a JSON object")
        read.append({**call, "function": function | {"arguments": arguments}})
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return rest | {"tool_calls": read} if read else rest


def tool_of(document: Any, where: str) -> Tool:
    """Return a tool from {"name", "description", "parameters", "strict"}. Raises InputError for anything else."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: got {shown(document)}, expected a function")
    name, parameters = document.get("name"), document.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{where}.name: got {shown(name)}, expected 1 to 128 letters, digits, '_', '-', '.', ':', '/'")
    if parameters is not None and not isinstance(parameters, dict):
        raise InputError(f"{where}.parameters: got {shown(parameters)}, expected a JSON schema")
    description = document.get("description")
    if description is not None and not isinstance(description, str):
        raise InputError(f"{where}.description: got {shown(description)}, expected a text")
    return Tool(document)


def _check_tools(chat: Chat) -> None:
    names = [tool.name for tool in chat.tools]
    if len(names) > MAX_TOOLS:
        raise InputError(f"tools: too many, got {len(names)}, expected at most {MAX_TOOLS}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"tools: got {twice!r} twice, expected different names")
    unknown = sorted((chat.allowed or frozenset()) - {*names})
    if unknown or (chat.choice not in ("auto", "none") and not chat.callable):
        got = unknown[0] if unknown else chat.choice.removeprefix("=")
        raise InputError(f"tool_choice: got {got!r}, expected a tool of tools: {', '.join(names) or 'none is given'}")
