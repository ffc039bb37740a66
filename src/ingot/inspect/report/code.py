"""The emitted C of a program for the page: of each step, and of the kernels that the steps call."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ingot.compile import Compiled
from ingot.emit.c import refusals
from ingot.emit.interface import PREFIX, RUN, interface
from ingot.emit.kernels import check_precision, kernel_text
from ingot.emit.steps import StepText, step_texts
from ingot.errors import UnsupportedError
from ingot.inspect.model import InspectedModel
from ingot.inspect.view import View
from ingot.passes.precision import precision_of

_MOST_CHARACTERS = 16 << 20  # of C in a page


def code_document(model: InspectedModel) -> dict[str, Any]:
    """Return the C of each item of the plan, and of the kernels that they call.

    texts: pieces of C, each once. steps: for each item, the numbers of its text and of the opening of the loop around
    it (an empty text where there is none), and its iteration; or null for an item without C. kernels: the definition of
    each kernel. omitted: why there is no C, else "".
    """
    view = model.view("plan")
    reason = _refusal(model)
    document: dict[str, Any] = {"omitted": reason, "texts": [], "steps": [None] * len(view.items), "kernels": {}}
    if reason:
        return document
    texts: dict[str, int] = {}
    document["steps"] = [
        None if each is None
        else [*(texts.setdefault(text, len(texts)) for text in (each.code, each.loop)), each.iteration]
        for each in _codes(view, model.uninterrupted)
    ]  # fmt: skip
    kernels = {
        name: kernel_text(name)
        for name in dict.fromkeys(item.op for item, step in zip(view.items.values(), document["steps"], strict=True)
                                  if step is not None)
    }  # fmt: skip
    characters = sum(map(len, (*texts, *kernels.values())))
    if characters > _MOST_CHARACTERS:
        why = f"the C of this model has {characters:,} characters, of which a page holds {_MOST_CHARACTERS:,}"
        return document | {"omitted": why, "steps": [None] * len(view.items)}
    return document | {"texts": list(texts), "kernels": kernels}


def _refusal(model: InspectedModel) -> str:
    """Return why a program has no emitted C, or ""."""
    if model.target.device != "cpu":
        return f"a program for {model.target.device} is no C"
    try:
        check_precision(model.precision if model.language is None else precision_of(model.options.precision))
    except UnsupportedError as error:
        return str(error)
    return next(iter(refusals(model.uninterrupted)), "")


def _codes(view: View, compiled: Compiled) -> list[StepText | None]:
    """Return the C of each item of a plan. Steps that are planned differently have none."""
    face = interface({RUN: compiled}, PREFIX)
    (entry,) = face.entries
    found: dict[tuple[str, str], StepText] = {}
    seen: Counter[str] = Counter()
    for step, text in zip(entry.planned.steps, step_texts(entry, face), strict=True):
        seen[step.node] += 1
        number = seen[step.node]
        found[step.node if number == 1 else f"{step.node}#{number}", step.kernel] = text
    return [found.get((item.name, item.op)) for item in view.items.values()]
