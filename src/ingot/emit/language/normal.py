"""The tables of normal.c: Unicode's normalisation form C, from Python's `unicodedata`."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

_CODE_POINTS = 0x110000


@functools.cache
def normal_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return decompositions, compositions and combining classes, all sorted.

    Decompositions are int32[n, 3]: character, first, second or 0; compositions int32[n, 3]: first, second, character;
    combining classes int32[n, 2]: the first character of a run, and its class.
    """
    decompositions, classes, last = [], [], -1
    for code in range(_CODE_POINTS):
        letter = chr(code)
        parts = unicodedata.decomposition(letter)
        if parts and not parts.startswith("<"):
            first, second = ([int(part, 16) for part in parts.split()] + [0])[:2]
            decompositions.append((code, first, second))
        if (found := unicodedata.combining(letter)) != last:
            classes.append((code, found))
            last = found
    compositions = sorted(
        (first, second, code)
        for code, first, second in decompositions
        if second and unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(code)
    )
    return tuple(np.array(rows, np.int32) for rows in (decompositions, compositions, classes))  # type: ignore[return-value]
