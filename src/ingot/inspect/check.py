"""`ingot validate`: all problems of a model on each executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ingot.compile import Compiled
from ingot.emit.c import refusals
from ingot.emit.web.plan import web_plan
from ingot.errors import IngotError, InputError
from ingot.inspect.document import VERSION
from ingot.inspect.model import InspectedModel
from ingot.inspect.stages import STAGES
from ingot.ir.dim import Limit
from ingot.support.machine import memory_bytes

EXECUTORS = {
    "native": "CPU kernels, the numpy reference for other ops",
    "strict": "CPU kernels only (--strict)",
    "interpret": "the numpy reference only (--executor interpret)",
    "emit-c": "plain C (ingot emit-c)",
    "webgpu": "GPU kernels, the numpy reference for other ops (--executor webgpu)",
    "emit-web": "a web page (ingot emit-web)",
}
_ASSUMED = 1  # the value of dims without one
_TOGETHER = 2  # sequences of mode "batch"


def validate_document(
    path: str,
    stage: str,
    *,
    dims: Mapping[str, int | Limit],
    precision: str | None,
    threads: int,
    mode: str | None,
    template: str | None = None,
) -> dict[str, Any]:
    """Return the problems of a model on each executor, up to a stage; dims without a value are 1.

    modes: of a language model, those compiled: all modes of generating, or `mode` alone.
    In the document, problems: those of all executors; exit_code: 0, or the code of the first problem of the native
    executor. Raises FileNotFoundError for a missing path, InputError for options that do not apply to the model.
    """
    document: dict[str, Any] = {"version": VERSION, "model": path, "format": None, "stage": stage, "assumed": {}}
    document["modes"] = []
    options: dict[str, Any] = {"dims": dims, "precision": precision, "threads": threads, "mode": mode}
    options["template"] = template
    try:
        model = InspectedModel(path, assumed=_ASSUMED, **options)
        looks = _looks(model, path, options) if stage != STAGES[0] else {}
    except (FileNotFoundError, InputError):
        raise
    except IngotError as error:
        return document | {"exit_code": error.exit_code, "problems": str(error).splitlines(), "executors": []}
    document |= {"format": model.format, "assumed": model.assumed}
    absent = list(model.absent.values())
    executors = {name: {"name": name, "what": what, "problems": [], "notes": []} for name, what in EXECUTORS.items()}
    code = 65 if absent else 0
    if looks:
        document["modes"] = [] if model.language is None else list(looks)
        code = code or _check_programs(model, looks, stage, executors)
        _check_webgpu(path, list(looks), stage, options, executors["webgpu"], executors["emit-web"])
    for row in executors.values():
        row["problems"], row["notes"] = list(dict.fromkeys(row["problems"])), list(dict.fromkeys(row["notes"]))
    rows = [row | {"runs": not absent and not row["problems"]} for row in executors.values()]
    return document | {"exit_code": code, "problems": absent, "executors": rows}


def _looks(model: InspectedModel, path: str, options: Mapping[str, Any]) -> dict[str, InspectedModel]:
    """Return a model in each of its modes by name: the mode of `options`, or all modes of generating."""
    if model.language is None or options["mode"] is not None:
        return {options["mode"] or "run": model}
    from ingot.llm.engine import modes_of  # imported late: most models do not need it

    first, *others = modes_of(_TOGETHER)
    return {first: model} | {name: _in_mode(path, name, options) for name in others}


def _in_mode(path: str, name: str, options: Mapping[str, Any], executor: str = "native") -> InspectedModel:
    """Return a language model in a mode; mode "batch" has several sequences."""
    sequences = _TOGETHER if name == "batch" else 1
    return InspectedModel(path, assumed=_ASSUMED, executor=executor, sequences=sequences, **{**options, "mode": name})


def _check_programs(
    model: InspectedModel, looks: Mapping[str, InspectedModel], stage: str, executors: dict[str, dict[str, Any]]
) -> int:
    """Add the problems of each executor to its row. Return the exit code of the native executor's problems."""
    from ingot.emit.language.model import expect_c  # imported late: most models do not need it

    native, strict, interpret, emitted = (executors[name] for name in ("native", "strict", "interpret", "emit-c"))
    if model.language is not None and model.folder is not None:
        interpret["problems"].append("a language model runs natively, on WebGPU, as C or as a web page")
        emitted["problems"] += _errors_of(partial(expect_c, model.folder, model.language, model.options.precision))
    try:
        for look in looks.values():
            _ = look.optimized
        if stage == "optimized":
            return 0
        programs = {name: look.compiled for name, look in looks.items()}
    except IngotError as error:
        for row in (native, strict, emitted):
            row["problems"] += str(error).splitlines()
        return error.exit_code
    for name, compiled in programs.items():
        if compiled.fallback:
            native["notes"].append(f"on the slow numpy reference: {', '.join(compiled.fallback)}")
            strict["problems"].append(f"no kernel: {', '.join(compiled.fallback)}")
            if model.language is not None:
                native["problems"] += strict["problems"]
        if name != "batch":  # C and pages have one sequence
            emitted["problems"] += [reason.removeprefix("emit: ") for reason in refusals(compiled)]
    if model.assumed:
        emitted["notes"].append(f"emit-c needs values: {' '.join(f'--dim {name}=1' for name in model.assumed)}")
    needed = max(_bytes_needed(compiled) for name, compiled in programs.items() if name != "batch")
    available = memory_bytes()
    if needed > available:
        for row in (native, strict, emitted):
            reason = (
                f"memory: too little, got {needed} bytes of weights, states and arena, expected at most {available}"
            )
            row["problems"].append(reason)
    return 69 if native["problems"] else 0


def _check_webgpu(
    path: str, modes: list[str], stage: str, options: Mapping[str, Any], device: dict[str, Any], page: dict[str, Any]
) -> None:
    """Add the problems of the two WebGPU executors to their rows, for a device with WebGPU's guaranteed limits."""
    try:
        model = InspectedModel(path, assumed=_ASSUMED, executor="webgpu", **options)
        looks = {modes[0]: model} | {name: _in_mode(path, name, options, "webgpu") for name in modes[1:]}
        for look in looks.values():
            _ = look.optimized
        if stage == "optimized":
            return
        programs = {name: look.compiled for name, look in looks.items()}
    except IngotError as error:
        for row in (device, page):
            row["problems"] += str(error).splitlines()
        return
    for compiled in programs.values():
        if compiled.fallback:
            reason = f"on the slow numpy reference: {', '.join(compiled.fallback)}"
            device["problems" if model.language is not None else "notes"].append(reason)
    page["problems"] += _errors_of(
        partial(web_plan, {name: each for name, each in programs.items() if name != "batch"})
    )
    if model.language is not None and model.folder is not None:
        from ingot.emit.web.language import expect_page

        page["problems"] += _errors_of(partial(expect_page, model.folder))
    elif model.folder is not None:
        from ingot.emit.web.encoder import encoder_words

        page["problems"] += _errors_of(partial(encoder_words, model.folder))


def _errors_of(check: Callable[[], Any]) -> list[str]:
    """Return the lines of a check's error; [] if it passes."""
    try:
        check()
    except IngotError as error:
        return [line.removeprefix("emit: ") for line in str(error).splitlines()]
    return []


def _bytes_needed(compiled: Compiled) -> int:
    """Return the bytes of packed weights, states and the arena."""
    plans = [segment.plan for segment in compiled.segments if segment.native is not None]
    state_invariant = sum(
        size for plan in plans for region, size in plan.regions.items() if region in ("weights", "state")
    )
    return state_invariant + max((plan.arena_bytes for plan in plans), default=0)
