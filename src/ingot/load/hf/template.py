"""Templates: architectures as data. A file is read strictly into the records below, which are independent of HF
models.

docs/adding-an-architecture.md describes the language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ingot.errors import LoadError, UnsupportedError
from ingot.load.hf.document import Item, foreign_document, read_document
from ingot.load.hf.expression import Expression
from ingot.load.hf.inheritance import joined_section, merged_sections
from ingot.load.hf.layers import Latent, Linear, Norm, read_latent
from ingot.load.hf.mixture import Mixture, read_mixture

FOLDER = Path(__file__).parents[2] / "templates"
TYPES = ("size", "count", "positive", "number", "flag", "word", "activation", "per_layer", "layers")


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
class Attention:
    """Projections (three, or one that is split, or latent ones), norms, rotation, and options of the scores."""

    where: str
    q: Linear | None
    k: Linear | None
    v: Linear | None
    qkv: Linear | None
    split: Split | None  # of qkv
    latent: Latent | None
    out: Linear
    gate: Linear | None  # the result is multiplied by the sigmoid of this, before `out`
    q_norm: Norm | None
    k_norm: Norm | None
    v_norm: Norm | None
    out_norm: Norm | None  # of the result, before `out`
    is_rotated_first: bool  # whether queries and keys are rotated before their norms
    clip: Expression  # bound of the elements of q, k and v; 0 for none
    rope: Expression | None
    position_scale: PositionScale | None
    scale: Expression
    window: Expression
    segment: Expression  # positions; a token attends to none before its own segment
    sinks: str | None  # the tensor of an additional score of each head
    softcap: Expression


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
class Choose:
    """One of two lists of steps."""

    when: Expression
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step = Norm | Attention | Mlp | Mixture | Residual | Sum | Gated | Scale | Softcap | Project | Activate | Choose


@dataclass(frozen=True, slots=True)
class Embedding:
    """The sum of table rows by token, by position and (encoders) by token type; then steps."""

    where: str
    tokens: str
    size: Expression  # the width of the token table
    tokens_then: tuple[Step, ...]  # steps before the sum
    positions: str | None
    sinusoidal: Expression | None  # divisor of the exponents of a computed table of positions
    first: Expression  # the row of the first position
    types: str | None
    then: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The product with `<path>.weight`, or with the token table where `tied` is true; then steps."""

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
    kind: str
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
    renamed: Mapping[str, str]  # names of parameters in older files, by the current last part of a weight's name


