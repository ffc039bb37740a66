"""Read a template file strictly into the records of template.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ingot.errors import LoadError, UnsupportedError
from ingot.load.hf.alibi import read_alibi
from ingot.load.hf.document import Item, foreign_document, read_document
from ingot.load.hf.expression import Expression
from ingot.load.hf.inheritance import joined_section, merged_sections
from ingot.load.hf.layers import Linear, Norm, read_adapter, read_latent
from ingot.load.hf.mixture import read_mixture
from ingot.load.hf.recurrence import KINDS, read_recurrent
from ingot.load.hf.refused import REFUSED
from ingot.load.hf.template import (
    Activate,
    Attention,
    Choose,
    Classifier,
    Concat,
    Embedding,
    Gated,
    Head,
    Key,
    LayerInput,
    LayerInputs,
    Merge,
    Mlp,
    PositionScale,
    Project,
    Residual,
    Rope,
    Row,
    Scale,
    Shared,
    Softcap,
    Split,
    Spread,
    Step,
    Streams,
    Sum,
    Template,
    Times,
    WeightsOf,
)

FOLDER = Path(__file__).parents[2] / "templates"
TYPES = (
    "size", "count", "positive", "number", "flag", "word", "activation", "per_layer", "cycle", "words", "layers",
    "numbers",
)  # fmt: skip


def template_names() -> list[str]:
    """Return the model types that have a template."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def read_template(model_type: str) -> Template:
    """Return the template of an HF `model_type`. Raises UnsupportedError if there is none, LoadError for a bad file."""
    names = template_names()
    if model_type in REFUSED:
        raise UnsupportedError(f"model_type: not supported, got {model_type!r}: {REFUSED[model_type]}")
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
            kind=sections["kind"].expression() if "kind" in sections else Expression("decoder", root.where),
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
        options = ("rows", "size", "tokens_then", "positions", "first", "types", "then", "layer_inputs")
        found = item.fields(("tokens",), options)
        path, sinusoidal = None, None
        if "positions" in found:
            if found["positions"].is_text:
                path = found["positions"].text()
            else:
                sinusoidal = found["positions"].fields(("sinusoidal",))["sinusoidal"].expression()
        return Embedding(
            item.where,
            found["tokens"].text(),
            found["rows"].expression() if "rows" in found else _name("vocab", item),
            found["size"].expression() if "size" in found else _name("width", item),
            self._steps(found["tokens_then"]) if "tokens_then" in found else (),
            path,
            sinusoidal,
            found["first"].expression() if "first" in found else Expression("0", item.where),
            found["types"].text() if "types" in found else None,
            self._steps(found["then"]) if "then" in found else (),
            self._layer_inputs(found["layer_inputs"]) if "layer_inputs" in found else None,
        )

    def _layer_inputs(self, item: Item) -> LayerInputs:
        found = item.fields(("table", "rows", "size", "table_factor", "project", "factor", "norm", "scale"), ("when",))
        return LayerInputs(
            item.where,
            found["when"].expression() if "when" in found else Expression("true", item.where),
            found["table"].text(),
            found["rows"].expression(),
            found["size"].expression(),
            found["table_factor"].expression(),
            self._linear(found["project"]),
            found["factor"].expression(),
            self._norm(found["norm"]),
            found["scale"].expression(),
        )

    def _head(self, item: Item) -> Head:
        found = item.fields(("name",), ("tied", "bias", "bias_name", "first", "then"))
        bias = found["bias"].expression() if "bias" in found else Expression("false", item.where)
        bias_paths = _texts(found["bias_name"]) if "bias_name" in found else ()
        return Head(
            self._steps(found["first"]) if "first" in found else (),
            Linear(found["name"].where, found["name"].text(), bias, False, bias_paths),
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
            case "times":
                parts = {"name": body} if body.is_text else body.fields(("name",), ("size",))
                size = parts.get("size")
                width = _name("width", body) if size is None else size.expression()
                return Times(body.where, parts["name"].text(), width)
            case "row":
                return self._row(body)
            case "layer_input":
                parts = body.fields(("gate", "out"))
                return LayerInput(self._linear(parts["gate"]), self._linear(parts["out"]), _name("activation", body))
            case "spread" | "merge":
                parts = body.fields(("project", "count"))
                kind_of = Spread if kind == "spread" else Merge
                return kind_of(self._linear(parts["project"]), parts["count"].expression())
            case "streams":
                return self._streams(body)
            case "concat":
                body.word("embedding")
                return Concat()
            case "weights_of":
                parts = body.fields(("layer", "steps"), ("own",))
                own = parts["own"].text() if "own" in parts else None
                return WeightsOf(parts["layer"].expression(), own, self._steps(parts["steps"]))
            case _ if kind in KINDS:
                return read_recurrent(kind, body)
            case "choose":
                parts = body.fields(("when", "then", "else"))
                return Choose(parts["when"].expression(), self._steps(parts["then"]), self._steps(parts["else"]))
        raise LoadError(
            f"{item.where}: unknown step, got {kind!r}, "
            "expected one of norm, attention, mlp, mixture, residual, sum, gated, scale, softcap, linear, activation, "
            f"times, row, layer_input, spread, merge, streams, concat, weights_of, choose, part, {', '.join(KINDS)}"
        )

    def _row(self, item: Item) -> Row:
        found = item.fields(("table", "rows"), ("size", "number", "joins"))
        return Row(
            item.where,
            found["table"].text(),
            found["rows"].expression(),
            found["size"].expression() if "size" in found else _name("width", item),
            found["number"].expression() if "number" in found else Expression("0", item.where),
            "joins" in found and found["joins"].word("added", "appended") == "appended",
        )

    def _norm(self, item: Item) -> Norm:
        """A norm by the settings of the section `norm`, except for those that it names itself."""
        options = ("name", "over", "op", "eps", "bias", "unit_offset", "weight", "when")
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
            found["when"].expression() if "when" in found else Expression("true", item.where),
        )

    def _linear(self, item: Item, bias: Expression | None = None) -> Linear:
        found = {"name": item} if item.is_text else item.fields(("name",), ("bias", "bias_name", "size", "adapter"))
        own = found["bias"].expression() if "bias" in found else bias or self._linear_bias
        bias_paths = _texts(found["bias_name"]) if "bias_name" in found else ()
        adapter = read_adapter(found["adapter"]) if "adapter" in found else None
        return Linear(item.where, found["name"].text(), own, self._transposed, bias_paths, adapter)

    def _attention(self, item: Item) -> Attention:
        found = item.fields(
            ("out",),
            (
                "q", "k", "v", "qkv", "split", "latent", "shared", "bias", "gate", "head_gate", "q_norm", "k_norm",
                "v_norm", "out_norm", "norms", "clip", "rope", "position_scale", "scale", "window", "segment", "sinks",
                "value", "value_scale", "softcap", "gated", "alibi",
            ),
        )  # fmt: skip
        projections = {key for key in ("q", "k", "v", "qkv", "split", "latent") if key in found}
        if projections not in ({"q", "k", "v"}, {"q", "k"}, {"qkv", "split"}, {"latent"}):
            expected = "q, k, v, or q, k if values are keys, or qkv, split, or latent"
            raise LoadError(f"{item.where}: bad projections, got {sorted(projections)}, expected {expected}")
        latent = found.get("latent")
        separate = {"gated", "shared", "value"}
        unused = separate | {"clip", "v_norm"} if latent else separate if "qkv" in found else set()
        if unread := sorted(unused & found.keys()):
            raise LoadError(
                f"{item.where}: options of separate projections, got {', '.join(unread)}, expected none here"
            )
        shared = found["shared"].fields(("from", "like")) if "shared" in found else None
        bias = found["bias"].expression() if "bias" in found else None
        linears = ("q", "k", "v", "qkv", "out", "gate", "head_gate")
        linear = {key: self._linear(found[key], bias) for key in linears if key in found}
        norms = {key: self._norm(found[key]) for key in ("q_norm", "k_norm", "v_norm", "out_norm") if key in found}

        sinks = _tensor(found["sinks"]) if "sinks" in found else None

        def option(key: str, default: str) -> Expression:
            return found[key].expression() if key in found else Expression(default, item.where)

        return Attention(
            item.where,
            q=linear.get("q"),
            k=linear.get("k"),
            v=linear.get("v"),
            qkv=linear.get("qkv"),
            split=_split(found["split"]) if "split" in found else None,
            shared=None if shared is None else Shared(shared["from"].expression(), shared["like"].expression()),
            latent=None if latent is None else read_latent(latent, lambda each: self._linear(each, bias), self._norm),
            out=linear["out"],
            gate=linear.get("gate"),
            head_gate=linear.get("head_gate"),
            q_norm=norms.get("q_norm"),
            k_norm=norms.get("k_norm"),
            v_norm=norms.get("v_norm"),
            out_norm=norms.get("out_norm"),
            is_rotated_first="norms" in found and found["norms"].word("before_rope", "after_rope") == "after_rope",
            value=option("value", "head_dim"),
            value_scale=option("value_scale", "1"),
            clip=option("clip", "0"),
            rope=found["rope"].expression() if "rope" in found else None,
            position_scale=_position_scale(found.get("position_scale")),
            scale=option("scale", "head_dim ** -0.5"),
            window=option("window", "0"),
            segment=option("segment", "0"),
            sinks=None if sinks is None else sinks["tensor"].text(),
            has_sinks=sinks["when"].expression() if sinks and "when" in sinks else Expression("true", item.where),
            softcap=option("softcap", "0"),
            alibi=read_alibi(found["alibi"]) if "alibi" in found else None,
            gated=option("gated", "false"),
        )

    def _streams(self, item: Item) -> Streams:
        found = item.fields(("count", "active", "norm", "router", "predict", "correct", "steps", "then"))
        return Streams(
            found["count"].expression(),
            found["active"].expression(),
            self._norm(found["norm"]),
            router=self._linear(found["router"]),
            predict=self._linear(found["predict"]),
            correct=self._linear(found["correct"]),
            steps=self._steps(found["steps"]),
            then=self._steps(found["then"]),
        )

    def _mlp(self, item: Item) -> Mlp:
        found = item.fields(
            ("down",),
            ("up", "gate", "gate_up", "bias", "activation", "learned", "norm", "sparsity", "gate_scale", "size"),
        )
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
            found["sparsity"].expression() if "sparsity" in found else Expression("0", item.where),
            found["gate_scale"].expression() if "gate_scale" in found else Expression("1", item.where),
            found["size"].expression() if "size" in found else _name("inner", item),
        )


def _tensor(item: Item) -> dict[str, Item]:
    """Return the name of a tensor, and the condition of the layers that have it, if any."""
    return {"tensor": item} if item.is_text else item.fields(("tensor",), ("when",))


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
