"""The typed errors of Ingot and the exit code that each one means at the command line."""

import contextlib
import errno
from collections.abc import Iterator, Sequence

# What the system lacks, or could not do: the file asked for is not at fault.
EXHAUSTED = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN})
_SHOWN = 3  # of names in a line of text


class IngotError(Exception):
    """Any error that Ingot raises on purpose; `exit_code` follows sysexits."""

    exit_code = 70


class IngotWarning(UserWarning):
    """What the user should know, though it stops nothing."""


class LoadError(IngotError):
    """A model file or module is malformed, truncated, cyclic or reaches outside its folder."""

    exit_code = 65


class MissingFileError(LoadError, FileNotFoundError):
    """A path of a model has nothing there."""

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
    """The model cannot be loaded before its symbolic dims have values: its form depends on them."""


class UnrankedError(UnboundError):
    """What a node is depends on a rank, which no dim says that could have a value: a run may say it."""


class UnsizedError(UnsupportedError):
    """No one program serves every size of a dim up to a limit: something needs the number before the run."""


class InputError(IngotError, ValueError):
    """A run was given a wrong name, dtype, rank, dim or index."""

    exit_code = 65


class KindError(InputError, TypeError):
    """An argument is of a type that can never do: a list in the place of feeds, a number in that of a model."""


class StoppedError(IngotError):
    """A run was told to stop before its end."""

    exit_code = 130


class LimitError(IngotError):
    """A documented limit (elements, rank, depth, size) is exceeded."""

    exit_code = 65


class OutputError(IngotError):
    """An output file or folder cannot be created or written."""

    exit_code = 73


class ExtensionError(IngotError):
    """A registered op or pass raised an error, or did not do what it promised."""

    exit_code = 65


class ResourceError(IngotError):
    """Memory, threads or the native library could not be had."""

    exit_code = 75


class ReferenceWarning(IngotWarning):
    """An op has no kernel: the numpy reference computes it, slowly."""


def some(names: Sequence[str]) -> str:
    """As many names as can be read, and how many more there are."""
    rest = len(names) - _SHOWN
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_SHOWN])} and {rest} more"


@contextlib.contextmanager
def bounded(where: str) -> Iterator[None]:
    """Gives errors of the block that say that memory, files or the stack ran out, or a device failed, their types.

    Raises ResourceError, or LimitError for what is nested too deeply.
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
    """Names the place in whatever a function of the user raises in the block: a typed error keeps its type, any other
    becomes an ExtensionError.
    """
    try:
        yield
    except IngotError as error:
        raise type(error)(f"{where}: {error}") from error
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise ExtensionError(f"{where} raised {type(error).__name__}: {error}") from error
