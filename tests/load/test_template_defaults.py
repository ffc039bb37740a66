"""Fields that a config.json leaves out or changes: every template against the config class of transformers."""

from typing import Any

import pytest
import transformers

from ingot.load.hf.settings import Settings, read_settings
from ingot.load.hf.template import Key, Template
from ingot.load.hf.template_file import read_template, template_names

pytestmark = pytest.mark.checked

# Templates whose class of transformers has no valid config of its own: required fields are null or lists,
# or heads do not divide the width.
WITHOUT_DEFAULTS = {
    "deepseek_v2", "dots1", "gemma3n", "gemma3n_text", "glm4_moe", "lfm2_moe", "ministral3", "solar_open",
}  # fmt: skip
# Names that the class has in another form, or that its models do not read.
OTHER_FORM = {
    "bamba": {"attention_layers", "limits"},
    "cohere2_moe": {"plain_width"},  # null
    "cohere_compass_text": {"logit_factor"},  # null
    "deepseek_v32": {"context"},  # limited to the positions that its index selects
    "falcon": {"norms"},  # chosen by new_decoder_architecture where it is null
    "falcon_h1": {"limits"},
    "gemma4": {"head_dim"},
    "gemma4_text": {"head_dim"},
    "gemma4_unified": {"head_dim", "bidirectional"},
    "gemma4_unified_text": {"head_dim", "bidirectional"},
    "granitemoehybrid": {"limits", "positions"},
    "glm_moe_dsa": {"context"},
    "lfm2": {"attention_layers", "layer_type"},
    "llama4": {"has_experts"},
    "llama4_text": {"has_experts"},
    "mamba2": {"limits"},
    "mimo_v2_flash": {"window"},  # also from sliding_window_size, in which transformers counts one less
    "mistral3": {"context", "eps", "theta", "window"},  # those of its own class, which no folder leaves out
    "mpt": {"scale"},  # null
    "nemotron": {"kv_heads"},  # null
    "recurrent_gemma": {"block_type"},
}
# Fields whose change alone has another effect in the class of transformers; the reasons are not known yet.
UNEXPLAINED = {
    "apertus": {"rope_theta"},
    "apertus1p5_text": {"rope_theta"},
    "bamba": {"mamba_d_head"},
    "cohere_compass_text": {"rope_parameters.full_attention", "rope_parameters.sliding_attention"},  # null or object
    "cwm": {"hidden_size", "num_attention_heads", "rope_theta"},
    "dbrx": {"attn_config.rope_theta"},
    "exaone_moe": {"hidden_size", "num_attention_heads"},
    "falcon": {"n_head_kv"},
    "falcon_h1": {"mamba_d_head"},
    "fuyu": {"num_key_value_heads"},
    "gemma4": {"per_layer_config.*.head_dim", "per_layer_config.*.num_key_value_heads", "sliding_window_pattern"},
    "gemma4_text": {"per_layer_config.*.head_dim", "per_layer_config.*.num_key_value_heads", "sliding_window_pattern"},
    "gemma4_unified": {
        "per_layer_config.*.head_dim",
        "per_layer_config.*.num_key_value_heads",
        "sliding_window_pattern",
    },
    "gemma4_unified_text": {
        "per_layer_config.*.head_dim",
        "per_layer_config.*.num_key_value_heads",
        "sliding_window_pattern",
    },
    "glm": {"hidden_size", "num_attention_heads"},
    "glm4": {"hidden_size", "num_attention_heads"},
    "glm4_moe_lite": {"first_k_dense_replace"},
    "gpt_neo": {"num_layers"},
    "gpt_neox_japanese": {"intermediate_size"},
    "gpt_oss": {"experts_per_token"},
    "granitemoehybrid": {"mamba_d_head"},
    "helium": {"num_attention_heads"},
    "hy_v3": {"first_k_dense_replace"},
    "jamba": {"expert_layer_offset"},
    "mamba2": {"expand", "head_dim", "hidden_size", "num_heads"},
    "minicpm3": {"hidden_size", "num_attention_heads"},
    "mistral3": {"hidden_size", "num_attention_heads"},
    "modernbert-decoder": {"num_key_value_heads"},
    "nemotron": {"rope_percent"},
    "persimmon": {"num_key_value_heads"},
    "recurrent_gemma": {"num_key_value_heads"},
    "sarvam_moe": {"hidden_size", "num_attention_heads"},
}
QUICK = {"gemma3_text", "gpt_neox", "llama", "mixtral", "olmo3", "qwen3_moe", "smollm3"}

