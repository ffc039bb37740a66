"""The output of `enable_profiling`: runs and steps as events of Chrome's trace viewer."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from ingot.session.reports import Profile
from ingot.support.files import written


class Trace:
    """Events since the start of a session, in microseconds."""

    def __init__(self, prefix: str):
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []

    def add(self, begin_ns: int, end_ns: int, profile: Profile | None) -> None:
        """Add a run, with times of `monotonic_ns`, and its steps one after another, if they were timed."""
        self._events.append(self._event("Session", "model_run", begin_ns, end_ns - begin_ns, {}))
        for step in profile.steps if profile is not None else ():
            facts = {"op_name": step.kernel, "parts": step.parts}
            self._events.append(self._event("Node", f"{step.node}_kernel_time", begin_ns, step.nanoseconds, facts))
            begin_ns += step.nanoseconds

    def write(self) -> str:
        """Write the events to a file whose name begins with the prefix; return the name. Raises OutputError."""
        path = f"{self._prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json"
        with written(Path(path)) as file:
            file.write(json.dumps(self._events).encode())
        return path

    def _event(self, cat: str, name: str, begin_ns: int, nanoseconds: int, args: dict[str, Any]) -> dict[str, Any]:
        times = {"ts": (begin_ns - self.start_ns) // 1000, "dur": nanoseconds // 1000}
        thread = {"pid": os.getpid(), "tid": threading.get_native_id()}
        return {"cat": cat, "name": name, "ph": "X", **thread, **times, "args": args}
