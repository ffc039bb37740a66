"""Calibration statistics of a text: the second moments of each product's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ingot.errors import InputError
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder, LanguageModel, load_language_model
from ingot.load.hf.recurrent import SLOTS
from ingot.quantize.matrices import Matrix
from ingot.session.inference import InferenceSession

MAX_CALIBRATION_WINDOWS = 64  # windows of a calibration text, spread evenly
_WINDOW = 512
_BUDGET_BYTES = 1 << 30  # bytes of moments that are summed in one pass over the text

# Called with (bytes done, bytes in total).
Progress = Callable[[int, int], None]


class Work:
    """The progress of quantization: bytes of weights, and the same number again for each pass over a text."""

    def __init__(self, nbytes: int, passes: int, on_progress: Progress | None):
        self._pass, self._total, self._done = nbytes, nbytes * (1 + passes), 0.0
        self._on_progress = on_progress

    def add(self, nbytes: float) -> None:
        """Count `nbytes` more as done."""
        self._done += nbytes
        if self._on_progress is not None:
            self._on_progress(round(self._done), self._total)

    def add_part(self, parts: int) -> None:
        """Count one of `parts` equal parts of a pass as done."""
        self.add(self._pass / parts)


class Moments:
    """Sums of x x^T over the input rows x of each product on a text: f64[k, k] by the name of the input.

    They are computed on first use, in the order of `matrices`; each pass computes as many as fit in a budget of bytes.

    Raises InputError for a text shorter than a window, and the errors of reading the folder's tokenizer.
    """

    def __init__(self, folder: Folder, text: str, matrices: Iterable[Matrix]):
        self._folder = folder
        self._inputs = {each.input: each.k for each in matrices if each.input is not None}
        self._sums: dict[str, np.ndarray] = {}
        tokenizer = Tokenizer.read(folder)
        ids, prefix = tokenizer.encode(text), list(tokenizer.prefix)
        context = load_language_model(folder, context=None).context
        self._length = min(_WINDOW, context)
        size = self._length - len(prefix)
        if len(ids) < size:
            raise InputError(f"text: too short to calibrate with, got {len(ids)} tokens, expected at least {size}")
        count = min(len(ids) // size, MAX_CALIBRATION_WINDOWS)
        starts = np.linspace(0, len(ids) - size, count).astype(int).tolist()
        self._windows = [prefix + ids[start : start + size] for start in starts]

        self._passes = _fitting(self._inputs)

    @property
    def passes(self) -> int:
        """The number of passes over the text."""
        return len(self._passes)

    def of(self, input: str, work: Work) -> np.ndarray:
        """Return the moments of a value; `work` counts the pass if the text must be run."""
        if input not in self._sums:
            self._sum(next(names for names in self._passes if input in names), work)
        return self._sums[input]

    def _sum(self, names: Sequence[str], work: Work) -> None:
        model = load_language_model(self._folder, context=self._length)
        graph = model.graph
        for output in list(graph.outputs):
            graph.remove_output(output)
        for i, name in enumerate(names):
            graph.set_output(f"input {i}", name)
        is_encoder = model.kind == "encoder"
        sizes = {"batch": 1, "length": self._length} if is_encoder else {
            "rows": self._length, "taken": self._length, "sequences": 1,
        }  # fmt: skip
        session = InferenceSession(graph, dims={n: size for n, size in sizes.items() if n in graph.symbols})
        sums = {name: np.zeros((self._inputs[name],) * 2) for name in names}
        for window in self._windows:
            feeds = _encoder_feeds(window, graph.inputs) if is_encoder else _decoder_feeds(window, model)
            for name, rows in zip(names, session.run(None, feeds), strict=True):
                flat = rows.reshape(-1, self._inputs[name])
                sums[name] += flat.T @ flat
            work.add_part(len(self._windows))
        self._sums = sums


def _fitting(inputs: Mapping[str, int]) -> list[list[str]]:
    """Group values, given with their number of columns, into passes whose moments fit in the budget."""
    passes: list[list[str]] = []
    spent = _BUDGET_BYTES
    for name, k in inputs.items():
        spent += 8 * k * k
        if spent > _BUDGET_BYTES:
            passes.append([])
            spent = 8 * k * k
        passes[-1].append(name)
    return passes


def _encoder_feeds(ids: list[int], inputs: Iterable[str]) -> Mapping[str, np.ndarray]:
    fed = {name: np.zeros((1, len(ids)), np.int64) for name in inputs}
    fed["input_ids"][0], fed["attention_mask"][:] = ids, 1
    return fed


def _decoder_feeds(ids: list[int], model: LanguageModel) -> Mapping[str, np.ndarray]:
    """Return the inputs of a sequence from position 0 on, in the first blocks of the cache."""
    rows = np.arange(len(ids), dtype=np.int32)
    slots = {SLOTS: np.zeros(1, np.int32)} if model.has_recurrent_state else {}
    return slots | {
        "ids": np.array(ids, np.int32),
        "positions": rows,
        "owners": np.zeros_like(rows),
        "blocks": np.arange(model.blocks_per_sequence, dtype=np.int32)[None],
        "take": rows,
    }