CHANGED = {"size": lambda v: 2 * v, "count": lambda v: v + 1, "positive": lambda v: 2 * v, "flag": lambda v: not v}


def class_config(template: Template, fields: dict[str, Any]) -> Any:
    """The config that transformers makes of fields; where the template reads an inner object, that one."""
    inner = template.config_in
    config = transformers.AutoConfig.for_model(template.name, **({inner: fields} if inner else fields))
    return getattr(config, inner) if inner else config


def found_at(config: Any, path: str) -> tuple[bool, Any]:
    """Whether a config of transformers has a value at a path of a template, and the value."""
    for part in path.split("."):
        if isinstance(config, dict):
            if part not in config:
                return False, None
            config = config[part]
        elif hasattr(config, part):
            config = getattr(config, part)
        else:
            return False, None
    return True, config


def value_of(config: Any, row: Key) -> tuple[bool, Any]:
    """The value of a row by transformers."""
    for path in row.paths:
        is_there, value = found_at(config, path)
        if is_there:
            return True, value
    if row.paths == ("head_dim",) and hasattr(config, "num_attention_heads"):  # as its models compute it
        return True, config.hidden_size // config.num_attention_heads
    return False, None


def nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def required(template: Template, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without a default in the template, as transformers fills them in, and flags without a choice."""
    config = class_config(template, dict(fields))
    found = {row.paths[0]: value_of(config, row)[1] for row in template.config.values() if row.default is None}
    for row in template.config.values():
        if row.type == "flag" and row.only:
            found[row.paths[0]] = row.only[0].evaluate({})
    return found


def settings_of(template: Template, fields: dict[str, Any]) -> Settings:
    return read_settings(template, {template.config_in: fields} if template.config_in else fields, template.name)


def compare(template: Template, fields: dict[str, Any]) -> None:
    """Compares all names of a template that transformers has, too; None means 0, no, or the usual size."""
    config, values = class_config(template, dict(fields)), settings_of(template, fields).values
    compared = 0
    for name, row in template.config.items():
        if name in OTHER_FORM.get(template.name, ()):
            continue
        is_there, expected = value_of(config, row)
        if not is_there or (name == "window" and not values.get("has_window", True)):
            continue
        if expected is None and values[name] is not None:
            expected = {"head_dim": values["width"] // values["heads"], "inner": 4 * values["width"]}.get(name, 0)
        assert values[name] == expected, name
        compared += 1
    assert compared >= 7


@pytest.mark.parametrize("name", [name for name in template_names() if name not in WITHOUT_DEFAULTS])
def test_defaults(name: str):
    template = read_template(name)
    compare(template, required(template, {}))


CHANGES = [
    pytest.param(name, path, marks=() if name in QUICK else pytest.mark.slow)
    for name in template_names()
    if name not in WITHOUT_DEFAULTS
    for row in read_template(name).config.values()
    for path in row.paths
    if row.type in CHANGED and not row.only and path not in UNEXPLAINED.get(name, ())
]


@pytest.mark.parametrize("name, path", CHANGES)
def test_one_field_that_is_given(name: str, path: str):
    """One field at one place; all others follow from it as in transformers."""
    template = read_template(name)
    row = next(row for row in template.config.values() if path in row.paths)
    values = settings_of(template, required(template, {})).values
    value = next(values[key] for key, each in template.config.items() if each is row)
    changed = nested(path, CHANGED[row.type](value or (1.0 if row.type == "positive" else 1)))
    compare(template, required(template, changed) | changed)
