"""Optimizers: the update of parameters as nodes of a training graph, with their moments as states."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import KindError
from ingot.gradients.registry import Backward
from ingot.ir.dtype import f32, f64
from ingot.training.ranges import expect_range
from ingot.training.schedules import Schedule, rate_at

RATE = "rate"  # the input with the learning rate, f64[]
STEP = "step"  # the state with the number of steps done, f64[]


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum, as torch.optim.SGD.

    lr: the learning rate, or a function of the step, counted from 0. Raises InputError for numbers out of range, and
    KindError for values that are not numbers.
    """

    lr: float | Schedule
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        rate_at(self.lr, 0, "SGD lr")
        expect_range("SGD momentum", self.momentum, 1.0)
        expect_range("SGD weight_decay", self.weight_decay)

    @property
    def kept(self) -> int:
        """The number of stored arrays per parameter, including the parameter itself."""
        return 2 if self.momentum else 1

    def write(self, g: Backward, gradients: dict[str, str]) -> None:
        """Add the update of each parameter, a state, by its gradient. The graph has RATE, STEP and STEP's update."""
        rate = g.cast(RATE, dtype=f32)
        for name, d in gradients.items():
            g.at(name)
            if self.momentum:
                velocity = g.graph.add_state(g.graph.fresh(f"{name}.velocity"), g.type(name))
                operands, decay = [name, velocity, d, rate], self.weight_decay
                node = g.graph.add("sgd", operands, f"{name}.next", momentum=self.momentum, decay=decay)
                for state, update in zip((name, velocity), node.outputs, strict=True):
                    g.graph.set_state(state, update)
                continue
            if self.weight_decay:
                d = g.add(d, g.mul(name, self.weight_decay))
            g.graph.set_state(name, g.sub(name, g.mul(d, rate)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay, as torch.optim.AdamW.

    lr: the learning rate, or a function of the step, counted from 0. Raises InputError for numbers out of range, and
    KindError for values that are not numbers.
    """

    lr: float | Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        rate_at(self.lr, 0, "AdamW lr")
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise KindError(f"AdamW betas: no pair, got {self.betas!r}, expected two numbers")
        for beta in self.betas:
            expect_range("AdamW betas", beta, 1.0)
        expect_range("AdamW eps", self.eps)
        expect_range("AdamW weight_decay", self.weight_decay)

    @property
    def kept(self) -> int:
        """The number of stored arrays per parameter: itself, the mean of gradients and the mean of their squares."""
        return 3

    def write(self, g: Backward, gradients: dict[str, str]) -> None:
        """Add the updates as `SGD.write`. Factors shared by all parameters are computed once, in f64."""
        graph = g.graph
        step = graph.states[STEP]
        g.at(step)
        first, second = (g.sub(1.0, g.pow(g.constant(beta, f64), step)) for beta in self.betas)
        numbers = (g.sub(1.0, g.mul(RATE, self.weight_decay)), g.div(RATE, first), g.rsqrt(second))
        shared = [g.cast(number, dtype=f32) for number in numbers]
        beta1, beta2 = self.betas
        for name, d in gradients.items():
            g.at(name)
            moments = [graph.add_state(graph.fresh(f"{name}.{what}"), g.type(name)) for what in ("mean", "square")]
            operands = [name, *moments, d, *shared]
            node = graph.add("adamw", operands, f"{name}.next", beta1=beta1, beta2=beta2, eps=self.eps)
            for state, update in zip((name, *moments), node.outputs, strict=True):
                graph.set_state(state, update)


Optimizer = SGD | AdamW


def optimizer_of(name: str, rate: float) -> Optimizer:
    """Return an optimizer by name with a learning rate and default settings. Raises KindError for an unknown name."""
    if name not in _OPTIMIZERS:
        raise KindError(f"optimizer: unknown, got {name!r}, expected one of {', '.join(_OPTIMIZERS)}")
    return _OPTIMIZERS[name](lr=rate)


_OPTIMIZERS: dict[str, type[SGD] | type[AdamW]] = {"adamw": AdamW, "sgd": SGD}
