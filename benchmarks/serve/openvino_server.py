"""OpenVINO GenAI's continuous batching behind HTTP: arguments MODEL PORT THREADS SEQUENCES TOKENS.

A program of its own, because OpenVINO GenAI is in an environment of its own; it needs openvino-genai and tokenizers.
It answers what `benchmarks.serve` sends: GET /health, and POST of a completion as a stream of events. The scheduler has
GenAI's defaults, and as many tokens in a step and answers together as the other servers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from tokenizers import Tokenizer

IDLE_SECONDS = 0.0005
CACHE_GIB = 2


class Answers:
    """Draws all answers together, in a thread of its own."""

    def __init__(self, folder: Path, threads: int, sequences: int, tokens: int):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = CACHE_GIB, sequences, tokens
        scheduler.dynamic_split_fuse = scheduler.enable_prefix_caching = True
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.lock = threading.Lock()
        self.active: dict[int, tuple[Any, asyncio.Queue[list[int] | None], asyncio.AbstractEventLoop]] = {}
        self.count = 0
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        """Run steps while there are answers, and report their new tokens."""
        while True:
            if not self.active:
                time.sleep(IDLE_SECONDS)
                continue
            with self.lock:
                self.pipeline.step()
            for number, (handle, arrived, loop) in list(self.active.items()):
                ids = []
                while handle.can_read():
                    ids += [id for output in handle.read().values() for id in output.generated_ids]
                if ids:
                    loop.call_soon_threadsafe(arrived.put_nowait, ids)
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    del self.active[number]
                    loop.call_soon_threadsafe(arrived.put_nowait, None)

    def ask(self, body: dict[str, Any]) -> asyncio.Queue[list[int] | None]:
        """Queue a request; return the queue of its tokens, which ends with None."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = body["max_tokens"], True, False
        config.set_eos_token_id(0)  # the model has none, and GenAI refuses that
        ids = openvino.Tensor(np.array([self.tokenizer.encode(body["prompt"]).ids], np.int64))
        arrived: asyncio.Queue[list[int] | None] = asyncio.Queue()
        with self.lock:
            self.count += 1
            handle = self.pipeline.add_request(self.count, ids, config)
            self.active[self.count] = handle, arrived, asyncio.get_running_loop()
        return arrived


def event(text: str, reason: str | None) -> bytes:
    """An event of a stream, as a chunk of HTTP."""
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    data = b"data: " + json.dumps({"object": "text_completion", "model": "model", "choices": [choice]}).encode()
    return b"%x\r\n%b\n\n\r\n" % (len(data) + 2, data)


async def answer(answers: Answers, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Write a stream: the text of each token as soon as its characters are complete."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    arrived = answers.ask(body)
    ids: list[int] = []
    sent = ""
    while (new := await arrived.get()) is not None:
        ids += new
        text = answers.tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            writer.write(event(text[len(sent) :], None))
            sent = text
            await writer.drain()
    rest = answers.tokenizer.decode(ids)[len(sent) :]
    done = b"data: [DONE]\n\n"
    writer.write(event(rest, "length") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
    await writer.drain()


async def serve(answers: Answers, port: int) -> None:
    """Answer requests of HTTP/1.1 for ever."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode("latin-1").partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = await reader.readexactly(length)
                if line.startswith(b"POST"):
                    await answer(answers, json.loads(body), writer)
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    port, threads, sequences, tokens = map(int, numbers)
    asyncio.run(serve(Answers(Path(folder), threads, sequences, tokens), port))
