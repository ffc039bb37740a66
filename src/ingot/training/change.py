"""What a trainer's states hold is that of no step or of a whole one, wherever Ctrl-C strikes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Change:
    """A change of what states hold, made by one C call, and what has to be done should it have been interrupted.

    otherwise: what states are to hold while the call has not been made. codes: of that call, its exit code; whoever is
    interrupted finds it there as soon as it has been made, and a C call is not interrupted. loss: what it computes.
    step: the number of the step that it is.
    """

    otherwise: Mapping[str, np.ndarray] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)
    loss: np.ndarray = field(default_factory=lambda: np.zeros((), np.float32))
    step: int = 0

    def settle(self, states: Mapping[str, np.ndarray]) -> None:
        """Puts into states what they are to hold, unless it has been made. Again is as good as once."""
        if not self.codes:
            for name, array in self.otherwise.items():
                states[name][...] = array

    @property
    def fault(self) -> str:
        """Why states hold what is of no step, or ""."""
        if any(self.codes):
            return f"an index out of range in step {self.step}"
        return "" if math.isfinite(self.loss) else f"a loss of {self.loss} in step {self.step}"
