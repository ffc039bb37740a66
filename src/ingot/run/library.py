"""Find the native library, check it against the header that describes it, and open it once."""

import functools
import hashlib
import importlib.resources
import importlib.util
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _cffi_backend import FFI

from ingot.errors import ResourceError
from ingot.ir.dtype import DType, bf16
from ingot.support import abi
from ingot.support.config import ISAS, knob
from ingot.support.locks import OwnedLock
from ingot.support.spans import span

# Further C types for packing weights and running programs: pointers and arrays, written around a declared name.
_OTHER_TYPES = (
    "char*", "void*", "void**", "void*[]", "int32_t*", "int64_t*", "int64_t[]", "uint32_t*", "uintptr_t*",
    "float[]", "ingot_sampler*[]", "ingot_packing[]", "ingot_step[]", "ingot_patch[]", "ingot_resize[]",
)  # fmt: skip

_opened: dict[Path, "Library"] = {}
_opening = OwnedLock("native library", is_awaited=True)


@dataclass(frozen=True)
class Kernel:
    """An entry of the kernel table: the type of its argument struct, and a function pointer per instruction set."""

    name: str
    args_type: str
    functions: dict[str, Any]


@dataclass(frozen=True)
class Library:
    """The open library. `ffi` allocates argument structs, `entry` has the functions that `abi.h` declares.

    types: a pointer to each struct of `abi.h` and the further types, by their C names. words: the index of each field
    of a struct in units of a pointer's size, rounded down, by name. has_bf16_dots: whether this CPU has dot products of
    bf16; without them gemm_bf16's kernels cannot run on avx512. has_bf16_tiles: the same for dot products with split
    sums. amx: the result of `use_amx` when the library was opened.
    """

    path: Path
    ffi: Any
    entry: Any
    types: dict[str, Any]
    words: dict[str, dict[str, int]]
    kernels: dict[str, Kernel]
    best_isa: str
    has_bf16_dots: bool
    has_bf16_tiles: bool
    amx: str

    def isas(self) -> tuple[str, ...]:
        """Return the instruction sets that this CPU runs and the library was built for, in ascending order."""
        functions = next(iter(self.kernels.values())).functions
        return tuple(isa for isa in ISAS[: ISAS.index(self.best_isa) + 1] if isa in functions)

    def isa(self) -> str:
        """Return INGOT_ISA, or the best of `isas()`. Raises ResourceError if the CPU or the library lacks INGOT_ISA."""
        forced = str(knob("INGOT_ISA"))
        if forced and forced not in self.isas():
            raise ResourceError(
                f"INGOT_ISA: this CPU or this build lacks it, got {forced}, expected one of {', '.join(self.isas())}"
            )
        return forced or self.best_isa

    def dots(self, isa: str) -> tuple[tuple[DType, bool], ...]:
        """Return the dot products of this CPU in an instruction set's kernels: their dtype, and `Target.split_sums`."""
        if isa != "avx512":
            return ()
        has = ((False, self.has_bf16_dots), (True, self.has_bf16_tiles))
        return tuple((bf16, split_sums) for split_sums, is_there in has if is_there)

    def use_amx(self, wanted: bool) -> str:
        """Enable or disable AMX for products of integers in this process; must not be called while a program runs.

        Returns "used", "off" (not wanted), "absent" (this CPU has none), or "refused" by the system.
        """
        return _text(self.ffi, self.entry.ingot_use_amx(wanted))

    def new(self, type: str, *initial: Any) -> Any:
        """Allocate a struct or an array of a type of `types`, zeroed except for `initial`; the result owns it."""
        return self.ffi.new(self.types[type], *initial)

    def cast(self, type: str, value: Any) -> Any:
        """Return a pointer of a type of `types`."""
        return self.ffi.cast(self.types[type], value)

    def kernel(self, name: str, isa: str) -> Any:
        """Return the function pointer of a kernel: call it as kernel(args, part, parts)."""
        return self.kernels[name].functions[isa]


def abi_hash() -> str:
    """Return the hash that a library built from this package's declarations contains."""
    hashes = (hashlib.sha256((abi.CSRC / name).read_bytes()).hexdigest() for name in abi.DECLARATIONS)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _find() -> Path:
    """Return the library next to the package or, for an editable install, in site-packages."""
    forced = str(knob("INGOT_LIBRARY"))
    if forced:
        candidates = [Path(forced)]
    else:
        packaged = Path(str(importlib.resources.files("ingot") / "libingot.so"))
        candidates = [packaged, Path(sysconfig.get_path("platlib")) / "ingot" / "libingot.so"]
    for path in candidates:
        if path.is_file():
            return path
    tried = " or ".join(f"'{path}'" for path in candidates)
    raise ResourceError(f"native library: no such file, got nothing, expected {tried}; {_remedy()}")


