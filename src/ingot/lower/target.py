"""The description of the machine for lowering, which never queries the machine itself."""

import math
from dataclasses import dataclass

from ingot.ir.dtype import DType

_MOST_CHUNKS = 64  # attention over a cache locates each chunk, even if most of the cache is empty


@dataclass(frozen=True, slots=True)
class Target:
    """The device and settings that a plan is built for.

    device: the kind of device, which selects the backend. isa: its instruction set, followed by `+feature` for each
    required feature beyond the minimum of its kind. threads: the maximum number of tasks of a step. alignment: bytes,
    of every root tensor. region_bytes: the largest region. inplace and reuse: whether memory may be shared at all (off,
    they are oracles for the planner). fuses: whether element-wise ops, reductions and norms become fused programs (off,
    it is their oracle). epilogues: whether products have epilogues; with both off, each node is a separate step.
    rounded: dtypes such as bf16 to which products of many rows round the rows for weights of that dtype, by dot
    products that the device must have. split_sums: whether these dot products read 32 numbers and sum even and odd
    elements in separate accumulators, as AMX does, instead of pair by pair. unpacked: names of matrices that another
    program stores unpacked: products of many rows read them in that form. task_nanoseconds: the work of a task that is
    worth its barrier. run_nanoseconds: the work of a run that is worth waking another thread. chunk_nanoseconds: the
    work after which an interrupted run ends, for kernels with preemption chunks; None if no run is interrupted.
    """

    isa: str = "avx512"
    threads: int = 1
    alignment: int = 64
    region_bytes: int = 1 << 46
    inplace: bool = True
    reuse: bool = True
    fuses: bool = True
    epilogues: bool = True
    rounded: tuple[DType, ...] = ()
    split_sums: bool = False
    unpacked: frozenset[str] = frozenset()
    task_nanoseconds: int = 1500
    run_nanoseconds: int = 25_000
    chunk_nanoseconds: int | None = None
    device: str = "cpu"

    @property
    def features(self) -> tuple[str, ...]:
        """The required features of the device beyond the minimum of its kind."""
        return tuple(self.isa.split("+")[1:])

    def chunks(self, nanoseconds: float) -> int:
        """Return the number of preemption chunks of a task of this duration."""
        if self.chunk_nanoseconds is None:
            return 1
        return min(_MOST_CHUNKS, max(1, math.ceil(nanoseconds / self.chunk_nanoseconds)))
