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


@dataclass(frozen=True, slots=True)
class Linear:
    """`<path>.weight`, [out, in] or [in, out], and `<path>.bias` where `bias` is true."""

    where: str
    path: str
    bias: Expression
    transposed: bool


@dataclass(frozen=True, slots=True)
class Norm:
    """`rms_norm` or `layer_norm` with `<path>.weight`; `over`: per head or over all heads, for norms of queries and
    keys.
    """

    where: str
    path: str
    op: str
    eps: Expression
    bias: Expression
    unit_offset: Expression
    over: str


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections (three, or one that is split), norms of queries and keys, rotation, and options of the scores."""

    where: str
    q: Linear | None
    k: Linear | None
    v: Linear | None
    qkv: Linear | None
    split: str  # layout of qkv rows: "stacked" q, k, v; "per_head" q, k, v of the first head, of the second ...
    out: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    rope: Expression | None
    scale: Expression
    window: Expression
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
class Choose:
    """One of two lists of steps."""

    when: Expression
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step = Norm | Attention | Mlp | Mixture | Residual | Sum | Gated | Scale | Softcap | Choose


@dataclass(frozen=True, slots=True)
class Embedding:
    """The sum of table rows by token, by position and (encoders) by token type; then steps."""

    where: str
    tokens: str
    positions: str | None
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
    return _Reader(_sections(root, parents, (name,))).template(root, name, file, parents)


def _sections(root: Item, parents: Path, known: tuple[str, ...] = ()) -> dict[str, Item]:
    """Return the top-level keys of a document, merged with those of the template that it extends.

    known: the names of the templates that extend it.
    """
    found = root.fields(
        optional=(
            "extends", "kind", "config_in", "config", "let", "ropes", "linear", "norm", "prefix", "embedding", "layers",
            "output", "head", "classifier", "ignored", "renamed",
        )
    )  # fmt: skip
    if "extends" not in found:
        missing = [key for key in ("config", "prefix", "norm", "embedding", "layers") if key not in found]
        if missing:
            raise LoadError(f"{root.where}: missing keys, got {sorted(found)}, expected also {', '.join(missing)}")
        return found
    parent = found.pop("extends")
    if parent.text() in known:
        raise LoadError(f"{parent.where}: no such template, got {parent.text()!r}")
    return _sections(_parent(parent, parents), parents, (*known, parent.text())) | found


def _parent(name: Item, parents: Path) -> Item:
    """Return the document of a template that ships with Ingot. Raises LoadError for any other name."""
    if name.text() not in {path.stem for path in parents.glob("*.yaml")}:
        raise LoadError(f"{name.where}: no such template, got {name.text()!r}")
    return read_document(parents / f"{name.text()}.yaml")


def _joined(root: Item, section: str, parents: Path) -> dict[str, Item]:
    """Return the entries of a section by name, merged with those of the template that the document extends.

    An entry that replaces an inherited one is put at its position, and so are the new entries before it, so that it can
    refer to them.
    """
    sections = root.entries()
    own = sections[section].entries() if section in sections else {}
    if "extends" not in sections:
        return own
    inherited = _joined(_parent(sections["extends"], parents), section, parents)
    new: list[str] = []
    names_at = {name: [name] for name in inherited}
    for name in own:
        new.append(name)
        if name in inherited:
            names_at[name], new = new, []
    entries = inherited | own
    return {name: entries[name] for names in (*names_at.values(), new) for name in names}


class _Reader:
    """Convert the sections of a file to records."""

    def __init__(self, sections: dict[str, Item]):
        self._sections = sections
        linear = sections["linear"].fields(optional=("bias", "layout")) if "linear" in sections else {}
        self._linear_bias = linear["bias"].expression() if "bias" in linear else Expression("false", "template")
        self._transposed = "layout" in linear and linear["layout"].word("out_in", "in_out") == "in_out"
        norm = sections["norm"].fields(("op", "eps"), ("bias", "unit_offset"))
        self._norm_op = norm["op"].word("rms_norm", "layer_norm")
        self._eps = norm["eps"].expression()
        self._norm_bias = norm["bias"].expression() if "bias" in norm else Expression("false", "template")
        self._unit_offset = (
            norm["unit_offset"].expression() if "unit_offset" in norm else Expression("false", norm["op"].where)
        )

    def template(self, root: Item, name: str, file: str, parents: Path) -> Template:
        sections = self._sections
        layers = sections["layers"].fields(("path", "steps"), ("let",))
        return Template(
            name=name,
            file=file,
            kind=sections["kind"].word("decoder", "encoder") if "kind" in sections else "decoder",
            config_in=sections["config_in"].text() if "config_in" in sections else None,
            config={name: _key(item) for name, item in _joined(root, "config", parents).items()},
            let={name: item.expression() for name, item in _joined(root, "let", parents).items()},
            ropes={name: self._rope(item) for name, item in _joined(root, "ropes", parents).items()},
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
        found = item.fields(("dim", "theta"), ("scaling", "kinds", "aliases"))
        aliases = found["aliases"].entries() if "aliases" in found else {}
        return Rope(
            item.where,
            found["dim"].expression(),
            found["theta"].expression(),
            _texts(found["scaling"]) if "scaling" in found else (),
            _texts(found["kinds"]) if "kinds" in found else ("default",),
            {name: alias.text() for name, alias in aliases.items()},
        )

    def _embedding(self, item: Item) -> Embedding:
        found = item.fields(("tokens",), ("positions", "first", "types", "then"))
        return Embedding(
            item.where,
            found["tokens"].text(),
            found["positions"].text() if "positions" in found else None,
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
        return tuple(map(self._step, item.items()))

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
            case "choose":
                parts = body.fields(("when", "then", "else"))
                return Choose(parts["when"].expression(), self._steps(parts["then"]), self._steps(parts["else"]))
        raise LoadError(
            f"{item.where}: unknown step, got {kind!r}, "
            "expected one of norm, attention, mlp, mixture, residual, sum, gated, scale, softcap, choose"
        )

    def _norm(self, item: Item) -> Norm:
        found = {"name": item} if item.is_text else item.fields(("name",), ("over",))
        over = found["over"].word("head", "all") if "over" in found else "head"
        name = found["name"].text()
        return Norm(item.where, name, self._norm_op, self._eps, self._norm_bias, self._unit_offset, over)

    def _linear(self, item: Item, bias: Expression | None = None) -> Linear:
        found = {"name": item} if item.is_text else item.fields(("name",), ("bias",))
        own = found["bias"].expression() if "bias" in found else bias or self._linear_bias
        return Linear(item.where, found["name"].text(), own, self._transposed)

    def _attention(self, item: Item) -> Attention:
        found = item.fields(
            ("out",),
            ("q", "k", "v", "qkv", "split", "bias", "q_norm", "k_norm", "rope", "scale", "window", "softcap"),
        )
        projections = {key for key in ("q", "k", "v", "qkv", "split") if key in found}
        if projections not in ({"q", "k", "v"}, {"qkv", "split"}):
            raise LoadError(f"{item.where}: bad projections, got {sorted(projections)}, expected q, k, v or qkv, split")
        bias = found["bias"].expression() if "bias" in found else None
        linear = {key: self._linear(found[key], bias) for key in ("q", "k", "v", "qkv", "out") if key in found}
        return Attention(
            item.where,
            linear.get("q"),
            linear.get("k"),
            linear.get("v"),
            linear.get("qkv"),
            found["split"].word("stacked", "per_head") if "split" in found else "stacked",
            linear["out"],
            self._norm(found["q_norm"]) if "q_norm" in found else None,
            self._norm(found["k_norm"]) if "k_norm" in found else None,
            found["rope"].expression() if "rope" in found else None,
            found["scale"].expression() if "scale" in found else Expression("head_dim ** -0.5", item.where),
            found["window"].expression() if "window" in found else Expression("0", item.where),
            found["softcap"].expression() if "softcap" in found else Expression("0", item.where),
        )

    def _mlp(self, item: Item) -> Mlp:
        found = item.fields(("down",), ("up", "gate", "gate_up", "bias", "activation", "size"))
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
            found["size"].expression() if "size" in found else _name("inner", item),
        )


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
