"""Model folders of more architectures as GGUF files: what llama.cpp's converter changes, and the keys it writes.

`python tests/kit/gguf_conversions.py FOLDER FILE`. Names of tensors are those that gguf-py gives to the folder's names;
tensors that the converter splits, joins or computes are here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from scipy.stats import norm

from gguf_models import Encode, interleaved, read_tensors, stored_as

# What files call an architecture, by what folders do.
CONVERTED = {
    "bloom": "bloom", "mpt": "mpt", "dbrx": "dbrx", "falcon": "falcon", "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe", "granitemoehybrid": "granitehybrid", "bamba": "granitehybrid",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "youtu": "deepseek2",
    "glm_moe_dsa": "glm-dsa", "glm4_moe": "glm4moe", "solar_open": "glm4moe", "dots1": "dots1",
    "exaone_moe": "exaone-moe", "ernie4_5_moe": "ernie4_5-moe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "mamba": "mamba", "mamba2": "mamba2", "falcon_mamba": "mamba", "jamba": "jamba",
    "falcon_h1": "falcon-h1", "nemotron_h": "nemotron_h_moe", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "phimoe": "phimoe", "minicpm3": "minicpm3", "minimax_m2": "minimax-m2", "mimo_v2_flash": "mimo2",
    "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "kimi_linear": "kimi-linear", "afmoe": "afmoe", "apertus": "apertus", "bitnet": "bitnet", "jais2": "jais2",
    "llama4_text": "llama4", "gemma3n_text": "gemma3n", "ministral3": "mistral3", "internlm3": "llama",
    "iquestcoder": "llama", "sarvam_moe": "bailingmoe2", "gemma4_text": "gemma4", "gemma4": "gemma4",
    "llama4": "llama4",
    "granite_swa": "granite_swa", "granitemoe_swa": "granite_swa", "cohere2_moe": "cohere2moe", "hy_v3": "hy_v3",
    "mellum": "mellum", "deepseek_v32": "deepseek32", "minimax": "minimax-01",
}  # fmt: skip
_PAIRED = (
    "granitemoe",
    "granitehybrid",
    "granite_swa",
    "mistral3",
    "llama",
)  # whose rotated pairs are side by side in files
# Architectures that gguf-py does not have yet, and others with the same names of tensors.
_LIKE = {
    "granite_swa": "granitehybrid", "cohere2moe": "dots1", "hy_v3": "exaone-moe", "mellum": "qwen3moe",
    "deepseek32": "glm-dsa", "minimax-01": "minimax-m2",
}  # fmt: skip
_EXPERT = re.compile(r"(.*\.experts|model\.altup_(?:unembed_)?projections)\.(\d+)\.(.*)")

Tensors = Iterator[tuple[str, np.ndarray]]


def write_converted(
    folder: Path,
    path: Path,
    encode: Encode | None = None,
    *,
    keys: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> None:
    """A folder of one of the types of CONVERTED as a file. keys: with other values; without: tensors to leave out."""
    config = json.loads((folder / "config.json").read_text())
    architecture = CONVERTED[config["model_type"]]
    config = config.get("text_config", config)
    for other in config.get("per_layer_config", {}).values():  # as transformers 5 writes the sizes of full layers
        names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        config |= {names[name]: size for name, size in other.items() if name in names}
    if architecture == "nemotron_h_moe" and "moe" not in config["layers_block_type"]:
        architecture = "nemotron_h"
    writer = gguf.GGUFWriter(path, architecture)
    tensors = _of_text(read_tensors(folder))
    for key, value in {**keys_of(config, architecture), **_activation_keys(tensors), **(keys or {})}.items():
        add = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
            list: writer.add_array,
        }  # fmt: skip
        add[type(value)](key if key.startswith("xielu") else f"{architecture}.{key}", value)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(len(next(tensor for name, tensor in tensors.items() if "embed" in name or ".wte." in name)))
    divisors = _divisors(config)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    for name, tensor in file_tensors(tensors, config, architecture):
        if name in without:
            continue
        data, kind = (encode or stored_as("f32"))(name, np.ascontiguousarray(tensor))
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _of_text(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of the language model within a folder of more parts, by their names without these."""
    own = {
        name.replace("language_model.", "", 1): tensor for name, tensor in tensors.items() if "language_model." in name
    }
    return own or tensors


