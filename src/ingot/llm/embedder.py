"""Vectors of texts as the folder of a model describes them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.errors import InputError
from ingot.llm.model import LLM
from ingot.load.hf.sentences import MODULES, Sentences, read_sentences
from ingot.load.hf.strict_json import shown
from ingot.support.columns import counted

_POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "lasttoken": lambda states: states[-1],
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(np.float32(len(states))),
    "weightedmean": lambda states: np.average(states, 0, np.arange(1, len(states) + 1)).astype(np.float32),
}


class Embedder:
    """Embeds texts by a model: an encoder, or a decoder whose folder has the files of sentence-transformers.

    sentences: the pooling, prompts and limit of the folder. longest: the most tokens of a text. Several threads may use
    it.

    Raises the errors of `read_sentences`.
    """

    def __init__(self, llm: LLM):
        self.llm = llm
        self.sentences: Sentences = read_sentences(llm.folder)
        self.longest = min(llm.context, self.sentences.longest or llm.context)

    def __repr__(self) -> str:
        pooled = ", ".join(self.sentences.modes)
        return f"<Embedder: {pooled} of at most {counted(self.longest, 'token')}, {self.llm!r}>"

    def encode(self, text: str, prompt: str | None = None, *, truncate: bool = False) -> list[int]:
        """Return the tokens of a text, with those that the model expects around it.

        prompt: the name of a prompt of the folder, by default the folder's default. truncate: cut a text that is too
        long, instead of raising.

        Raises InputError for an unknown prompt, and a text without tokens or of more than `longest`.
        """
        tokenizer, sentences = self.llm.tokenizer, self.sentences
        name = sentences.default if prompt is None else prompt
        if name is not None and name not in sentences.prompts:
            known = ", ".join(sentences.prompts) or "none"
            raise InputError(f"prompt_name: no such prompt, got {shown(name)}, expected one of {known}")
        text = text if name is None else sentences.prompts[name] + text
        ids = tokenizer.encode(text.lower() if sentences.lowers else text)
        space = self.longest - len(tokenizer.prefix) - len(tokenizer.suffix)
        if len(ids) > space and not truncate:
            got, longest = len(ids) + self.longest - space, self.longest
            raise InputError(f"input: longer than the context, got {got} tokens, expected at most {longest}")
        tokens = [*tokenizer.prefix, *ids[:space], *tokenizer.suffix]
        if not tokens:
            raise InputError("input: empty, got no tokens, expected at least one")
        return tokens

    def rows(self, length: int) -> int:
        """Return how many texts of so many tokens may run together."""
        return 1 if self.llm.encoder is None else self.llm.encoder.rows(length)

    def vectors(self, texts: Tokens[list[int]]) -> list[np.ndarray]:
        """Return the vector of each text, f32[width times modes]. texts: at most `rows` of the longest one.

        On the CPU in f32, a vector has the same bits in every batch.
        """
        encoder = self.llm.encoder
        found = [self.llm.hidden(tokens) for tokens in texts] if encoder is None else encoder.run(texts)
        return [self._vector(states) for states in found]

    def shortened(self, vector: np.ndarray, dimensions: int | None) -> np.ndarray:
        """Return the first numbers of a vector; of length 1 if the model's vectors are. None: the vector.

        Raises InputError for more dimensions than the vector has.
        """
        if dimensions is None:
            return vector
        if not 1 <= dimensions <= len(vector):
            raise InputError(f"dimensions: out of range, got {dimensions}, expected 1..{len(vector)}")
        short = vector[:dimensions]
        return _normalized(short) if self.sentences.normalizes else short

    def _vector(self, states: np.ndarray) -> np.ndarray:
        pooled = np.concatenate([_POOLED[mode](states) for mode in self.sentences.modes])
        return _normalized(pooled) if self.sentences.normalizes else pooled


def is_embedder(llm: LLM) -> bool:
    """Return whether a model's purpose is to embed: an encoder, or a folder of sentence-transformers."""
    return llm.encoder is not None or llm.folder.has(MODULES)


def _normalized(vector: np.ndarray) -> np.ndarray:
    return vector / np.float32(max(float(np.linalg.norm(vector)), 1e-12))
