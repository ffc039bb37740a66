"""What lowering is told about the machine; it never asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan will run.

    threads: parts a step may be cut into. alignment: bytes, of every root tensor. region_bytes: the largest region.
    inplace and reuse: whether memory may be shared at all (off, they are oracles for the planner). part_nanoseconds:
    the work that is worth another part; it is longer than waking a thread and meeting it again at a barrier takes.
    """

    isa: str = "avx512"
    threads: int = 1
    alignment: int = 64
    region_bytes: int = 1 << 46
    inplace: bool = True
    reuse: bool = True
    part_nanoseconds: int = 6000
