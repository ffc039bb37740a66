"""Answers of asynchronous tasks: the tokens of answers alone, in any number; a cancelled task ends its answer."""

import asyncio
import gc
import threading

import pytest

import ingot
from ingot.cli.demo_language import FOLDER

PROMPTS = [f"def f{i}(a, b):\n    return a +" for i in range(6)]
OPTIONS = [{"temperature": 0.8, "seed": i, "max_tokens": 12} for i in range(6)]
MESSAGES = [{"role": "user", "content": "def add(a, b):"}]


@pytest.fixture(scope="module")
def llm() -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32", sequences=2)


async def joined(pieces) -> str:
    return "".join([piece async for piece in pieces])


def test_tasks_get_the_text_of_answers_alone(llm):
    alone = [llm.generate(prompt, **options) for prompt, options in zip(PROMPTS, OPTIONS, strict=True)]

    async def work() -> None:
        pairs = list(zip(PROMPTS, OPTIONS, strict=True))
        assert await asyncio.gather(*(llm.agenerate(prompt, **options) for prompt, options in pairs)) == alone
        assert await asyncio.gather(*(joined(llm.astream(prompt, **options)) for prompt, options in pairs)) == alone
        chat = llm.chat(MESSAGES, **OPTIONS[0])
        assert await llm.achat(MESSAGES, **OPTIONS[0]) == chat == await joined(llm.astream_chat(MESSAGES, **OPTIONS[0]))
        stopped = await llm.agenerate(PROMPTS[0], stop=alone[0][3:5], **OPTIONS[0])
        assert stopped == alone[0][: alone[0].index(alone[0][3:5])]

    asyncio.run(work())
    assert (llm.service.active, llm.service.waiting) == (0, 0)


def test_threads_and_tasks_together(llm):
    alone = [llm.generate(prompt, **options) for prompt, options in zip(PROMPTS, OPTIONS, strict=True)]
    found: dict[int, object] = {}

    def call(i: int) -> None:
        found[i] = llm.complete(PROMPTS[i], **OPTIONS[i], logprobs=1)

    async def work() -> list[str]:
        return await asyncio.gather(*(llm.agenerate(PROMPTS[i], **OPTIONS[i]) for i in range(6)))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    assert asyncio.run(work()) == alone
    for thread in threads:
        thread.join()
    for i, text in enumerate(alone):
        assert found[i].text == text and found[i].usage.completion_tokens == len(found[i].tokens)
        assert [each.token for each in found[i].logprobs] == found[i].tokens


@pytest.mark.parametrize("begun", [0, 2], ids=["waiting", "begun"])
def test_a_cancelled_task_ends_its_answer(llm, begun):
    """A stop by the caller, by cancellation of the task, and by the end of the event loop."""

    async def work() -> None:
        streams = [llm.astream(f"# {i}\n", max_tokens=10**6, logit_bias={0: -100}) for i in range(begun)]
        for stream in streams:
            await anext(stream)
        task = asyncio.create_task(llm.agenerate("x = 1\n" * 60, max_tokens=10**6))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = llm.service.counts.completion_tokens
    asyncio.run(work())
    assert llm.generate(PROMPTS[0], max_tokens=1)
    while llm.service.active or llm.service.waiting:
        pass
    assert llm.service.counts.completion_tokens - before < 3 * llm.context


def test_errors_reach_the_task(llm):
    async def work() -> None:
        with pytest.raises(ingot.InputError, match="temperature"):
            await llm.agenerate("x", temperature=-1)
        with pytest.raises(ingot.InputError, match="longer than the context"):
            await llm.agenerate("x = 1\n" * 10**4)
        llm.service.close()
        assert await llm.agenerate(PROMPTS[0], max_tokens=2, temperature=0)  # another service begins

    asyncio.run(work())


def test_a_model_that_nobody_holds_ends_its_service():
    llm = ingot.LLM(FOLDER, precision="f32", sequences=1)
    asyncio.run(llm.agenerate(PROMPTS[0], max_tokens=1))
    thread = llm.service._thread
    assert thread.is_alive()
    del llm
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_conversation_has_one_encoding(llm):
    ids = llm.encode_chat(MESSAGES)
    assert ids == llm.chat_template.encode(llm.tokenizer, MESSAGES)
    with pytest.raises(ingot.InputError, match="chat option 'no'"):
        llm.encode_chat(MESSAGES, template_options={"no": 1})
