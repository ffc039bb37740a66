"""LLM: the public class of language models; loads a folder or GGUF file, generates text, embeds texts."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Tokens
from contextlib import aclosing
from dataclasses import fields
from functools import cached_property
from typing import Any, Unpack, overload

import numpy as np

from ingot import __version__
from ingot.errors import InputError, LoadError, UnsupportedError, bounded
from ingot.ir.graph import TensorType
from ingot.llm.cache_use import CacheUse
from ingot.llm.chat import ChatTemplate, checked_options
from ingot.llm.completion import Completion
from ingot.llm.constraint import Constraint
from ingot.llm.disk_cache import DEFAULT_BYTES, DiskCache
from ingot.llm.drawing import drawn_by, drawn_together, pushed
from ingot.llm.encoder import Encoder
from ingot.llm.engine import Engine, modes_of
from ingot.llm.generation import Drawn, Generation, Scheduler, Usage, decode_plainly
from ingot.llm.keywords import ChatKeywords, DrawKeywords, Message, TextKeywords, TokenKeywords
from ingot.llm.memory import Memory, allocated
from ingot.llm.options import Options, expect_range
from ingot.llm.sampling import LogProbs, Sampling, sampling_defaults
from ingot.llm.saved_state import FORMAT, read_state, write_state
from ingot.llm.service import Service
from ingot.llm.speculation import DraftModel, Lookup, Speculation
from ingot.llm.text import TextStream
from ingot.llm.tokenizer import Tokenizer, end_ids, has_tokenizer
from ingot.load.hf import Folder
from ingot.load.hf.contents import fingerprint
from ingot.load.hf.strict_json import shown
from ingot.load.language import read_model
from ingot.session.reports import Explanation
from ingot.support.columns import counted, table
from ingot.support.locks import OwnedLock

_PROBE = "def f(x):\n    return 'the same' + 12"  # a text whose tokens a draft model must share
_SAMPLING_OPTIONS = frozenset(field.name for field in fields(Sampling))
_CONSTRAINTS: dict[str, Callable[[Any, Tokenizer, int], Constraint]] = {
    "schema": Constraint.of_schema, "regex": Constraint.of_regex, "grammar": Constraint.of_grammar,
}  # fmt: skip


class LLM:
    """A language model in a Hugging Face folder or GGUF file, ready to generate; or an encoder in a folder, to embed.

    context: the number of positions of a sequence; by default the model's limit, but at most 4096.
    precision: "f32"; "bf16", which stores weights in bf16 and may round activations to bf16 if the CPU multiplies bf16
    in hardware; "int8" or "int4", with a "w" appended to quantize only weights, see docs/quantization.md. By default
    the precision in which the weights are stored.
    threads: 0 means as many as the machine allows. cache_dtype: "f32", "bf16", "int8" or "int4" for keys and values; by
    default "f32" with f32 weights or WebGPU, else "bf16". sequences: the number of sequences that may be active at
    once, in one call or several; finished ones stay cached for prompts that continue them. executor: "native", or
    "webgpu" for the device that INGOT_WGPU_ADAPTER names; WebGPU accepts precisions that quantize only weights, f32 by
    default. template: the file of a template of the architecture; by default `ingot.yaml` in the folder, else the
    built-in template of the model type.
    cache_positions: the positions of the cache for all sequences together, at least those of one context; by default a
    context for each. checkpoints: in a model with recurrent states or windows, the number of lengths of all sequences
    after which a prompt may part from a cached one; by default as many as sequences. lookup: predict tokens from the
    text so far. draft: predict tokens by a small model with the same tokens, a folder or file. Both save time where
    they predict well, and change no token in f32. cache_dir: a folder for keys and values of prefixes, which later
    processes find there, of at most cache_dir_bytes.

    Raises FileNotFoundError for a missing folder; LoadError, UnsupportedError or LimitError for a model that cannot be
    loaded; InputError for an invalid option, and a draft model with other tokens; ResourceError when out of memory.

    Any number of threads and asynchronous tasks may use one object: their answers are drawn together, and wait for a
    free sequence. A sequence is active until its answer's last token is drawn, and for an unfinished stream until the
    stream is closed. InputError if a thread's own unfinished streams hold all sequences.
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
        cache_positions: int | None = None,
        checkpoints: int | None = None,
        lookup: bool = False,
        draft: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_dir_bytes: int = DEFAULT_BYTES,
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
                cache_positions=cache_positions,
                checkpoints=checkpoints,
            )
            self.model = self.options.load(self._folder, has_windows=True)
            self._encoder = Encoder(self.model, self.options.target) if self.model.kind == "encoder" else None
            disk = None if cache_dir is None else self._disk_cache(cache_dir, cache_dir_bytes)
            self._engine = Engine(self.model, self.options.target, sequences, disk) if self._encoder is None else None
            self.speculation = self._speculation(lookup, draft)
        self.decode = decode_plainly if self.speculation is None else self.speculation.decode
        self.usage = Usage()
        self._service: Service | None = None
        self._starting = OwnedLock("service of a language model")

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
        """The engine that runs tokens. Raises InputError for an encoder, which can only `embed`."""
        if self._engine is None:
            raise InputError("model: cannot generate, got an encoder, expected a decoder")
        return self._engine

    @property
    def encoder(self) -> Encoder | None:
        """The program of an encoder; None for a decoder."""
        return self._encoder

    @property
    def folder(self) -> Folder:
        """The model's files."""
        return self._folder

    @property
    def service(self) -> Service:
        """The service that draws the answers of several threads and of tasks together, started on first use.

        Raises InputError for an encoder.
        """
        with self._starting.once():
            if self._service is None or not self._service.is_open:
                self._service = Service(self.engine, None, self.decode)
                weakref.finalize(self, self._service.close)
            return self._service

    @property
    def context(self) -> int:
        """The number of positions of a sequence."""
        return self.model.context

    @property
    def memory(self) -> Memory:
        """The allocated memory in bytes. Raises InputError for an encoder."""
        return allocated(self.engine)

    @property
    def cache(self) -> CacheUse:
        """The blocks of keys and values that each sequence owns now. Raises InputError for an encoder."""
        return self.engine.sequences.use

    def explain(self, node: str | None = None, mode: str = "prefill") -> Explanation:
        """Return which kernel runs each node in a mode ("prefill", "decode", "batch") and why; or only for `node`.

        Raises InputError for an unknown node or mode, and for an encoder.
        """
        modes = modes_of(self.options.sequences)
        if mode not in modes:
            raise InputError(f"explain: no such mode, got {mode!r}, expected one of {', '.join(modes)}")
        return Explanation.of([self.engine.mode(mode).native], [], node=node)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises the errors of `Tokenizer.read`, such as LoadError if there is none."""
        return Tokenizer.read(self._folder)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The folder's chat template. Raises LoadError if there is none, LimitError if it is too long."""
        return ChatTemplate.read(self._folder)

    # -- text ---------------------------------------------------------------------------------------------------

    def complete(self, prompt: str, **options: Unpack[TextKeywords]) -> Completion:
        """Generate for one prompt as `generate`; return text, tokens, finish reason and usage."""
        return self._completions([self.encode(prompt)], options)[0]

    @overload
    def generate(self, prompt: str, **options: Unpack[TextKeywords]) -> str: ...

    @overload
    def generate(self, prompt: list[str] | tuple[str, ...], **options: Unpack[TextKeywords]) -> list[str]: ...

    def generate(self, prompt: str | list[str] | tuple[str, ...], **options: Unpack[TextKeywords]) -> str | list[str]:
        """Return the text that continues a prompt; for a list of prompts, which are decoded together, a list of texts.

        options: max_tokens, by default up to the end of the context; stop: a string or several at which the text ends,
        not included in it; schema: a JSON schema that the text follows, regex: an expression that the whole text
        matches, or grammar: one in llguidance's form of Lark; timeout: the seconds after which the text ends
        unfinished; and the fields of `Sampling` (temperature, top_k, top_p, min_p, repetition_penalty,
        presence_penalty, frequency_penalty, logit_bias, seed, logprobs), whose defaults the folder's
        generation_config.json may change.

        Raises InputError for an invalid option, and for a prompt longer than the context.
        """
        prompts = [self.encode(text) for text in _texts(prompt, "prompt")]
        texts = [completion.text for completion in self._completions(prompts, options)]
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompt: str, **options: Unpack[TextKeywords]) -> Iterator[str]:
        """Generate as `generate`; yield each piece of text as soon as later tokens can no longer change it.

        Closing the iterator ends the answer. The call raises the errors of `generate`.
        """
        return self._stream(self.encode(prompt), options)

    def chat(self, messages: Tokens[Message], **options: Unpack[ChatKeywords]) -> str:
        """Return the answer to a conversation. messages: {"role": ..., "content": ...} each.

        options: those of `generate`; `tools`, JSON schemas of functions that the model may call; and
        `template_options`, a mapping of further variables of the chat template, such as {"enable_thinking": False}.

        Raises InputError for messages that are invalid or that the template refuses; LoadError for an invalid template,
        LimitError for a template that takes too long; and the errors of `generate`.
        """
        return self._completions(*self._chat_prompts(messages, options))[0].text

    def stream_chat(self, messages: Tokens[Message], **options: Unpack[ChatKeywords]) -> Iterator[str]:
        """Answer a conversation as `chat`; yield pieces as `stream`."""
        (prompt,), rest = self._chat_prompts(messages, options)
        return self._stream(prompt, rest)

    def embed(self, text: str | list[str] | tuple[str, ...], pooling: str = "mean") -> np.ndarray:
        """Return embeddings: the final hidden states of each text, pooled by "mean" or "last", normalized to length 1.

        The result is f32[width] for one text, f32[texts, width] for several. Raises InputError for an empty list, for a
        text longer than the context, and for another pooling.
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

    # -- asynchronous -------------------------------------------------------------------------------------------

    async def agenerate(self, prompt: str, **options: Unpack[TextKeywords]) -> str:
        """Return the text that continues a prompt, as `generate`. Cancelling the task ends the answer within a step."""
        return await _joined(self.astream(prompt, **options))

    async def astream(self, prompt: str, **options: Unpack[TextKeywords]) -> AsyncGenerator[str, None]:
        """Generate as `generate`; yield pieces as `stream`. The errors of `generate` are raised with the first piece.

        Cancelling the task, or closing the generator, ends the answer within a step.
        """
        async with aclosing(self._astream(lambda: ([self.encode(prompt)], options))) as pieces:
            async for piece in pieces:
                yield piece

    async def achat(self, messages: Tokens[Message], **options: Unpack[ChatKeywords]) -> str:
        """Return the answer to a conversation, as `chat`. Cancelling the task ends the answer within a step."""
        return await _joined(self.astream_chat(messages, **options))

    async def astream_chat(
        self, messages: Tokens[Message], **options: Unpack[ChatKeywords]
    ) -> AsyncGenerator[str, None]:
        """Answer a conversation as `chat`; yield pieces as `astream`."""
        async with aclosing(self._astream(lambda: self._chat_prompts(messages, options))) as pieces:
            async for piece in pieces:
                yield piece

    # -- tokens -------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with the tokens that the tokenizer puts before a text.

        Raises InputError for another type and for a prompt without tokens.
        """
        if not isinstance(text, str):
            raise InputError(f"prompt: wrong type, got {type(text).__name__}, expected a text")
        return self._checked([*self.tokenizer.prefix, *self.tokenizer.encode(text)])

    def encode_chat(
        self,
        messages: Tokens[Message],
        *,
        tools: Tokens[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation with the beginning of an answer, as `chat` computes them.

        tools, template_options: as for `chat`. Raises the errors of `chat` for messages, tools and template_options.
        """
        variables = checked_options({} if template_options is None else template_options)
        return self._checked(self.chat_template.encode(self.tokenizer, messages, tools=tools, **variables))

    def generate_tokens(
        self,
        ids: Tokens[int],
        max_tokens: int | None = None,
        temperature: float = 0,
        **options: Unpack[DrawKeywords],
    ) -> Iterator[int]:
        """Yield the ids that continue a list of ids, up to an id that ends the text; needs no tokenizer.

        options: those of `generate`, except stop.
        """
        generation = self.generation(ids, max_tokens=max_tokens, temperature=temperature, **options)
        return self._tokens(generation)

    def generation(self, ids: Tokens[int], **options: Unpack[TokenKeywords]) -> Generation:
        """Return a new answer for `run`, without tokens yet. options: those of `generate`, except stop.

        Raises InputError for an invalid option, and for more ids than the context has positions.
        """
        rest: dict[str, Any] = {**options}
        max_tokens, timeout = rest.pop("max_tokens", None), rest.pop("timeout", None)
        constraints = {name: rest.pop(name, None) for name in _CONSTRAINTS}
        prompt, sampling = self._checked(ids), self._sampling(rest)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
            raise InputError(f"option max_tokens: out of range, got {max_tokens!r}, expected an integer, 0 or more")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise InputError(f"option timeout: out of range, got {timeout!r}, expected seconds above 0")
        space = self.context + 1 - len(prompt)  # the last token drawn needs no position
        self._expect_length(len(prompt))
        constraint = self._constraint(constraints)
        return Generation(
            prompt,
            sampling=sampling,
            vocab_size=self.model.vocab_size,
            max_tokens=space if max_tokens is None else min(max_tokens, space),
            ends=self._ends,
            constraint=constraint,
            timeout=timeout,
        )

    def run(self, generations: Iterable[Generation]) -> Iterator[Generation]:
        """Draw answers together: yield a generation each time it has a new `token`, until all have finished.

        At most `sequences` answers are decoded at once; the others start in order as slots become free. The steps run
        in this thread, when the iterator is asked for the next token; steps of other threads alternate with them.

        Raises InputError if unfinished streams of this thread use every slot, and ResourceError if cache_positions are
        used up.
        """
        for generation in Scheduler(self.engine, self.decode).run(generations):
            self.usage = generation.usage
            yield generation

    def logits(self, ids: Tokens[int]) -> np.ndarray:
        """Return the logits after each of the ids, before any sampling option: f32[len(ids), vocabulary].

        Raises InputError for an empty list, an id outside the vocabulary, more ids than the context, and an encoder.
        """
        return self._each(self._checked(ids), "score")

    def hidden(self, ids: Tokens[int]) -> np.ndarray:
        """Return the final hidden state of each of the ids of a decoder: f32[len(ids), width].

        Raises as `logits`.
        """
        return self._each(self._checked(ids), "embed")

    def save_sequence(self, path: str | os.PathLike[str]) -> None:
        """Write the tokens, keys and values of the sequence used last, so that another process can load them.

        Raises InputError if no sequence is cached, OutputError if the file cannot be written.
        """
        with self.engine.lock:
            sequence = self.engine.sequences.latest
            if sequence is None:
                raise InputError("sequence: none is cached, got no answer, expected a call of generate before")
            write_state(path, self._fingerprint, sequence.tokens, self.engine.cached(sequence))

    def load_sequence(self, path: str | os.PathLike[str]) -> list[int]:
        """Read a sequence written by `save_sequence`, for prompts that continue it. Return its tokens.

        Raises LoadError for a damaged file and a file of another model, precision or cache_dtype; InputError for a
        sequence longer than the context, and if unfinished streams of this thread use every slot of the cache.
        """
        tokens, cached = read_state(path, self._fingerprint, self.model.vocab_size, self._cached_types)
        self.engine.with_room(lambda: self.engine.restore(tokens, cached))
        return tokens

    # -- inside -------------------------------------------------------------------------------------------------

    def _completions(self, prompts: list[list[int]], options: TextKeywords) -> list[Completion]:
        generations, streams = self._prepare(prompts, options)
        texts: dict[Generation, list[str]] = {generation: [] for generation in generations}
        tokens: dict[Generation, list[int]] = {generation: [] for generation in generations}
        logprobs: dict[Generation, list[LogProbs]] = {generation: [] for generation in generations}
        by_generation = dict(zip(generations, streams, strict=True))
        for drawn in self._draw(generations):
            generation, stream = drawn.generation, by_generation[drawn.generation]
            if stream.stopped:
                continue
            texts[generation].append(pushed(stream, drawn))
            tokens[generation].append(drawn.token)
            if drawn.logprobs is not None:
                logprobs[generation].append(drawn.logprobs)
        completions = []
        for generation, text_stream in by_generation.items():
            text = "".join([*texts[generation], text_stream.finish()])
            reason = "stop" if text_stream.stopped else generation.finish_reason or "length"
            generation.usage.completion_tokens = len(tokens[generation])  # a service may have drawn more by then
            completions.append(Completion(text, tokens[generation], reason, generation.usage, logprobs[generation]))
        return completions

    def _stream(self, prompt: list[int], options: TextKeywords) -> Iterator[str]:
        (generation,), (stream,) = self._prepare([prompt], options)
        return self._pieces(generation, stream)

    def _pieces(self, generation: Generation, stream: TextStream) -> Iterator[str]:
        for drawn in self._draw([generation]):
            if piece := pushed(stream, drawn):
                yield piece
        if rest := stream.finish():
            yield rest

    def _tokens(self, generation: Generation) -> Iterator[int]:
        for drawn in self._draw([generation]):
            yield drawn.token

    def _draw(self, generations: list[Generation]) -> Generator[Drawn, None, None]:
        """Yield the tokens of answers: drawn in this thread if no other thread has an active sequence.

        A service draws them if the cache is smaller than all contexts: it can put answers back when blocks run out.
        """
        if generations:
            self.usage = generations[-1].usage  # set also if no token is drawn
        # No name refers to an iterator: an interrupt's traceback would keep it open.
        if self.engine.sequences.is_shared or self.engine.sequences.is_oversubscribed:
            for drawn in drawn_together(self.service, generations):
                self.usage = drawn.generation.usage
                yield drawn
        else:
            for generation in self.run(generations):
                yield Drawn(generation, generation.token, generation.logprobs)

    async def _astream(self, prompts: Callable[[], tuple[list[list[int]], TextKeywords]]) -> AsyncGenerator[str, None]:
        """Draw the answer to a prompt by the service. The prompt is tokenized in another thread."""
        (generation,), (stream,) = await asyncio.to_thread(lambda: self._prepare(*prompts()))
        async with aclosing(drawn_by(self.service, generation)) as drawing:
            async for drawn in drawing:
                self.usage = generation.usage
                if piece := pushed(stream, drawn):
                    yield piece
        if rest := stream.finish():
            yield rest

    def _prepare(self, prompts: list[list[int]], options: TextKeywords) -> tuple[list[Generation], list[TextStream]]:
        """Return a generation and a text stream for each prompt; raises InputError for invalid options."""
        rest: dict[str, Any] = {**options}
        stop = rest.pop("stop", ())
        streams = [TextStream(self.tokenizer, stop) for _ in prompts]
        return [self.generation(prompt, **rest) for prompt in prompts], streams

    def _disk_cache(self, folder: str | os.PathLike[str], limit: int) -> DiskCache:
        """Return the files of this model. Their key has all that may change a bit of keys and values."""
        options = self.options
        expect_range("cache_dir_bytes", limit, 1, 1 << 62)
        if options.target.device == "webgpu" or self.model.kind == "encoder":
            raise UnsupportedError("option cache_dir: only for decoders on the CPU")
        target = options.target
        rounding = [target.isa, [dtype.name for dtype in target.rounded], target.split_sums]
        facts = [FORMAT, __version__, self._fingerprint, options.cache_dtype, self.context, rounding]
        return DiskCache(folder, json.dumps(facts), limit)

    def _speculation(self, lookup: bool, draft: str | os.PathLike[str] | None) -> Speculation | None:
        if draft is None:
            return Speculation(self.engine, Lookup()) if lookup else None
        if lookup:
            raise InputError(f"options lookup, draft: got both, {os.fspath(draft)!r}, expected at most one")
        options = self.options
        small = LLM(draft, context=self.context, threads=options.target.threads, sequences=options.sequences)
        if all(has_tokenizer(llm._folder) for llm in (self, small)):
            own, drafted = (llm.tokenizer.encode(_PROBE) for llm in (self, small))
            if own != drafted:
                text = f"got {shown(drafted)}, expected {shown(own)} for {_PROBE!r}"
                raise InputError(f"option draft: other tokens, {text}")
        return Speculation(self.engine, DraftModel(small.engine, self.model.vocab_size))

    def _sampling(self, options: Mapping[str, Any]) -> Sampling:
        unknown = set(options) - _SAMPLING_OPTIONS
        if unknown:
            names = sorted({"max_tokens", "stop", "timeout", *_CONSTRAINTS, *_SAMPLING_OPTIONS})
            raise InputError(f"options: unknown, got {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
        try:
            return Sampling(**{**self._sampling_defaults, **options})
        except InputError as error:
            Sampling(**options)  # raises if the caller's own options are invalid
            raise LoadError(f"{self._folder.where('generation_config.json')}: {error}") from error

    @cached_property
    def _sampling_defaults(self) -> dict[str, Any]:
        return sampling_defaults(self._folder)

    def _constraint(self, options: Mapping[str, Any]) -> Constraint | None:
        given = {name: value for name, value in options.items() if value is not None}
        if len(given) > 1:
            raise InputError(f"options {', '.join(given)}: got {len(given)}, expected at most one")
        for name, value in given.items():
            return _CONSTRAINTS[name](value, self.tokenizer, self.model.vocab_size)
        return None

    @cached_property
    def _fingerprint(self) -> str:
        return f"{fingerprint(self._folder)}-{self.options.precision}"

    def _cached_types(self, length: int) -> Mapping[str, TensorType]:
        self._expect_length(length)
        return self.engine.cached_types(length)

    def _expect_length(self, length: int) -> None:
        if length > self.context:
            raise InputError(f"sequence: longer than the context, got {length} tokens, expected at most {self.context}")

    @cached_property
    def _ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        if not has_tokenizer(self._folder):
            return end_ids(self._folder, self.model.vocab_size).eos
        return frozenset(index for index in self.tokenizer.eos if index < self.model.vocab_size)

    def _states(self, text: str) -> np.ndarray:
        """Return the final hidden state of each token of a text."""
        tokens = self.encode(text)
        if self._encoder is None:
            return self.hidden(tokens)
        tokens += self.tokenizer.suffix
        self._expect_length(len(tokens))
        return self._encoder.states(tokens)

    def _each(self, tokens: list[int], mode: str) -> np.ndarray:
        self._expect_length(len(tokens))
        engine = self.engine
        return engine.with_room(lambda: engine.each(engine.sequences.start(()), tokens, mode))  # it is not cached

    def _chat_prompts(self, messages: Tokens[Message], options: ChatKeywords) -> tuple[list[list[int]], TextKeywords]:
        """Return the tokens of a conversation as the only prompt, and the options that are not for its template."""
        rest: Any = {**options}
        own = {name: rest.pop(name) for name in ("tools", "template_options") if name in rest}
        return [self.encode_chat(messages, **own)], rest

    def _checked(self, ids: Tokens[int]) -> list[int]:
        """Return the ids as ints. Raises InputError for an empty list and for an id outside the model's vocabulary."""
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


async def _joined(pieces: AsyncGenerator[str, None]) -> str:
    async with aclosing(pieces):
        return "".join([piece async for piece in pieces])


def _texts(text: object, name: str) -> list[str]:
    """Return a text, or several, as a list whose elements are not checked. Raises InputError for another type."""
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, list | tuple):
        raise InputError(f"{name}: wrong type, got {type(text).__name__}, expected a text or a list of texts")
    return list(texts)