def _remedy() -> str:
    """Return how the user gets a library that fits the package."""
    return "rebuild it, or unset INGOT_LIBRARY" if knob("INGOT_LIBRARY") else "run 'pip install .'"


def _text(ffi: Any, pointer: Any) -> str:
    return ffi.string(pointer).decode()


def _declarations(path: Path) -> Any:
    """Import the module next to the library that the same build generated from abi.h."""
    spec = importlib.util.spec_from_file_location("libingot", path.with_suffix(".py"))
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _kernel_table(ffi: Any, entry: Any, types: dict[str, Any]) -> dict[str, Kernel]:
    count = ffi.new(types["int32_t*"])
    rows = entry.ingot_kernels(count)
    has_avx2vnni = entry.ingot_has_avx2vnni()
    kernels = {}
    for row in (rows[i] for i in range(count[0])):
        name, args_type = _text(ffi, row.name), _text(ffi, row.args_type)
        assert row.args_bytes == ffi.sizeof(types[args_type].item), f"{name}: {args_type} has another size in C"
        functions = {isa: getattr(row, isa) for isa in ISAS}
        if has_avx2vnni:
            functions["avx2vnni"] = functions["avx2vnni"] or functions["avx2"]
        else:
            del functions["avx2vnni"]
        kernels[name] = Kernel(name, args_type, {isa: body for isa, body in functions.items() if body})
    return kernels


def content_hash(array: np.ndarray) -> str:
    """Return a hash that detects damage in a row-major array's bytes; computed without the interpreter's lock."""
    library = load()
    return f"{library.entry.ingot_hash(library.ffi.from_buffer(array.reshape(-1)), array.nbytes):016x}"


@functools.cache
def load() -> Library:
    """Return the library of this process. Raises ResourceError when it is missing, unreadable or of another build."""
    path = _find()
    with _opening.once():
        if path not in _opened:
            with span("open library"):
                _opened[path] = _open(path)
        return _opened[path]


def _open(path: Path) -> Library:
    try:
        ffi = _declarations(path).ffi
        entry: Any = ffi.dlopen(str(path.absolute()))
        built = _text(ffi, entry.ingot_abi_hash())
    except (OSError, FFI.error) as error:
        raise ResourceError(f"native library '{path}': cannot be opened, got {error}, expected Ingot's own") from error
    expected = abi_hash()
    if built != expected:
        raise ResourceError(
            f"native library '{path}': stale build, got {built[:12]}, expected {expected[:12]}; {_remedy()}"
        )
    _resolve(entry)
    types = {name: ffi.typeof(f"{name}*") for name in abi.structs()} | {type: ffi.typeof(type) for type in _OTHER_TYPES}
    amx = _text(ffi, entry.ingot_use_amx(bool(knob("INGOT_AMX"))))
    word = ffi.sizeof("uintptr_t")
    words = {
        name: {field: member.offset // word for field, member in types[name].item.fields} for name in abi.structs()
    }
    kernels = _kernel_table(ffi, entry, types)
    best_isa = _best_isa(path, _text(ffi, entry.ingot_best_isa()), next(iter(kernels.values())).functions)
    has_bf16_dots = best_isa == "avx512" and bool(entry.ingot_has_bf16_dots())
    return Library(
        path, ffi, entry, types, words, kernels, best_isa, has_bf16_dots, bool(entry.ingot_has_bf16_tiles()), amx
    )


def _best_isa(path: Path, of_cpu: str, built: Iterable[str]) -> str:
    """Return the best instruction set of `built` that this CPU runs. of_cpu: the best that the CPU has."""
    runnable = [isa for isa in ISAS[: ISAS.index(of_cpu) + 1] if isa in built]
    if not runnable:
        raise ResourceError(
            f"native library '{path}': built only for {', '.join(built)}, got a CPU with {of_cpu}, expected a library"
            " for it; build without INGOT_ISAS"
        )
    return runnable[-1]


def _resolve(entry: Any) -> None:
    """Resolve the functions that a program needs: cffi does so under a lock, which a fork may leave locked."""
    for name in dir(entry):
        getattr(entry, name)
