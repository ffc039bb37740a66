"""Where requests are read and tokenised: long ones in few threads of a low priority."""

import asyncio
import os
import sys
import threading

import httpx
import pytest

from ingot.serve.threads import LONG_BYTES, LONG_NICE, LONG_THREADS, aside, note_bytes
from serving import served

LONG = LONG_BYTES + 1


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def of_bytes(nbytes: int, work, *args):
    """A task that answers a request."""
    note_bytes(nbytes)
    return await aside(work, *args)


def test_results_and_errors():
    for nbytes in (0, LONG_BYTES, LONG):
        assert asyncio.run(of_bytes(nbytes, divmod, 7, 2)) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            asyncio.run(of_bytes(nbytes, divmod, 7, 0))


def test_long_requests_have_a_low_priority():
    own = priority()
    assert asyncio.run(of_bytes(LONG_BYTES, priority)) == own == priority()
    assert asyncio.run(of_bytes(LONG, priority)) == (min(19, own + LONG_NICE) if sys.platform == "linux" else own)


def test_long_requests_wait_and_short_ones_do_not():
    may_end, begun = threading.Event(), threading.Semaphore(0)
    ended: list[int] = []

    def work(number: int) -> None:
        begun.release()
        may_end.wait()
        ended.append(number)

    async def several() -> None:
        tasks = [asyncio.create_task(of_bytes(LONG, work, number)) for number in range(LONG_THREADS + 2)]
        for _ in range(LONG_THREADS):
            await asyncio.to_thread(begun.acquire)
        assert await of_bytes(1, divmod, 7, 2) == (3, 1)
        tasks[-1].cancel()  # its client has gone
        await asyncio.wait([tasks[-1]])
        assert not ended and not begun.acquire(blocking=False)
        may_end.set()
        await asyncio.gather(*tasks[:-1])

    asyncio.run(several())
    assert sorted(ended) == list(range(LONG_THREADS + 1))


def test_a_prompt_that_finds_no_room_is_not_tokenised():
    with served(max_waiting=0) as address:
        for stream in (False, True):
            body = {"prompt": "too long for the context " * 1000, "stream": stream}
            assert httpx.post(f"{address}/v1/completions", json=body, timeout=300).status_code == 429
            assert httpx.post(f"{address}/tokenize", json={"prompt": body["prompt"]}, timeout=300).json()["count"] > 512
