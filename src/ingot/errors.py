"""The typed errors of Ingot, and the exit code of each at the command line."""

import contextlib
import errno
from collections.abc import Iterator, Sequence

# Errors of the system's resources: the requested file is not at fault.
EXHAUSTED = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN})
_SHOWN = 3  # names in a line of text


class IngotError(Exception):
    """Any error that Ingot raises on purpose; `exit_code` follows sysexits."""

    exit_code = 70


class IngotWarning(UserWarning):
    """A condition that the user should know about, but that stops nothing."""


class LoadError(IngotError):
    """A model file or module is malformed, truncated, cyclic or refers to files outside its folder."""

    exit_code = 65


class MissingFileError(LoadError, FileNotFoundError):
    """A path of a model does not exist."""

    exit_code = 66

    def __str__(self) -> str:
        return super().__str__() if self.filename is None else f"{self.filename}: {self.strerror}"


class FetchError(IngotError):
    """A model cannot be fetched from the hub."""

    exit_code = 74


class ShapeError(LoadError):
    """Shapes or dtypes of a model contradict each other."""


class UnsupportedError(IngotError):
    """The model is well formed, but uses something that Ingot does not implement."""

    exit_code = 69


class UnboundError(UnsupportedError):
    """The model cannot be loaded before its symbolic dims have values: its structure depends on them."""


class UnrankedError(UnboundError):
    """A node depends on a rank that no dim can specify: only a run can."""


class UnsizedError(UnsupportedError):
    """No single program covers every size of a dim up to a limit: a computation needs the size before the run."""


class InputError(IngotError, ValueError):
    """A run was given a wrong name, dtype, rank, dim or index."""

    exit_code = 65


class KindError(InputError, TypeError):
    """An argument has a wrong type, such as a list instead of feeds or a number instead of a model."""


class StoppedError(IngotError):
    """A run was stopped before its end."""

    exit_code = 130


class LimitError(IngotError):
    """A documented limit (elements, rank, depth, size) is exceeded."""

    exit_code = 65


class OutputError(IngotError):
    """An output file or folder cannot be created or written."""

    exit_code = 73


class ExtensionError(IngotError):
    """A registered op or pass raised an error, or broke its contract."""

    exit_code = 65


class ResourceError(IngotError):
    """Memory, threads or the native library are not available."""

    exit_code = 75


class ReferenceWarning(IngotWarning):
    """An op has no kernel: the numpy reference computes it, slowly."""


def some(names: Sequence[str]) -> str:
    """Return as many names as fit in a line, and the number of the rest."""
    rest = len(names) - _SHOWN
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_SHOWN])} and {rest} more"


@contextlib.contextmanager
def bounded(where: str) -> Iterator[None]:
    """Convert errors of the block that mean exhausted memory, files or stack, or a failed device, to typed errors.

    Raises ResourceError, or LimitError for too deep nesting.
    """
    try:
        yield
    except MemoryError as error:
        raise ResourceError(f"{where}: no memory, got {error or 'none'}") from error
    except RecursionError as error:
        raise LimitError(f"{where}: nested too deeply") from error
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
        raise ResourceError(f"{error.filename or where}: {error.strerror}") from error


@contextlib.contextmanager
def guarded(where: str) -> Iterator[None]:
    """Add `where` to any error that a user's function raises in the block.

    A typed error keeps its type, any other becomes an ExtensionError.
    """
    try:
        yield
    except IngotError as error:
        raise type(error)(f"{where}: {error}") from error
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise ExtensionError(f"{where} raised {type(error).__name__}: {error}") from error
