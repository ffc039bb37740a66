"""The picture and table of the cache of a language model."""

from xml.etree import ElementTree

import ingot
from ingot.llm.cache_use import CachedSequence, CacheUse

SHARED = CacheUse(
    12,
    (CachedSequence(150, False, (0, 1, 5), None), CachedSequence(70, True, (0, 7), 3), CachedSequence(0, True, (), 1)),
)


def test_the_text_counts_blocks_once_and_names_shared_ones() -> None:
    assert (SHARED.used, repr(SHARED)) == (4, "<CacheUse 4 of 12 blocks of 64 positions: 3 sequences, 2 active>")
    assert [line.split() for line in str(SHARED).splitlines()[1:]] == [
        "cached 150 tokens 3 blocks 1 shared 0-1 5".split(),
        "active 70 tokens 2 blocks 1 shared states in slot 3 0 7".split(),
        "active 0 tokens 0 blocks 0 shared states in slot 1".split(),
    ]


def test_the_picture_has_a_rectangle_for_each_run_of_blocks() -> None:
    drawn = ElementTree.fromstring(f"<div>{SHARED._repr_html_()}</div>")
    places = [(float(each.attrib["x"]), float(each.attrib["width"])) for each in drawn.iter("rect")]
    unit = places[2][1]
    assert len(places) == 4
    assert [round((x - places[0][0]) / unit) for x, _ in places] == [0, 5, 0, 7]
    assert [round(width / unit) for _, width in places] == [2, 1, 1, 1]


def test_a_model_shows_active_cached_and_shared_sequences() -> None:
    llm = ingot.LLM("tiny-lm", sequences=3, threads=1)
    assert llm.cache.sequences == ()
    prompt = list(range(3, 203))
    list(llm.generate_tokens(prompt, max_tokens=2, temperature=0))
    answer = llm.generation([*prompt[:70], 9, 9, 9], max_tokens=4, temperature=0)
    for number, _ in enumerate(llm.run([answer])):
        if number:
            break
        first, second = llm.cache.sequences
        assert (first.is_active, second.is_active) == (False, True)
        assert first.blocks[0] == second.blocks[0] and first.blocks[1] != second.blocks[1]
        assert llm.cache.used == 5
    assert not any(each.is_active for each in llm.cache.sequences)
