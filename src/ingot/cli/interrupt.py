"""Handling of Ctrl-C while a language model generates an answer."""

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
    """Context manager in which the first Ctrl-C stops the answer; the next one is a KeyboardInterrupt again.

    A Python signal handler cannot run during a native run, so a thread waits for the signal and sets the stop flag of
    the model. If SIGINT was ignored, as in a background job of a shell, it stays ignored.
    """

    def __init__(self, modes: BoundModes) -> None:
        self.stopped = False
        self._modes = modes

    def __enter__(self) -> Interruptible:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._stop)
        self._wakeup = signal.set_wakeup_fd(self._sender.fileno())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        signal.signal(signal.SIGINT, self._before)
        self._sender.close()
        self._listener.join()
        self._receiver.close()
        self._modes.is_stopping = False

    def _listen(self) -> None:
        while numbers := self._receiver.recv(16):
            if signal.SIGINT in numbers:
                self._modes.is_stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        signal.signal(signal.SIGINT, self._before)

    def until_stopped(self, pieces: Iterator[str]) -> Iterator[str]:
        """Yield the pieces until a Ctrl-C."""
        try:
            for piece in pieces:
                yield piece
                if self.stopped:
                    return
        except StoppedError:
            return
