"""Chat completions and completions of OpenAI's protocol: answers as JSON documents and as streams of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from ingot.llm.chat import checked_options
from ingot.llm.generation import Generation
from ingot.llm.model import LLM, LogProbs
from ingot.llm.service import Service
from ingot.llm.text import checked_stops
from ingot.serve.answers import Piece, pieces, together
from ingot.serve.log import count_in_log
from ingot.serve.requests import ChatRequest, CompletionRequest, Request

Json = dict[str, Any]
Send = Callable[[Json], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Served:
    """A model with its service and the name by which clients know it."""

    name: str
    llm: LLM
    service: Service
    created: int


@dataclass(frozen=True, slots=True)
class Form:
    """The words in which a protocol writes answers.

    choice: the fields of a finished answer. delta: the fields of a piece; `first` is the piece that opens a stream.
    """

    document: str
    chunk: str
    prefix: str
    choice: Callable[[LLM, Piece], Json]
    delta: Callable[[LLM, Piece], Json]
    first: Json | None


def generations(llm: LLM, request: Request) -> list[Generation]:
    """Return an answer without tokens for each prompt and choice. Raises the errors of `LLM.generation`."""
    checked_stops(request.stops)
    if isinstance(request, ChatRequest):
        variables = checked_options(request.chat_template_kwargs or {})
        encode = llm.chat_template.encode
        prompts = [encode(llm.tokenizer, request.messages, tools=request.tools or None, **variables)]
    else:
        assert isinstance(request, CompletionRequest)
        prompts = [llm.encode(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompts]
    return [llm.generation(ids, **request.options(choice)) for ids in prompts for choice in range(request.choices)]


async def prepared(served: Served, request: Request) -> list[Generation]:
    """Return the answers of a request, without tokens. Raises the errors of `generations`, and BusyError."""
    answers = await anyio.to_thread.run_sync(generations, served.llm, request)
    served.service.expect_room(len(answers))
    count_in_log(answers)
    return answers


async def document(served: Served, request: Request, form: Form) -> Json:
    """Return the document with all answers of a request."""
    answers = await prepared(served, request)
    whole: list[Piece] = [Piece("")] * len(answers)

    async def draw(index: int) -> None:
        whole[index] = _joined([piece async for piece in _pieces(served, request, answers[index])])

    await together(draw(index) for index in range(len(answers)))
    choices = [
        {"index": index, **form.choice(served.llm, piece), "finish_reason": generation.finish_reason}
        for index, (generation, piece) in enumerate(zip(answers, whole, strict=True))
    ]
    return _head(served, form.prefix, form.document) | {"choices": choices, **_figures(answers)}


async def stream(served: Served, request: Request, answers: list[Generation], form: Form, send: Send) -> None:
    """Send the chunks of a stream: for each answer a first one, one for each piece, and a last one with the reason."""
    head = _head(served, form.prefix, form.chunk)

    async def draw(index: int) -> None:
        if form.first is not None:
            await send(head | {"choices": [{"index": index, **form.first, "finish_reason": None}]})
        withheld = Piece("")
        async for piece in _pieces(served, request, answers[index]):
            withheld = _joined([withheld, piece])
            if withheld.text:
                choice = {"index": index, **form.delta(served.llm, withheld), "finish_reason": None}
                await send(head | {"choices": [choice]})
                withheld = Piece("")
        last = {"index": index, **form.delta(served.llm, withheld), "finish_reason": answers[index].finish_reason}
        await send(head | {"choices": [last]})

    await together(draw(index) for index in range(len(answers)))
    if request.stream_options is not None and request.stream_options.include_usage:
        await send(head | {"choices": [], **_figures(answers)})


def _figures(answers: list[Generation]) -> Json:
    return {"usage": usage(answers), "timings": timings(answers)}


def usage(answers: list[Generation]) -> Json:
    """Return the numbers of tokens of a request's answers; a prompt counts once for all of its choices."""
    prompts = {tuple(answer.prompt): answer.usage for answer in reversed(answers)}
    prompt = sum(each.prompt_tokens for each in prompts.values())
    completion = sum(answer.usage.completion_tokens for answer in answers)
    cached = sum(each.reused_tokens for each in prompts.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(answers: list[Generation]) -> Json:
    """Return the time of the first answer in milliseconds: until its first token, and after it."""
    first = answers[0].usage
    return {
        "prompt_ms": 1000 * first.prefill_seconds,
        "predicted_ms": 1000 * first.decode_seconds,
        "predicted_per_second": first.decode_tokens_per_second,
    }


def _pieces(served: Served, request: Request, generation: Generation) -> AsyncGenerator[Piece, None]:
    return pieces(served.llm, served.service, generation, request.stops, request.priority or 0)


def _joined(drawn: list[Piece]) -> Piece:
    tokens = [token for piece in drawn for token in piece.tokens]
    logprobs = [each for piece in drawn for each in piece.logprobs]
    return Piece("".join(piece.text for piece in drawn), tokens, logprobs)


def _head(served: Served, prefix: str, kind: str) -> Json:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": served.name}


# -- logprobs ---------------------------------------------------------------------------------------------------------


def _token(llm: LLM, token: int, logprob: float) -> Json:
    text = llm.tokenizer.decode([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def _chat_logprobs(llm: LLM, logprobs: list[LogProbs]) -> Json | None:
    if not logprobs:
        return None
    content = [
        _token(llm, each.token, each.logprob) | {"top_logprobs": [_token(llm, *pair) for pair in each.top]}
        for each in logprobs
    ]
    return {"content": content}


def _completion_logprobs(llm: LLM, logprobs: list[LogProbs]) -> Json | None:
    if not logprobs:
        return None
    return {
        "tokens": [llm.tokenizer.decode([each.token]) for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{llm.tokenizer.decode([token]): value for token, value in each.top} for each in logprobs],
    }


def _message(llm: LLM, piece: Piece) -> Json:
    message = {"role": "assistant", "content": piece.text}
    return {"message": message, "logprobs": _chat_logprobs(llm, piece.logprobs)}


def _chat_delta(llm: LLM, piece: Piece) -> Json:
    delta = {"content": piece.text} if piece.text else {}
    return {"delta": delta, "logprobs": _chat_logprobs(llm, piece.logprobs)}


def _text(llm: LLM, piece: Piece) -> Json:
    return {"text": piece.text, "logprobs": _completion_logprobs(llm, piece.logprobs)}


_OPENING = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
CHAT = Form("chat.completion", "chat.completion.chunk", "chatcmpl", _message, _chat_delta, _OPENING)
TEXT = Form("text_completion", "text_completion", "cmpl", _text, _text, None)
