"""Ops that users register: a Python reference, type inference, and names in other formats."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np

from ingot.errors import ExtensionError, InputError, guarded
from ingot.ir.dtype import DTYPES, from_numpy
from ingot.ir.graph import OPS, Graph, Node, Op, TensorType
from ingot.ops.define import op
from ingot.support.columns import counted

MAX_OP_NAME = 64  # characters of the name of a registered op

# The accepted annotations of an attribute.
ATTRIBUTES = (bool, int, float, str, tuple[int, ...], tuple[float, ...], tuple[str, ...], tuple[bool, ...])

WGSL_DTYPES = ("f32", "i32")  # of kernels in WGSL

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ingot")


@dataclass(frozen=True, slots=True)
class ExternalKernel:
    """A C function of a shared library that computes a registered op; docs/extending.md has its signature.

    dtypes: names of supported dtypes; all operands and results must have one of them, else the reference runs.
    """

    library: str | os.PathLike[str]
    symbol: str
    dtypes: tuple[str, ...] = ("f32",)

    def __str__(self) -> str:
        return f"{os.path.basename(self.library)}:{self.symbol}"


@dataclass(frozen=True, slots=True)
class WgslKernel:
    """A WGSL body that computes a registered op on a WebGPU device; docs/extending.md describes what it may use.

    source: WGSL with `fn work(i: i32)`, called for each element of the first result. dtypes: names of supported dtypes,
    at most f32 and i32; all operands and results must have one of them, else the reference runs.
    """

    source: str
    dtypes: tuple[str, ...] = ("f32",)

    def __repr__(self) -> str:
        return f"<WgslKernel: {counted(len(self.source.splitlines()), 'line')}, {', '.join(self.dtypes)}>"

    def __str__(self) -> str:
        return "wgsl:work"


Kernel = ExternalKernel | WgslKernel


@dataclass(frozen=True, slots=True)
class Custom:
    """The names of a registered op in other formats, and its kernels.

    onnx: (domain, op type). torch: `library.name.overload`. kernel: for the CPU; wgsl: for a WebGPU device. operands:
    names of the operands of the reference.
    """

    onnx: tuple[str, str] | None
    torch: str | None
    kernel: ExternalKernel | None
    wgsl: WgslKernel | None = None
    operands: tuple[str, ...] = ()


CUSTOM: dict[str, Custom] = {}


def register_op(
    name: str,
    function: Callable[..., Any],
    *,
    infer: Callable[..., Any] | None = None,
    outputs: int = 1,
    acts_on: str = "tensor",
    onnx: tuple[str, str] | None = None,
    torch: str | None = None,
    kernel: ExternalKernel | None = None,
    wgsl: WgslKernel | None = None,
) -> None:
    """Make a Python function an op that models may use, and that every stage treats like one of Ingot's own.

    name: `swirl` or `mine.swirl`, which no op has.
    function: the reference. Its positional parameters are the operands (default None: optional; `*xs`: any number),
    read-only arrays; its keyword-only ones are the attributes, annotated with bool, int, float, str or a tuple of one
    of these. It returns an array, or a tuple of `outputs` arrays. It must be deterministic, as nodes are merged, folded
    and eliminated.
    infer: the type of the result, or a tuple of types, from the types of the operands and the attributes, as
    `TensorType`; dims may be symbolic. None: the type of the first operand.
    acts_on: "element" or "row" if each element or row of the only result depends only on the operands' elements or rows
    at its position, so that passes may move other ops past it.
    onnx: domain and op type of the nodes that become this op, and that `export_onnx` writes.
    torch: `library::name` of a custom op of torch; its tensors are the operands, and its other arguments the attributes
    of the same names.

    kernel: runs it in a native session if all shapes are known. wgsl: the same in a session on WebGPU, which uses
    `kernel` if there is no `wgsl`. With a kernel, attributes must be bool, int or float.

    Without a kernel the reference runs it; `explain` reports this, and `strict` rejects it. Raises InputError for a
    name that is already used, or for an invalid declaration. If the functions raise an error, or return a wrong result,
    an ExtensionError is raised.
    """
    where = f"register_op {name!r}"
    _check_names(where, name, onnx, torch)
    if acts_on not in ("element", "row", "tensor") or outputs < 1 or (acts_on != "tensor" and outputs > 1):
        expected = "'element' or 'row' with one output, or 'tensor'"
        raise InputError(f"{where}: bad acts_on or outputs, got {acts_on!r} and {outputs}, expected {expected}")
    _check_signature(where, function)
    _check_kernel(where, function, kernel)
    _check_wgsl(where, function, wgsl)
    inferred = _inferring(name, infer or _same_as_first, outputs)
    declared = op(infer=inferred, samples=(), outputs=outputs, acts_on=acts_on, computes=False, name=name)
    declared(_referring(name, function, inferred))
    target = None if torch is None else torch.replace("::", ".")
    if target is not None and target.count(".") == 1:
        target += ".default"
    CUSTOM[name] = Custom(onnx, target, kernel, wgsl, _operands(function))


def unregister_op(name: str) -> None:
    """Remove a registered op; graphs that use it must not be used any more. Raises InputError for an unknown name."""
    if name not in CUSTOM:
        raise InputError(f"unregister_op: no such op, got {name!r}, expected one of {', '.join(CUSTOM) or 'none'}")
    del CUSTOM[name], OPS[name]


def find_onnx(domain: str, op_type: str) -> Op | None:
    """Return the registered op of an ONNX node, or None."""
    for name, custom in CUSTOM.items():
        if custom.onnx == (domain, op_type):
            return OPS[name]
    return None


def find_torch(target: str) -> Op | None:
    """Return the registered op of a torch call, or None; target: `library.name.overload`."""
    return next((OPS[name] for name, custom in CUSTOM.items() if custom.torch == target), None)


def _check_names(where: str, name: str, onnx: tuple[str, str] | None, torch: str | None) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_OP_NAME:
        raise InputError(f"{where}: bad name, expected identifiers joined by dots, at most {MAX_OP_NAME} characters")
    if name in OPS:
        raise InputError(f"{where}: the name is already used, expected one that no op has; see 'ingot ops'")
    if onnx is not None:
        if not isinstance(onnx, tuple) or len(onnx) != 2 or not all(isinstance(part, str) for part in onnx):
            raise InputError(f"{where}: bad ONNX name, got {onnx!r}, expected (domain, op type)")
        if onnx[0] in _OWN_DOMAINS or not onnx[1]:
            raise InputError(f"{where}: bad ONNX name, got {onnx}, expected a domain that is not ONNX's or Ingot's")
        if find_onnx(*onnx) is not None:
            raise InputError(f"{where}: the ONNX name is already used, got {onnx}")
    if torch is not None:
        if not isinstance(torch, str) or not re.fullmatch(r"\w+::\w+(\.\w+)?", torch) or torch.startswith("aten::"):
            expected = "'library::name' with a library other than aten"
            raise InputError(f"{where}: bad torch name, got {torch!r}, expected {expected}")
        target = torch.replace("::", ".")
        if find_torch(target) or find_torch(f"{target}.default"):
            raise InputError(f"{where}: the torch name is already used, got {torch!r}")


def _check_signature(where: str, function: Callable[..., Any]) -> None:
    if not inspect.isroutine(function):
        raise InputError(f"{where}: not a function, got {type(function).__name__}")
    with guarded(f"{where}: its annotations"):
        hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            raise InputError(f"{where}: attributes have names, got **{parameter.name}")
        if parameter.kind is parameter.KEYWORD_ONLY and hints.get(parameter.name) not in ATTRIBUTES:
            got = hints.get(parameter.name, "no annotation")
            raise InputError(f"{where}: bad attribute {parameter.name!r}, got {got}, expected one of {ATTRIBUTES}")
        is_operand = parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if is_operand and parameter.default not in (parameter.empty, None):
            raise InputError(f"{where}: bad operand {parameter.name!r}, got a default, expected none or None")


def _check_kernel(where: str, function: Callable[..., Any], kernel: ExternalKernel | None) -> None:
    if kernel is None:
        return
    if not isinstance(kernel, ExternalKernel) or not set(kernel.dtypes) <= {d.name for d in DTYPES.values()} - {
        "string"
    }:
        raise InputError(f"{where}: bad kernel, got {kernel!r}, expected an ExternalKernel of dtypes that Ingot has")
    _expect_numbers(where, function)


def _check_wgsl(where: str, function: Callable[..., Any], kernel: WgslKernel | None) -> None:
    if kernel is None:
        return
    if not isinstance(kernel, WgslKernel) or not set(kernel.dtypes) <= set(WGSL_DTYPES):
        raise InputError(f"{where}: bad kernel, got {kernel!r}, expected a WgslKernel of {' and '.join(WGSL_DTYPES)}")
    if not re.search(r"\bfn\s+work\s*\(\s*\w+\s*:\s*i32\s*\)", kernel.source):
        raise InputError(f"{where}: bad kernel, got no such function, expected 'fn work(i: i32)' in its source")
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
        raise InputError(f"{where}: operands without names cannot be given to a kernel in WGSL, expected named ones")
    _expect_numbers(where, function)


def _expect_numbers(where: str, function: Callable[..., Any]) -> None:
    hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and hints[parameter.name] not in (bool, int, float):
            raise InputError(f"{where}: attribute {parameter.name!r} cannot be given to a kernel, expected a number")


def _operands(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL))


def kernel_of(graph: Graph, node: Node, device: str = "cpu") -> Kernel | None:
    """Return the user's kernel for a node on a device, if all types are known and the kernel supports them."""
    custom = CUSTOM.get(node.op.name)
    if custom is None:
        return None
    fitting = (kernel for kernel in _kernels(custom, device) if not _refusal(kernel, graph, node))
    return next(fitting, None)


