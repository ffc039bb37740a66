"""The options of a language model, with defaults resolved for a folder and this machine."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import InputError
from ingot.ir.dtype import DType, bf16, f32, i4, i8
from ingot.llm.engine import mixed_rows
from ingot.load.hf import Folder, LanguageModel, load_language_model, longest_context
from ingot.load.hf.quantization import becomes_floats, quantization_of
from ingot.lower import Target
from ingot.passes.precision import PRECISIONS, precision_of
from ingot.run.library import load
from ingot.support.machine import usable_threads

EXECUTORS = ("native", "webgpu")
CACHE_DTYPES = {"f32": f32, "bf16": bf16, "int8": i8, "int4": i4}
DEFAULT_CONTEXT = 4096
MAX_SEQUENCES = 256  # active at once
MAX_CHECKPOINTS = 4096  # lengths of all sequences after which prompts may part from cached ones
MAX_THREADS = 256  # of a language model
_CHUNK_NANOSECONDS = 4_000_000  # leaves margin for slow machines: a stop within 200 ms feels immediate


@dataclass(frozen=True, slots=True)
class Options:
    """Options with their defaults resolved. weights: the storage dtype of matrices, None for that of the files."""

    precision: str
    cache_dtype: str
    context: int
    sequences: int
    weights: DType | None
    target: Target
    cache_positions: int | None = None
    checkpoints: int = 0

    @staticmethod
    def of(
        folder: Folder,
        *,
        context: int | None,
        precision: str | None,
        threads: int,
        cache_dtype: str | None,
        sequences: int,
        executor: str = "native",
        cache_positions: int | None = None,
        checkpoints: int | None = None,
    ) -> Options:
        """Check the options and resolve their defaults.

        Raises InputError for an option out of its range, UnsupportedError for a precision that this machine does not
        support, and the errors of reading the folder's configuration.
        """
        _expect_one_of("executor", executor, EXECUTORS)
        stored = _stored(folder)
        is_native = executor == "native"
        chosen = precision_of(precision or (_default(folder, stored) if is_native else "f32"))
        cache_dtype = cache_dtype or ("f32" if chosen.weights is None or not is_native else "bf16")
        _expect_one_of("cache_dtype", cache_dtype, tuple(CACHE_DTYPES) if is_native else ("f32",))
        expect_range("threads", threads, 0, MAX_THREADS)
        expect_range("sequences", sequences, 1, MAX_SEQUENCES)
        if cache_positions is not None:
            expect_range("cache_positions", cache_positions, 1, 1 << 31)
        if checkpoints is None:
            checkpoints = sequences
        expect_range("checkpoints", checkpoints, 0, MAX_CHECKPOINTS)
        if context is not None:
            expect_range("context", context, 1, 1 << 31)
        positions = min(longest_context(folder), DEFAULT_CONTEXT) if context is None else context
        weights = None if PRECISIONS[stored].weights is chosen.weights else chosen.weights
        if not is_native:
            from ingot.lower.wgpu import webgpu_target

            return Options(
                chosen.name,
                cache_dtype,
                positions,
                sequences,
                weights,
                webgpu_target(chosen),
                cache_positions,
                checkpoints,
            )
        library = load()
        isa = library.isa()
        # Without bf16 dot products of the CPU, no rows are rounded to bf16. bf16amx requires AMX tiles explicitly.
        rounded = chosen.rounded(library.dots(isa), required=chosen.split_sums)
        target = Target(
            isa,
            threads or usable_threads(),
            rounded=rounded,
            split_sums=chosen.split_sums,
            chunk_nanoseconds=_CHUNK_NANOSECONDS,
        )
        return Options(chosen.name, cache_dtype, positions, sequences, weights, target, cache_positions, checkpoints)

    def load(self, folder: Folder, *, has_windows: bool = False) -> LanguageModel:
        """Load the folder's model. Raises LoadError, UnsupportedError or LimitError.

        has_windows: whether layers with a window cache only what the runs of an engine need.
        """
        return load_language_model(
            folder,
            context=self.context,
            sequences=self.sequences,
            cache_positions=self.cache_positions,
            cache_dtype=CACHE_DTYPES[self.cache_dtype],
            weights=self.weights,
            rows=mixed_rows(self.context, self.sequences) if has_windows else None,
            checkpoints=self.checkpoints if has_windows else 0,
        )


def _stored(folder: Folder) -> str:
    """Return the precision that stores a folder's matrices unchanged: int8 for quantized weights of any width, f32 for
    those that become floats.
    """
    if _become_floats(folder):
        return "f32"
    if quantization_of(folder) is not None:
        return "int8"
    sizes = {"f32": 0, "bf16": 0, "int8": 0}
    for tensor in folder.tensors.values():
        sizes["int8" if tensor.is_quantized else "bf16" if tensor.dtype is bf16 else "f32"] += tensor.nbytes
    return max(sizes, key=sizes.__getitem__)


def _default(folder: Folder, stored: str) -> str:
    """Return the precision by default: for quantized weights that become floats bf16, as they lose less by it than they
    lost before.
    """
    return "bf16" if _become_floats(folder) else stored


def _become_floats(folder: Folder) -> bool:
    """Return whether quantized weights of a folder become floats."""
    if quantization_of(folder) is not None:
        return becomes_floats(folder)
    return any(tensor.becomes_floats for tensor in folder.tensors.values())


def _expect_one_of(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise InputError(f"option {name}: unknown value, got {value!r}, expected one of {', '.join(valid)}")


def expect_range(name: str, value: int, low: int, high: int) -> None:
    """Raise InputError unless an option is an int in low..high."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"option {name}: out of range, got {value!r}, expected {low}..{high}")
