"""The models of a server by name: loaded on first use, unloaded when idle or to free memory for others."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio

from ingot.errors import IngotError, InputError, ResourceError, StoppedError
from ingot.serve.log import LOGGER

Kind = Literal["language", "embedding", "rerank", "plain"]
WAIT_SECONDS = 30.0  # for memory that answers of other models use
_PAUSE_SECONDS = 0.25  # between two looks for idle models, at most
_UNREACHABLE = re.compile(r"[\x00-\x1f\x7f]|(^|/)\.{0,2}(/|$)|/(infer|ready|versions)(/|$)")


class UnknownModelError(InputError):
    """No model has the name of a request."""


class UnavailableError(ResourceError):
    """A model cannot be loaded now."""


class Running(Protocol):
    """A loaded model with its queue of work. nbytes: of its weights, caches and activations. is_alive:
    whether its thread accepts work."""

    @property
    def nbytes(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def close(self) -> None:
        """End the work that is left, and the threads."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model that is loaded when a request needs it.

    kind: the requests that it answers. start: load it; called in a thread, raises IngotError and OSError. nbytes: its
    expected memory, also called in a thread before each load. is_kept: the caller of the server has it in memory, so
    that it is never unloaded.
    """

    kind: Kind
    start: Callable[[str], Running]
    nbytes: Callable[[], int] = lambda: 0
    is_kept: bool = False


class Model:
    """A model of the server and its state.

    running: None unless it is loaded. change: loading or unloading in progress. users: requests that use it. used: the
    end of the last one, in seconds of `time.monotonic`. reserved: bytes of a model that is being loaded or unloaded.
    error: why the last loading failed, for clients.
    """

    def __init__(self, name: str, source: Source):
        self.name, self.source = name, source
        self.running: Running | None = None
        self.change: asyncio.Task[None] | None = None
        self.reserved = self.users = 0
        self.used = time.monotonic()
        self.error = ""

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded model, or those that are reserved for it."""
        return self.reserved if self.running is None else self.running.nbytes

    @property
    def state(self) -> str:
        """loaded, loading, unloading, unloaded or failed."""
        if self.running is not None:
            return "loaded"
        if self.change is not None:
            return self.change.get_name()
        return "failed" if self.error else "unloaded"

    @property
    def is_idle(self) -> bool:
        """Whether it may be unloaded."""
        return self.running is not None and self.change is None and not self.users and not self.source.is_kept