def refusal_of(graph: Graph, node: Node, device: str = "cpu") -> str:
    """Return why no kernel of the user computes a node on a device; "" if its op has none."""
    custom = CUSTOM.get(node.op.name)
    kernels = () if custom is None else _kernels(custom, device)
    return ", ".join(f"{kernel}: {_refusal(kernel, graph, node)}" for kernel in kernels)


def _kernels(custom: Custom, device: str) -> tuple[Kernel, ...]:
    return tuple(k for k in (custom.wgsl if device == "webgpu" else None, custom.kernel) if k is not None)


def _refusal(kernel: Kernel, graph: Graph, node: Node) -> str:
    for name in (*node.operands, *node.outputs):
        type = None if name is None else graph.values[name].type
        if type is None:
            continue
        if not isinstance(type, TensorType) or not type.is_static:
            return f"{name} is {type}, expected a known shape"
        if type.dtype.name not in kernel.dtypes:
            return f"{name} is {type.dtype}, expected {' or '.join(kernel.dtypes)}"
    return ""


def _same_as_first(*types: TensorType | None, **_: Any) -> TensorType | None:
    return types[0] if types else None


def _inferring(name: str, infer: Callable[..., Any], outputs: int) -> Callable[..., Any]:
    """Wrap the inference of an op with checks of its results."""

    @functools.wraps(infer)
    def inferred(*types: TensorType | None, **attributes: Any) -> Any:
        where = f"op {name!r}: its inference"
        with guarded(where):
            returned = infer(*types, **attributes)
        several = returned if isinstance(returned, tuple) else (returned,)
        if len(several) != outputs or not all(isinstance(type, TensorType) for type in several):
            raise ExtensionError(f"{where} gives a wrong result, got {returned!r}, expected {outputs} of TensorType")
        return returned

    return inferred


