"""What lowering is told about the machine; it never asks."""

import math
from dataclasses import dataclass

from ingot.ir.dtype import DType

_MOST_CHUNKS = 64  # attention over a cache finds the place of each, also where most of the cache is empty


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan will run.

    device: the kind of device, which says what lowering chooses from. isa: its instruction set, and behind a + each
    what it is to have beyond the least of its kind. threads: parts a step may be cut into. alignment: bytes, of every
    root tensor. region_bytes: the largest region.
    inplace and reuse: whether memory may be shared at all (off, they are oracles for the planner). strips: whether
    element-wise ops, reductions and norms become fused programs (off, it is their oracle). epilogues: whether products
    compute what follows with their sums; with neither, each node is a step of its own.
    rounded: dtypes such as bf16 to which products of many rows round these for weights of that dtype, by dot products
    that the device must have. apart: whether these dot products take 32 numbers and sum those of even and of odd places
    apart, as AMX does, and not two after the other.
    unpacked: names of matrices that lie as they are stored for another program: products of many rows read them so.
    part_nanoseconds: the work of a part that is worth its barrier. run_nanoseconds: the work of a whole run that is
    worth waking another thread for. chunk_nanoseconds: the work after which a run that is to end does, where
    kernels can; None where no run is told to.
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
    part_nanoseconds: int = 1500
    run_nanoseconds: int = 25_000
    chunk_nanoseconds: int | None = None
    device: str = "cpu"

    @property
    def features(self) -> tuple[str, ...]:
        """What the device is to have beyond the least of its kind."""
        return tuple(self.isa.split("+")[1:])

    def chunks(self, nanoseconds: float) -> int:
        """In how many chunks a part is done that takes so long."""
        if self.chunk_nanoseconds is None:
            return 1
        return min(_MOST_CHUNKS, max(1, math.ceil(nanoseconds / self.chunk_nanoseconds)))
