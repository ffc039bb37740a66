"""Speculative decoding changes no token: greedy, sampled, constrained, stopped, alone and together."""

import json
import shutil
import threading
from typing import Any

import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.llm.generation import Generation
from ingot.llm.sampling import Sampling
from ingot.llm.service import Service
from ingot.llm.speculation import Lookup, Speculation

CODE = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result\n\n\n"
PROMPTS = [CODE * 2, CODE + "def mean(", "x = [1, 1, 1, 1,", CODE * 2 + "# again\n"]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.7, "seed": 3},
    "filtered": {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 5},
    "penalized": {"temperature": 0, "repetition_penalty": 1.1, "frequency_penalty": 0.3},
    "logprobs": {"temperature": 0.5, "seed": 1, "logprobs": 3},
    "stop": {"temperature": 0, "stop": ["result\n", "]"]},
    "regex": {"temperature": 0, "regex": r"(value = [0-9]\n)+"},
    "schema": {"temperature": 0, "schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 6}},
}
MOST = 40


class Eager(Speculation):
    """Drafts in every step, whatever it costs."""

    count = 5

    def _best_count(self, generations: list[Generation], sources: list[int]) -> int:
        return min(self.count, 16 // len(generations) - 1)


def open_with(**options: Any) -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32", context=256, threads=1, **options)


@pytest.fixture(scope="module")
def plain() -> ingot.LLM:
    return open_with(sequences=1)


@pytest.fixture(scope="module", params=["lookup", "draft"])
def eager(request: pytest.FixtureRequest) -> ingot.LLM:
    options = {"lookup": True} if request.param == "lookup" else {"draft": FOLDER}
    llm = open_with(sequences=4, **options)
    speculation = Eager(llm.engine, llm.speculation._drafter)
    llm.speculation, llm.decode = speculation, speculation.decode
    return llm


@pytest.mark.parametrize("name", OPTIONS)
def test_drafts_change_nothing(plain, eager, name):
    for prompt in PROMPTS:
        want = plain.complete(prompt, max_tokens=MOST, **OPTIONS[name])
        got = eager.complete(prompt, max_tokens=MOST, **OPTIONS[name])
        assert (got.text, got.tokens, got.finish_reason) == (want.text, want.tokens, want.finish_reason)
        assert got.logprobs == want.logprobs
        assert got.usage.completion_tokens == want.usage.completion_tokens and got.usage.is_cut == want.usage.is_cut
        assert want.usage.drafted_tokens == 0 <= got.usage.accepted_tokens <= got.usage.drafted_tokens
    assert eager.speculation.accepted > 0


def test_drafts_of_several_answers(plain, eager):
    """In one thread, and by a service whose streams end at any time."""
    alone = [list(plain.generate_tokens(plain.encode(prompt), max_tokens=MOST)) for prompt in PROMPTS]
    generations = [eager.generation(eager.encode(prompt), max_tokens=MOST, temperature=0) for prompt in PROMPTS]
    drawn: list[list[int]] = [[] for _ in PROMPTS]
    for generation in eager.run(generations):
        drawn[generations.index(generation)].append(generation.token)
    assert drawn == alone
    found: dict[int, list[int]] = {}

    def work(index: int) -> None:
        prompt = PROMPTS[index % len(PROMPTS)]
        found[index] = list(eager.generate_tokens(eager.encode(prompt), max_tokens=MOST - index))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, tokens in found.items():
        assert tokens == alone[index % len(PROMPTS)][: MOST - index]


def test_a_text_ends_with_its_context(plain, eager):
    ids, options = plain.encode(CODE * 2), {"logit_bias": {0: -100}}
    assert list(eager.generate_tokens(ids, **options)) == list(plain.generate_tokens(ids, **options))


def test_the_service_reports_each_token(plain, eager):
    ids = plain.encode(PROMPTS[0])
    drawn, ended = [], threading.Event()

    def notify(generation: Generation, is_token: bool, error: ingot.IngotError | None) -> None:
        if is_token:
            drawn.append((generation.token, generation.logprobs.token, generation.finish_reason))
        else:
            ended.set()

    with Service(eager.engine, decode=eager.decode) as service:
        service.submit(eager.generation(ids, max_tokens=MOST, temperature=0, logprobs=0), notify)
        assert ended.wait(120)
    want = list(plain.generate_tokens(ids, max_tokens=MOST))
    assert drawn == [(token, token, None) for token in want[:-1]] + [(want[-1], want[-1], "length")]
    assert service.counts.completion_tokens == MOST > service.counts.steps


def lookup(tokens: list[int], count: int) -> list[int]:
    generation = Generation(tokens, sampling=Sampling(), vocab_size=99, max_tokens=9)
    return Lookup().draft([generation], count)[0]


def test_lookup_finds_the_longest_text_and_continues_a_period():
    assert lookup([1, 2, 3, 4, 9, 3, 4, 5, 7, 2, 3, 4], 2) == [9, 3]
    assert lookup([5, 6, 7, 5, 6, 8, 5, 6], 2) == [8, 5]  # the last occurrence of equally long ones
    assert lookup([1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]
    assert lookup([1, 2, 3], 5) == lookup([1], 5) == []
    generation = Generation([1, 2, 3], sampling=Sampling(), vocab_size=99, max_tokens=9)
    drafter = Lookup()
    assert drafter.draft([generation], 2) == [[]]
    generation.tokens += [1, 2]
    assert drafter.draft([generation], 2) == [[3, 1]]


def test_drafts_run_where_they_pay(plain):
    """The number of drafted tokens follows the measured times and rates, and is 0 above some number of answers."""
    speculation = Speculation(plain.engine, Lookup())
    answers = [Generation([1], sampling=Sampling(), vocab_size=99, max_tokens=9) for _ in range(8)]
    assert speculation._best_count(answers[:1], [3]) == 0  # nothing is measured yet
    speculation._plain = {1: 1.0, 4: 1.2, 8: 1.2}
    speculation._verified = {rows: 1.0 + 0.1 * rows for rows in range(2, 17)}
    counts = []
    for rate in (0.05, 0.5, 0.95):
        speculation._rates.update({answer: {3: rate} for answer in answers})
        counts.append(speculation._best_count(answers[:1], [3]))
    assert counts[0] == 0 < counts[1] < counts[2]
    assert speculation._best_count(answers[:1], [0]) == 0  # no draft
    speculation._rates.update({answer: {3: 0.8} for answer in answers})
    assert [speculation._best_count(answers[:many], [3] * many) > 0 for many in (1, 4, 8)] == [True, True, False]
    for _ in range(30):
        speculation._learn(answers[0], 3, 0, False)
    assert speculation._best_count(answers[:1], [3]) == 0 < speculation._best_count(answers[1:2], [3])


def test_a_draft_model_whose_logits_are_no_numbers_ends_no_answer(plain, tmp_path):
    shutil.copytree(FOLDER, tmp_path / "broken")
    path = tmp_path / "broken/model.safetensors"
    content = bytearray(path.read_bytes())
    data = 8 + int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8:data])["model.norm.weight"]["data_offsets"]
    content[data + begin : data + end] = b"\xc0\x7f" * ((end - begin) // 2)  # NaN in bf16
    path.write_bytes(content)
    llm = open_with(sequences=2, draft=tmp_path / "broken")
    for prompt in PROMPTS[:2]:
        assert llm.generate(prompt, max_tokens=MOST, temperature=0) == plain.generate(
            prompt, max_tokens=MOST, temperature=0
        )
    assert llm.usage.drafted_tokens == 0


def test_wrong_options(plain, tmp_path):
    with pytest.raises(ingot.InputError, match="lookup, draft: got both"):
        open_with(lookup=True, draft=FOLDER)
    with pytest.raises(FileNotFoundError):
        open_with(draft=tmp_path / "none")
    shutil.copytree(FOLDER, tmp_path / "other")
    path = tmp_path / "other/tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    first, second = (name for name, token in vocab.items() if token in plain.tokenizer.encode("def f")[:2])
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(document))
    with pytest.raises(ingot.InputError, match="option draft: other tokens"):
        open_with(draft=tmp_path / "other")