def _referring(name: str, function: Callable[..., Any], inferred: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the reference of an op with checks against its inference."""

    @functools.wraps(function)
    def reference(*operands: np.ndarray | None, **attributes: Any) -> Any:
        where = f"op {name!r}: its reference"
        with guarded(where):
            results = function(*map(read_only, operands), **attributes)
        types = [None if a is None else TensorType(from_numpy(a.dtype), a.shape) for a in operands]
        expected = inferred(*types, **attributes)
        expected = expected if isinstance(expected, tuple) else (expected,)
        results = results if isinstance(results, tuple) else (results,)
        expect_results(where, results, expected)
        return tuple(map(np.asarray, results))

    reference.__doc__ = function.__doc__ or f"{name}, a registered op."
    return reference


def read_only(array: np.ndarray | None) -> np.ndarray | None:
    """Return a read-only view: operands may be weights, and other nodes read them."""
    if array is None:
        return None
    view = array.view()
    view.flags.writeable = False
    return view


def expect_results(where: str, results: Sequence[Any], expected: Sequence[TensorType]) -> None:
    """Raise ExtensionError unless results have the given types; unknown dims match any size."""
    fits = len(results) == len(expected) and all(map(_is_of, results, expected))
    if not fits:
        got = ", ".join(f"{r.dtype}{list(r.shape)}" if isinstance(r, np.ndarray) else type(r).__name__ for r in results)
        raise ExtensionError(f"{where} gives a wrong result, got {got}, expected {', '.join(map(str, expected))}")


def _is_of(result: Any, type: TensorType) -> bool:
    if not isinstance(result, (np.ndarray, np.generic)) or type.dtype not in DTYPES.values():
        return False
    dims = zip(result.shape, type.shape, strict=False)
    shaped = result.ndim == type.rank and all(not isinstance(dim, int) or dim == size for size, dim in dims)
    return shaped and result.dtype == type.dtype.numpy