def _divisors(config: Mapping[str, Any]) -> np.ndarray | None:
    """Divisors of angles: of Llama 3's scaling, and of Gemma 4, where those that are not rotated have a large one."""
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if full.get("rope_type") == "proportional":
        pairs = config["global_head_dim"] // 2
        rotated = int(pairs * full.get("partial_rotary_factor", 1))
        return np.where(np.arange(pairs) < rotated, 1, 1e30).astype(np.float32)
    if full.get("rope_type") != "llama3":
        return None
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    factor, low, high = (full[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = full["original_max_position_embeddings"] * full["rope_theta"] ** (-np.arange(0, dim, 2) / dim) / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / factor + share)).astype(np.float32)


def _activation_keys(tensors: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """The weights of an activation, which files have as keys."""
    found: dict[str, list[float]] = {}
    for layer in range(len(tensors)):
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            tensor = tensors.get(f"model.layers.{layer}.mlp.act_fn.{name}")
            if tensor is not None:
                found.setdefault(f"xielu.{name}", []).append(float(tensor.reshape(())))
    return found


def file_tensors(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any], architecture: str) -> Tensors:
    """The tensors of a file by their names there."""
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == _LIKE.get(architecture, architecture))
    names = gguf.get_tensor_name_map(kind, 64)
    experts: dict[str, dict[int, np.ndarray]] = {}
    whole: list[tuple[str, np.ndarray]] = []
    for name, tensor in tensors.items():
        if re.search(r"\.(slope_rate|(query|key|diagonal)_decay)$", name):  # constants of MiniMax
            continue
        part = _EXPERT.fullmatch(name)
        if part is None:
            whole.append((name, tensor))
        else:
            experts.setdefault(f"{part[1]}.{part[3]}", {})[int(part[2])] = tensor
    whole += [(name, np.stack([each[i] for i in range(len(each))])) for name, each in experts.items()]
    for name, tensor in whole:
        for changed, data in _changed(name, tensor, config, architecture):
            if re.match(r"(blk\.\d+\.|token_embd|output|altup|per_layer)", changed):
                yield changed, data
                continue
            found = names.get_name(_renamed(changed, architecture), try_suffixes=(".weight", ".bias"))
            assert found is not None, changed
            yield found, data


def _renamed(name: str, architecture: str) -> str:
    """A name of transformers 5 as the one that gguf-py knows."""
    if name.endswith((".e_score_correction_bias", ".expert_bias")):
        name = name.replace("moe_statics.e_score", "moe_statics.e_score").replace("mlp.e_score", "mlp.gate.e_score")
        name = name.replace("e_score_correction_bias", "e_score_correction.bias").replace(
            "expert_bias", "expert_bias.bias"
        )
    if name.endswith("attention_sink_bias"):
        name += ".weight"
    if architecture == "bloom":
        name = name.removeprefix("transformer.")
    if architecture == "kimi-linear" and re.search(r"block_sparse_moe\.(gate|up|down)_proj", name):
        name = name.replace("block_sparse_moe", "mlp")
    if architecture == "nemotron_h_moe" and ".experts." in name:
        name = name.replace("backbone", "model").replace("mixer", "mlp")
    if architecture == "jamba" and ".experts." in name:
        name = name.replace("feed_forward", "mlp")
    if architecture == "lfm2moe" and ".experts." in name:
        name = name.replace("model.layers", "layers")
    return re.sub(r"\.dt_bias$", ".dt.bias" if architecture == "nemotron_h_moe" else ".dt_proj.bias", name)


def _changed(name: str, tensor: np.ndarray, config: Mapping[str, Any], architecture: str) -> Tensors:
    """A tensor of a folder as the converter changes it, under names that gguf-py maps or that files have."""
    layer = re.search(r"(?:layers|h|blocks)\.(\d+)\.", name)
    block = f"blk.{layer[1]}." if layer else ""
    if name.endswith(".A_log"):
        tensor = -np.exp(tensor)
        flat = architecture in ("mamba2", "granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe")
        tensor = tensor[:, None] if flat else tensor
    elif name.endswith(".D") and architecture in (
        "mamba2",
        "granitehybrid",
        "falcon-h1",
        "nemotron_h",
        "nemotron_h_moe",
    ):
        tensor = tensor[:, None]
    elif re.search(r"conv1d\.weight|conv\.conv\.weight", name):
        tensor = tensor.reshape(1, len(tensor), 1, -1) if architecture == "kimi-linear" else tensor[:, 0]
    elif re.search(r"(mamba|mixer)\.norm\.weight", name) and tensor.ndim == 1 and "layers" in name:
        tensor = tensor.reshape(_groups(config), -1)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    turned = next((key for part, key in heads.items() if f"self_attn.{part}." in name), None)
    if turned and architecture in _PAIRED:
        tensor = interleaved(tensor, config[turned])
    change = _CHANGES.get(architecture)
    yield from [(name, tensor)] if change is None else change(name, tensor, config, block)


