"""What a fuzz target is: a parser, the inputs it starts from, and what a fuzzer may do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Accept = Callable[[bytes], object]
Mutate = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Target:
    """A parser that reads what nobody vouches for.

    what: for the ledger. make: imports the parser and returns a function that reads one input; it raises an IngotError
    for what it refuses. seeds: returns the inputs to start from. mutate: a change that keeps an input's structure,
    taken for one change of two; None leaves all changes to the fuzzer. words: of the format. packages: whose branches
    guide the fuzzer. most: bytes of an input. seconds: CPU time that one input may take. is_limited: in use, a process
    of its own reads the input, and is ended after that time: an input that takes longer is no finding.
    """

    what: str
    make: Callable[[], Accept]
    seeds: Callable[[], list[bytes]]
    mutate: Mutate | None = None
    words: tuple[str, ...] = ()
    packages: tuple[str, ...] = ("ingot",)
    most: int = 4096
    seconds: int = 10
    is_limited: bool = False
