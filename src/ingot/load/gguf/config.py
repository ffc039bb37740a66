"""Convert the architecture in a GGUF file's metadata to the `config.json` that a template reads.

Names of keys: github.com/ggml-org/ggml, docs/gguf.md; details that it leaves open follow llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.file import GgufFile
from ingot.load.hf.settings import MAX_LAYERS, MAX_SIZE

MAX_FACTORS = 1 << 12  # of rotary angles in a file

_FREQUENCIES, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_FREQUENCIES, _LONG, _SHORT)  # tensors that become part of the config
# Architectures whose norms subtract the mean.
_LAYER_NORMS = frozenset("gpt2 gptneox stablelm starcoder starcoder2 phi2 command-r cohere2 olmo nemotron".split())
# The constant of norms, by its names in templates.
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
EXPERTS = ("gpt-oss", "llama", "olmoe", "qwen2moe", "qwen3moe")  # architectures with mixtures of experts
# Number of layers of the largest Gemma 2 and 3, whose query scale is the model width divided by the heads.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}


class _Keys:
    """The keys of an architecture, by the end of their names."""

    def __init__(self, file: GgufFile, architecture: str):
        self.metadata, self.architecture = file.metadata, architecture

    def where(self, name: str) -> str:
        return self.metadata.where(f"{self.architecture}.{name}")

    def size(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Return an integer of 1..most that all layers share. Raises LoadError, LimitError for more than `most`
        layers.
        """
        key = f"{self.architecture}.{name}"
        entry = self.metadata.entries.get(key)
        if entry is not None and entry.is_array:
            values = self.metadata.integers(key)
            assert values is not None
            if len(values) == 0 or (values != values[0]).any():
                raise UnsupportedError(f"{self.where(name)}: differs by layer, expected one number for all layers")
            value: int | None = int(values[0])
        else:
            value = self.metadata.integer(key)
        value = default if value is None else value
        if value is None:
            raise LoadError(f"{self.where(name)}: missing, expected an integer of 1..{most}")
        if value > most and most < MAX_SIZE:
            raise LimitError(f"{self.where(name)}: too many, got {value}, expected at most {most}")
        if not 1 <= value <= most:
            raise LoadError(f"{self.where(name)}: out of range, got {value}, expected 1..{most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.metadata.number(f"{self.architecture}.{name}")
        value = default if value is None else value
        if value is None or value <= 0:
            raise LoadError(f"{self.where(name)}: {'missing' if value is None else f'got {value}'}, expected above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.metadata.flag(f"{self.architecture}.{name}")
        return default if value is None else value

    def experts(self) -> int:
        """Return the number of experts of a mixture; 0 for a model without."""
        return self.metadata.integer(f"{self.architecture}.expert_count") or 0

    def layer_types(self, default: int) -> list[str]:
        """Return the kind of each layer: the file specifies for each whether it has a window, or the interval of
        those without. default: the interval of a file without the key.
        """
        name = f"{self.architecture}.attention.sliding_window_pattern"
        layers, entry = self.size("block_count", most=MAX_LAYERS), self.metadata.entries.get(name)
        if entry is not None and entry.is_array:
            if entry.type != "bool" or len(entry.value) != layers:
                raise LoadError(f"{self.where('attention.sliding_window_pattern')}: expected {layers} truth values")
            local = entry.value.tolist()
        else:
            interval = self.size("attention.sliding_window_pattern", default)
            local = [(layer + 1) % interval != 0 for layer in range(layers)]
        return ["sliding_attention" if is_local else "full_attention" for is_local in local]

    def window(self) -> int | None:
        """Return the positions that a token attends to; None for all, which a file may write as 0."""
        name = "attention.sliding_window"
        is_none = not self.has(name) or self.metadata.integer(f"{self.architecture}.{name}") == 0
        return None if is_none else self.size(name)

    def factor(self, name: str) -> float | None:
        """Return a number above 0; None if it is missing, or 0, which means so in llama.cpp."""
        value = self.metadata.number(f"{self.architecture}.{name}")
        return None if value is None or value == 0 else self.number(name)

    def text(self, name: str) -> str | None:
        return self.metadata.text(f"{self.architecture}.{name}")

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the config. Raises LoadError or UnsupportedError that names the key, LimitError for too many layers."""
    architecture = file.metadata.text("general.architecture")
    if architecture is None:
        raise LoadError(f"{file.metadata.where('general.architecture')}: missing, expected a string")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.metadata.where('general.architecture')}: not supported, got {architecture!r},"
            f" expected one of {', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(file, architecture)
    if keys.experts() and architecture not in EXPERTS:
        raise UnsupportedError(f"{keys.where('expert_count')}: experts are not supported, expected none")
    return _shared(file, keys) | ARCHITECTURES[architecture](file, keys)


def _shared(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    """Return the keys that every architecture has."""
    width, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    kv_heads = keys.size("attention.head_count_kv", heads)
    if not keys.has("attention.key_length") and width % heads:
        raise LoadError(f"{keys.where('attention.head_count')}: got {heads}, expected a divisor of {width}")
    head_dim = keys.size("attention.key_length", width // heads or None)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{keys.where('attention.value_length')}: differs from the key length, {head_dim}")
    has_means = keys.architecture in _LAYER_NORMS
    return {
        "vocab_size": _vocabulary(file),
        "hidden_size": width,
        "num_hidden_layers": keys.size("block_count", most=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": keys.size("feed_forward_length"),
        "max_position_embeddings": keys.size("context_length"),
        **dict.fromkeys(_EPSILONS, keys.number(f"attention.layer_norm{'' if has_means else '_rms'}_epsilon")),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _vocabulary(file: GgufFile) -> int:
    """Return the number of rows of the embedding, at least the number of tokens."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise LoadError(f"{file.path}: no tensor 'token_embd.weight' of two dims, expected [vocabulary, width]")
    return table.shape[0]


def _llama(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    config_values = {"mlp_bias": "blk.0.ffn_up.bias" in file.tensors, "rope_scaling": _scaling(file, keys)}
    window = keys.window()
    if keys.experts():
        chosen = keys.size("expert_used_count")
        mixture = {"num_local_experts": keys.experts(), "num_experts_per_tok": chosen, "sliding_window": window}
        return config_values | mixture | {"model_type": "mixtral"}
    if window is None:
        return config_values | {"model_type": "llama"}
    return config_values | {"model_type": "mistral", "sliding_window": window}


def _qwen(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        _expect_whole_heads(file, keys)
        return {"model_type": model_type, "rope_scaling": _scaling(file, keys)}

    return config


def _phi3(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "phi3",
        "partial_rotary_factor": _rotated(keys) / _head_dim(keys),
    }
    if keys.window() is not None:
        config["sliding_window"] = keys.window()
    if _LONG not in file.tensors:
        return config
    original = keys.size("rope.scaling.original_context_length")
    scaling: dict[str, Any] = {"rope_type": "longrope"}
    scaling |= {"long_factor": _factors(file, _LONG), "short_factor": _factors(file, _SHORT)}
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = keys.number("rope.scaling.attn_factor")
    return config | {"original_max_position_embeddings": original, "rope_scaling": scaling}


def _qwen3_moe(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    """Return the config; a file does not say that the weights of the selected experts are normalized."""
    return _qwen("qwen3_moe")(file, keys) | {
        "num_experts": keys.experts(),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
    }


def _smollm3(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    return _llama(file, keys) | {"model_type": "smollm3"}


def _cohere(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    return {
        "model_type": "cohere",
        "logit_scale": keys.number("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "rope_scaling": _scaling(file, keys),
    }


def _cohere2(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    windows = {"sliding_window": keys.size("attention.sliding_window"), "layer_types": keys.layer_types(4)}
    return _cohere(file, keys) | windows | {"model_type": "cohere2"}


def _olmo(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    config_values = _llama(file, keys) | {"model_type": "olmo"}
    bound = keys.factor("attention.clamp_kqv")
    return config_values if bound is None else config_values | {"clip_qkv": bound}


def _olmoe(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    return _qwen("olmoe")(file, keys) | {
        "num_experts": keys.experts(), "num_experts_per_tok": keys.size("expert_used_count"), "norm_topk_prob": False,
    }  # fmt: skip


def _qwen2_moe(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    return _qwen("qwen2_moe")(file, keys) | {
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "num_experts": keys.experts(),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }


def _gpt_oss(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    scaling = _scaling(file, keys)
    return {
        "model_type": "gpt_oss",
        "split_gates": True,
        "num_local_experts": keys.experts(),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "intermediate_size": keys.size("expert_feed_forward_length"),
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": keys.layer_types(2),
        "rope_scaling": scaling and (scaling | {"truncate": False}),
    }


def _partial(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    """Return the config of a model with rotary angles on a part of each head."""

    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        fraction = _rotated(keys) / _head_dim(keys)
        return {"model_type": model_type, "partial_rotary_factor": fraction, "rope_scaling": _scaling(file, keys)}

    return config


def _nemotron(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    biases = {"mlp_bias": "blk.0.ffn_up.bias" in file.tensors, "norm_unit_offset": False}  # weights include the offset
    return _partial("nemotron")(file, keys) | biases


def _with_biases(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    """Return the config of a model like Llama whose biases have settings of their own."""

    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        biases = {
            "attention_out_bias": "blk.0.attn_output.bias" in file.tensors,
            "use_bias": "blk.0.attn_q.bias" in file.tensors,
        }
        return _llama(file, keys) | biases | {"model_type": model_type}

    return config


def _starcoder(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    if keys.size("attention.head_count_kv", keys.size("attention.head_count")) != 1:
        raise UnsupportedError(f"{keys.where('attention.head_count_kv')}: expected one head of keys and values")
    return _gpt2(file, keys) | {"model_type": "gpt_bigcode", "multi_query": True}


def _granite(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    factors = {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    numbers = {ours: keys.number(name) for ours, name in factors.items() if keys.factor(name) is not None}
    return _llama(file, keys) | {"model_type": "granite"} | numbers


def _olmo2(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    window, scaling = keys.window(), _scaling(file, keys)
    if window is None:
        return {"model_type": "olmo2", "rope_scaling": scaling}
    theta = keys.number("rope.freq_base", 10000.0)
    full, local = {"rope_theta": theta, **(scaling or {})}, {"rope_theta": theta}
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": keys.layer_types(4),
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def _exaone4(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    window, layers = keys.window(), keys.size("block_count", most=MAX_LAYERS)
    kinds = ["full_attention"] * layers if window is None else keys.layer_types(4)
    return {
        "model_type": "exaone4", "rope_scaling": _scaling(file, keys), "sliding_window": window, "layer_types": kinds,
    }  # fmt: skip


def _starcoder2(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    return {
        "model_type": "starcoder2",
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": keys.window(),
        "rope_scaling": _scaling(file, keys),
    }


def _stablelm(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    return {
        "model_type": "stablelm",
        "use_qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "use_parallel_residual": keys.flag("use_parallel_residual", "blk.0.ffn_norm.weight" not in file.tensors),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in file.tensors,
        "partial_rotary_factor": _rotated(keys) / _head_dim(keys),
        "rope_scaling": _scaling(file, keys),
    }


def _gpt_neox(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox",
        "attention_bias": "blk.0.attn_qkv.bias" in file.tensors,
        "use_parallel_residual": keys.flag("use_parallel_residual", True),
        "rotary_pct": _rotated(keys) / _head_dim(keys),
        "rotary_emb_base": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(file, keys),
    }


def _gpt2(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    sizes = {
        "n_embd": "embedding_length", "n_layer": "block_count", "n_head": "attention.head_count",
        "n_positions": "context_length", "n_inner": "feed_forward_length",
    }  # fmt: skip
    return {"model_type": "gpt2", **{ours: keys.size(name) for ours, name in sizes.items()}}


def _first_gemma(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    return {"model_type": "gemma", "norm_unit_offset": False, "rope_scaling": _scaling(file, keys)}


def _gemma(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        _expect_whole_heads(file, keys)
        width, heads = keys.size("embedding_length"), keys.size("attention.head_count")
        layers = keys.size("block_count", most=MAX_LAYERS)
        is_largest = layers == _LARGEST_GEMMA[keys.architecture]
        scalar = width / heads if is_largest else keys.size("attention.key_length", width // heads)
        config_values: dict[str, Any] = {
            "model_type": model_type,
            "norm_unit_offset": False,  # the weights of a file include the offset
            "query_pre_attn_scalar": scalar,
            "sliding_window": keys.size("attention.sliding_window"),
            "rope_scaling": _scaling(file, keys),
        }
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if keys.has(name):
                config_values[name] = keys.number(name)
        if model_type == "gemma3_text":
            config_values["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
            config_values["rope_theta"] = keys.number("rope.freq_base", 1e6)
            config_values["layer_types"] = keys.layer_types(6)
        return config_values

    return config


ARCHITECTURES: dict[str, Callable[[GgufFile, _Keys], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen("qwen2"),
    "qwen3": _qwen("qwen3"),
    "gemma": _first_gemma,
    "gemma2": _gemma("gemma2"),
    "gemma3": _gemma("gemma3_text"),
    "phi3": _phi3,
    "qwen3moe": _qwen3_moe,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "exaone4": _exaone4,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "gptneox": _gpt_neox,
    "gpt2": _gpt2,
    "starcoder": _starcoder,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "olmo": _olmo,
    "olmoe": _olmoe,
    "qwen2moe": _qwen2_moe,
    "gpt-oss": _gpt_oss,
    "phi2": _partial("phi"),
    "glm4": _partial("glm4"),
    "chatglm": _partial("glm"),
    "nemotron": _nemotron,
    "arcee": _with_biases("arcee"),
    "seed_oss": _with_biases("seed_oss"),
    "ernie4_5": _with_biases("ernie4_5"),
    "exaone": _with_biases("exaone"),
}


def _expect_whole_heads(file: GgufFile, keys: _Keys) -> None:
    """Raise UnsupportedError if only a part of each head is rotated."""
    head_dim, rotated = _head_dim(keys), _rotated(keys)
    if rotated != head_dim:
        raise UnsupportedError(f"{keys.where('rope.dimension_count')}: got {rotated}, expected whole heads, {head_dim}")


def _scaling(file: GgufFile, keys: _Keys) -> dict[str, Any] | None:
    """Return the scaling of rotary angles: by frequencies in the file, or by the kind that its keys name.

    As in llama.cpp, a factor without a kind is a linear scaling, and `rope.scale_linear` is an older name of it.
    """
    kind = keys.text("rope.scaling.type") or ("none" if _FREQUENCIES in file.tensors else "linear")
    factor = keys.factor("rope.scaling.factor") or keys.factor("rope.scale_linear") or 1.0
    attention = keys.factor("rope.scaling.attn_factor") or 1.0
    match kind:
        case "none" | "linear":
            count = _rotated(keys) // 2
            if count > MAX_FACTORS:
                raise LimitError(f"{keys.where('rope.dimension_count')}: too large, expected at most {2 * MAX_FACTORS}")
            divisors = [1.0 if kind == "none" else factor] * count
        case "yarn":
            config_values: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
            if keys.has("rope.scaling.original_context_length"):
                config_values["original_max_position_embeddings"] = keys.size("rope.scaling.original_context_length")
            for name in ("beta_fast", "beta_slow"):
                if keys.has(f"rope.scaling.yarn_{name}"):
                    config_values[name] = keys.number(f"rope.scaling.yarn_{name}")
            if attention != 1.0:
                config_values["attention_factor"] = attention * (0.1 * math.log(max(factor, 1.0)) + 1.0)
            return config_values
        case _:
            raise UnsupportedError(
                f"{keys.where('rope.scaling.type')}: got {kind!r}, expected one of none, linear, yarn"
            )
    if _FREQUENCIES in file.tensors:
        if kind != "none":
            raise UnsupportedError(f"{keys.where('rope.scaling.type')}: got {kind!r} together with {_FREQUENCIES!r}")
        divisors = _factors(file, _FREQUENCIES)
    elif attention == 1.0:
        return None if divisors[:1] in ([], [1.0]) else {"rope_type": "linear", "factor": factor}
    return {
        "rope_type": "longrope", "long_factor": divisors, "short_factor": divisors, "attention_factor": attention
    }  # fmt: skip


def _rotated(keys: _Keys) -> int:
    """Return how many elements of a head are rotated."""
    return keys.size("rope.dimension_count", _head_dim(keys))


def _head_dim(keys: _Keys) -> int:
    return keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))


def _factors(file: GgufFile, name: str) -> list[float]:
    """Return the numbers of a tensor of factors, one for each pair of elements. Raises LoadError for an invalid
    tensor.
    """
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type != "f32" or len(tensor.shape) != 1:
        raise LoadError(f"{file.path}: no tensor {name!r} of f32 and one dim")
    if tensor.shape[0] > MAX_FACTORS:
        raise LimitError(f"{file.path}: tensor {name!r}: got {tensor.shape[0]} factors, expected at most {MAX_FACTORS}")
    factors = np.frombuffer(tensor.content, "<f4", tensor.shape[0], tensor.offset) if tensor.nbytes else np.empty(0)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise LoadError(f"{file.path}: tensor {name!r}: not factors, expected finite numbers above 0")
    return factors.tolist()
