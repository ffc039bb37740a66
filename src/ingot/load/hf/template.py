"""Templates: architectures as data, in records that are independent of HF models.

docs/adding-an-architecture.md describes the language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.load.hf.alibi import Alibi
from ingot.load.hf.expression import Expression
from ingot.load.hf.layers import Latent, Linear, Norm
from ingot.load.hf.mixture import Mixture
from ingot.load.hf.recurrence import Recurrent


@dataclass(frozen=True, slots=True)
class Key:
    """A value from config.json: its possible paths, its type, and its value when absent or null."""

    where: str
    paths: tuple[str, ...]
    type: str
    default: Expression | None
    if_null: Expression | None
    options: tuple[str, ...]
    only: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """One set of rotary angles."""

    where: str
    dim: Expression
    theta: Expression
    scaling: tuple[str, ...]  # paths of the object that names the kind of scaling
    kinds: tuple[str, ...]
    aliases: Mapping[str, str]
    pairs: str  # of elements that are rotated together: "halves" (i, i + dim / 2) or "adjacent" (2i, 2i + 1)
    backwards: bool  # whether the angles are negative


@dataclass(frozen=True, slots=True)
class Split:
    """The columns of a fused projection: `blocks` equal blocks, each with its share of q, k and v in an order."""

    blocks: Expression
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PositionScale:
    """The factor of queries by position, from `first`: 1 + beta * log(1 + floor(position / length))."""

    beta: Expression
    length: Expression
    first: Expression


@dataclass(frozen=True, slots=True)
class Shared:
    """Layers from a number on read the keys and values of the last layer before it in which `like` is the same."""

    start: Expression
    like: Expression


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections (three, or one that is split, or latent ones), norms, rotation, and options of the scores."""

    where: str
    q: Linear | None
    k: Linear | None
    v: Linear | None
    qkv: Linear | None
    split: Split | None  # of qkv
    latent: Latent | None
    shared: Shared | None
    out: Linear
    gate: Linear | None  # the result is multiplied by the sigmoid of this, before `out`
    head_gate: Linear | None  # as gate, with one number for each head
    q_norm: Norm | None
    k_norm: Norm | None
    v_norm: Norm | None
    out_norm: Norm | None  # of the result, before `out`
    is_rotated_first: bool  # whether queries and keys are rotated before their norms
    value: Expression  # elements of a value
    value_scale: Expression
    clip: Expression  # bound of the elements of q, k and v; 0 for none
    rope: Expression | None
    position_scale: PositionScale | None
    scale: Expression
    window: Expression
    segment: Expression  # positions; a token attends to none before its own segment
    sinks: str | None  # the tensor of an additional score of each head
    has_sinks: Expression  # whether a layer has them
    softcap: Expression
    alibi: Alibi | None
    gated: Expression  # whether each head of q has as many elements more, whose sigmoid multiplies its result


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(up)) or down(activation(gate) * up); gate_up contains the rows of gate, then of up."""

    where: str
    up: Linear | None
    gate: Linear | None
    gate_up: Linear | None
    down: Linear
    activation: Expression
    learned: str  # the path of the weights of an activation that has some
    norm: Norm | None  # of the input of `down`
    sparsity: Expression  # the share of a normal distribution that is cut off below, before the activation; 0 for none
    gate_scale: Expression  # of the gate, before its activation
    size: Expression


@dataclass(frozen=True, slots=True)
class Residual:
    """x + steps(x)."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of branches that all read the same x."""

    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Gated:
    """sigmoid(by(x)) * steps(x), with one number for each row."""

    by: Linear
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """x * factor."""

    factor: Expression


@dataclass(frozen=True, slots=True)
class Softcap:
    """cap * tanh(x / cap); cap 0 means none."""

    cap: Expression


@dataclass(frozen=True, slots=True)
class Project:
    """A linear layer with `size` outputs."""

    linear: Linear
    size: Expression


@dataclass(frozen=True, slots=True)
class Activate:
    """An activation of each element."""

    activation: Expression


@dataclass(frozen=True, slots=True)
class Times:
    """The product with a vector of the file, or with a number: `<path>`, [size]."""

    where: str
    path: str
    size: Expression


