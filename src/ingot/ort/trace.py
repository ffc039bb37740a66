"""The output of `enable_profiling`: runs and steps as events of Chrome's trace viewer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ingot.session.trace import Trace, event
from ingot.support.files import written


class ProfileFile:
    """Events since the start of a session, in the words of ONNX Runtime."""

    def __init__(self, prefix: str):
        self.start_ns = time.monotonic_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []

    def add(self, begin: int, end: int, trace: Trace | None) -> None:
        """Add a run, with times of `monotonic_ns`, and its steps, if they were timed."""
        self._events.append(event("Session", "model_run", 0, begin, end, {}))
        if trace is not None:
            self._events += trace.events(suffix="_kernel_time")

    def write(self) -> str:
        """Write the events to a file whose name begins with the prefix; return the name. Raises OutputError."""
        path = f"{self._prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json"
        with written(Path(path)) as file:
            file.write(json.dumps(self._events).encode())
        return path
