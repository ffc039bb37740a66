"""GGUF files, the format of llama.cpp: a language model with its tokenizer in one file."""

from ingot.load.gguf.file import GgufFile, is_gguf, read_gguf
from ingot.load.gguf.model import GgufModel

__all__ = ["GgufFile", "GgufModel", "is_gguf", "read_gguf"]