def _groups(config: Mapping[str, Any]) -> int:
    return next(config[name] for name in ("mamba_n_groups", "n_groups") if name in config)


def _fused(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """Granite: the gates of experts and of the shared mlp apart."""
    last = "exps" if "block_sparse_moe" in name else "shexp" if config.get("num_local_experts") else ""
    last = f"_{last}" if last else ""
    if name.endswith("input_linear.weight"):
        gate, up = np.split(tensor, 2, axis=-2)
        yield f"{block}ffn_gate{last}.weight", gate
        yield f"{block}ffn_up{last}.weight", up
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{block}ffn_down{last}.weight", tensor
    else:
        yield name, tensor


def _latent(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """DeepSeek: the matrices of keys and values apart, the former transposed."""
    if not name.endswith("kv_b_proj.weight"):
        yield name, tensor
        return
    heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]
    each = tensor.reshape(heads, -1, tensor.shape[-1])
    yield f"{block}attn_k_b.weight", each[:, :plain].swapaxes(1, 2)
    yield f"{block}attn_v_b.weight", each[:, plain:]


def _qwen_next(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """Qwen 3 Next: the weights of norms with their offset, and projections whose parts are not by heads of keys."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        yield name, tensor + np.float32(1)
    elif "in_proj_qkvz" in name:
        key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
        heads, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        each = tensor.reshape(heads, -1, tensor.shape[1])
        ends = np.cumsum([key, key, values // heads * value])
        parts = [part.reshape(-1, tensor.shape[1]) for part in np.split(each, ends, 1)]
        yield f"{block}attn_qkv.weight", np.concatenate(parts[:3])
        yield f"{block}attn_gate.weight", parts[3]
    else:
        yield name, tensor


def _qwen_3_5(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """Qwen 3.5: heads of values in the order of their numbers within each head of keys."""
    keys, values, dim = (config[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "value_head_dim"))
    first = 2 * keys * config["linear_key_head_dim"]

    def tiled(rows: np.ndarray, each: int) -> np.ndarray:
        shape = (keys, values // keys, each, *rows.shape[1:])
        return rows.reshape(shape).swapaxes(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        tensor = np.concatenate([tensor[:first], tiled(tensor[first:], dim)])
    elif "in_proj_z" in name:
        tensor = tiled(tensor, dim)
    elif "linear_attn" in name and re.search(r"in_proj_[ab]|A_log|dt_bias", name):
        tensor = tiled(tensor, 1)
    elif "linear_attn.out_proj" in name:
        tensor = tiled(np.ascontiguousarray(tensor.T), dim).T
    yield from _qwen_next(name, tensor, config, block)


def _falcon_h1(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """Falcon H1: the weights of products with its factors."""
    factors = {
        "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"], "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    if "mamba.in_proj" in name:
        inner, shared = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
        factor = np.repeat(config["ssm_multipliers"], sizes)[:, None] * config["ssm_in_multiplier"]
        yield name, (tensor * factor).astype(np.float32)
    else:
        factor = next((factor for part, factor in factors.items() if part in name), 1.0)
        yield name, (tensor * factor).astype(np.float32)


def _bloom(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    if "query_key_value" in name:
        each = tensor.reshape(config["n_head"], 3, -1, *tensor.shape[1:])
        tensor = each.swapaxes(0, 1).reshape(tensor.shape)
    yield name, tensor


def _falcon(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    if "query_key_value" in name:
        heads = config["num_attention_heads"]
        groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
        each = tensor.reshape(groups, heads // groups + 2, -1, *tensor.shape[1:])
        parts = (each[:, :-2], each[:, -2:-1], each[:, -1:])
        tensor = np.concatenate([part.reshape(-1, *tensor.shape[1:]) for part in parts])
    yield name, tensor


def _dbrx(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    if "experts.mlp" in name:
        each = tensor.reshape(config["ffn_config"]["moe_num_experts"], -1, config["d_model"])
        part = {"w1": "gate", "v1": "up", "w2": "down"}[name[-2:]]
        yield f"{block}ffn_{part}_exps.weight", each.swapaxes(1, 2) if part == "down" else each
    else:
        yield name, tensor


def _llama_4(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    if "experts.gate_up_proj" in name:
        gate, up = np.split(tensor.swapaxes(1, 2), 2, axis=1)
        yield f"{block}ffn_gate_exps.weight", gate
        yield f"{block}ffn_up_exps.weight", up
    elif "experts.down_proj" in name:
        yield f"{block}ffn_down_exps.weight", tensor.swapaxes(1, 2)
    else:
        yield name, tensor


def _apertus(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    """Apertus: the weights of its activation are keys."""
    if ".act_fn." not in name:
        yield name, tensor


def _gemma_3n(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    yield (f"{block}altup_correct_scale.weight" if name.endswith("correct_output_scale") else name), tensor


def _ernie(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
    yield (f"{block}exp_probs_b.bias", tensor[0]) if "moe_statics" in name else (name, tensor)


def _named(names: Mapping[str, str]) -> Callable[[str, np.ndarray, Mapping[str, Any], str], Tensors]:
    """A change of nothing but names, by a part of the folder's."""

    def change(name: str, tensor: np.ndarray, config: Mapping[str, Any], block: str) -> Tensors:
        found = next((f"{block}{other}" for part, other in names.items() if part in name), name)
        yield found, tensor

    return change


_CHANGES = {
    "granitemoe": _fused, "granitehybrid": _fused, "deepseek2": _latent, "glm-dsa": _latent, "kimi-linear": _latent,
    "qwen3next": _qwen_next, "qwen35": _qwen_3_5, "qwen35moe": _qwen_3_5, "falcon-h1": _falcon_h1, "bloom": _bloom,
    "falcon": _falcon, "dbrx": _dbrx, "llama4": _llama_4, "apertus": _apertus, "gemma3n": _gemma_3n,
    "ernie4_5-moe": _ernie, "gemma4": _named({"layer_scalar": "layer_output_scale.weight"}),
    "granite_swa": _named({
        "self_attn.sinks": "attn_sinks.weight", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight", "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    }),
    "hy_v3": _named({"mlp.expert_bias": "exp_probs_b", "mlp.router.gate.weight": "ffn_gate_inp.weight"}),
    "minimax-01": _named({
        "self_attn.norm.weight": "attn_norm_2.weight", "self_attn.output_gate": "attn_gate.weight",
        "self_attn.qkv_proj": "attn_qkv.weight", "self_attn.out_proj": "attn_output.weight",
    }),
    "deepseek32": _latent,
    "bitnet": _named({"attn_sub_norm": "attn_sub_norm.weight", "ffn_sub_norm": "ffn_sub_norm.weight"}),
}  # fmt: skip


def keys_of(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The keys of a file, without the architecture's name."""
    found: dict[str, Any] = {}
    for key, names in _SHARED.items():
        name = next((name for name in names if config.get(name) is not None), None)
        if name is not None:
            found[key] = config[name]
    heads, width = found.get("attention.head_count", 1), found["embedding_length"]
    head_dim = config.get("head_dim") or width // heads
    found["attention.head_count_kv"] = config.get("num_key_value_heads") or heads
    found["rope.dimension_count"] = _rotated(config, head_dim)
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if full.get("rope_theta") is not None:
        found["rope.freq_base"] = float(full["rope_theta"])
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if full.get("rope_type") == "yarn":
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(full["factor"])
        found["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
    if config.get("head_dim"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    own = _KEYS.get(architecture)
    found |= {} if own is None else own(config)
    return {key: value for key, value in found.items() if value is not None}


def _rotated(config: Mapping[str, Any], head_dim: int) -> int:
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    return int(head_dim * (full.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1))


# The keys of most architectures, and the fields of a config that they come from.
_SHARED = {
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "context_length": ("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "seq_length"),
    "embedding_length": ("hidden_size", "n_embed", "d_model"),
    "feed_forward_length": ("intermediate_size", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layernorm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
    "expert_group_count": ("n_group", "num_expert_group"),
    "expert_group_used_count": ("topk_group",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "expert_weights_norm": ("norm_topk_prob", "moe_renormalize"),
    "attention.sliding_window": ("sliding_window",),
}


def _by_layer(config: Mapping[str, Any], number: int, *kinds: str) -> list[int]:
    """A number for the layers of some kinds, 0 for the others."""
    types = config.get("layer_types") or config["layers_block_type"]
    return [number if kind in kinds else 0 for kind in types]


def _plain_layers(config: Mapping[str, Any]) -> int:
    if "mlp_layer_types" in config:
        return [*config["mlp_layer_types"], "sparse"].index("sparse")
    return config.get("first_k_dense_replace") or config.get("num_dense_layers") or 0


def _local(config: Mapping[str, Any]) -> list[bool]:
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _mamba_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
        "context_length": 2**20,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _mamba2_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model with layers of Mamba 2, whatever the names of their sizes are."""

    def size(*names: str) -> int:
        return next(config[name] for name in names if config.get(name) is not None)

    heads = size("mamba_n_heads", "mamba_num_heads", "num_heads")
    return {
        "ssm.conv_kernel": size("mamba_d_conv", "conv_kernel"),
        "ssm.inner_size": heads * size("mamba_d_head", "mamba_head_dim", "head_dim"),
        "ssm.state_size": size("mamba_d_state", "ssm_state_size", "state_size"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": size("mamba_n_groups", "n_groups"),
    }


def _granite_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    }  # fmt: skip
    return {key: float(config[name]) for key, name in names.items() if name in config}


def _granite_hybrid_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    if "layer_types" in config:
        heads = _by_layer(config, config["num_key_value_heads"], "full_attention", "attention")
    else:
        layers, attention = range(config["num_hidden_layers"]), config["attn_layer_indices"]
        heads = [config["num_key_value_heads"] if layer in attention else 0 for layer in layers]
    return {
        **_granite_keys(config),
        **_mamba2_keys(config),
        "attention.head_count_kv": heads,
        "rope.scaling.finetuned": config["model_type"] == "bamba",
        "expert_count": config.get("num_local_experts") or None,
    }


def _jamba_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    heads, layers = config["num_key_value_heads"], range(config["num_hidden_layers"])
    return {
        "attention.head_count_kv": [heads if layer % period == offset else 0 for layer in layers],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
    }


def _nemotron_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    width = config["moe_intermediate_size"] if "moe" in config["layers_block_type"] else config["intermediate_size"]
    return {
        **_mamba2_keys(config),
        "block_count": len(config["layers_block_type"]),
        "attention.head_count_kv": _by_layer(config, config["num_key_value_heads"], "full_attention"),
        "feed_forward_length": _by_layer(config, width, "moe") if "moe" in config["layers_block_type"]
        else _by_layer(config, width, "mlp"),
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "moe_latent_size": config.get("moe_latent_size"),
    }  # fmt: skip


def _lfm_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    width = config.get("block_ff_dim") or config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = multiple * -(-width // multiple)
    return {
        "attention.head_count_kv": _by_layer(config, config["num_key_value_heads"], "full_attention"),
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": width,
        "leading_dense_block_count": config.get("num_dense_layers"),
    }


def _latent_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rotated, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    rope = config.get("rope_parameters") or {}
    return {
        "attention.head_count_kv": 1,
        "leading_dense_block_count": _plain_layers(config),
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if rope.get("mscale_all_dim") else None,
        "expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2,
    }


def _minicpm_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "rope.dimension_count": config["qk_rope_head_dim"],
    }


def _dsa_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _latent_keys(config) | {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }


def _kimi_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _latent_keys(config) | {
        "attention.head_count_kv": _by_layer(config, 1, "full_attention"),
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
        "expert_group_count": None,
        "expert_group_used_count": None,
    }


def _routed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "leading_dense_block_count": _plain_layers(config),
        "expert_gating_func": 2,
        "attention.sliding_window": None,
    }


def _windowed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"leading_dense_block_count": _plain_layers(config), "attention.sliding_window_pattern": _local(config)}


def _mimo_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [2 * heads if is_local else heads for is_local in _local(config)],
        "attention.sliding_window_pattern": _local(config),
        "attention.value_length": config["v_head_dim"],
    }


def _delta_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
    }


def _falcon_h1_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _mamba2_keys(config) | {"ssm.inner_size": config["mamba_d_ssm"]}


def _gemma_3n_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "activation_sparsity_scale": [float(norm.ppf(share)) for share in config["activation_sparsity_pattern"]],
        "attention.sliding_window_pattern": _local(config),
        "final_logit_softcapping": config["final_logit_softcapping"],
    }


def _gemma_4_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, first = config["num_hidden_layers"], config["num_hidden_layers"] - config["num_kv_shared_layers"]
    width, heads = config["intermediate_size"], config["num_key_value_heads"]
    wide = config.get("use_double_wide_mlp")
    found: dict[str, Any] = {
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "attention.sliding_window_pattern": _local(config),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }
    if config.get("num_global_key_value_heads") is not None:
        full = config["num_global_key_value_heads"]
        found["attention.head_count_kv"] = [heads if is_local else full for is_local in _local(config)]
    if wide:
        found["feed_forward_length"] = [width if layer < first else 2 * width for layer in range(layers)]
    return found


def _dbrx_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    attention, mlp = config["attn_config"], config["ffn_config"]
    return {
        "attention.head_count_kv": attention["kv_n_heads"],
        "feed_forward_length": mlp["ffn_hidden_size"],
        "rope.freq_base": float(attention["rope_theta"]),
        "attention.clamp_kqv": attention["clip_qkv"],
        "expert_count": mlp["moe_num_experts"],
        "expert_used_count": mlp["moe_top_k"],
        "attention.layer_norm_epsilon": 1e-5,
    }


def _mpt_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    attention, width = config["attn_config"], config["d_model"]
    return {
        "feed_forward_length": 4 * width, "attention.clamp_kqv": attention["clip_qkv"],
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]), "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip


def _falcon_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    return {
        "context_length": 2048, "feed_forward_length": 4 * config["hidden_size"], "attention.head_count_kv": groups
    }  # fmt: skip


_KEYS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "mamba": _mamba_keys,
    "mamba2": lambda config: (
        _mamba_keys({**config, "intermediate_size": 0, "time_step_rank": 0}) | _mamba2_keys(config)
    ),
    "granitemoe": _granite_keys,
    "granitehybrid": _granite_hybrid_keys,
    "jamba": _jamba_keys,
    "nemotron_h": _nemotron_keys,
    "nemotron_h_moe": _nemotron_keys,
    "lfm2": _lfm_keys,
    "lfm2moe": _lfm_keys,
    "deepseek2": _latent_keys,
    "glm-dsa": _dsa_keys,
    "minicpm3": _minicpm_keys,
    "kimi-linear": _kimi_keys,
    "glm4moe": _routed_keys,
    "dots1": _routed_keys,
    "bailingmoe2": _routed_keys,
    "exaone-moe": _windowed_keys,
    "afmoe": _windowed_keys,
    "mimo2": _mimo_keys,
    "ernie4_5-moe": lambda config: {
        "leading_dense_block_count": config["moe_layer_start_index"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
    },
    "minimax-m2": lambda config: {"expert_feed_forward_length": config["intermediate_size"]},
    "qwen3next": _delta_keys,
    "qwen35": _delta_keys,
    "qwen35moe": _delta_keys,
    "falcon-h1": _falcon_h1_keys,
    "gemma3n": _gemma_3n_keys,
    "gemma4": _gemma_4_keys,
    "dbrx": _dbrx_keys,
    "mpt": _mpt_keys,
    "falcon": _falcon_keys,
    "bloom": lambda config: {"feed_forward_length": 4 * config["hidden_size"], "context_length": 2048},
    "bitnet": lambda config: {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
    "granite_swa": lambda config: (
        _granite_keys(config)
        | {
            "attention.sliding_window_pattern": _local(config),
            "attention.rope_pattern": [bool(theta) for theta in config.get("layer_rope_theta") or []] or None,
        }
    ),
    "cohere2moe": lambda config: (
        _windowed_keys(config)
        | {
            "expert_feed_forward_length": config["intermediate_size"],
            "feed_forward_length": config["prefix_dense_intermediate_size"],
            "logit_scale": float(config["logit_scale"]),
            "expert_gating_func": 1 if config["expert_selection_fn"] == "softmax" else 2,
        }
    ),
    "hy_v3": lambda config: {
        "expert_shared_feed_forward_length": config["num_shared_experts"] * config["moe_intermediate_size"],
        "expert_weights_scale": config["router_scaling_factor"],
        "expert_weights_norm": True,
    },
    "mellum": _windowed_keys,
    "deepseek32": _dsa_keys,
    "minimax-01": lambda config: {"residual_scale": float(config["full_attn_alpha_factor"])},
    "llama4": lambda config: {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    },
    "mistral3": lambda config: {
        "rope.scaling.yarn_log_multiplier": config["rope_parameters"].get("mscale_all_dim"),
        "attention.temperature_scale": config["rope_parameters"]["llama_4_scaling_beta"],
    },
    "phimoe": lambda config: {"attention.sliding_window": config.get("sliding_window") or 0},
}


if __name__ == "__main__":
    write_converted(Path(sys.argv[1]), Path(sys.argv[2]))
