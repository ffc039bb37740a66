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

from gguf_keys import keys_of
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
    "gemma4_unified": "gemma4", "gemma4_unified_text": "gemma4", "llama4": "llama4",
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


if __name__ == "__main__":
    write_converted(Path(sys.argv[1]), Path(sys.argv[2]))
