"""Convert the tokenizer in a GGUF file's metadata to the `tokenizer.json` and settings of a model folder.

Two models: "gpt2", byte pairs merged by rank within words that regular expressions split, and "llama", SentencePiece's
character pairs, of which the pair with the best score of its token is merged first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.metadata import Metadata
from ingot.load.hf.strict_json import shown

MAX_SPLITS = 1 << 22  # of the tokens of a SentencePiece model into two pieces
MAX_PIECE_CHARACTERS = 256  # of a token of a SentencePiece model

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_NAMED = ("bos", "eos", "eot", "eom", "unknown", "padding")  # tokens that have their own keys
_SPACE = "\u2581"  # SentencePiece's character for a space

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_LLAMA_3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_BEGIN, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_OF_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_4O = (
    rf"{_BEGIN}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEGIN}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_OF_PATHS}"
)
_QWEN_35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MINICPM_5 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+|{_REST}"
_TEKKEN = rf"{_BEGIN}{_UPPER}*{_LOWER}+|{_BEGIN}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_OF_PATHS}"


@dataclass(frozen=True, slots=True)
class _WordSplitter:
    """How text is split into words: by one expression after the other; a match is one word and is not split further.

    whole: a word that is a token becomes that token, whatever the merge ranks. begins: texts begin with a control
    token.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    begins: bool = False


