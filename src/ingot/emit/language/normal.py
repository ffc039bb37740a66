"""The tables of normal.c: Unicode's normalisation form C, as Python's `unicodedata` has it."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

_QUANT = 0x110000


@functools.cache
def normal_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decompositions as int32[n, 3]: character, first, second or 0; compositions as int32[n, 3]: first, second,
    character; and combining classes as int32[n, 2]: the first character of a run, and its class. All are in order."""
    apart, classes, last = [], [], -1
    for code in range(_QUANT):
        letter = chr(code)
        parts = unicodedata.decomposition(letter)
        if parts and not parts.startswith("<"):
            first, second = ([int(part, 16) for part in parts.split()] + [0])[:2]
            apart.append((code, first, second))
        if (found := unicodedata.combining(letter)) != last:
            classes.append((code, found))
            last = found
    together = sorted(
        (first, second, code)
        for code, first, second in apart
        if second and unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(code)
    )
    return tuple(np.array(rows, np.int32) for rows in (apart, together, classes))  # type: ignore[return-value]
