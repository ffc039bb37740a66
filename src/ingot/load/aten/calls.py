"""Check the arguments of a module before torch exports it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ingot.errors import InputError, KindError


def expect_called(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], also: str) -> None:
    """Check that a module can be exported with these arguments; also: the text of the other arguments in the examples.

    Raises KindError for a script, and InputError for parameters without shapes, and for arguments that `forward` does
    not accept.
    """
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise KindError(f"module {name}: cannot be exported, got a script of torch.jit, expected the module itself")
    if lazy := [key for key, parameter in module.named_parameters() if torch.nn.parameter.is_lazy(parameter)]:
        raise InputError(f"module {name}: never called, got {lazy}, expected shapes for them")
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        named = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        operands = named if kwargs else [p for p in named if p.kind != p.KEYWORD_ONLY]
        least = sum(parameter.default is parameter.empty for parameter in operands)
        count = f"{least}" if least == len(operands) else f"{least}..{len(operands)}"
        names = ", ".join(parameter.name for parameter in operands)
        others = ", ".join(parameter.name for parameter in named if parameter not in operands)
        by_name = (
            f"; {others} by keyword alone, as torch.export.export(module, args, kwargs) takes it" if others else ""
        )
        raise InputError(
            f"module {name}: example_inputs: {error}, got {len(args) + len(kwargs)}{also},"
            f" expected {count}{also}: {names}{by_name}"
        ) from error