# By their names in files.
WORD_SPLITTERS = {
    "default": _WordSplitter((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": _WordSplitter((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, "[0-9][0-9][0-9]")),
    "ufakzeka": _WordSplitter((rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",)),
    "tekken": _WordSplitter((_TEKKEN,), whole=True, begins=True),
    "qwen35": _WordSplitter((_QWEN_35,)),
    "seed-coder": _WordSplitter((_SEED,)),
    "minicpm5": _WordSplitter((r"\p{N}{1,3}", _MINICPM_5), whole=True),
    "laguna": _WordSplitter((r"[^\n]+|[\n]+", _QWEN_2)),
    "deepseek-coder": _WordSplitter(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        _WordSplitter((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_3)),
    ),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _WordSplitter((_BAILING,))),
    **dict.fromkeys(
        """gpt-2 phi-2 mpt olmo jais exaone4 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert
        trillion granite-docling""".split(),
        _WordSplitter((_GPT_2,)),
    ),
    **dict.fromkeys(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2".split(),
        _WordSplitter((r"\p{N}", _GPT_2)),
    ),
    **dict.fromkeys(
        "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan kormo f2llmv2 solar-open grok-2".split(),
        _WordSplitter((_QWEN_2,)),
    ),
    **dict.fromkeys(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split(),
        _WordSplitter((_LLAMA_3,), whole=True, begins=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _WordSplitter((_LLAMA_3,))),
    **dict.fromkeys(("glm4", "glm5"), _WordSplitter((_LLAMA_3,), whole=True)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _WordSplitter((_GPT_4O,))),
}
# Control tokens that end an answer, in addition to those that the keys name.
_ENDS = frozenset(
    """<|eot_id|> <|eom_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT>
    <|return|> </s> <eos>""".split()
)


class TokenizerKeys:
    """The tokens in the metadata: texts, types and scores by id, and the ids of special tokens.

    Raises LoadError that names the key.
    """

    def __init__(self, metadata: Metadata):
        self.metadata = metadata
        texts = metadata.texts("tokenizer.ggml.tokens")
        if not texts:
            raise LoadError(f"{metadata.where('tokenizer.ggml.tokens')}: missing or empty, expected texts of tokens")
        self.texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
        last = {text: index for index, text in enumerate(self.texts)}
        # Of equal texts the last id is the text's, as in llama.cpp; the others are no text's.
        self.texts = [text if last[text] == index else f"[EQUAL_{index}]" for index, text in enumerate(self.texts)]
        self.ids = {text: index for index, text in enumerate(self.texts)}
        if len(self.ids) < len(self.texts):
            index = next(index for index, text in enumerate(self.texts) if self.ids[text] != index)
            where = metadata.where("tokenizer.ggml.tokens")
            raise LoadError(f"{where}: token {shown(self.texts[index])} is the name of an id with an equal text")
        types = metadata.integers("tokenizer.ggml.token_type")
        self.types = self._each("token_type", types, np.ones(len(texts), np.int32))
        found = {name: self._id(f"tokenizer.ggml.{name}_token_id") for name in _NAMED}
        self.named = {name: index for name, index in found.items() if index is not None}
        self.control = {index for name, index in self.named.items() if name in ("bos", "eos", "eot", "eom")}
        self.control.update(np.flatnonzero(self.types == _CONTROL).tolist())

    @property
    def ends(self) -> list[int]:
        """The ids that end an answer."""
        named = {index for name, index in self.named.items() if name in ("eos", "eot", "eom")}
        return sorted(named | {index for index in self.control if self.texts[index] in _ENDS})

    def of_type(self, type: int) -> list[int]:
        """Return the ids of tokens of a type."""
        return [int(index) for index in np.flatnonzero(self.types == type)]

    def scores(self) -> np.ndarray:
        """Return the score of each token."""
        return self._each("scores", self.metadata.numbers("tokenizer.ggml.scores"), None)

    def _each(self, name: str, values: np.ndarray | None, default: np.ndarray | None) -> np.ndarray:
        values = default if values is None else values
        if values is None or len(values) != len(self.texts):
            got = "nothing" if values is None else f"{len(values)} values"
            where = self.metadata.where(f"tokenizer.ggml.{name}")
            raise LoadError(f"{where}: does not fit the tokens, got {got}, expected {len(self.texts)}")
        return values

    def _id(self, key: str) -> int | None:
        index = self.metadata.integer(key)
        if index is not None and not 0 <= index < len(self.texts):
            raise LoadError(f"{self.metadata.where(key)}: no id, got {index}, expected 0 to {len(self.texts) - 1}")
        return index


def tokenizer_files(metadata: Metadata) -> dict[str, dict[str, Any]]:
    """Return the equivalents of tokenizer.json, tokenizer_config.json and generation_config.json.

    Raises LoadError, UnsupportedError for another model or word splitting, LimitError.
    """
    keys = TokenizerKeys(metadata)
    model = metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        document = _byte_pairs(keys)
    elif model == "llama":
        document = _sentence_pieces(keys)
    else:
        where = metadata.where("tokenizer.ggml.model")
        raise UnsupportedError(f"{where}: not supported, got {shown(model)}, expected gpt2 or llama")
    added = sorted({*keys.control, *keys.of_type(_USER_DEFINED), *keys.of_type(_UNKNOWN)})
    document["added_tokens"] = [
        {
            "id": index,
            "content": keys.texts[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": index in keys.control or int(keys.types[index]) == _UNKNOWN,
        }
        for index in added
    ]
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    settings: dict[str, Any] = {names[name]: keys.texts[i] for name, i in keys.named.items() if name in names}
    template = _chat_template(metadata)
    generation = {"bos_token_id": keys.named.get("bos"), "pad_token_id": keys.named.get("padding")}
    return {
        "tokenizer.json": {"version": "1.0"} | document,
        "tokenizer_config.json": settings if template is None else settings | {"chat_template": template},
        "generation_config.json": generation | {"eos_token_id": keys.ends or None},
    }


def _chat_template(metadata: Metadata) -> Any:
    """Return the template, or all templates by name; None where there is none."""
    first, prefix = "tokenizer.chat_template", "tokenizer.chat_template."
    named = {key.removeprefix(prefix): metadata.text(key) for key in metadata.entries if key.startswith(prefix)}
    default = metadata.text(first)
    if not named:
        return default
    templates = named if default is None else named | {"default": default}
    return [{"name": name, "template": template} for name, template in templates.items()]


def _byte_pairs(keys: TokenizerKeys) -> dict[str, Any]:
    """Return a model of byte pairs that are merged by rank."""
    metadata = keys.metadata
    merges = metadata.texts("tokenizer.ggml.merges")
    if merges is None:
        raise LoadError(f"{metadata.where('tokenizer.ggml.merges')}: missing, expected pairs of tokens")
    kind = metadata.text("tokenizer.ggml.pre") or "default"
    if kind not in WORD_SPLITTERS:
        where = metadata.where("tokenizer.ggml.pre")
        raise UnsupportedError(
            f"{where}: not supported, got {shown(kind)}, expected one of {', '.join(WORD_SPLITTERS)}"
        )
    words = WORD_SPLITTERS[kind]
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in words.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "post_processor": _surround(keys, begins=words.begins),
        "decoder": level,
        "model": {"type": "BPE", "ignore_merges": words.whole, "vocab": keys.ids, "merges": merges},
    }


def _sentence_pieces(keys: TokenizerKeys) -> dict[str, Any]:
    """Return a model of characters that are merged by the score of the resulting token; characters without a token
    become bytes.
    """
    prefix = keys.metadata.flag("tokenizer.ggml.add_space_prefix")
    prepends = prefix is None or prefix
    space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    begin = [{"type": "Prepend", "prepend": _SPACE}] if prepends else []
    end = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prepends else []
    restore = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *end]
    unknown = keys.named.get("unknown", next(iter(keys.of_type(_UNKNOWN)), None))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*begin, space]},
        "pre_tokenizer": None,
        "post_processor": _surround(keys, begins=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else keys.texts[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": keys.ids,
            "merges": _merges(keys),
        },
    }


def _merges(keys: TokenizerKeys) -> list[tuple[str, str]]:
    """Return the pairs that form tokens, those of better scores first. Raises LimitError for too many candidates."""
    scores = keys.scores()
    unmergeable = {*keys.control, *keys.of_type(_UNKNOWN), *keys.of_type(_BYTE), *keys.of_type(_USER_DEFINED)}
    where = keys.metadata.where("tokenizer.ggml.tokens")
    longest = max(map(len, keys.texts))
    if longest > MAX_PIECE_CHARACTERS:
        raise LimitError(f"{where}: a token is too long, got {longest} characters, expected {MAX_PIECE_CHARACTERS}")
    candidates = sum(map(len, keys.texts))
    if candidates > MAX_SPLITS:
        raise LimitError(f"{where}: too long together, got {candidates} characters, expected at most {MAX_SPLITS}")
    if np.isnan(scores).any():
        raise LoadError(f"{keys.metadata.where('tokenizer.ggml.scores')}: not a number, expected scores")

    def pairs() -> Iterator[tuple[str, str]]:
        for index in np.argsort(-scores, kind="stable").tolist():
            if index in unmergeable:
                continue
            text = keys.texts[index]
            for cut in range(1, len(text)):
                left, right = text[:cut], text[cut:]
                if keys.ids.get(left, -1) not in not_mergeable and keys.ids.get(right, -1) not in not_mergeable:
                    yield left, right

    not_mergeable = unmergeable | {-1}
    return list(pairs())


def _surround(keys: TokenizerKeys, *, begins: bool) -> dict[str, Any] | None:
    """Return the post-processor that adds the tokens before and after a text."""
    ids: dict[str, int | None] = {}
    for name, default in (("bos", begins and "bos" in keys.named), ("eos", False)):
        key = f"tokenizer.ggml.add_{name}_token"
        wanted = keys.metadata.flag(key)
        if wanted and name not in keys.named:
            raise LoadError(f"{keys.metadata.where(key)}: no such token, expected tokenizer.ggml.{name}_token_id")
        ids[name] = keys.named[name] if (default if wanted is None else wanted) else None
    special = {keys.texts[index]: index for index in ids.values() if index is not None}
    if not special:
        return None

    def part(index: int | None) -> list[dict[str, Any]]:
        return [] if index is None else [{"SpecialToken": {"id": keys.texts[index], "type_id": 0}}]

    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [*part(ids["bos"]), text, *part(ids["eos"])]
    tokens = {name: {"id": name, "ids": [index], "tokens": [name]} for name, index in special.items()}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