def template_names() -> list[str]:
    """Return the model types that have a template."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def read_template(model_type: str) -> Template:
    """Return the template of an HF `model_type`. Raises UnsupportedError if there is none, LoadError for a bad file."""
    names = template_names()
    if model_type not in names:
        raise UnsupportedError(f"model_type: no template, got {model_type!r}, expected one of {', '.join(names)}")
    return parse_template(FOLDER / f"{model_type}.yaml")


def parse_template(path: Path) -> Template:
    """Return the template in a file that ships with Ingot. Raises LoadError with file and line."""
    return _template(read_document(path), path.stem, f"{path.parent.name}/{path.name}", path.parent)


def foreign_template(text: str, file: str) -> Template:
    """Return the template in a text that comes with a model, which may extend Ingot's; file: its name in errors.

    Raises LoadError with file and line, LimitError.
    """
    return _template(foreign_document(text, file), "model", file, FOLDER)


def _template(root: Item, name: str, file: str, parents: Path) -> Template:
    return _Reader(merged_sections(root, parents, (name,))).template(root, name, file, parents)


class _Reader:
    """Convert the sections of a file to records."""

    def __init__(self, sections: dict[str, Item]):
        self._sections = sections
        self._parts: dict[str, tuple[Step, ...]] = {}
        linear = sections["linear"].fields(optional=("bias", "layout")) if "linear" in sections else {}
        self._linear_bias = linear["bias"].expression() if "bias" in linear else Expression("false", "template")
        self._transposed = "layout" in linear and linear["layout"].word("out_in", "in_out") == "in_out"
        norm = sections["norm"].fields(("op", "eps"), ("bias", "unit_offset", "weight"))
        self._norm_op = norm["op"].word("rms_norm", "layer_norm")
        self._eps = norm["eps"].expression()
        self._norm_bias = norm["bias"].expression() if "bias" in norm else Expression("false", "template")
        self._unit_offset = (
            norm["unit_offset"].expression() if "unit_offset" in norm else Expression("false", norm["op"].where)
        )
        self._norm_weight = norm["weight"].expression() if "weight" in norm else Expression("true", norm["op"].where)

    def template(self, root: Item, name: str, file: str, parents: Path) -> Template:
        sections = self._sections
        self._parts = {name: self._steps(item) for name, item in joined_section(root, "parts", parents).items()}
        layers = sections["layers"].fields(("path", "steps"), ("let",))
        return Template(
            name=name,
            file=file,
            kind=sections["kind"].word("decoder", "encoder") if "kind" in sections else "decoder",
            config_in=sections["config_in"].text() if "config_in" in sections else None,
            config={name: _key(item) for name, item in joined_section(root, "config", parents).items()},
            let={name: item.expression() for name, item in joined_section(root, "let", parents).items()},
            ropes={name: self._rope(item) for name, item in joined_section(root, "ropes", parents).items()},
            prefixes=_texts(sections["prefix"]),
            embedding=self._embedding(sections["embedding"]),
            layer_path=layers["path"].text(),
            layer_let=_expressions(layers.get("let")),
            steps=self._steps(layers["steps"]),
            output=self._steps(sections["output"]) if "output" in sections else (),
            head=self._head(sections["head"]) if "head" in sections else None,
            classifier=self._classifier(sections["classifier"]) if "classifier" in sections else None,
            ignored=_texts(sections["ignored"]) if "ignored" in sections else (),
            renamed={n: i.text() for n, i in sections["renamed"].entries().items()} if "renamed" in sections else {},
        )

    def _rope(self, item: Item) -> Rope:
        found = item.fields(("dim", "theta"), ("scaling", "kinds", "aliases", "pairs", "direction"))
        aliases = found["aliases"].entries() if "aliases" in found else {}
        return Rope(
            item.where,
            found["dim"].expression(),
            found["theta"].expression(),
            _texts(found["scaling"]) if "scaling" in found else (),
            _texts(found["kinds"]) if "kinds" in found else ("default",),
            {name: alias.text() for name, alias in aliases.items()},
            found["pairs"].word("halves", "adjacent") if "pairs" in found else "halves",
            "direction" in found and found["direction"].word("forwards", "backwards") == "backwards",
        )

    def _embedding(self, item: Item) -> Embedding:
        found = item.fields(("tokens",), ("size", "tokens_then", "positions", "first", "types", "then"))
        path, sinusoidal = None, None
        if "positions" in found:
            if found["positions"].is_text:
                path = found["positions"].text()
            else:
                sinusoidal = found["positions"].fields(("sinusoidal",))["sinusoidal"].expression()
        return Embedding(
            item.where,
            found["tokens"].text(),
            found["size"].expression() if "size" in found else _name("width", item),
            self._steps(found["tokens_then"]) if "tokens_then" in found else (),
            path,
            sinusoidal,
            found["first"].expression() if "first" in found else Expression("0", item.where),
            found["types"].text() if "types" in found else None,
            self._steps(found["then"]) if "then" in found else (),
        )

    def _head(self, item: Item) -> Head:
        found = item.fields(("name",), ("tied", "bias", "then"))
        bias = found["bias"].expression() if "bias" in found else Expression("false", item.where)
        return Head(
            Linear(found["name"].where, found["name"].text(), bias, False),
            found["tied"].expression() if "tied" in found else Expression("false", item.where),
            self._steps(found["then"]) if "then" in found else (),
        )

    def _classifier(self, item: Item) -> Classifier:
        found = item.fields(("dense", "out"))
        return Classifier(self._linear(found["dense"]), self._linear(found["out"]))

    def _steps(self, item: Item) -> tuple[Step, ...]:
        steps: list[Step] = []
        for each in item.items():
            entries = each.entries()
            steps += self._part(entries["part"]) if [*entries] == ["part"] else [self._step(each)]
        return tuple(steps)

    def _part(self, name: Item) -> tuple[Step, ...]:
        """Return the steps of a part. Raises LoadError for an unknown one, and for a part within a part."""
        if name.text() not in self._parts:
            expected = f"expected one of {', '.join(self._parts)}" if self._parts else "expected none here"
            raise LoadError(f"{name.where}: no such part, got {name.text()!r}, {expected}")
        return self._parts[name.text()]

    def _step(self, item: Item) -> Step:
        found = item.entries()
        if len(found) != 1:
            raise LoadError(f"{item.where}: a step has one key, got {', '.join(found)}")
        ((kind, body),) = found.items()
        match kind:
            case "norm":
                return self._norm(body)
            case "attention":
                return self._attention(body)
            case "mlp":
                return self._mlp(body)
            case "mixture":
                return read_mixture(body, self._linear, _name("activation", body))
            case "residual":
                return Residual(self._steps(body))
            case "sum":
                return Sum(tuple(map(self._steps, body.items())))
            case "gated":
                parts = body.fields(("by", "steps"))
                return Gated(self._linear(parts["by"]), self._steps(parts["steps"]))
            case "scale":
                return Scale(body.expression())
            case "softcap":
                return Softcap(body.expression())
            case "linear":
                size = None if body.is_text else body.fields(("name",), ("bias", "size")).get("size")
                return Project(self._linear(body), _name("width", body) if size is None else size.expression())
            case "activation":
                return Activate(body.expression())
            case "choose":
                parts = body.fields(("when", "then", "else"))
                return Choose(parts["when"].expression(), self._steps(parts["then"]), self._steps(parts["else"]))
        raise LoadError(
            f"{item.where}: unknown step, got {kind!r}, "
            "expected one of norm, attention, mlp, mixture, residual, sum, gated, scale, softcap, linear, activation, "
            "choose, part"
        )

    def _norm(self, item: Item) -> Norm:
        """A norm by the settings of the section `norm`, except for those that it names itself."""
        options = ("name", "over", "op", "eps", "bias", "unit_offset", "weight")
        found = {"name": item} if item.is_text else item.fields((), options)
        weight = found["weight"].expression() if "weight" in found else self._norm_weight
        if "name" not in found and weight.text != "false":
            raise LoadError(f"{item.where}: a norm without name, expected 'name', or 'weight: false'")
        return Norm(
            item.where,
            found["name"].text() if "name" in found else "norm",
            found["op"].word("rms_norm", "layer_norm") if "op" in found else self._norm_op,
            found["eps"].expression() if "eps" in found else self._eps,
            found["bias"].expression() if "bias" in found else self._norm_bias,
            found["unit_offset"].expression() if "unit_offset" in found else self._unit_offset,
            found["over"].word("head", "all", "heads") if "over" in found else "head",
            weight,
        )

    def _linear(self, item: Item, bias: Expression | None = None) -> Linear:
        found = {"name": item} if item.is_text else item.fields(("name",), ("bias", "size"))
        own = found["bias"].expression() if "bias" in found else bias or self._linear_bias
        return Linear(item.where, found["name"].text(), own, self._transposed)

    def _attention(self, item: Item) -> Attention:
        found = item.fields(
            ("out",),
            (
                "q", "k", "v", "qkv", "split", "bias", "q_norm", "k_norm", "v_norm", "out_norm", "norms", "clip",
                "rope", "position_scale", "scale", "window", "segment", "sinks", "softcap", "latent", "gate",
            ),
        )  # fmt: skip
        projections = {key for key in ("q", "k", "v", "qkv", "split", "latent") if key in found}
        if projections not in ({"q", "k", "v"}, {"qkv", "split"}, {"latent"}):
            expected = "expected q, k, v or qkv, split or latent"
            raise LoadError(f"{item.where}: bad projections, got {sorted(projections)}, {expected}")
        bias = found["bias"].expression() if "bias" in found else None
        names = ("q", "k", "v", "qkv", "out", "gate")
        linear = {key: self._linear(found[key], bias) for key in names if key in found}
        norms = {key: self._norm(found[key]) for key in ("q_norm", "k_norm", "v_norm", "out_norm") if key in found}

        def option(key: str, default: str) -> Expression:
            return found[key].expression() if key in found else Expression(default, item.where)

        return Attention(
            item.where,
            q=linear.get("q"),
            k=linear.get("k"),
            v=linear.get("v"),
            qkv=linear.get("qkv"),
            split=_split(found["split"]) if "split" in found else None,
            latent=read_latent(found["latent"], lambda each: self._linear(each, bias), self._norm)
            if "latent" in found
            else None,
            out=linear["out"],
            gate=linear.get("gate"),
            q_norm=norms.get("q_norm"),
            k_norm=norms.get("k_norm"),
            v_norm=norms.get("v_norm"),
            out_norm=norms.get("out_norm"),
            is_rotated_first="norms" in found and found["norms"].word("before_rope", "after_rope") == "after_rope",
            clip=option("clip", "0"),
            rope=found["rope"].expression() if "rope" in found else None,
            position_scale=_position_scale(found.get("position_scale")),
            scale=option("scale", "head_dim ** -0.5"),
            window=option("window", "0"),
            segment=option("segment", "0"),
            sinks=found["sinks"].text() if "sinks" in found else None,
            softcap=option("softcap", "0"),
        )

    def _mlp(self, item: Item) -> Mlp:
        found = item.fields(("down",), ("up", "gate", "gate_up", "bias", "activation", "learned", "norm", "size"))
        projections = {key for key in ("up", "gate", "gate_up") if key in found}
        if projections not in ({"up"}, {"up", "gate"}, {"gate_up"}):
            raise LoadError(f"{item.where}: bad projections, got {sorted(projections)}, expected up, gate or gate_up")
        bias = found["bias"].expression() if "bias" in found else None
        linear = {key: self._linear(found[key], bias) for key in ("up", "gate", "gate_up", "down") if key in found}
        return Mlp(
            item.where,
            linear.get("up"),
            linear.get("gate"),
            linear.get("gate_up"),
            linear["down"],
            found["activation"].expression() if "activation" in found else _name("activation", item),
            found["learned"].text() if "learned" in found else "",
            self._norm(found["norm"]) if "norm" in found else None,
            found["size"].expression() if "size" in found else _name("inner", item),
        )


def _split(item: Item) -> Split:
    """Return the layout of a fused projection: a word, or the number of blocks and their order."""
    if item.is_text:
        is_stacked = item.word("stacked", "per_head") == "stacked"
        return Split(Expression("1" if is_stacked else "kv_heads", item.where), ("q", "k", "v"))
    found = item.fields(("blocks", "order"))
    order = _texts(found["order"])
    if sorted(order) != ["k", "q", "v"]:
        raise LoadError(f"{found['order'].where}: bad order, got {', '.join(order)}, expected q, k and v in some order")
    return Split(found["blocks"].expression(), order)


def _position_scale(item: Item | None) -> PositionScale | None:
    if item is None:
        return None
    found = item.fields(("beta", "length"), ("first",))
    first = found["first"].expression() if "first" in found else Expression("0", item.where)
    return PositionScale(found["beta"].expression(), found["length"].expression(), first)


def _name(name: str, item: Item) -> Expression:
    """Return the expression that is a name of the template."""
    return Expression(name, item.where)


def _key(item: Item) -> Key:
    found = item.fields(("key", "type"), ("default", "if_null", "options", "only"))
    default = found["default"].expression() if "default" in found else None
    return Key(
        item.where,
        _texts(found["key"]),
        found["type"].word(*TYPES),
        default,
        found["if_null"].expression() if "if_null" in found else default,
        _texts(found["options"]) if "options" in found else (),
        tuple(each.expression() for each in found["only"].items()) if "only" in found else (),
    )


def _texts(item: Item) -> tuple[str, ...]:
    return tuple(each.text() for each in item.items()) if item.is_list else (item.text(),)


def _expressions(item: Item | None) -> dict[str, Expression]:
    return {} if item is None else {name: each.expression() for name, each in item.entries().items()}
