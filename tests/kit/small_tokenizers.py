"""Small tokenizers, trained on the spot, in the layouts that models are published with; and folders that hold them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "The quick brown fox jumps over the lazy dog. It didn't mind; they're old friends!",
    "def forward(self, x):\n    return self.norm(x + self.attention(x))\n\n\nclass Block:\n    pass\n",
    "Größe, naïve café, 東京は日本の首都です。 Привет, мир! 😀 👩‍👩‍👧 42 1234567 3.14",
    "hello hello world world   spaces\t\ttabs\r\n",
] * 8

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def byte_level() -> Tokenizer:
    """As GPT-2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet))
    made.add_special_tokens(CONTROL)
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return made


def split_byte_level() -> Tokenizer:
    """As Llama 3 and Qwen: an expression cuts words, the text begins with a control token."""
    made = byte_level()
    words = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    begin = ("<|endoftext|>", made.token_to_id("<|endoftext|>"))
    made.post_processor = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    return made


def byte_fallback(legacy: bool = True) -> Tokenizer:
    """As Llama 2 (legacy) and Gemma: words keep their spaces as U+2581, unknown characters become bytes."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    space = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if legacy else space
    control = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, special_tokens=control + BYTES, max_token_length=8, limit_alphabet=60
    )
    made.train_from_iterator(TEXT, trainer)
    plain = json.loads(made.to_str())
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] in control]
    made = Tokenizer.from_str(json.dumps(plain))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if legacy else parts)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def unigram() -> Tokenizer:
    """As T5: a control token is a piece like any other."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    made.train_from_iterator(TEXT, trainer)
    return made


def word_piece() -> Tokenizer:
    """As BERT."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        TEXT, trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=control)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


KINDS = {
    "byte_level": byte_level,
    "split_byte_level": split_byte_level,
    "byte_fallback": byte_fallback,
    "gemma": lambda: byte_fallback(legacy=False),
    "unigram": unigram,
    "word_piece": word_piece,
}


@cache
def trained(kind: str) -> str:
    """The tokenizer.json of a kind."""
    return KINDS[kind]().to_str()


def document(kind: str) -> dict[str, Any]:
    """The same, to be changed."""
    return json.loads(trained(kind))


def write_folder(folder: Path, tokenizer: str | dict[str, Any] | None, **files: Any) -> Path:
    """A model folder; `generation_config={...}` becomes generation_config.json."""
    folder.mkdir(exist_ok=True)
    if tokenizer is not None:
        text = tokenizer if isinstance(tokenizer, str) else json.dumps(tokenizer)
        (folder / "tokenizer.json").write_text(text)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder
