"""What engines do alike that are called for one token after the other."""

from __future__ import annotations

import time
from typing import Protocol


class Greedy(Protocol):
    """A model that continues prompts greedily: by `start`, which begins anew and gives the first token after a prompt,
    and `follow`, the next one after a token."""

    def start(self, ids: list[int]) -> int: ...
    def follow(self, token: int) -> int: ...

    def setting(self, measure: str) -> str:
        return ""

    def choose(self, measure: str, ids: list[int], count: int) -> None:
        """Run once, as a warm-up."""
        if count:
            self.decode(ids, count)
        else:
            self.prefill(ids)

    def prefill(self, ids: list[int]) -> float:
        """Seconds to the first token."""
        begin = time.perf_counter()
        self.start(ids)
        return time.perf_counter() - begin

    def decode(self, ids: list[int], count: int) -> float:
        """Seconds of each of so many tokens after the first."""
        token = self.start(ids)
        begin = time.perf_counter()
        for _ in range(count):
            token = self.follow(token)
        return (time.perf_counter() - begin) / count

    def greedy(self, ids: list[int], count: int) -> list[int]:
        tokens = [self.start(ids)]
        while len(tokens) < count:
            tokens.append(self.follow(tokens[-1]))
        return tokens
