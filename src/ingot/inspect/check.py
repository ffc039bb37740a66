"""`ingot validate`: everything that would stop a model, on each executor, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ingot.compile import Compiled
from ingot.emit.c import refusals
from ingot.emit.web.plan import web_plan
from ingot.errors import IngotError, InputError
from ingot.inspect.document import VERSION
from ingot.inspect.model import LookedAt
from ingot.inspect.stages import STAGES
from ingot.ir.dim import Limit
from ingot.support.machine import memory_bytes

EXECUTORS = {
    "native": "kernels, the numpy reference where there is none",
    "strict": "kernels alone (--strict)",
    "interpret": "the numpy reference alone (--executor interpret)",
    "emit-c": "plain C (ingot emit-c)",
    "webgpu": "kernels on a GPU, the numpy reference where there is none (--executor webgpu)",
    "emit-web": "a page in a browser (ingot emit-web)",
}
_ASSUMED = 1  # for dims without a value
_TOGETHER = 2  # sequences of the mode of several


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
    """What stops a model at each executor, up to a stage; dims without a value are 1.

    modes: of a language model, those that were taken to the stage: all that generating takes, or `mode` alone.
    problems: what stops it everywhere. exit_code: 0, or the code of what stops the native executor first. Raises
    FileNotFoundError for a path with nothing there, InputError for options that the model does not have.
    """
    document: dict[str, Any] = {"version": VERSION, "model": path, "format": None, "stage": stage, "assumed": {}}
    document["modes"] = []
    options: dict[str, Any] = {"dims": dims, "precision": precision, "threads": threads, "mode": mode}
    options["template"] = template
    try:
        model = LookedAt(path, assumed=_ASSUMED, **options)
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


def _looks(model: LookedAt, path: str, options: Mapping[str, Any]) -> dict[str, LookedAt]:
    """A model in each of its modes, by their names: that of `options`, or all that generating takes."""
    if model.language is None or options["mode"] is not None:
        return {options["mode"] or "run": model}
    from ingot.llm.engine import modes_of  # only now: most models need nothing of it

    first, *others = modes_of(_TOGETHER)
    return {first: model} | {name: _in_mode(path, name, options) for name in others}


def _in_mode(path: str, name: str, options: Mapping[str, Any], executor: str = "native") -> LookedAt:
    """A language model in a mode, with room for several sequences where it takes them."""
    sequences = _TOGETHER if name == "batch" else 1
    return LookedAt(path, assumed=_ASSUMED, executor=executor, sequences=sequences, **{**options, "mode": name})


def _check_programs(
    model: LookedAt, looks: Mapping[str, LookedAt], stage: str, executors: dict[str, dict[str, Any]]
) -> int:
    """Adds what stops each executor to its row. Returns the exit code of what stops the native one."""
    from ingot.emit.language.model import expect_c  # only now: most models need nothing of it

    native, strict, interpret, emitted = (executors[name] for name in ("native", "strict", "interpret", "emit-c"))
    if model.language is not None and model.folder is not None:
        interpret["problems"].append("a language model runs as native steps, on WebGPU, as C or as a page")
        emitted["problems"] += _said(partial(expect_c, model.folder, model.language, model.options.precision))
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
            native["notes"].append(f"on the numpy reference, which is slow: {', '.join(compiled.fallback)}")
            strict["problems"].append(f"no kernel: {', '.join(compiled.fallback)}")
            if model.language is not None:
                native["problems"] += strict["problems"]
        if name != "batch":  # C and pages have one sequence
            emitted["problems"] += [reason.removeprefix("emit: ") for reason in refusals(compiled)]
    if model.assumed:
        emitted["notes"].append(f"dims need values there: {' '.join(f'--dim {name}=1' for name in model.assumed)}")
    needed = max(_bytes_needed(compiled) for name, compiled in programs.items() if name != "batch")
    if needed > (there := memory_bytes()):
        for row in (native, strict, emitted):
            row["problems"].append(f"memory: weights, states and arena of {needed} bytes, expected at most {there}")
    return 69 if native["problems"] else 0


def _check_webgpu(
    path: str, modes: list[str], stage: str, options: Mapping[str, Any], device: dict[str, Any], page: dict[str, Any]
) -> None:
    """Adds what stops the two that need WebGPU to their rows, on a device that has what each has at least."""
    try:
        model = LookedAt(path, assumed=_ASSUMED, executor="webgpu", **options)
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
            reason = f"on the numpy reference, which is slow: {', '.join(compiled.fallback)}"
            device["problems" if model.language is not None else "notes"].append(reason)
    page["problems"] += _said(partial(web_plan, {name: each for name, each in programs.items() if name != "batch"}))
    if model.language is not None and model.folder is not None:
        from ingot.emit.web.language import expect_page

        page["problems"] += _said(partial(expect_page, model.folder))
    elif model.folder is not None:
        from ingot.emit.web.encoder import encoder_words

        page["problems"] += _said(partial(encoder_words, model.folder))


def _said(check: Callable[[], Any]) -> list[str]:
    """What a check complains of, line by line."""
    try:
        check()
    except IngotError as error:
        return [line.removeprefix("emit: ") for line in str(error).splitlines()]
    return []


def _bytes_needed(compiled: Compiled) -> int:
    """Bytes of packed weights, states and the arena."""
    plans = [segment.plan for segment in compiled.segments if segment.native is not None]
    state_invariant = sum(
        size for plan in plans for region, size in plan.regions.items() if region in ("weights", "state")
    )
    return state_invariant + max((plan.arena_bytes for plan in plans), default=0)
