"""Where the models of a server come from: objects of the caller, and paths."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TypeAlias

from ingot.errors import LimitError, ResourceError, UnsupportedError
from ingot.llm import LLM, memory_of
from ingot.llm.constraint import token_table
from ingot.llm.embedder import Embedder, is_embedder
from ingot.llm.keywords import ModelKeywords, StepKeywords
from ingot.llm.memory import Memory
from ingot.llm.reranker import Reranker
from ingot.llm.service import MAX_WAITING, Service
from ingot.load import expect_exists
from ingot.load.gguf import is_gguf
from ingot.load.hf import kind_of, labels_of, longest_context
from ingot.load.hf.sentences import MODULES
from ingot.load.language import read_model
from ingot.serve.answers import Served
from ingot.serve.batching import MAX_ROWS
from ingot.serve.embeddings import Embedding
from ingot.serve.models import Kind, Source
from ingot.serve.plain import Plain
from ingot.serve.rerank import Reranking
from ingot.session.inference import InferenceSession
from ingot.support.machine import memory_bytes

Servable: TypeAlias = LLM | Reranker | InferenceSession
_BUDGET = 0.8  # of the memory of this process, for models


def usual_budget() -> int:
    """Return the bytes that models may have by default: a part of the physical memory or of the cgroup's limit."""
    return int(_BUDGET * memory_bytes())


def kept(model: Servable, max_waiting: int = MAX_WAITING) -> Source:
    """Return the source of a model that the caller has loaded."""
    if isinstance(model, InferenceSession):
        return Source("plain", lambda name: Plain(name, model, max_waiting=max_waiting), is_kept=True)
    if isinstance(model, Reranker):
        return Source("rerank", lambda name: Reranking(name, model, max_waiting), is_kept=True)
    if is_embedder(model):
        return Source("embedding", lambda name: Embedding(name, Embedder(model), max_waiting), is_kept=True)
    engine = model.engine

    def start(name: str) -> Served:
        return Served(name, model, Service(engine, max_waiting, model.decode))

    return Source("language", start, lambda: model.memory.total, is_kept=True)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a server opens models at paths.

    language: the options of `LLM`; other models have no use for context and cache_dtype. sequences: answers that
    are drawn together. max_waiting: requests of a model that may wait. budget: bytes that a language model may have;
    without an option `context` its context is the longest that fits, at most the default. rows: of a joined run of a
    plain model. steps: options of `LLM` for the steps of a language model.
    """

    language: ModelKeywords
    sequences: int
    max_waiting: int
    budget: int
    rows: int = MAX_ROWS
    steps: StepKeywords = field(default_factory=StepKeywords)

    def source(self, path: str) -> Source:
        """Return the source of a model at a path, of which only the configuration is read.

        Raises the errors of `read_model`, and InputError for a model that cannot be served.
        """
        expect_exists(path)
        kind = kind_at(path, self.language["template"])
        if kind == "plain":
            return Source(kind, lambda name: self._plain(name, path), lambda: stored_bytes(path))
        if kind == "embedding":
            return Source(kind, lambda name: self._embedding(name, path), lambda: weight_bytes(path))
        if kind == "rerank":
            return Source(kind, lambda name: self._reranking(name, path), lambda: weight_bytes(path))
        return Source(kind, lambda name: self._language(name, path), lambda: self._bytes(path))

    def _embedding(self, name: str, path: str) -> Embedding:
        options: ModelKeywords = {**self.language, "context": None}
        return Embedding(name, Embedder(LLM(path, sequences=1, **options)), self.max_waiting)

    def _reranking(self, name: str, path: str) -> Reranking:
        own = self.language
        precision, threads, executor, template = own["precision"], own["threads"], own["executor"], own["template"]
        reranker = Reranker(path, precision=precision, threads=threads, executor=executor, template=template)
        return Reranking(name, reranker, self.max_waiting)

    def _plain(self, name: str, path: str) -> Plain:
        own = self.language
        session = InferenceSession(path, precision=own["precision"], threads=own["threads"], executor=own["executor"])
        return Plain(name, session, self.rows, self.max_waiting)

    def _language(self, name: str, path: str) -> Served:
        options: ModelKeywords = {**self.language, "context": self._planned(path).context}
        llm = LLM(path, sequences=self.sequences, **self.steps, **options)
        with contextlib.suppress(ResourceError, UnsupportedError):  # those who ask for a constraint get the error
            token_table(llm.tokenizer, llm.model.vocab_size)
        return Served(name, llm, Service(llm.engine, self.max_waiting, llm.decode))

    def _planned(self, path: str) -> Memory:
        """Return the memory of a language model, without its draft model. Raises LimitError for one that does not fit
        together with the draft model.
        """
        cache = {"cache_positions": self.steps.get("cache_positions"), "checkpoints": self.steps.get("checkpoints")}
        plan = memory_of(path, sequences=self.sequences, **cache, **self.language)
        total = plan.total + self._drafting(plan.context)
        if total <= self.budget:
            return plan
        if self.language["context"] is not None:
            raise LimitError(
                f"{path}: too large for a context of {plan.context}, got {total} bytes, expected at most {self.budget}"
            )
        for _ in range(2):  # a shorter context needs a smaller cache of the draft model, too
            rest = max(1, self.budget - self._drafting(plan.context))
            shorter = memory_of(path, sequences=self.sequences, budget=rest, **cache, **self.language)
            if shorter.total + self._drafting(shorter.context) > self.budget:
                break
            plan = shorter
        return plan

    def _drafting(self, context: int) -> int:
        """Return the bytes of the draft model for a context."""
        draft = self.steps.get("draft")
        if draft is None:
            return 0
        threads, most = self.language["threads"], longest_context(read_model(draft))
        return memory_of(draft, context=min(context, most), threads=threads, sequences=self.sequences).total

    def _bytes(self, path: str) -> int:
        """Return the bytes of a language model with its draft model."""
        plan = self._planned(path)
        return plan.total + self._drafting(plan.context)


def kind_at(path: str, template: str | os.PathLike[str] | None) -> Kind:
    """Return the kind of a model at a path, from its configuration alone. Raises the errors of `read_model`."""
    if not is_gguf(path) and not os.path.isfile(os.path.join(path, "config.json")):
        return "plain"
    folder = read_model(path, template)
    if labels_of(folder) is not None:
        return "rerank"
    return "embedding" if kind_of(folder) == "encoder" or folder.has(MODULES) else "language"


def weight_bytes(path: str) -> int:
    """Return the bytes of the weights of a model folder. Raises the errors of `read_model`."""
    return sum(tensor.nbytes for tensor in read_model(path).tensors.values())


def stored_bytes(path: str) -> int:
    """Return the bytes of a model's files: of a folder, or of a file and those whose names begin with its name."""
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
    with os.scandir(folder or ".") as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file() and entry.name.startswith(name))
