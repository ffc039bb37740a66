"""The steps of templates with recurrent state, as records: sizes and options by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.load.hf.document import Item
from ingot.load.hf.expression import Expression

_CONV = {"taps": None, "conv_bias": "false"}
# Sizes and options of each kind of layer, with their defaults; None: required.
KINDS: dict[str, dict[str, str | None]] = {
    "short_conv": {"bias": "false", **_CONV},
    "mamba": {"inner": None, "size": None, "rank": None, "bias": "false", "norms": "'none'", "norm_eps": "0", **_CONV},
    "mamba2": {
        "heads": None, "head_dim": None, "groups": None, "size": None, "bias": "false", "out_bias": "null",
        "norm": "'after_gate'", "norm_groups": "1", "norm_eps": "0", "least_step": "null", "most_step": "null",
        "scales": "null", **_CONV,
    },
    "gated_delta": {
        "heads": None, "head_dim": None, "key_heads": None, "key_dim": None, "layout": "'separate'",
        "values": "'grouped'",
        "norm_eps": None,
        "decay": "'head'", "decay_rank": "0", "least_decay": "null", "beta_factor": "1", "gate": "'silu'",
        "gate_rank": "0", "out": "'o_proj'", **_CONV,
    },
    "lightning": {
        "heads": None, "head_dim": None, "slope": None, "activation": "'silu'", "norm_eps": None,
    },
    "time_mix": {"inner": None},
    "channel_mix": {"inner": None},
    "rg_lru": {"inner": None, "blocks": None, "activation": "'gelu_pytorch_tanh'", **_CONV},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer whose state of a sequence has a fixed size. path: before the names of its weights."""

    where: str
    kind: str
    path: str
    options: Mapping[str, Expression]


def read_recurrent(kind: str, item: Item) -> Recurrent:
    """Read the body of a step of one of KINDS. Raises LoadError."""
    options = KINDS[kind]
    required = tuple(name for name, default in options.items() if default is None)
    found = item.fields(("path", *required), tuple(options.keys() - set(required)))
    expressions = {
        name: found[name].expression() if name in found else Expression(str(default), item.where)
        for name, default in options.items()
    }
    return Recurrent(item.where, kind, found["path"].text(), expressions)
