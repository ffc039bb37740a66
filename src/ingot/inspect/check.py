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

    problems: what stops it everywhere. exit_code: 0, or the code of what stops the native executor first. Raises
    FileNotFoundError for a path with nothing there, InputError for options that the model does not have.
    """
    document: dict[str, Any] = {"version": VERSION, "model": path, "format": None, "stage": stage, "assumed": {}}
    options: dict[str, Any] = {"dims": dims, "precision": precision, "threads": threads, "mode": mode}
    options["template"] = template
    try:
        model = LookedAt(path, assumed=_ASSUMED, **options)
    except (FileNotFoundError, InputError):
        raise
    except IngotError as error:
        return document | {"exit_code": error.exit_code, "problems": str(error).splitlines(), "executors": []}
    document |= {"format": model.format, "assumed": model.assumed}
    absent = list(model.absent.values())
    executors = {name: {"name": name, "what": what, "problems": [], "notes": []} for name, what in EXECUTORS.items()}
    code = 65 if absent else 0
    if stage != STAGES[0]:
        code = code or _check_programs(model, stage, executors)
        _check_webgpu(path, stage, options, executors["webgpu"], executors["emit-web"])
    rows = [row | {"runs": not absent and not row["problems"]} for row in executors.values()]
    return document | {"exit_code": code, "problems": absent, "executors": rows}


def _check_programs(model: LookedAt, stage: str, executors: dict[str, dict[str, Any]]) -> int:
    """Adds what stops each executor to its row. Returns the exit code of what stops the native one."""
    from ingot.emit.language.model import expect_c  # only now: most models need nothing of it

    native, strict, interpret, emitted = (executors[name] for name in ("native", "strict", "interpret", "emit-c"))
    if model.language is not None and model.folder is not None:
        interpret["problems"].append("a language model runs as native steps, on WebGPU, as C or as a page")
        emitted["problems"] += _said(partial(expect_c, model.folder, model.language, model.options.precision))
    try:
        _ = model.optimized
        if stage == "optimized":
            return 0
        compiled = model.compiled
    except IngotError as error:
        for row in (native, strict, emitted):
            row["problems"] += str(error).splitlines()
        return error.exit_code
    if compiled.fallback:
        native["notes"].append(f"on the numpy reference, which is slow: {', '.join(compiled.fallback)}")
        strict["problems"].append(f"no kernel: {', '.join(compiled.fallback)}")
        if model.language is not None:
            native["problems"] += strict["problems"]
    emitted["problems"] += [reason.removeprefix("emit: ") for reason in refusals(compiled)]
    if model.assumed:
        emitted["notes"].append(f"dims need values there: {' '.join(f'--dim {name}=1' for name in model.assumed)}")
    needed, there = _bytes_needed(compiled), memory_bytes()
    if needed > there:
        for row in (native, strict, emitted):
            row["problems"].append(f"memory: weights, states and arena of {needed} bytes, expected at most {there}")
    return 69 if native["problems"] else 0


def _check_webgpu(
    path: str, stage: str, options: Mapping[str, Any], device: dict[str, Any], page: dict[str, Any]
) -> None:
    """Adds what stops the two that need WebGPU to their rows, on a device that has what each has at least."""
    try:
        model = LookedAt(path, assumed=_ASSUMED, executor="webgpu", **options)
        _ = model.optimized
        if stage == "optimized":
            return
        compiled = model.compiled
    except IngotError as error:
        for row in (device, page):
            row["problems"] += str(error).splitlines()
        return
    if compiled.fallback:
        reason = f"on the numpy reference, which is slow: {', '.join(compiled.fallback)}"
        device["problems" if model.language is not None else "notes"].append(reason)
    page["problems"] += _said(partial(web_plan, {"run": compiled}))
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
