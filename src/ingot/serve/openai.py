"""Chat completions and completions of OpenAI's protocol: answers as JSON documents and as streams of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.llm.model import LLM
from ingot.llm.sampling import LogProbs
from ingot.llm.text import checked_stops
from ingot.serve.answers import Answer, Piece, Served, Whole, pieces, together, wholes
from ingot.serve.chat import answers_of
from ingot.serve.errors import openai_error
from ingot.serve.events import Protocol, Send
from ingot.serve.requests import ChatRequest, CompletionRequest, Request
from ingot.serve.tools import Call, Json

PROGRESS_SECONDS = 1.0  # between two chunks about the progress of a prompt


@dataclass(frozen=True, slots=True)
class Form:
    """The words in which a protocol writes answers.

    choice: the fields of a finished answer. deltas: the fields of the chunks for a piece. opening: the fields of the
    chunk that opens a stream, and closing those of the one that ends it.
    """

    document: str
    chunk: str
    prefix: str
    choice: Callable[[LLM, Answer, Whole], Json]
    deltas: Callable[[LLM, Answer, Piece, int], list[Json]]
    opening: Json | None
    closing: Json

    async def answer(self, served: Served, request: Request, answers: Sequence[Answer]) -> Json:
        """Return the document with all answers of a request."""
        choices = [
            {"index": index, **self.choice(served.llm, answer, found), "finish_reason": answer.finish_reason}
            for index, (answer, found) in enumerate(zip(answers, await wholes(served, answers), strict=True))
        ]
        return _head(served, self.prefix, self.document) | {"choices": choices, **_figures(answers)}

    async def stream(self, served: Served, request: Request, answers: Sequence[Answer], send: Send) -> None:
        """Send the chunks of a stream: for each answer those of its pieces, and a last one with the reason alone."""
        wants_usage = request.stream_options is not None and request.stream_options.include_usage
        begin = time.perf_counter()
        head = _head(served, self.prefix, self.chunk) | ({"usage": None} if wants_usage else {})

        async def draw(index: int) -> None:
            answer, calls = answers[index], 0
            if self.opening is not None:
                await send(head | {"choices": [{"index": index, **self.opening, "finish_reason": None}]})
            withheld: list[LogProbs] = []
            wants_progress = bool(request.return_progress) and index == 0  # the answers of a prompt share its progress
            async for piece in pieces(served, answer, PROGRESS_SECONDS if wants_progress else None):
                if piece.is_progress:
                    await send(head | {"choices": [], "prompt_progress": _progress(answer, begin)})
                withheld = piece.logprobs = [*withheld, *piece.logprobs]
                for delta in self.deltas(served.llm, answer, piece, calls):
                    await send(head | {"choices": [{"index": index, **delta, "finish_reason": None}]})
                    withheld = []
                calls += sum(part.call is not None for part in piece.parts)
            if withheld:
                rest = self.closing | {"logprobs": self.logprobs(served.llm, withheld)}
                await send(head | {"choices": [{"index": index, **rest, "finish_reason": None}]})
            last = {"index": index, **self.closing, "finish_reason": answer.finish_reason}
            await send(head | {"choices": [last]})

        await together(draw(index) for index in range(len(answers)))
        if wants_usage:
            await send(head | {"choices": [], **_figures(answers)})

    def logprobs(self, llm: LLM, logprobs: list[LogProbs]) -> Json | None:
        """Return logprobs in the words of the protocol."""
        return (_chat_logprobs if self.opening is not None else _completion_logprobs)(llm, logprobs)


def completions_of(served: Served, request: CompletionRequest) -> list[Answer]:
    """Return an answer without tokens for each prompt and choice. Raises the errors of `LLM.generation`."""
    checked_stops(request.stops)
    llm = served.llm
    prompts = [llm.encode(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompts]
    return [
        Answer(llm.generation(ids, **request.options(choice)), request.stops, request.priority or 0)
        for ids in prompts
        for choice in range(request.choices)
    ]


def _figures(answers: Sequence[Answer]) -> Json:
    return {"usage": usage(answers), "timings": timings(answers)}


def usage(answers: Sequence[Answer]) -> Json:
    """Return the numbers of tokens of a request's answers; a prompt counts once for all of its choices."""
    prompts = {tuple(answer.generation.prompt): answer.generation.usage for answer in reversed(answers)}
    prompt = sum(each.prompt_tokens for each in prompts.values())
    completion = sum(answer.tokens for answer in answers)
    cached = sum(each.reused_tokens for each in prompts.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
    }


