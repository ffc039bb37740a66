"""The measuring side of an engine's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import ROOT


class Worker:
    """A process of `program`, stopped except while it answers. Its log goes to `folder`."""

    def __init__(
        self,
        engine: str,
        folder: Path,
        threads: int,
        program: str,
        precision: str = "f32",
        python: str = sys.executable,
    ) -> None:
        self.log = folder / f"{engine}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [python, "-m", program, engine, str(folder), str(threads), precision],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)}, cwd=ROOT,
            )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        """The answer, or None when the process died of the request."""
        self.send(**request)
        return self.answer()

    def request(self, **request: Any) -> Any:
        """The answer; ends this program when the process died of the request."""
        return self.expect(self.ask(**request))

    def expect(self, answer: Any) -> Any:
        """An answer that is there; ends this program where it is None."""
        if answer is None:
            sys.exit(self.close())
        return answer

    def send(self, **request: Any) -> None:
        """Lets the process go on, with something to do."""
        self.signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The process's answer; then the process is stopped. None if it died."""
        line = self.process.stdout.readline()
        if not line:
            return None
        self.signal(signal.SIGSTOP)
        return json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        """To the process and the compilers it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def close(self) -> str:
        """Ends the process; gives the last line of its log."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "died without a word"
