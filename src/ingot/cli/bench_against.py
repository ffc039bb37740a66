"""`ingot bench --against onnxruntime`: two engines in separate processes that run alternately."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.terminal import human_time, print_json, print_text, track
from ingot.errors import IngotError, ResourceError

if TYPE_CHECKING:
    from ingot.cli.model import Model

ENGINES = ("onnxruntime",)
_ROUNDS = 20  # rounds of each engine; the engines alternate
_LEAST_RUNS = 3  # least number of runs in a round
_TOLERANCE = 1e-3  # largest difference of outputs that agree, relative to max(1, |x|)


def compare(model: Model, threads: int, feeds: dict[str, np.ndarray], seconds: float, as_json: bool) -> None:
    """Measure a model in Ingot and in ONNX Runtime; print the times, their ratio and the difference of outputs.

    Raises UsageError for a model that is not an ONNX file, and if ONNX Runtime is not installed.
    """
    if not model.path.endswith(".onnx"):
        raise click.UsageError(f"--against onnxruntime: not an ONNX file, got {model.path}, expected *.onnx")
    if importlib.util.find_spec("onnxruntime") is None:
        raise click.UsageError("--against onnxruntime: not installed, expected `pip install onnxruntime`")
    rounds: dict[str, list[float]] = {"ingot": [], "onnxruntime": []}
    with ExitStack() as open_processes:
        ingot = open_processes.enter_context(_Engine(_ingot, (model, feeds)))
        other = open_processes.enter_context(_Engine(_onnxruntime, (model.path, threads, feeds)))
        engines = {"ingot": ingot, "onnxruntime": other}
        results = {name: engine.ask("outputs") for name, engine in engines.items()}
        share = seconds / (2 * _ROUNDS)
        for _ in track(range(_ROUNDS), "measuring"):
            for name, engine in engines.items():
                rounds[name].append(engine.ask(share))
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    ratio = medians["ingot"] / medians["onnxruntime"]
    difference = _difference(results["ingot"], results["onnxruntime"])
    agree = difference is not None and difference <= _TOLERANCE
    if as_json:
        found = {"threads": threads, "seconds": medians, "ratio": ratio, "largest_difference": difference}
        print_json(found | {"outputs_agree": agree})
    else:
        for name, median in medians.items():
            print_text(f"  {name:<12} {human_time(median)}")
        print_text(f"  {'ratio':<12} {ratio:.2f} of ONNX Runtime's time, {threads} thread(s)")
        verdict = "differ in shape or type" if difference is None else f"differ by at most {difference:.2g}"
        print_text(f"  {'outputs':<12} {verdict}{'' if agree else f', expected at most {_TOLERANCE}'}")
    if not agree:
        raise click.exceptions.Exit(1)


class _Engine:
    """A process that runs one engine and answers requests: "outputs", or the seconds of a round to measure."""

    def __init__(self, start: Callable[..., Callable[[], list[Any]]], arguments: tuple[Any, ...]):
        context = multiprocessing.get_context("spawn")  # the engines share no threads or memory
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, start, arguments), daemon=True)

    def __enter__(self) -> _Engine:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def ask(self, request: Any) -> Any:
        """Return the answer to a request. Raises ResourceError if the process ends or fails."""
        self._pipe.send(request)
        while not self._pipe.poll(1):
            if not self._process.is_alive():
                raise ResourceError(f"bench: a process ended, got exit code {self._process.exitcode}, expected answers")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise ResourceError(f"bench: {answer}")
        return answer


def _serve(pipe: Connection, start: Callable[..., Callable[[], list[Any]]], arguments: tuple[Any, ...]) -> None:
    """Answer requests until the process is terminated."""
    try:
        run = start(*arguments)
        run()
    except (IngotError, RuntimeError) as error:  # ONNX Runtime's errors have no other common class
        pipe.recv()
        pipe.send(f"{start.__name__.strip('_')} cannot run the model, got {error}")
        return
    while True:
        request = pipe.recv()
        pipe.send(run() if request == "outputs" else _round(run, request))


def _round(run: Callable[[], list[Any]], seconds: float) -> float:
    """Run for so many seconds and return the median time of a run, in seconds."""
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(durations) < _LEAST_RUNS:
        begin = time.perf_counter()
        run()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def _ingot(model: Model, feeds: dict[str, np.ndarray]) -> Callable[[], list[Any]]:
    session = model.open()
    return lambda: session.run(None, feeds)


def _onnxruntime(path: str, threads: int, feeds: dict[str, np.ndarray]) -> Callable[[], list[Any]]:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(None, feeds))


def _difference(results: list[Any], others: list[Any]) -> float | None:
    """Return the largest difference of numbers, relative to max(1, |x|); None if shapes or types differ."""
    largest = 0.0
    for a, b in zip(results, others, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape:
            return None
        if a.dtype == object or b.dtype == object:
            largest = max(largest, 0.0 if a.tolist() == b.tolist() else np.inf)
            continue
        with np.errstate(all="ignore"):
            x, y = a.astype(np.float64), b.astype(np.float64)
            error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y) / np.maximum(1, np.abs(y)))
        largest = max(largest, float(np.nan_to_num(error, nan=np.inf).max(initial=0)))
    return largest
