"""GGUF files beside llama.cpp: `python -m benchmarks.gguf`: ids of texts, and greedy tokens, which must be the same.

The shipped model is written as F16 by `tests/kit/gguf_models.py` and quantised by llama.cpp. Both engines follow the
tokens that llama.cpp draws, so that one near-tie does not decide all that come after it; llama.cpp rounds activations to
eight bits where weights are quantised, so that a token counts as a near-tie where its own two best logits lie closer
than the engines' logits of that step differ.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.llm_engines import quiet
from ingot import LLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
from gguf_models import TINY_LM, stored_as, write_gguf

# Names of llama.cpp's mixtures of types, and their numbers.
MIXTURES = {
    "F16": 1, "BF16": 32, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_0": 2, "Q4_1": 3, "Q2_K": 10, "Q3_K_M": 12,
    "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip
PROMPTS = (
    "Once upon a time",
    "def forward(self, x):\n    return",
    "The license of this program",
    "import numpy as np\n\n",
    "What is the difference between a list and a tuple?",
    "A simple way to",
)
TOKENS = 96  # after each prompt
CONTEXT = 512
TEXTS = (Path(__file__).parents[1] / "README.md", *sorted((Path(__file__).parents[1] / "docs").glob("*.md")))


class LlamaCpp:
    """A model of llama.cpp, one sequence at a time."""

    def __init__(self, path: Path):
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        assert self.model, f"llama.cpp cannot load {path}"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = CONTEXT
        context.n_threads = context.n_threads_batch = 2
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def ids(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text, with what stands before it."""
        content = text.encode()
        found = (llama_cpp.llama_token * (len(content) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, content, len(content), found, len(found), True, special)
        return list(found[:count])

    def greedy(self, ids: list[int], count: int) -> tuple[list[int], np.ndarray]:
        """The ids that follow, and the logits that each was drawn from."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        fed, tokens, rows = ids, [], []
        for _ in range(count):
            batch = (llama_cpp.llama_token * len(fed))(*fed)
            assert not llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(batch, len(fed)))
            logits = llama_cpp.llama_get_logits_ith(self.context, -1)
            rows.append(np.ctypeslib.as_array(logits, (self.size,)).copy())
            fed = [int(rows[-1].argmax())]
            tokens += fed
        return tokens, np.stack(rows)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def quantised(source: Path, path: Path, mixture: int) -> None:
    """Writes a file by llama.cpp's quantiser."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = mixture, 2, True
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(options))
    assert not failed, f"llama.cpp cannot quantise to {path}"


def differing_ids(path: Path) -> tuple[int, int]:
    """Lines of text with other ids than llama.cpp's, and lines."""
    other, own = LlamaCpp(path), LLM(path).tokenizer
    lines = [line for file in TEXTS for line in file.read_text().splitlines(keepends=True) if line.strip()]
    lines += [file.read_text()[start : start + 2000] for file in TEXTS for start in range(0, 8000, 2000)]
    wrong = sum(other.ids(line) != [*own.prefix, *own.encode(line)] for line in lines)
    other.close()
    return wrong, len(lines)


def compared(path: Path) -> dict[str, Any]:
    """Tokens that are equal, near-ties and others of both engines on a file."""
    other, own = LlamaCpp(path), LLM(path, precision="f32", context=CONTEXT)
    counts = {"equal": 0, "near-ties": 0, "others": 0}
    errors = []
    for prompt in PROMPTS:
        ids = other.ids(prompt)
        tokens, logits = other.greedy(ids, TOKENS)
        ours = own.logits(ids + tokens[:-1])[len(ids) - 1 :]
        difference = np.abs(ours - logits).max(1)
        errors.append(np.sqrt(np.mean((ours - logits) ** 2)) / logits.std())
        for token, row, theirs, most in zip(tokens, ours, logits, difference, strict=True):
            second = np.partition(theirs, -2)[-2]
            if int(row.argmax()) == token:
                counts["equal"] += 1
            else:
                counts["near-ties" if theirs[token] - second < most else "others"] += 1
    other.close()
    return counts | {"error": float(np.mean(errors))}


def main() -> None:
    """Prints a row for each mixture; ends with 1 where a token or an id differs."""
    callback = llama_cpp.llama_log_callback(quiet)
    llama_cpp.llama_log_set(callback, None)
    llama_cpp.llama_backend_init()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "F16.gguf"
        write_gguf(TINY_LM, source, stored_as("f16"))
        wrong, lines = differing_ids(source)
        failed |= wrong > 0
        print(f"ids: {lines - wrong} of {lines} texts as llama.cpp has them\n")
        print("| mixture | types | equal | near-ties | others | relative difference of logits |")
        print("|---|---|---|---|---|---|")
        for name, mixture in MIXTURES.items():
            path = Path(folder) / f"{name}.gguf"
            if path != source:
                quantised(source, path, mixture)
            found = compared(path)
            failed |= found["others"] > 0
            print(f"| {name} | {types_of(path)} | {found['equal']} | {found['near-ties']} | {found['others']} |"
                  f" {found['error']:.1e} |", flush=True)  # fmt: skip
    sys.exit(failed)


def types_of(path: Path) -> str:
    """The types of a file's matrices, and how many there are of each."""
    from collections import Counter

    from ingot.load.gguf import read_gguf

    counts = Counter(tensor.type for tensor in read_gguf(path).tensors.values() if len(tensor.shape) > 1)
    return ", ".join(f"{count} {type}" for type, count in counts.most_common())


if __name__ == "__main__":
    main()
