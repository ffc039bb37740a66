"""Ctrl-C while a language model answers."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from ingot.errors import StoppedError

if TYPE_CHECKING:
    from ingot.run.modes import BoundModes


class Interruptible:
    """While it is entered, a Ctrl-C stops the answer, also in the midst of a run, which no handler of Python's can
    reach: a thread hears of the signal and tells the model. The next one is a KeyboardInterrupt again. Where signals of
    it are ignored, as in what a shell starts in the background, they stay so.
    """

    def __init__(self, modes: BoundModes) -> None:
        self.stopped = False
        self._modes = modes

    def __enter__(self) -> Interruptible:
        self._heard, self._signals = socket.socketpair()
        self._signals.setblocking(False)
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._stop)
        self._wakeup = signal.set_wakeup_fd(self._signals.fileno())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGINT, self._before)
        self._signals.close()
        self._listener.join()
        self._heard.close()
        self._modes.is_stopping = False

    def _listen(self) -> None:
        while numbers := self._heard.recv(16):
            if signal.SIGINT in numbers:
                self._modes.is_stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, self._before)

    def until_stopped(self, pieces: Iterator[str]) -> Iterator[str]:
        """The pieces that come before a Ctrl-C."""
        try:
            for piece in pieces:
                yield piece
                if self.stopped:
                    return
        except StoppedError:
            return
