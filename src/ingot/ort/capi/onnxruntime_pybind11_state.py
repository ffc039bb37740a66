"""ONNX Runtime's names of errors, for clients that catch them, and the other names of its module.

Each name is the corresponding error of Ingot; `Fail` is the base class of all. The classes below are never raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ingot.ort
from ingot.errors import IngotError, InputError, LoadError, MissingFileError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    from ingot.ort import *  # noqa: F403

Fail = IngotError
InvalidArgument = InputError
InvalidGraph = LoadError
InvalidProtobuf = LoadError
NoSuchFile = MissingFileError
NotImplemented = UnsupportedError
RuntimeException = ResourceError


class EngineError(IngotError):
    """Never raised."""


class EPFail(IngotError):
    """Never raised."""


class ModelLoadCanceled(IngotError):
    """Never raised."""


class ModelLoaded(IngotError):
    """Never raised."""


class ModelRequiresCompilation(IngotError):
    """Never raised."""


class NoModel(IngotError):
    """Never raised."""


class NotFound(IngotError):
    """Never raised."""


class DeviceReset(IngotError):
    """Never raised."""


# Type checkers see the import above instead.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return getattr(ingot.ort, name)