def timings(answers: Sequence[Answer]) -> Json:
    """Return the tokens and milliseconds of the first answer: of its prompt up to the first token, and after it."""
    answer, first = answers[0], answers[0].generation.usage
    return {
        "cache_n": first.reused_tokens,
        "prompt_n": first.prompt_tokens - first.reused_tokens,
        "prompt_ms": 1000 * first.prefill_seconds,
        "prompt_per_second": first.prefill_tokens_per_second,
        "predicted_n": answer.tokens,
        "predicted_ms": 1000 * first.decode_seconds,
        "predicted_per_second": first.decode_tokens_per_second,
    }


def _progress(answer: Answer, begin: float) -> Json:
    """Return how much of a prompt is computed, in the words of llama.cpp's server."""
    usage = answer.generation.usage
    return {
        "total": usage.prompt_tokens,
        "cache": usage.reused_tokens,
        "processed": answer.generation.computed,
        "time_ms": 1000 * (time.perf_counter() - begin),
    }


def _head(served: Served, prefix: str, kind: str) -> Json:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": served.name}


# -- logprobs ---------------------------------------------------------------------------------------------------------


def _token(llm: LLM, token: int, logprob: float) -> Json:
    text = llm.tokenizer.decode([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def token_logprobs(llm: LLM, logprobs: list[LogProbs]) -> list[Json]:
    """Return the logprobs of tokens, each with those of the most probable tokens."""
    return [
        _token(llm, each.token, each.logprob) | {"top_logprobs": [_token(llm, *pair) for pair in each.top]}
        for each in logprobs
    ]


def _chat_logprobs(llm: LLM, logprobs: list[LogProbs]) -> Json | None:
    return {"content": token_logprobs(llm, logprobs)} if logprobs else None


def _completion_logprobs(llm: LLM, logprobs: list[LogProbs]) -> Json | None:
    if not logprobs:
        return None
    return {
        "tokens": [llm.tokenizer.decode([each.token]) for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{llm.tokenizer.decode([token]): value for token, value in each.top} for each in logprobs],
    }


# -- forms ------------------------------------------------------------------------------------------------------------


def _tool_call(answer: Answer, call: Call) -> Json:
    function = {"name": call.name, "arguments": call.text}
    return {"id": answer.call_id(), "type": "function", "function": function}


def _message(llm: LLM, answer: Answer, found: Whole) -> Json:
    message: Json = {"role": "assistant", "content": found.text}
    if found.reasoning:
        message["reasoning_content"] = found.reasoning
    if found.calls:
        message["tool_calls"] = [_tool_call(answer, call) for call in found.calls]
    return {"message": message, "logprobs": _chat_logprobs(llm, found.logprobs)}


def _chat_deltas(llm: LLM, answer: Answer, piece: Piece, calls: int) -> list[Json]:
    deltas: list[Json] = []
    for part in piece.parts:
        if part.call is None:
            deltas.append({"content" if part.kind == "text" else "reasoning_content": part.text})
            continue
        whole = _tool_call(answer, part.call)
        function = {"arguments": part.call.text}
        deltas.append({"tool_calls": [{"index": calls, **whole, "function": whole["function"] | {"arguments": ""}}]})
        deltas.append({"tool_calls": [{"index": calls, "function": function}]})
        calls += 1
    logprobs = _chat_logprobs(llm, piece.logprobs)
    return [{"delta": delta, "logprobs": None if at else logprobs} for at, delta in enumerate(deltas)]


def _text(llm: LLM, answer: Answer, found: Whole) -> Json:
    return {"text": found.text, "logprobs": _completion_logprobs(llm, found.logprobs)}


def _text_deltas(llm: LLM, answer: Answer, piece: Piece, calls: int) -> list[Json]:
    text = "".join(part.text for part in piece.parts)
    return [{"text": text, "logprobs": _completion_logprobs(llm, piece.logprobs)}] if text else []


_OPENING = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
_CHAT = Form(
    "chat.completion", "chat.completion.chunk", "chatcmpl", _message, _chat_deltas, _OPENING,
    {"delta": {}, "logprobs": None},
)  # fmt: skip
_TEXT = Form("text_completion", "text_completion", "cmpl", _text, _text_deltas, None, {"text": "", "logprobs": None})

CHAT: Protocol[Any] = Protocol(
    ChatRequest,
    lambda served, request: answers_of(served.llm, request.chat()),
    _CHAT.answer,
    _CHAT.stream,
    openai_error,
)
TEXT: Protocol[Any] = Protocol(CompletionRequest, completions_of, _TEXT.answer, _TEXT.stream, openai_error)
