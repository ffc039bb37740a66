"""Write tokenizer.bin of a folder; the characters of expression atoms come from the package `tokenizers`."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection

from ingot.emit.language.pattern import Ranges
from ingot.emit.language.tokenizer import Facts, tokenizer_file
from ingot.emit.platform import Platform
from ingot.llm.tokenizer import Tokenizer

_SURROGATES = 0xD800, 0xE000
_TEXT = 0x800  # characters that are tested together
_PLANES = 0x40000, 0xE0000  # planes without assigned characters


def c_tokenizer(tokenizer: Tokenizer, known: Collection[str], where: str, platform: Platform) -> bytes:
    """Return the bytes in a platform's order. known: added tokens that the chat template writes.

    Raises UnsupportedError for a tokenizer with components that emitted C does not support.
    """
    facts = Facts(
        where=where,
        vocab=tokenizer.vocab_size,
        hidden=[index for index in range(tokenizer.vocab_size) if not tokenizer.is_text(index)],
        control=tokenizer.control,
        prefix=tokenizer.prefix,
        known=known,
        members=members,
    )
    return tokenizer_file(json.loads(tokenizer.to_json()), facts, platform)


@functools.cache
def members(atom: str) -> Ranges:
    """Return the characters that an atom of an expression matches, by running `tokenizers` on texts of all characters.

    In the planes without assigned characters, the first characters represent all.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    split = Split(Regex(f"(?:{atom})+"), "removed")
    edges: list[int] = []  # where runs begin and end
    low = 0
    while low < 0x110000:
        after = {_SURROGATES[0]: _SURROGATES[1], _PLANES[0]: _PLANES[1]}.get(low, low + _TEXT)
        text = "" if low == _SURROGATES[0] else "".join(map(chr, range(low, low + _TEXT)))
        others = [offset for _, span in split.pre_tokenize_str(text) for offset in span]
        edges += [low, *(after if offset == _TEXT else low + offset for offset in others), after]
        low = after
    counts = Counter(edges)
    odd = sorted(edge for edge, count in counts.items() if count % 2)
    return tuple((first, end - 1) for first, end in zip(odd[::2], odd[1::2], strict=True))