@dataclass(frozen=True, slots=True)
class Row:
    """x plus a row of a table, or x followed by it: `<path>.weight`, [rows, size]."""

    where: str
    path: str
    rows: Expression
    size: Expression
    number: Expression
    is_appended: bool


@dataclass(frozen=True, slots=True)
class LayerInput:
    """out(activation(gate(x)) * the layer's own embedding of the token)."""

    gate: Linear
    out: Linear
    activation: Expression


@dataclass(frozen=True, slots=True)
class Spread:
    """`count` streams from x: x itself, and for each other a projection of it, of the same magnitude.

    {stream} in a path is the number of the stream, from 0 for the second.
    """

    project: Linear
    count: Expression


@dataclass(frozen=True, slots=True)
class Merge:
    """The mean of the first stream and a projection of each other, of the same magnitude; as Spread."""

    project: Linear
    count: Expression


@dataclass(frozen=True, slots=True)
class Streams:
    """Alternating updates of several streams: all are predicted, steps apply to one of them, all are corrected.

    Baykal et al., "Alternating Updates for Efficient Transformers", 2023. then: steps whose result for the corrected
    stream is added to all streams but the first.
    """

    count: Expression
    active: Expression
    norm: Norm
    router: Linear
    predict: Linear
    correct: Linear
    steps: tuple[Step, ...]
    then: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """x and the embedding of the token, side by side."""


@dataclass(frozen=True, slots=True)
class WeightsOf:
    """Steps with the weights of another layer, unless the file has the tensor `own` of this one."""

    layer: Expression
    own: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """One of two lists of steps."""

    when: Expression
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step = (
    Norm
    | Attention
    | Mlp
    | Mixture
    | Recurrent
    | Residual
    | Sum
    | Gated
    | Scale
    | Softcap
    | Project
    | Activate
    | Times
    | Row
    | LayerInput
    | Spread
    | Merge
    | Streams
    | Concat
    | WeightsOf
    | Choose
)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Embeddings of a token for each layer: (norm(project(x) * factor) + rows of a table * table_factor) * scale.

    The table is [rows, layers * size]; tokens beyond it have its row 0.
    """

    where: str
    when: Expression  # without them where it is false
    table: str
    rows: Expression
    size: Expression
    table_factor: Expression
    project: Linear
    factor: Expression
    norm: Norm
    scale: Expression


@dataclass(frozen=True, slots=True)
class Embedding:
    """The sum of table rows by token, by position and (encoders) by token type; then steps."""

    where: str
    tokens: str
    rows: Expression  # of the token table
    size: Expression  # the width of the tables
    tokens_then: tuple[Step, ...]  # steps before the sum
    positions: str | None
    sinusoidal: Expression | None  # divisor of the exponents of a computed table of positions
    first: Expression  # the row of the first position
    types: str | None
    then: tuple[Step, ...]
    layer_inputs: LayerInputs | None


@dataclass(frozen=True, slots=True)
class Head:
    """Steps; the product with `<path>.weight`, or with the token table where `tied` is true; then steps.

    No name of a head has the prefix.
    """

    first: tuple[Step, ...]
    linear: Linear
    tied: Expression
    then: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Classifier:
    """out(tanh(dense(x))) of the first token of an encoder; {prefix} in a path is that of the weights."""

    dense: Linear
    out: Linear


@dataclass(frozen=True, slots=True)
class Template:
    """An architecture. Names in expressions are keys of `config` and `let`, and `layer` inside layers."""

    name: str
    file: str
    kind: Expression  # "decoder" or "encoder"
    config_in: str | None
    config: Mapping[str, Key]
    let: Mapping[str, Expression]
    ropes: Mapping[str, Rope]
    prefixes: tuple[str, ...]
    embedding: Embedding
    layer_path: str
    layer_let: Mapping[str, Expression]
    steps: tuple[Step, ...]
    output: tuple[Step, ...]
    head: Head | None
    classifier: Classifier | None
    ignored: tuple[str, ...]
    renamed: Mapping[str, str]  # names in other files, by a part of a weight's name
