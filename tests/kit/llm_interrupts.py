"""Ctrl-C at any instruction of a language model's work: every place of the cache is free again, and the next answers
are those of a model that was never interrupted. `python tests/kit/llm_interrupts.py` takes every one."""

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ingot
from ingot.cli.demo_language import FOLDER
from interrupts import interrupt, places

PLACES = 2
CONTEXT = 128
IDS = list(range(5, 75))  # two blocks

Work = Callable[[ingot.LLM, Path], Any]


def half_a_stream(llm: ingot.LLM, _: Path) -> str:
    return next(llm.stream("import ", max_tokens=4, temperature=0))


def batch(llm: ingot.LLM, _: Path) -> list[list[int]]:
    """One more than there are places."""
    generations = [llm.generation([7, 8 + i], max_tokens=2 + i, temperature=0) for i in range(PLACES + 1)]
    drawn: list[list[int]] = [[] for _ in generations]
    for generation in llm.run(generations):
        drawn[generations.index(generation)].append(generation.token)
    return drawn


def saved(llm: ingot.LLM, folder: Path) -> bytes:
    list(llm.generate_tokens(IDS, max_tokens=2))
    llm.save_sequence(folder / "saved")
    return (folder / "saved").read_bytes()


WORK: dict[str, Work] = {
    "generate": lambda llm, _: llm.generate("def f(", max_tokens=3, temperature=0),
    "regex": lambda llm, _: llm.generate("x = ", max_tokens=3, temperature=0, regex="[0-9]+"),
    "stream": lambda llm, _: list(llm.stream("def f(", max_tokens=3, temperature=0)),
    "half a stream": half_a_stream,
    "drawn": lambda llm, _: list(llm.generate_tokens(IDS, max_tokens=3, temperature=1.0, seed=3)),
    "texts": lambda llm, _: llm.generate(["a", "b", "cd"], max_tokens=2, temperature=0),
    "batch": batch,
    "chat": lambda llm, _: llm.chat([{"role": "user", "content": "hi"}], max_tokens=2, temperature=0),
    "logits": lambda llm, _: llm.logits(IDS).tobytes(),
    "embed": lambda llm, _: llm.embed("some text").tobytes(),
    "save": saved,
    "load": lambda llm, folder: llm.load_sequence(folder / "kept"),
}


def load() -> ingot.LLM:
    return ingot.LLM(FOLDER, context=CONTEXT, threads=1, precision="f32", sequences=PLACES)


def places_in_use(llm: ingot.LLM) -> int:
    """How many of all places nobody gets."""
    streams = [llm.generate_tokens([3 + i], max_tokens=2) for i in range(PLACES)]
    begun = []
    with contextlib.suppress(ingot.InputError):
        for stream in streams:
            begun.append(next(stream))
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    return PLACES - len(begun)


def check_work(name: str, folder: Path, points: int | None) -> int:
    """Interrupts a kind of work at so many instructions, evenly spread, or at each; returns how many they were."""
    work = WORK[name]
    full = [list(range(9 + i, 9 + i + CONTEXT - 4)) for i in range(PLACES)]
    fresh, llm = load(), load()
    list(fresh.generate_tokens(IDS, max_tokens=2))
    fresh.save_sequence(folder / "kept")
    expected = work(fresh, folder)
    assert work(llm, folder) == expected  # the first time compiles and fills caches
    found = places(lambda: work(llm, folder))
    chosen = found[:: 1 if points is None else max(1, len(found) // points)]
    for place in chosen:
        error = interrupt(lambda: work(llm, folder), place)
        where = f"interrupted after {place[0].co_qualname} {place[1]}: {error!r}"
        assert places_in_use(llm) == 0, where
        assert work(llm, folder) == expected, where
    drawn = [[g.token for g in llm.run([llm.generation(ids, temperature=0)])] for ids in full]
    assert drawn == [list(load().generate_tokens(ids)) for ids in full]
    return len(chosen)


def main() -> None:
    """Every instruction of every kind of work."""
    for name in WORK:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            count = check_work(name, Path(folder), None)
        print(f"{name}: {count} interrupts in {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
