"""How a folder of sentence-transformers makes one vector of a text: its pooling, normalization, prompts and limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingot.errors import LoadError, UnsupportedError
from ingot.load.hf.config import MAX_CONFIG_BYTES
from ingot.load.hf.folder import Folder
from ingot.load.hf.strict_json import parse_json, shown

MODULES = "modules.json"
MODES = ("cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Sentences:
    """The vector of a text.

    modes: how the states of its tokens become one; the results of several modes are joined. normalizes: whether the
    vector gets length 1. longest: the most tokens of a text, None for the model's limit. lowers: whether texts become
    lower-case. prompts: texts before a text, by name; default: the name of the one that is used without a name.
    """

    modes: tuple[str, ...] = ("mean",)
    normalizes: bool = True
    longest: int | None = None
    lowers: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None


def read_sentences(folder: Folder) -> Sentences:
    """Read the files of sentence-transformers in a folder. Without `modules.json`: the mean, with length 1.

    Raises LoadError, LimitError, and UnsupportedError for a module other than a Transformer, Pooling and Normalize.
    """
    modules = _modules(folder)
    if modules is None:
        return Sentences()
    where = folder.where(MODULES)
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0][1]:
        raise UnsupportedError(f"{where}: got {shown(modules)}, expected Transformer in '', Pooling, perhaps Normalize")
    settings = folder.json("sentence_bert_config.json", MAX_CONFIG_BYTES) or {}
    where = folder.where("sentence_bert_config.json")
    longest = _optional(settings, "max_seq_length", int, where)
    if longest is not None and longest < 1:
        raise LoadError(f"{where}: max_seq_length: out of range, got {longest}, expected 1 or more")
    lowers = bool(_optional(settings, "do_lower_case", bool, where))
    prompts, default = _prompts(folder)
    return Sentences(
        _pooling(folder, modules[1][1], bool(prompts)), "Normalize" in kinds, longest, lowers, prompts, default
    )


def _modules(folder: Folder) -> list[tuple[str, str]] | None:
    """Return the last part of each module's type and its folder, in order; None without `modules.json`."""
    content = folder.content(MODULES, MAX_CONFIG_BYTES)
    if content is None:
        return None
    where = folder.where(MODULES)
    found = parse_json(content, where)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise LoadError(f"{where}: got {shown(found)}, expected a list of objects")
    modules = [(_text(each, "type", where).rpartition(".")[2], _text(each, "path", where)) for each in found]
    if bad := [path for _, path in modules if "/" in path or path.startswith(".")]:
        raise LoadError(f"{where}: path: got {shown(bad[0])}, expected the name of a folder in this one")
    return modules


def _pooling(folder: Folder, path: str, has_prompts: bool) -> tuple[str, ...]:
    name = f"{path}/config.json"
    config, where = folder.json(name, MAX_CONFIG_BYTES), folder.where(name)
    if config is None:
        raise LoadError(f"{where}: no such file, expected the configuration of the pooling")
    modes = config.get("pooling_mode", [mode for key, mode in _OLD_MODES.items() if config.get(key) is True])
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        raise LoadError(f"{where}: pooling_mode: got {shown(modes)}, expected some of {', '.join(MODES)}")
    if has_prompts and config.get("include_prompt", True) is not True:
        raise UnsupportedError(f"{where}: include_prompt: got {shown(config['include_prompt'])}, expected true")
    return tuple(modes)


def _prompts(folder: Folder) -> tuple[dict[str, str], str | None]:
    name = "config_sentence_transformers.json"
    config, where = folder.json(name, MAX_CONFIG_BYTES) or {}, folder.where(name)
    prompts = _optional(config, "prompts", dict, where) or {}
    default = _optional(config, "default_prompt_name", str, where)
    if wrong := [key for key, text in prompts.items() if not isinstance(text, str)]:
        raise LoadError(f"{where}: prompts: {shown(wrong[0])}: got {shown(prompts[wrong[0]])}, expected a text")
    if default is not None and default not in prompts:
        raise LoadError(f"{where}: default_prompt_name: got {shown(default)}, expected one of {shown(list(prompts))}")
    return {key: text for key, text in prompts.items() if text}, default if prompts.get(default or "") else None


def _optional(config: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = config.get(key)
    if value is not None and type(value) is not kind:
        raise LoadError(f"{where}: {key}: got {shown(value)}, expected {kind.__name__}")
    return value


def _text(config: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(config.get(key), str):
        raise LoadError(f"{where}: {key}: got {shown(config.get(key))}, expected a text")
    return str(config[key])
