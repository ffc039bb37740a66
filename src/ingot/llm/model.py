"""LLM: a language model in a folder or file, for people and programs."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Unpack, overload

import numpy as np

from ingot.errors import InputError, LoadError, bounded
from ingot.ir.graph import TensorType
from ingot.llm.chat import ChatTemplate, checked_options
from ingot.llm.constraint import Constraint
from ingot.llm.encoder import Encoder
from ingot.llm.engine import Engine, modes_of
from ingot.llm.generation import Generation, Scheduler, Usage
from ingot.llm.keywords import ChatKeywords, DrawKeywords, Message, TextKeywords, TokenKeywords
from ingot.llm.memory import Memory, allocated
from ingot.llm.options import Options
from ingot.llm.sampling import Sampling, sampling_defaults
from ingot.llm.saved_state import read_state, write_state
from ingot.llm.text import TextStream
from ingot.llm.tokenizer import Tokenizer, end_ids
from ingot.load.hf.contents import fingerprint
from ingot.load.hf.strict_json import shown
from ingot.load.language import read_model
from ingot.session.reports import Explanation
from ingot.support.columns import counted, table

_SAMPLING_OPTIONS = frozenset(field.name for field in fields(Sampling))


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Natural logarithms of a token's probability in the model's own distribution, and of the most probable ones.

    top: (token, logarithm) of as many as were asked for, the most probable first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]

    def __repr__(self) -> str:
        return f"<LogProbs of token {self.token}: {self.logprob:.4g}, beside the {len(self.top)} most probable>"

    def __str__(self) -> str:
        return table(repr(self), [(str(token), f"{logprob:.4g}") for token, logprob in self.top])


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. tokens: as drawn, a stop string's included. finish_reason: "stop" or "length".

    logprobs: of each token, where they were asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    usage: Usage
    logprobs: list[LogProbs]

    def __repr__(self) -> str:
        return f"<Completion {shown(self.text)}: {counted(len(self.tokens), 'token')}, {self.finish_reason}>"

    def __str__(self) -> str:
        return self.text


class LLM:
    """A Hugging Face folder or GGUF file of a language model, ready to generate; or a folder of an encoder, to embed.

    context: positions that a sequence may have; what the model allows, but at most 4096, unless it is given.
    precision: "f32", or "bf16", which stores weights in bf16 and may round activations to it where the CPU multiplies
    bf16 in hardware; "int8" or "int4", with "w" behind for weights alone, see docs/quantization.md; what the weights
    are stored in unless it is given.
    threads: 0 means what the machine allows. cache_dtype: "f32", "bf16", "int8" or "int4" for keys and values; unless
    it is given, as `precision`, or bf16 beside codes. sequences: how many may be under way at once, in one call or in
    several, and are kept for prompts that go on from them. executor: "native", or "webgpu" for the device that
    INGOT_WGPU_ADAPTER names, with a precision that rounds weights alone, f32 unless it is given. template: the file
    of a template to read the model by; unless it is given, `ingot.yaml` in the folder, else that of its model type.

    Raises FileNotFoundError for no folder, LoadError, UnsupportedError or LimitError for a model that cannot be had,
    InputError for a bad option, ResourceError where memory runs out. May be used from several threads, whose steps take
    turns. An answer is under way until its last token, and a stream that is not read to its end until it is closed; one
    too many is an InputError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        context: int | None = None,
        precision: str | None = None,
        threads: int = 0,
        cache_dtype: str | None = None,
        sequences: int = 4,
        executor: str = "native",
        template: str | os.PathLike[str] | None = None,
    ):
        with bounded(str(folder)):
            self._folder = read_model(folder, template)
            self.options = Options.of(
                self._folder,
                context=context,
                precision=precision,
                threads=threads,
                cache_dtype=cache_dtype,
                sequences=sequences,
                executor=executor,
            )
            self.model = self.options.load(self._folder)
            self._encoder = Encoder(self.model, self.options.target) if self.model.kind == "encoder" else None
            self._engine = Engine(self.model, self.options.target, sequences) if self._encoder is None else None
        self.usage = Usage()

    def __repr__(self) -> str:
        sequences = f"{counted(self.options.sequences, 'sequence')} of {counted(self.context, 'position')}"
        name = os.path.basename(os.path.normpath(self._folder.path))
        return f"<LLM {name!r}: {self.model.kind}, {self.options.precision}, {sequences}>"

    def __str__(self) -> str:
        options, target = self.options, self.options.target
        rows = [
            ("precision", options.precision),
            ("keys and values", options.cache_dtype),
            ("vocabulary", counted(self.model.vocab_size, "token")),
            ("runs on", f"{target.isa}, {counted(target.threads, 'thread')}"),
        ]
        if self._engine is not None:
            rows += [("weights", f"{self.memory.weights} bytes"), ("cache", f"{self.memory.cache} bytes")]
        return table(repr(self), rows)

    @property
    def engine(self) -> Engine:
        """What runs tokens. Raises InputError for an encoder, which can only `embed`."""
        if self._engine is None:
            raise InputError("model: only embeds, got an encoder, expected a decoder")
        return self._engine

    @property
    def context(self) -> int:
        """Positions that a sequence may have."""
        return self.model.context

    @property
    def memory(self) -> Memory:
        """The bytes that are allocated. Raises InputError for an encoder."""
        return allocated(self.engine)

    def explain(self, node: str | None = None, mode: str = "prefill") -> Explanation:
        """Which kernel each node got in a mode ("prefill", "decode", "batch") and why; of one node when it is named.

        Raises InputError for an unknown node or mode, and for an encoder.
        """
        modes = modes_of(self.options.sequences)
        if mode not in modes:
            raise InputError(f"explain: no such mode, got {mode!r}, expected one of {', '.join(modes)}")
        return Explanation.of([self.engine.mode(mode).native], [], node=node)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises what `Tokenizer.read` does: LoadError where there is none, for one."""
        return Tokenizer.read(self._folder)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The folder's chat template. Raises LoadError where there is none, LimitError for one that is too long."""
        return ChatTemplate.read(self._folder)

    # -- text ---------------------------------------------------------------------------------------------------

    def complete(self, prompt: str, **options: Unpack[TextKeywords]) -> Completion:
        """As `generate` for one prompt, with the tokens, why the answer ended, and what it took."""
        return self._completions([self._encode(prompt)], options)[0]

    @overload
    def generate(self, prompt: str, **options: Unpack[TextKeywords]) -> str: ...

    @overload
    def generate(self, prompt: list[str] | tuple[str, ...], **options: Unpack[TextKeywords]) -> list[str]: ...

    def generate(self, prompt: str | list[str] | tuple[str, ...], **options: Unpack[TextKeywords]) -> str | list[str]:
        """The text that continues a prompt, or a list of texts for a list of prompts, which are decoded together.

        options: max_tokens, up to the context unless it is given; stop: a string or several, none of which becomes part
        of the text; schema: a JSON schema that the text follows, or regex: an expression that all of it matches; and
        the fields of `Sampling` (temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty, logit_bias, seed, logprobs), which the folder's generation_config.json may give other
        defaults.

        Raises InputError for a bad option, and for a prompt that is longer than the context.
        """
        prompts = [self._encode(text) for text in _texts(prompt, "prompt")]
        texts = [completion.text for completion in self._completions(prompts, options)]
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt: str, **options: Unpack[TextKeywords]) -> Iterator[str]:
        """As `generate`, piece by piece, as soon as the text of each is certain.

        Closing the iterator ends the answer. Raises as `generate` does, when it is called.
        """
        return self._stream(self._encode(prompt), options)

    def chat(self, messages: Tokens[Message], **options: Unpack[ChatKeywords]) -> str:
        """The answer to a conversation: {"role": ..., "content": ...} each.

        Options as in `generate`; `tools`, JSON schemas of functions that the model may call; and `template_options`,
        a mapping of what else the chat template takes, such as {"enable_thinking": False}.

        Raises InputError for messages that are wrong or that the template refuses, and as `generate` does; LoadError
        for a template that is wrong, LimitError for one that takes too long.
        """
        prompt, rest = self._encode_chat(messages, options)
        return self._completions([prompt], rest)[0].text

    def stream_chat(self, messages: Tokens[Message], **options: Unpack[ChatKeywords]) -> Iterator[str]:
        """As `chat`, piece by piece, as `stream` gives them."""
        return self._stream(*self._encode_chat(messages, options))

    def embed(self, text: str | list[str] | tuple[str, ...], pooling: str = "mean") -> np.ndarray:
        """The final hidden states of texts, pooled by "mean" or "last" and of length 1: f32[width], or [texts, width].

        Raises InputError for no text, for one that is longer than the context, and for another pooling.
        """
        if pooling not in ("mean", "last"):
            raise InputError(f"option pooling: unknown value, got {pooling!r}, expected mean or last")
        texts = _texts(text, "text")
        if not texts:
            raise InputError("text: got none, expected at least one")
        rows = []
        for states in map(self._states, texts):
            pooled = states.mean(0) if pooling == "mean" else states[-1]
            rows.append(pooled / max(float(np.linalg.norm(pooled)), 1e-12))
        return rows[0] if isinstance(text, str) else np.stack(rows)

    # -- tokens -------------------------------------------------------------------------------------------------

    def generate_tokens(
        self,
        ids: Tokens[int],
        max_tokens: int | None = None,
        temperature: float = 0,
        **options: Unpack[DrawKeywords],
    ) -> Iterator[int]:
        """The ids that continue a list of ids, one by one, up to one that ends the text; needs no tokenizer.

        Options as in `generate`, apart from stop.
        """
        generation = self.generation(ids, max_tokens=max_tokens, temperature=temperature, **options)
        return self._tokens(generation)

    def generation(self, ids: Tokens[int], **options: Unpack[TokenKeywords]) -> Generation:
        """An answer that is yet to be drawn: what `run` takes. Options as in `generate`, apart from stop.

        Raises InputError for a bad option, and for more ids than the context has positions.
        """
        rest: dict[str, Any] = {**options}
        max_tokens, schema, regex = (rest.pop(name, None) for name in ("max_tokens", "schema", "regex"))
        prompt, sampling = self._checked(ids), self._sampling(rest)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
            raise InputError(f"option max_tokens: out of range, got {max_tokens!r}, expected an integer, 0 or more")
        room = self.context + 1 - len(prompt)  # the last token drawn needs no position
        self._expect_length(len(prompt))
        constraint = self._constraint(schema, regex)
        return Generation(
            prompt,
            sampling=sampling,
            vocab_size=self.model.vocab_size,
            max_tokens=room if max_tokens is None else min(max_tokens, room),
            ends=self._ends,
            constraint=constraint,
        )

    def run(self, generations: Iterable[Generation]) -> Iterator[Generation]:
        """Draws answers together: yields a generation each time it has a new `token`, until all have finished.

        As many as the cache has places for are decoded at once; the others join in order when one ends.

        Raises InputError when answers of other callers hold every place.
        """
        generations = list(generations)
        if generations:
            self.usage = generations[-1].usage  # of one that draws no token, too
        for generation in Scheduler(self.engine).run(generations):
            self.usage = generation.usage
            yield generation

    def logits(self, ids: Tokens[int]) -> np.ndarray:
        """The logits after each of some ids, before any option of sampling: f32[len(ids), vocabulary].

        Raises InputError for no ids, one outside the vocabulary, more than the context has positions, and an encoder.
        """
        return self._each(self._checked(ids), "score")

    def save_sequence(self, path: str | os.PathLike[str]) -> None:
        """Writes what was last generated from and its keys and values, so that no process computes them again.

        Raises InputError when there is nothing yet, OutputError when the file cannot be created.
        """
        with self.engine.lock:
            sequence = self.engine.sequences.latest
            if sequence is None:
                raise InputError("sequence: none is kept, got nothing, expected an answer before")
            write_state(path, self._fingerprint, sequence.tokens, self.engine.cached(sequence))

    def load_sequence(self, path: str | os.PathLike[str]) -> list[int]:
        """Reads what `save_sequence` wrote, for prompts that go on from it. Returns its tokens.

        Raises LoadError for a damaged file and one of another model, precision or cache_dtype, InputError for one
        that is longer than the context, and when every place of the cache is in use.
        """
        tokens, cached = read_state(path, self._fingerprint, self.model.vocab_size, self._cached_types)
        with self.engine.lock:
            self.engine.restore(tokens, cached)
        return tokens

    # -- inside -------------------------------------------------------------------------------------------------

    def _completions(self, prompts: list[list[int]], options: TextKeywords) -> list[Completion]:
        generations, streams = self._prepare(prompts, options)
        texts: dict[Generation, list[str]] = {generation: [] for generation in generations}
        tokens: dict[Generation, list[int]] = {generation: [] for generation in generations}
        logprobs: dict[Generation, list[LogProbs]] = {generation: [] for generation in generations}
        by_generation = dict(zip(generations, streams, strict=True))
        for generation in self.run(generations):
            texts[generation].append(self._push(generation, by_generation[generation]))
            tokens[generation].append(generation.token)
            if generation.sampler.sampling.logprobs is not None:
                sampler = generation.sampler
                logprobs[generation].append(LogProbs(generation.token, sampler.logprob, sampler.top))
        completions = []
        for generation, text_stream in by_generation.items():
            text = "".join([*texts[generation], text_stream.finish()])
            reason = generation.finish_reason or "length"
            completions.append(Completion(text, tokens[generation], reason, generation.usage, logprobs[generation]))
        return completions

    def _stream(self, prompt: list[int], options: TextKeywords) -> Iterator[str]:
        (generation,), (stream,) = self._prepare([prompt], options)
        return self._pieces(generation, stream)

    def _pieces(self, generation: Generation, stream: TextStream) -> Iterator[str]:
        for _ in self.run([generation]):
            piece = self._push(generation, stream)
            if piece:
                yield piece
        rest = stream.finish()
        if rest:
            yield rest

    def _tokens(self, generation: Generation) -> Iterator[int]:
        for _ in self.run([generation]):
            yield generation.token

    def _push(self, generation: Generation, stream: TextStream) -> str:
        piece = stream.push(generation.token)
        if stream.stopped:
            generation.stop()
        return piece

    def _prepare(self, prompts: list[list[int]], options: TextKeywords) -> tuple[list[Generation], list[TextStream]]:
        """Generations and their texts; raises InputError for bad options."""
        rest: dict[str, Any] = {**options}
        stop = rest.pop("stop", ())
        streams = [TextStream(self.tokenizer, stop) for _ in prompts]
        return [self.generation(prompt, **rest) for prompt in prompts], streams

    def _sampling(self, options: Mapping[str, Any]) -> Sampling:
        unknown = set(options) - _SAMPLING_OPTIONS
        if unknown:
            names = sorted({"max_tokens", "stop", "schema", "regex", *_SAMPLING_OPTIONS})
            raise InputError(f"options: unknown, got {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
        try:
            return Sampling(**{**self._sampling_defaults, **options})
        except InputError as error:
            Sampling(**options)  # raises where it is the caller's own that are wrong
            raise LoadError(f"{self._folder.where('generation_config.json')}: {error}") from error

    @cached_property
    def _sampling_defaults(self) -> dict[str, Any]:
        return sampling_defaults(self._folder)

    def _constraint(self, schema: Mapping[str, Any] | str | None, regex: str | None) -> Constraint | None:
        if schema is not None and regex is not None:
            raise InputError("options schema, regex: got both, expected one of them")
        if schema is not None:
            return Constraint.of_schema(schema, self.tokenizer, self.model.vocab_size)
        return None if regex is None else Constraint.of_regex(regex, self.tokenizer, self.model.vocab_size)

    @cached_property
    def _fingerprint(self) -> str:
        return f"{fingerprint(self._folder)}-{self.options.precision}"

    def _cached_types(self, length: int) -> Mapping[str, TensorType]:
        self._expect_length(length)
        return self.engine.cached_types(length)

    def _expect_length(self, length: int) -> None:
        if length > self.context:
            raise InputError(f"longer than the context, got {length} tokens, expected at most {self.context}")

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        named = end_ids(self._folder, self.model.vocab_size).eos
        return named or (self.tokenizer.eos if self._folder.has("tokenizer.json") else frozenset())

    def _states(self, text: str) -> np.ndarray:
        """The final hidden state of each token of a text."""
        tokens = self._encode(text)
        if self._encoder is None:
            return self._each(tokens, "embed")
        tokens += self.tokenizer.suffix
        self._expect_length(len(tokens))
        return self._encoder.states(tokens)

    def _each(self, tokens: list[int], mode: str) -> np.ndarray:
        self._expect_length(len(tokens))
        with self.engine.lock:
            return self.engine.each(self.engine.sequences.start(()), tokens, mode)  # nothing goes on from it

    def _encode(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise InputError(f"prompt: wrong type, got {type(text).__name__}, expected a text")
        return self._checked([*self.tokenizer.prefix, *self.tokenizer.encode(text)])

    def _encode_chat(self, messages: Tokens[Message], options: ChatKeywords) -> tuple[list[int], TextKeywords]:
        """The tokens of a conversation, and the options that are not for its template."""
        rest: Any = {**options}
        tools, variables = rest.pop("tools", None), checked_options(rest.pop("template_options", {}))
        tokens = self.chat_template.encode(self.tokenizer, messages, tools=tools, **variables)
        return self._checked(tokens), rest

    def _checked(self, ids: Tokens[int]) -> list[int]:
        """The ids as plain ints. Raises InputError for none, and for one outside the model's vocabulary."""
        try:
            tokens = [operator.index(token) for token in ids]
        except TypeError:
            raise InputError(f"prompt: not ids, got {shown(ids)}, expected a list of integers") from None
        if not tokens:
            raise InputError("prompt: empty, got no tokens, expected at least one")
        bad = next((token for token in tokens if not 0 <= token < self.model.vocab_size), None)
        if bad is not None:
            raise InputError(f"prompt: token out of range, got {bad}, expected 0..{self.model.vocab_size - 1}")
        return tokens


def _texts(text: object, name: str) -> list[str]:
    """A text, or several, as a list; what is in it is not checked. Raises InputError."""
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, list | tuple):
        raise InputError(f"{name}: wrong type, got {type(text).__name__}, expected a text or a list of texts")
    return list(texts)
