"""Atomic changes of a trainer's states: after a Ctrl-C at any point, a step is either done completely or undone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Change:
    """A change of states by one C call, and the values to restore if it was interrupted before the call.

    otherwise: the values of states if the call did not run. codes: receives the exit code of the call; a C call is not
    interrupted, so the code is there if and only if the call ran. loss: the loss that the call computes. step: the
    number of the step.
    """

    otherwise: Mapping[str, np.ndarray] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    loss: np.ndarray = field(default_factory=lambda: np.zeros((), np.float32))
    step: int = 0

    def settle(self, states: Mapping[str, np.ndarray]) -> None:
        """Restore the states unless the change is complete. Calling it again has no effect."""
        if not self.codes:
            for name, array in self.otherwise.items():
                states[name][...] = array

    @property
    def fault(self) -> str:
        """The reason why the states are those of an incomplete step, or ""."""
        if any(self.codes):
            return f"an index out of range in step {self.step}"
        return "" if math.isfinite(self.loss) else f"a loss of {self.loss} in step {self.step}"
