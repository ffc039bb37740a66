"""Build the nodes of a template's steps. The attention function, passed in, differs between decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dim import Known
from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, Source
from ingot.load.hf.activations import ACTIVATIONS
from ingot.load.hf.expression import Expression
from ingot.load.hf.layers import Adapter, Linear, Norm
from ingot.load.hf.mixture import Mixture
from ingot.load.hf.recurrence import Recurrent
from ingot.load.hf.settings import MAX_SIZE, Settings, layer_names
from ingot.load.hf.streams import apply_streams
from ingot.load.hf.template import (
    Activate,
    Attention,
    Choose,
    Concat,
    Gated,
    LayerInput,
    LayerInputs,
    Merge,
    Mlp,
    Project,
    Residual,
    Row,
    Scale,
    Softcap,
    Spread,
    Step,
    Streams,
    Sum,
    Template,
    Times,
    WeightsOf,
)
from ingot.load.hf.weights import MIN_BITS, TABLE_BITS, Weights

# The attention function: (builder, step, x) -> rows.
Attend = Callable[["LayerBuilder", Attention, str], str]
# The function of a mixture of experts: (builder, step, x) -> rows.
Mix = Callable[["LayerBuilder", Mixture, str], str]
# Builds a layer with recurrent state: (builder, step, x) -> rows.
Recur = Callable[["LayerBuilder", Recurrent, str], str]


class LayerBuilder:
    """Add nodes to a graph for one layer, or for the steps before and after the layers.

    Activations are [*rows, width]. Values are named after the paths of their weights. is_tied: whether the table of
    tokens is the matrix of the head, too.
    """

    def __init__(
        self,
        graph: Graph,
        template: Template,
        settings: Settings,
        weights: Weights,
        rows: tuple[Known, ...],
        attend: Attend,
        mix: Mix,
        recur: Recur | None = None,
    ):
        self.graph = graph
        self.template = template
        self.settings = settings
        self.weights = weights
        self.rows = rows
        self.names: Mapping[str, Any] = settings.values
        self._attend = attend
        self._mix = mix
        self._recur = recur
        self.path = weights.prefix
        self._constants: dict[tuple[float, DType], str] = {}
        self._layer_inputs: tuple[str, int] | None = None  # of all layers, and the size of one
        self._learned = "", ""  # the path of the weights of an mlp's activation, and the line that names it
        self.embedding = ""  # of the tokens, which `concat` steps read
        self._sources = 0  # steps and matrices that serve as origins of nodes
        head = template.head
        self.is_tied = head is not None and bool(head.tied.evaluate(self.names))
        if head is not None and self.is_tied:
            table = f"{weights.prefix}{template.embedding.tokens}.weight"
            self.is_tied = weights.tie(table, f"{head.linear.path}.weight")

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
        self.names = layer_names(self.template, self.settings, layer)
        self.path = self._layer_path(layer)

    def _layer_path(self, layer: int) -> str:
        return self.weights.prefix + self.template.layer_path.replace("{layer}", str(layer))

    def leave_layers(self) -> None:
        """Use the names and paths outside of layers again."""
        self.names = self.settings.values
        self.path = self.weights.prefix

    def leave_prefix(self) -> None:
        """Use paths without a prefix from here on."""
        self.path = ""

    def full_path(self, name: str) -> str:
        """Return the name of a weight or value of the current layer."""
        return f"{self.path}{name}"

    def add(self, op: str, *operands: str, hint: str = "", **attributes: Any) -> str:
        """Add a node named after the current path and `hint`."""
        return self.graph.add(op, operands, f"{self.path}{hint or op}", **attributes).output

    def apply(self, steps: Sequence[Step], x: str) -> str:
        """Apply steps to x."""
        for step in steps:
            with self._from(type(step).__name__, self.path):
                x = self._step(step, x)
        return x

    def table(self, path: str, rows: int, where: str, width: int | None = None) -> str:
        """Return `<path>.weight` [rows, width]; if matrices are quantized, with at least 8 bits.

        width: None for the model's.
        """
        shape = (rows, self.names["width"] if width is None else width)
        return self.weights.value(f"{self.path}{path}.weight", shape, where, min_bits=TABLE_BITS)

    def embed_for_layers(self, inputs: LayerInputs, x: str) -> None:
        """Build the embeddings of "ids" for each layer, which `layer_input` steps read; x: those of the model."""
        names = self.names
        size, rows = inputs.size.integer(names, 1, MAX_SIZE), inputs.rows.integer(names, 1, MAX_SIZE)
        table = self.table(inputs.table, rows, inputs.where, names["layers"] * size)
        ids = "ids"
        if rows < names["vocab"]:
            dtype = self.graph.type("ids").dtype
            is_known = self.add("less", ids, self.constant(rows, dtype), hint=f"{inputs.table}.known")
            ids = self.add("where", is_known, ids, self.constant(0, dtype), hint=f"{inputs.table}.ids")
        found = self.add("gather", table, ids, hint=inputs.table, axis=0)
        found = self.add("mul", found, self.constant(inputs.table_factor.number(names)), hint="scaled")
        (*_, width) = self.graph.type(x).shape
        assert isinstance(width, int)
        projected = self.linear(inputs.project, x, width, names["layers"] * size)
        projected = self.add("mul", projected, self.constant(inputs.factor.number(names)), hint="scaled")
        projected = self.add("reshape", projected, hint="layers", shape=(*self.rows, names["layers"], size))
        projected = self.norm(inputs.norm, projected)
        projected = self.add("reshape", projected, hint="layers", shape=(*self.rows, names["layers"] * size))
        total = self.add("add", projected, found, hint="layer_inputs")
        self._layer_inputs = (
            self.add("mul", total, self.constant(inputs.scale.number(names)), hint="layer_inputs"),
            size,
        )

    def _layer_input(self, step: LayerInput, x: str) -> str:
        if self._layer_inputs is None:
            raise LoadError(
                f"{step.gate.where}: layer_input: no inputs of layers, expected 'layer_inputs' of embedding"
            )
        (every, size), layer = self._layer_inputs, self.names["layer"]
        width = self.names["width"]
        activation = ACTIVATIONS[step.activation.word(self.names, ACTIVATIONS)]
        gate = activation(self, self.linear(step.gate, x, width, size))
        own = self.columns(every, layer * size, (layer + 1) * size)
        return self.linear(step.out, self.add("mul", gate, own, hint="gated"), size, width)

    def parameter(self, name: str) -> str:
        """Return a number that an activation reads from the file, []. Raises LoadError if the mlp names no path."""
        path, where = self._learned
        if path == self.path:
            raise LoadError(f"{where}: this activation has weights, expected 'learned', their path")
        return self.weights.number(f"{path}.{name}", where)

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
                result = self.add("add", result, self.bias(linear, path, outputs), hint=f"{linear.path}.biased")
        if linear.adapter is not None and (rank := linear.adapter.rank.integer(self.names, 0, MAX_SIZE)):
            result = self.add("add", result, self._adapted(linear, linear.adapter, rank, x, inputs, outputs))
        return result

    def _adapted(self, linear: Linear, adapter: Adapter, rank: int, x: str, inputs: int, outputs: int) -> str:
        """Return the product of an adapter with x."""
        index = str(adapter.index.integer(self.names, 0, MAX_SIZE))
        for path, rows, columns in ((adapter.down, inputs, rank), (adapter.up, rank, outputs)):
            one = Linear(linear.where, path.replace("{index}", index), Expression("false", linear.where), False)
            x = self.linear(one, x, rows, columns)
        return x

    def bias(self, linear: Linear, path: str, outputs: int) -> str:
        """Return the bias of a linear layer at a path, [outputs]."""
        names = [f"{self.path}{name}" for name in linear.bias_paths] or [f"{path}.bias"]
        return self.weights.value(self.weights.first_of(names), (outputs,), linear.where)

    def norm(self, norm: Norm, x: str) -> str:
        """Normalize x over its last axis."""
        if not norm.when.evaluate(self.names):
            return x
        eps = norm.eps.number(self.names)
        dims = self.graph.type(x).shape[-2 if norm.over == "heads" else -1 :]
        shape = tuple(dim for dim in dims if isinstance(dim, int))
        if len(shape) != len(dims):
            raise LoadError(f"{norm.where}: over: got heads of rows, expected queries, keys or values")
        path = f"{self.path}{norm.path}"
        weight = self._norm_weight(norm, path, shape) if norm.weight.evaluate(self.names) else None
        bias = self.weights.value(f"{path}.bias", shape, norm.where) if norm.bias.evaluate(self.names) else None
        with self._from("Norm", path, path):
            if len(shape) == 1:
                last = [each for each in (weight, bias) if each is not None]
                operands = [x, None, bias] if weight is None and bias is not None else [x, *last]
                return self.graph.add(norm.op, operands, f"{self.path}{norm.path}", eps=eps).output
            x = self.add(norm.op, x, hint=norm.path, eps=eps)
            x = x if weight is None else self.add("mul", x, weight, hint=norm.path)
            return x if bias is None else self.add("add", x, bias, hint=norm.path)

    def _norm_weight(self, norm: Norm, path: str, shape: tuple[int, ...]) -> str:
        """Return the weight of a norm; {head} in its path: a folder stores it as one vector for each head, a GGUF file
        as one matrix.
        """
        if "{head}" in path and not self.weights.has(f"{path}.weight"):
            heads, dim = shape
            parts = [
                self.weights.value(f"{path.replace('{head}', str(head))}.weight", (dim,), norm.where)
                for head in range(heads)
            ]
            weight = self.add("reshape", self.add("concat", *parts, hint=norm.path, axis=0), shape=shape)
        else:
            weight = self.weights.value(f"{path}.weight", shape, norm.where, is_exact=True)
        if norm.unit_offset.evaluate(self.names):
            weight = self.add("add", weight, self.constant(1.0), hint=f"{norm.path}.offset")
        return weight

    def _step(self, step: Step, x: str) -> str:
        match step:
            case Norm():
                return self.norm(step, x)
            case Attention():
                return self._attend(self, step, x)
            case Mlp():
                return self._mlp(step, x)
            case Mixture():
                return self._mix(self, step, x)
            case Recurrent():
                if self._recur is None:
                    raise UnsupportedError(f"{step.where}: {step.kind}: no recurrent state outside of a language model")
                return self._recur(self, step, x)
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
                return self.scaled(factor.number(self.names), x)
            case Softcap(cap):
                return self.softcap(cap.number(self.names), x)
            case Project(linear, size):
                return self.linear(linear, x, self.columns_of(x), size.integer(self.names, 1, MAX_SIZE))
            case Activate(activation):
                return ACTIVATIONS[activation.word(self.names, ACTIVATIONS)](self, x)
            case Times():
                shape = (step.size.integer(self.names, 1, MAX_SIZE),)
                return self.add("mul", x, self.weights.value(f"{self.path}{step.path}", shape, step.where))
            case Row():
                return self._joined(step, x)
            case LayerInput():
                return self._layer_input(step, x)
            case Spread() | Merge() | Streams():
                return apply_streams(self, step, x)
            case Concat():
                axis = len(self.graph.type(x).shape) - 1
                return self.add("concat", x, self.embedding, hint="concat", axis=axis)
            case WeightsOf(layer, own, steps):
                path = self.path
                if own is None or not self.weights.has(f"{path}{own}"):
                    self.path = self._layer_path(layer.integer(self.names, 0, self.names["layers"] - 1))
                x = self.apply(steps, x)
                self.path = path
                return x
            case Choose(when, then, otherwise):
                return self.apply(then if when.evaluate(self.names) else otherwise, x)
        raise AssertionError(step)

    def _joined(self, row: Row, x: str) -> str:
        """Add a row of a table to x, or append it to each row of x."""
        rows, size = row.rows.integer(self.names, 1, MAX_SIZE), row.size.integer(self.names, 1, MAX_SIZE)
        number = row.number.integer(self.names, 0, rows - 1)
        table = self.table(row.path, rows, row.where, size)
        found = self.add(
            "slice", table, starts=(number, 0), stops=(number + 1, size), steps=(1, 1), hint=f"{row.path}.{number}"
        )
        if not row.is_appended:
            return self.add("add", x, self.add("reshape", found, shape=(size,), hint=f"{row.path}.{number}"))
        *outer, _ = self.graph.type(x).shape
        found = self.add("reshape", found, shape=(*(1 for _ in outer), size), hint=f"{row.path}.{number}")
        found = self.add("expand", found, shape=(*outer, size), hint=f"{row.path}.{number}")
        return self.add("concat", x, found, hint="joined", axis=len(outer))

    def scaled(self, factor: float, x: str) -> str:
        """Compute factor * x."""
        return x if factor == 1.0 else self.add("mul", x, self.constant(factor), hint="scaled")

    def softcap(self, cap: float, x: str) -> str:
        """Compute cap * tanh(x / cap); return x where cap is 0."""
        if not cap:
            return x
        capped = self.add("tanh", self.add("mul", x, self.constant(1 / cap), hint="uncapped"))
        return self.add("mul", capped, self.constant(cap), hint="capped")

    def _mlp(self, mlp: Mlp, x: str) -> str:
        width, size = self.columns_of(x), mlp.size.integer(self.names, 1, MAX_SIZE)
        activation = ACTIVATIONS[mlp.activation.word(self.names, ACTIVATIONS)]
        self._learned = f"{self.path}{mlp.learned}", mlp.where
        gate: str | None = None
        if mlp.gate_up is not None:
            both = self.linear(mlp.gate_up, x, width, 2 * size)
            gate, up = self.columns(both, 0, size), self.columns(both, size, 2 * size)
        else:
            assert mlp.up is not None
            if mlp.gate is not None:
                gate = self.linear(mlp.gate, x, width, size)
            up = self.linear(mlp.up, x, width, size)
        sparsity = mlp.sparsity.number(self.names)
        if gate is not None and sparsity:
            gate = self._sparse(gate, sparsity)
        factor = mlp.gate_scale.number(self.names)
        if gate is not None and factor != 1:
            gate = self.add("mul", gate, self.constant(factor), hint="scaled")
        inner = activation(self, up) if gate is None else self.add("mul", activation(self, gate), up, hint="gated")
        if mlp.norm is not None:
            inner = self.norm(mlp.norm, inner)
        return self.linear(mlp.down, inner, size, self.names["width"])

    def _sparse(self, x: str, share: float) -> str:
        """Compute relu(x - bound): the bound is above a share of a normal distribution with x's mean and variance.

        You et al., "Spark Transformer", 2025.
        """
        if not 0 < share < 1:
            raise LoadError(f"{self.template.file}: sparsity out of range, got {share}, expected 0..1")
        axes = (len(self.graph.type(x).shape) - 1,)
        centred = self.add("sub", x, self.add("reduce_mean", x, axes=axes, keepdims=True), hint="centred")
        square = self.add("mul", centred, centred, hint="square")
        deviation = self.add("sqrt", self.add("reduce_mean", square, axes=axes, keepdims=True))
        bound = self.add("mul", deviation, self.constant(NormalDist().inv_cdf(share)), hint="bound")
        return self.add("relu", self.add("sub", centred, bound, hint="cut"))

    def columns_of(self, x: str) -> int:
        """Return the size of the last axis."""
        *_, columns = self.graph.type(x).shape
        assert isinstance(columns, int)
        return columns

    def columns(self, x: str, start: int, stop: Known | None, step: int = 1) -> str:
        """Slice a range of the last axis."""
        *outer, _ = self.graph.type(x).shape
        starts, steps = (*(0 for _ in outer), start), (*(1 for _ in outer), step)
        return self.add("slice", x, starts=starts, stops=(*outer, stop), steps=steps, hint="columns")

    def constant(self, value: float | int, dtype: DType = f32) -> str:
        """Return a number as a constant of shape []; each number is added once."""
        if (value, dtype) not in self._constants:
            name = self.graph.fresh(f"constant.{len(self._constants)}")
            self._constants[value, dtype] = self.graph.add_constant(name, np.array(value, dtype.numpy))
        return self._constants[value, dtype]
