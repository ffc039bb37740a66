"""Build the nodes of a template's steps. The attention function, passed in, differs between decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, Source
from ingot.load.hf.mixture import Mixture, write_mixture
from ingot.load.hf.settings import ACTIVATIONS, MAX_SIZE, Settings
from ingot.load.hf.template import (
    Attention,
    Choose,
    Gated,
    Linear,
    Mlp,
    Norm,
    Residual,
    Scale,
    Softcap,
    Step,
    Sum,
    Template,
)
from ingot.load.hf.weights import MIN_BITS, TABLE_BITS, Weights

# The attention function: (builder, step, q, k, v) -> rows; q, k, v are [..., heads, head_dim].
Attend = Callable[["LayerBuilder", Attention, str, str, str], str]


class LayerBuilder:
    """Add nodes to a graph for one layer, or for the steps before and after the layers.

    Activations are [*rows, width]. Values are named after the paths of their weights.
    """

    def __init__(
        self,
        graph: Graph,
        template: Template,
        settings: Settings,
        weights: Weights,
        rows: tuple[Known, ...],
        attend: Attend,
    ):
        self.graph = graph
        self.template = template
        self.settings = settings
        self.weights = weights
        self.rows = rows
        self.names: Mapping[str, Any] = settings.values
        self._attend = attend
        self.path = weights.prefix
        self._constants: dict[tuple[float, DType], str] = {}
        self._sources = 0  # steps and matrices that serve as origins of nodes

    @contextmanager
    def _from(self, op: str, path: str, name: str = "") -> Iterator[None]:
        """Set the origin of new nodes, within the context, to a step or matrix of the model at a path."""
        enclosing = self.graph.origin
        self.graph.origin = (Source(self._sources, name, op, module=path.strip(".")),)
        self._sources += 1
        yield
        self.graph.origin = enclosing

    def enter_layer(self, layer: int) -> None:
        """Use the names and paths of a layer from here on."""
        names = self.settings.values | {"layer": layer}
        for name, value in self.settings.values.items():
            key = self.template.config.get(name)
            if key is not None and key.type == "per_layer":
                names[name] = value[layer]
        for name, expression in self.template.layer_let.items():
            names[name] = expression.evaluate(names)
        self.names = names
        self.path = self.weights.prefix + self.template.layer_path.replace("{layer}", str(layer))

    def leave_layers(self) -> None:
        """Use the names and paths outside of layers again."""
        self.names = self.settings.values
        self.path = self.weights.prefix

    def add(self, op: str, *operands: str, hint: str = "", **attributes: Any) -> str:
        """Add a node named after the current path and `hint`."""
        return self.graph.add(op, operands, f"{self.path}{hint or op}", **attributes).output

    def apply(self, steps: Sequence[Step], x: str) -> str:
        """Apply steps to x."""
        for step in steps:
            with self._from(type(step).__name__, self.path):
                x = self._step(step, x)
        return x

    def table(self, path: str, rows: int, where: str) -> str:
        """Return `<path>.weight` [rows, width]; if matrices are quantized, with at least 8 bits."""
        name = f"{self.path}{path}.weight"
        return self.weights.value(name, (rows, self.names["width"]), where, min_bits=TABLE_BITS)

    def linear(
        self, linear: Linear, x: str, inputs: int, outputs: int, *, prefixed: bool = True, min_bits: int = MIN_BITS
    ) -> str:
        """Multiply x [..., inputs] by a weight, and add its bias, if any: [..., outputs].

        min_bits: see `Weights`.
        """
        path = f"{self.path}{linear.path}" if prefixed else linear.path
        weight, is_transposed = self.weights.matrix(
            f"{path}.weight", inputs, outputs, linear.transposed, linear.where, min_bits=min_bits
        )
        with self._from("Linear", path, path):
            result = self.add("matmul", x, weight, hint=linear.path, transpose_b=not is_transposed)
            if linear.bias.evaluate(self.names):
                bias = self.weights.value(f"{path}.bias", (outputs,), linear.where)
                result = self.add("add", result, bias, hint=f"{linear.path}.biased")
        return result

    def norm(self, norm: Norm, x: str) -> str:
        """Normalize x over its last axis."""
        eps = norm.eps.number(self.names)
        width = self.graph.type(x).shape[-1]
        assert isinstance(width, int)
        operands = [x, self.weights.value(f"{self.path}{norm.path}.weight", (width,), norm.where)]
        if norm.unit_offset.evaluate(self.names):
            operands[1] = self.add("add", operands[1], self.constant(1.0), hint=f"{norm.path}.offset")
        if norm.bias.evaluate(self.names):
            operands.append(self.weights.value(f"{self.path}{norm.path}.bias", (width,), norm.where))
        path = f"{self.path}{norm.path}"
        with self._from("Norm", path, path):
            return self.add(norm.op, *operands, hint=norm.path, eps=eps)

    def _step(self, step: Step, x: str) -> str:
        match step:
            case Norm():
                return self.norm(step, x)
            case Attention():
                return self._attention(step, x)
            case Mlp():
                return self._mlp(step, x)
            case Mixture():
                return write_mixture(self, step, x)
            case Residual(steps):
                return self.add("add", x, self.apply(steps, x), hint="residual")
            case Sum(branches):
                first, *others = [self.apply(branch, x) for branch in branches]
                for other in others:
                    first = self.add("add", first, other, hint="sum")
                return first
            case Gated(by, steps):
                share = self.add("sigmoid", self.linear(by, x, self.names["width"], 1, min_bits=f32.bits))
                return self.add("mul", share, self.apply(steps, x), hint="gated")
            case Scale(factor):
                value = factor.number(self.names)
                return x if value == 1.0 else self.add("mul", x, self.constant(value), hint="scaled")
            case Softcap(cap):
                return self.softcap(cap.number(self.names), x)
            case Choose(when, then, otherwise):
                return self.apply(then if when.evaluate(self.names) else otherwise, x)
        raise AssertionError(step)

    def softcap(self, cap: float, x: str) -> str:
        """Compute cap * tanh(x / cap); return x where cap is 0."""
        if not cap:
            return x
        capped = self.add("tanh", self.add("mul", x, self.constant(1 / cap), hint="uncapped"))
        return self.add("mul", capped, self.constant(cap), hint="capped")

    def _mlp(self, mlp: Mlp, x: str) -> str:
        width, size = self.names["width"], mlp.size.integer(self.names, 1, MAX_SIZE)
        activation = mlp.activation.word(self.names, ACTIVATIONS)
        gate: str | None = None
        if mlp.gate_up is not None:
            both = self.linear(mlp.gate_up, x, width, 2 * size)
            gate, up = self.columns(both, 0, size), self.columns(both, size, 2 * size)
        else:
            assert mlp.up is not None
            if mlp.gate is not None:
                gate = self.linear(mlp.gate, x, width, size)
            up = self.linear(mlp.up, x, width, size)
        if gate is None:
            inner = self.activate(activation, up)
        else:
            inner = self.add("mul", self.activate(activation, gate), up, hint="gated")
        return self.linear(mlp.down, inner, size, width)

    def activate(self, activation: str, x: str) -> str:
        """Apply one of ACTIVATIONS."""
        op, approximate = ACTIVATIONS[activation]
        return self.add(op, x) if approximate is None else self.add(op, x, approximate=approximate)

    def _attention(self, attention: Attention, x: str) -> str:
        names = self.names
        heads, kv_heads, head_dim = names["heads"], names["kv_heads"], names["head_dim"]
        if heads % kv_heads:
            fields = self.settings.field("heads", "kv_heads")
            raise LoadError(f"{fields}: heads do not divide into groups, got {heads} and {kv_heads}")
        if attention.qkv is not None:
            q, k, v = self._split(attention, x)
        else:
            assert attention.q and attention.k and attention.v
            width = names["width"]
            q = self._heads(self.linear(attention.q, x, width, heads * head_dim), attention.q_norm)
            k = self._heads(self.linear(attention.k, x, width, kv_heads * head_dim), attention.k_norm)
            v = self._heads(self.linear(attention.v, x, width, kv_heads * head_dim), None)
        result = self._attend(self, attention, q, k, v)
        result = self.add("reshape", result, hint="heads", shape=(*self.rows, heads * head_dim))
        return self.linear(attention.out, result, heads * head_dim, names["width"])

    def _heads(self, x: str, norm: Norm | None) -> str:
        """Reshape [..., heads * head_dim] -> [..., heads, head_dim], normalized before or after."""
        head_dim = self.names["head_dim"]
        columns = self.graph.type(x).shape[-1]
        assert isinstance(columns, int)
        if norm is not None and norm.over == "all":
            x = self.norm(norm, x)
        x = self.add("reshape", x, hint="heads", shape=(*self.rows, columns // head_dim, head_dim))
        return self.norm(norm, x) if norm is not None and norm.over == "head" else x

    def _split(self, attention: Attention, x: str) -> tuple[str, str, str]:
        """Return q, k and v, split from one product."""
        assert attention.qkv is not None
        heads, kv_heads, head_dim = (self.names[name] for name in ("heads", "kv_heads", "head_dim"))
        columns = (heads + 2 * kv_heads) * head_dim
        fused = self.linear(attention.qkv, x, self.names["width"], columns)
        if attention.split == "stacked":
            ends = [0, heads * head_dim, (heads + kv_heads) * head_dim, columns]
            parts = [self.columns(fused, a, b) for a, b in pairwise(ends)]
            q, k, v = (
                self._heads(part, norm)
                for part, norm in zip(parts, (attention.q_norm, attention.k_norm, None), strict=True)
            )
            return q, k, v
        if heads != kv_heads:
            fields = self.settings.field("heads", "kv_heads")
            raise LoadError(f"{fields}: differ, got {heads} and {kv_heads}, expected equal ones ({attention.where})")
        each = self.add("reshape", fused, hint="heads", shape=(*self.rows, heads, 3 * head_dim))
        q, k, v = (self.columns(each, i * head_dim, (i + 1) * head_dim) for i in range(3))
        return q, k, v

    def columns(self, x: str, start: int, stop: int, step: int = 1) -> str:
        """Slice a range of the last axis."""
        *outer, _ = self.graph.type(x).shape
        starts, steps = (*(0 for _ in outer), start), (*(1 for _ in outer), step)
        return self.add("slice", x, starts=starts, stops=(*outer, stop), steps=steps, hint="columns")

    def rotated(self, x: str, cos: str, sin: str) -> str:
        """Rotate the first elements of x [..., heads, head_dim], as many as there are angles."""
        *_, head_dim = self.graph.type(x).shape
        *_, dim = self.graph.type(cos).shape
        assert isinstance(head_dim, int) and isinstance(dim, int)
        if dim == head_dim:
            return self.add("rotary", x, cos, sin, hint="rotated")
        rotated_part = self.add("rotary", self.columns(x, 0, dim), cos, sin, hint="rotated")
        axis = len(self.graph.type(x).shape) - 1
        return self.add("concat", rotated_part, self.columns(x, dim, head_dim), hint="rotated", axis=axis)

    def constant(self, value: float | int, dtype: DType = f32) -> str:
        """Return a number as a constant of shape []; each number is added once."""
        if (value, dtype) not in self._constants:
            name = self.graph.fresh(f"constant.{len(self._constants)}")
            self._constants[value, dtype] = self.graph.add_constant(name, np.array(value, dtype.numpy))
        return self._constants[value, dtype]
