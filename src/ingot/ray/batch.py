"""Answers to the rows of a data set, by workers of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.errors import InputError

if TYPE_CHECKING:
    from ray.data import Dataset

Columns = dict[str, np.ndarray]


def generate(
    dataset: Dataset,
    model: str,
    *,
    prompt: str = "prompt",
    output: str = "text",
    workers: int = 1,
    threads: int = 1,
    batch_size: int = 64,
    load: Mapping[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """Return a data set with a further column: the text that continues the prompt of each row.

    model: a model folder or GGUF file, under this path on every machine. prompt, output: the names of the columns of
    prompts and of texts. workers: processes that have a model each, with so many threads, which are the CPUs that Ray
    reserves. batch_size: rows of a task; a worker that ends is replaced, and its task is repeated. load: options of
    `ingot.LLM`, such as {"sequences": 16}. options: those of `LLM.generate`, such as max_tokens. In f32 the text of a
    row does not depend on the other rows, the workers or the batches. Rows arrive in any order.

    The work starts when the result is read. Errors of `ingot.LLM` and `LLM.generate` end it, as Ray's errors.

    Raises InputError for numbers below 1.
    """
    for name, value in {"workers": workers, "threads": threads, "batch_size": batch_size}.items():
        if value < 1:
            raise InputError(f"{name}: got {value}, expected at least 1")
    arguments = {
        "model": model, "prompt": prompt, "output": output, "options": options,
        "load": {"threads": threads} | dict(load or {}),
    }  # fmt: skip
    return dataset.map_batches(
        _Generator,
        fn_constructor_kwargs=arguments,
        batch_size=batch_size,
        batch_format="numpy",
        concurrency=workers,
        num_cpus=threads,
        udf_modifying_row_count=False,
    )


class _Generator:
    """The work of a worker: it loads the model once."""

    def __init__(self, model: str, prompt: str, output: str, load: dict[str, Any], options: dict[str, Any]):
        from ingot.llm.model import LLM

        self._llm = LLM(model, **load)
        self._prompt, self._output, self._options = prompt, output, options

    def __call__(self, batch: Columns) -> Columns:
        """Return the columns of a batch with the texts."""
        if self._prompt not in batch:
            raise InputError(f"prompt: no such column, got {sorted(batch)}, expected {self._prompt!r}")
        texts = self._llm.generate([str(text) for text in batch[self._prompt]], **self._options)
        return batch | {self._output: np.array(texts, object)}