class Models:
    """The models of a server. All methods are called in the event loop, where only threads load and unload.

    budget: bytes of memory that all loaded models may have together. idle: seconds without a request after which a
    model is unloaded; None: never.
    """

    def __init__(self, sources: dict[str, Source], budget: int, idle: float | None = None):
        if not sources:
            raise InputError("models: got none, expected at least one")
        for name in sources:
            _expect_reachable(name)
        self._models = {name: Model(name, source) for name, source in sources.items()}
        self.budget, self.idle = budget, idle
        self._is_stopped = False
        self.on_unload: Callable[[str, Running], None] = lambda name, running: None

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def preload(self) -> None:
        """Load the first model, before the event loop runs. Raises the errors of its source, and UnavailableError."""
        first = next(iter(self._models.values()))
        expected = first.source.nbytes()
        if expected > self.budget:
            raise _too_large(first, expected, self.budget)
        first.running = first.source.start(first.name)

    @property
    def nbytes(self) -> int:
        """Bytes of all models that are loaded or being loaded."""
        return sum(model.nbytes for model in self._models.values())

    def find(self, name: str | None, kinds: Collection[Kind]) -> Model:
        """Return the model that answers a request; without a name the first one of these kinds.

        Raises UnknownModelError, and InputError for a model of another kind.
        """
        if name is None:
            name = next((model.name for model in self._models.values() if model.kind in kinds), None)
            if name is None:
                raise UnknownModelError(f"model: none for this request, got no name, expected a {_or(kinds)} model")
        model = self._models.get(name)
        if model is None:
            known = ", ".join(map(repr, self._models))
            raise UnknownModelError(f"model: no such model, got {name!r}, expected {known}")
        if model.kind not in kinds:
            raise InputError(f"model: {name!r} cannot answer, got a {model.kind} model, expected a {_or(kinds)} model")
        return model

    @asynccontextmanager
    async def use(self, name: str | None, kinds: Collection[Kind]) -> AsyncIterator[Any]:
        """Load the model if it is not loaded, and keep it loaded for the block.

        Raises the errors of `find`, and UnavailableError for a model that cannot be loaded.
        """
        model = self.find(name, kinds)
        model.users += 1
        try:
            while model.running is None or model.change is not None:
                if self._is_stopped:
                    raise StoppedError("models: closed, got a request for a model that is not loaded")
                change = model.change or self._begin(model, "loading", self._load(model))
                await asyncio.shield(change)  # a client that goes away ends only its own wait
            yield model.running
        finally:
            model.users -= 1
            model.used = time.monotonic()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Load the first model, and unload idle ones during the block; at its end close all. Raises UnavailableError
        for a first model that cannot be loaded.
        """
        first = next(iter(self._models.values()))
        expiry = asyncio.create_task(self._expire())
        try:
            async with self.use(first.name, [first.kind]):
                pass
            yield
        finally:
            expiry.cancel()
            changes = [model.change for model in self._models.values() if model.change is not None]
            await asyncio.gather(expiry, *changes, return_exceptions=True)
            for model in self._models.values():
                if model.running is not None:
                    await self._begin(model, "unloading", self._unload(model))

    def is_alive(self) -> bool:
        """Whether no thread of a loaded model has ended by a bug; threads end without one after `stop`."""
        running = [model.running for model in self._models.values() if model.running is not None]
        return self._is_stopped or all(each.is_alive for each in running)

    def stop(self) -> None:
        """End all answers with an error; no model accepts others or is loaded. Any thread may call it."""
        self._is_stopped = True
        for model in self._models.values():
            running = model.running
            if running is not None:
                running.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin(self, model: Model, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        model.change = asyncio.create_task(work, name=name)
        model.change.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        return model.change

    async def _load(self, model: Model) -> None:
        source = model.source
        try:
            expected = await anyio.to_thread.run_sync(source.nbytes)
            if not source.is_kept:
                await self._free(model, expected)
            model.reserved = expected
            running = await anyio.to_thread.run_sync(source.start, model.name)
            if self._is_stopped:
                await anyio.to_thread.run_sync(running.close)
                raise StoppedError(f"model {model.name!r}: closed while it was loaded")
            model.running, model.error = running, ""
        except (IngotError, OSError) as error:
            if isinstance(error, UnavailableError | StoppedError):
                model.error = str(error)
                raise
            # The reason names paths of the server, which clients do not see.
            LOGGER.error("a model cannot be loaded", extra={"facts": {"model": model.name, "reason": str(error)}})
            model.error = "cannot be loaded; the log of the server has the reason"
            raise UnavailableError(f"model {model.name!r}: {model.error}") from error
        finally:
            model.change, model.reserved = None, 0

    async def _unload(self, model: Model) -> None:
        running = model.running
        assert running is not None
        model.running, model.reserved = None, running.nbytes
        try:
            self.on_unload(model.name, running)
            await anyio.to_thread.run_sync(running.close)
        finally:
            del running
            model.change, model.reserved = None, 0

    async def _free(self, model: Model, needed: int) -> None:
        """Unload idle models, the one that was used longest ago first, until so many bytes are free."""
        kept = sum(other.nbytes for other in self._models.values() if other.source.is_kept)
        if kept + needed > self.budget:
            raise _too_large(model, needed, self.budget - kept)
        until = time.monotonic() + WAIT_SECONDS
        while self.nbytes + needed > self.budget:
            idle = [other for other in self._models.values() if other.is_idle]
            if idle:
                longest = min(idle, key=lambda other: other.used)
                await self._begin(longest, "unloading", self._unload(longest))
            elif time.monotonic() > until:
                raise UnavailableError(
                    f"model {model.name!r}: no memory, got {self.nbytes} bytes of models in use, expected at most "
                    f"{self.budget - needed}"
                )
            else:
                await asyncio.sleep(_PAUSE_SECONDS / 10)

    async def _expire(self) -> None:
        """Unload models that were not used for a while, for ever."""
        if self.idle is None:
            return
        while True:
            await asyncio.sleep(min(_PAUSE_SECONDS, self.idle / 4))
            for model in self._models.values():
                if model.is_idle and time.monotonic() - model.used >= self.idle:
                    await self._begin(model, "unloading", self._unload(model))


def _expect_reachable(name: str) -> None:
    """Raise InputError for a name that means something else in a path, such as /v2/models/NAME/ready."""
    if _UNREACHABLE.search(name):
        raise InputError(
            f"model {name!r}: no path can have this name, expected another one, without control characters, '.' and "
            "empty parts, '/infer', '/ready' and '/versions'"
        )


def _or(kinds: Collection[Kind]) -> str:
    return " or ".join(kinds)


def _too_large(model: Model, needed: int, free: int) -> UnavailableError:
    return UnavailableError(f"model {model.name!r}: too large, got {needed} bytes, expected at most {free}")
