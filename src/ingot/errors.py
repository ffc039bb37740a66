"""The typed errors of Ingot and the exit code that each one means at the command line."""


class IngotError(Exception):
    """Any error that Ingot raises on purpose; `exit_code` follows sysexits."""

    exit_code = 70


class LoadError(IngotError):
    """A model file or module is malformed, truncated, cyclic or reaches outside its folder."""

    exit_code = 65


class ShapeError(LoadError):
    """Shapes or dtypes of a model contradict each other."""


class UnsupportedError(IngotError):
    """The model is well formed, but uses something that Ingot does not implement."""

    exit_code = 69


class InputError(IngotError):
    """A run was given a wrong name, dtype, rank, dim or index."""

    exit_code = 65


class LimitError(IngotError):
    """A documented limit (elements, rank, depth, size) is exceeded."""

    exit_code = 65


class OutputError(IngotError):
    """An output file or folder cannot be created."""

    exit_code = 73


class ResourceError(IngotError):
    """Memory, threads or the native library could not be had."""

    exit_code = 75
