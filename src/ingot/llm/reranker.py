"""Scores of pairs of texts by a cross-encoder: an encoder whose classifier has one label."""

from __future__ import annotations

import os
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np

from ingot.errors import InputError, UnsupportedError, bounded
from ingot.llm.encoder import Encoder
from ingot.llm.options import Options
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import labels_of, load_classifier
from ingot.load.language import read_model


@dataclass(frozen=True, slots=True)
class Pair:
    """The tokens of two texts as a model reads them, and the type of each token."""

    tokens: list[int]
    types: list[int]


class Reranker:
    """Scores how well a document answers a query, by a model folder `...ForSequenceClassification` of one label.

    context: the most tokens of a pair, by default the model's limit. precision, threads, executor, template: as for
    `LLM`. Several threads may use it.

    Raises the errors of `LLM`, and UnsupportedError for a folder without a classifier of one label.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        context: int | None = None,
        precision: str | None = None,
        threads: int = 0,
        executor: str = "native",
        template: str | os.PathLike[str] | None = None,
    ):
        with bounded(str(folder)):
            files = read_model(folder, template)
            labels = labels_of(files)
            if labels != 1:
                got = "none" if labels is None else f"{labels} labels"
                raise UnsupportedError(f"{files.path}: no classifier of one label, got {got}")
            options = Options.of(
                files, context=context, precision=precision, threads=threads, cache_dtype=None, sequences=1,
                executor=executor,
            )  # fmt: skip
            model = load_classifier(files, context=options.context, weights=options.weights)
            self.context = model.context
            self.encoder = Encoder(model, options.target)
            self._has_types = "token_type_ids" in model.graph.inputs
            self._form = PairForm(Tokenizer.read(files))
        self._name = os.path.basename(os.path.normpath(files.path))

    def __repr__(self) -> str:
        return f"<Reranker {self._name!r}: at most {self.context} tokens of a pair>"

    def encode(self, query: str, document: str, *, truncate: bool = True) -> Pair:
        """Return the tokens of a pair. truncate: cut the longer text of a pair that is too long, instead of raising.

        Raises InputError for a pair that is too long, and the errors of `Tokenizer.encode`.
        """
        (pair,) = self.pairs(query, [document], truncate=truncate)
        return pair

    def pairs(self, query: str, documents: Tokens[str], *, truncate: bool = True) -> list[Pair]:
        """Return the tokens of a query with each of several documents, as `encode` does; the query is read once."""
        first, form = self._form.ids(query), self._form
        return [
            form.joined(first, form.ids(document), self.context, truncate, f"documents[{index}]")
            for index, document in enumerate(documents)
        ]

    def rows(self, length: int) -> int:
        """Return how many pairs of so many tokens may run together."""
        return self.encoder.rows(length)

    def scores(self, pairs: Tokens[Pair]) -> list[np.ndarray]:
        """Return the score of each pair, a logit, f32[1]. pairs: at most `rows` of the longest one.

        On the CPU in f32, a score has the same bits in every batch.
        """
        types = [pair.types for pair in pairs] if self._has_types else None
        return self.encoder.run([pair.tokens for pair in pairs], types)


class PairForm:
    """The ids that a tokenizer adds around and between two texts. Raises the errors of `Tokenizer.around_pair`."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        (self._before, self._between, self._after), self._types = tokenizer.around_pair()

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._tokenizer.encode(text)

    def joined(self, first: list[int], second: list[int], longest: int, truncate: bool, where: str) -> Pair:
        """Return the tokens of a pair, at most `longest`. where: the second text in an error."""
        texts = [first, second]
        added = len(self._before) + len(self._between) + len(self._after)
        space, total = longest - added, sum(map(len, texts))
        if total > space:
            if not truncate or space < 0:
                got = f"{total + added} tokens, expected at most {longest}"
                raise InputError(f"{where}: query and document longer than the context, got {got}")
            sizes = kept_sizes(len(texts[0]), len(texts[1]), space)
            texts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
        parts = [self._before, texts[0], self._between, texts[1], self._after]
        types = [kind for kind, part in zip(self._types, parts, strict=True) for _ in part]
        return Pair([token for part in parts for token in part], types)


def kept_sizes(first: int, second: int, space: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept, together at most `space`: the longer one is cut first."""
    short, long = sorted((first, second))
    long = max(short, space - short) if short <= space else short
    if short + long > space:
        short = space // 2
        long = short + space % 2
    return (long, short) if first > second else (short, long)
