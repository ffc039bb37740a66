"""Convert torch's errors about a module or a program to Ingot's error types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ingot.errors import IngotError, UnsupportedError

# What torch raises on a program that it cannot trace, or that contradicts itself; its errors of guards and of Dynamo
# are RuntimeErrors, and the last is its verifier's, which has no type above it.
TORCH_ERRORS = (
    RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, ArithmeticError,
    torch._export.verifier.SpecViolationError,
)  # fmt: skip


@contextlib.contextmanager
def typed(where: str, expected: str) -> Iterator[None]:
    """Convert an error that torch raises in the block to an UnsupportedError with torch's message.

    Ingot's own errors keep their type, and so does a stack overflow.
    """
    try:
        yield
    except (IngotError, RecursionError):
        raise
    except TORCH_ERRORS as error:
        raise UnsupportedError(f"{where}: got {type(error).__name__}: {error}, expected {expected}") from error
