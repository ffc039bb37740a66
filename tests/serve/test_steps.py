"""Options of the server that change its steps and not its answers: drafts, a small cache, deadlines."""

import asyncio
import re

import httpx

import ingot
from http_server import command
from ingot.cli.demo_language import FOLDER

OPTIONS = ["--precision", "f32", "--context", "192", "--sequences", "4", "--cache", "200", "--lookup"]
PROMPTS = [f"x = [{i}, {i}, {i}, {i}," for i in range(6)]


def test_answers_of_a_small_cache_with_drafts():
    llm = ingot.LLM(FOLDER, precision="f32", context=192, sequences=1)
    want = [llm.generate(prompt, max_tokens=90, temperature=0) for prompt in PROMPTS]

    async def answers(address: str) -> list[str]:
        async with httpx.AsyncClient(timeout=120) as client:
            bodies = [{"prompt": prompt, "max_tokens": 90, "temperature": 0} for prompt in PROMPTS]
            got = await asyncio.gather(*(client.post(f"{address}/v1/completions", json=body) for body in bodies))
            late = {"prompt": PROMPTS[0], "timeout": 1e-6, "temperature": 0}
            choice = (await client.post(f"{address}/v1/completions", json=late)).json()["choices"][0]
            assert choice["finish_reason"] == "timeout" and want[0].startswith(choice["text"])
            wrong = await client.post(f"{address}/v1/completions", json={"prompt": "x", "timeout": -1})
            assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "timeout"
            metrics = (await client.get(f"{address}/metrics")).text.splitlines()
            numbers = dict(re.sub(r"\{.*\}", "", line).rsplit(" ", 1) for line in metrics if not line.startswith("#"))
            assert 0 < float(numbers["ingot_accepted_tokens_total"]) <= float(numbers["ingot_drafted_tokens_total"])
            return [each.json()["choices"][0]["text"] for each in got]

    with command(*OPTIONS) as (_, address):
        assert asyncio.run(answers(address)) == want
