"""GGUF files beside llama.cpp: `python -m benchmarks.gguf`: ids of texts, and greedy tokens, which must be the same.

Tokenizers are those of the shipped model, with every way to cut words, and small ones of SentencePiece's kind, on the
documents and on random text. The shipped model is written as F16 by `tests/kit/gguf_models.py` and quantised by
llama.cpp; a random one is wide enough that all its matrices become k-quants. Both engines follow the tokens that
llama.cpp draws, so that one near-tie does not decide all that come after it. Both engines round activations to eight
bits where weights are quantised, llama.cpp by 256 or 32 elements, as the type is: a step whose two best logits,
llama.cpp's own, differ by less than TIE is a near-tie and does not count. In f32, logits are measured beside llama.cpp
on the same file decoded to F32 by itself, where it rounds nothing but the cache. Tokens of a random model say little,
and only its logits must agree.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from ingot import LLM
from ingot.llm.tokenizer import Tokenizer
from ingot.load.gguf import GgufModel, read_gguf
from ingot.load.gguf.tokenizer import WAYS_TO_CUT

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
from gguf_models import TINY_LM, stored_as, write_gguf, write_tokens
from small_tokenizers import KINDS, write_folder
from tiny_language_models import random_llama

# Words are cut by the models' own expressions, which llama.cpp has without combining marks.
ORIGINAL = ("tekken", "gpt-4o", "llama4")
WIDE = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512}
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
TIE = 0.15  # between two logits, of their standard deviation
EXACT = 5e-3  # the difference that a cache of f16 makes
TEXTS = (Path(__file__).parents[1] / "README.md", *sorted((Path(__file__).parents[1] / "docs").glob("*.md")))
RANDOM_TEXTS = 2000
CHARACTERS = "abcdefghij ABC   ''.,!?\n\t\r0123456789éßñ東京日本語привет😀👩‍👧<>|_-+=/\\\"`~^$中ａ１²ⅷ\xa0"  # noqa: RUF001
WORDS = ("don't", "I'LL", "we've", "naïve", " the", "  two", "\n\n", "1234567", "$5.00", "foo(bar)", "HTTPServer", "'s")


class LlamaCpp:
    """A model of llama.cpp, one sequence at a time."""

    def __init__(self, path: Path, *, tokens_only: bool = False):
        options = llama_cpp.llama_model_default_params()
        options.vocab_only = tokens_only
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.context = None if tokens_only else self._context()

    def _context(self) -> Any:
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = CONTEXT
        context.n_threads = context.n_threads_batch = 2
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        return llama_cpp.llama_init_from_model(self.model, context)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, with what stands before it; control tokens in it are text."""
        content = text.encode()
        found = (llama_cpp.llama_token * (2 * len(content) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, content, len(content), found, len(found), True, False)
        return list(found[:count])

    def follow(self, ids: list[int], tokens: list[int] | None = None) -> tuple[list[int], np.ndarray]:
        """The ids that follow, those given or the most probable ones, and the logits before each."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        fed, drawn, rows = ids, [], []
        for place in range(TOKENS):
            batch = (llama_cpp.llama_token * len(fed))(*fed)
            assert not llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(batch, len(fed)))
            logits = llama_cpp.llama_get_logits_ith(self.context, -1)
            rows.append(np.ctypeslib.as_array(logits, (self.size,)).copy())
            fed = [int(rows[-1].argmax()) if tokens is None else tokens[place]]
            drawn += fed
        return drawn, np.stack(rows)

    def close(self) -> None:
        if self.context is not None:
            llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def quantised(source: Path, path: Path, mixture: int) -> None:
    """Writes a file by llama.cpp's quantiser."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = mixture, 2, True
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(options))
    assert not failed, f"llama.cpp cannot quantise to {path}"


def corpus() -> list[str]:
    """Lines and pages of documents, and random text."""
    random = np.random.default_rng(3)
    pages = [file.read_text() for file in TEXTS]
    texts = [line for page in pages for line in page.splitlines(keepends=True) if line.strip()]
    texts += [page[start : start + 2000] for page in pages for start in range(0, len(page), 2000)]
    for _ in range(RANDOM_TEXTS):
        parts = random.choice([*CHARACTERS * 2, *WORDS], random.integers(1, 60))
        texts.append("".join(map(str, parts)))
    return texts


def tokenizer_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files without a model, with each kind of tokenizer."""
    for kind in WAYS_TO_CUT:
        yield kind, write_tokens(TINY_LM, folder / f"{kind}.gguf", kind)
    for kind in ("byte_fallback", "gemma"):
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        source = write_folder(folder / kind, KINDS[kind]().to_str(), tokenizer_config=names)
        yield kind, write_tokens(source, folder / f"{kind}.gguf", kind)


def differing_ids(path: Path, texts: list[str]) -> int:
    """Texts with other ids than llama.cpp's."""
    other, own = LlamaCpp(path, tokens_only=True), Tokenizer.read(GgufModel(path))
    wrong = sum(other.ids(text) != [*own.prefix, *own.encode(text)] for text in texts)
    other.close()
    return wrong


def compared(path: Path) -> dict[str, Any]:
    """Steps of both engines on a file, and how far their logits are apart, on it and as llama.cpp decodes it to F32."""
    plain = path.with_name("F32.gguf")
    quantised(path, plain, 0)
    same, decoded = LlamaCpp(path), LlamaCpp(plain)
    own, unrounded = LLM(path, context=CONTEXT), LLM(path, precision="f32", context=CONTEXT)
    equal = ties = others = 0
    errors: list[tuple[float, float]] = []
    for prompt in PROMPTS:
        ids = same.ids(prompt)
        tokens, logits = same.follow(ids)
        exact = decoded.follow(ids, tokens)[1]
        ours = own.logits(ids + tokens[:-1])[len(ids) - 1 :]
        in_f32 = unrounded.logits(ids + tokens[:-1])[len(ids) - 1 :]
        errors.append(
            (_distance(ours, logits), _distance(ours, exact), _distance(logits, exact), _distance(in_f32, exact))
        )
        second, first = np.partition(logits, -2)[:, -2:].T
        is_tie = first - second < TIE * logits.std(1)
        is_equal = ours.argmax(1) == tokens
        ties += int(is_tie.sum())
        equal += int((is_equal & ~is_tie).sum())
        others += int((~is_equal & ~is_tie).sum())
    same.close()
    decoded.close()
    names = ("apart", "own error", "their error", "exactly")
    found = {"equal": equal, "near-ties": ties, "others": others, "precision": own.options.precision}
    return found | dict(zip(names, map(float, np.mean(errors, 0)), strict=True))


def _distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The difference of logits, relative to how they spread."""
    return float(np.sqrt(np.mean((ours - theirs) ** 2)) / theirs.std())


def main() -> None:
    """Prints the ids of each tokenizer and a row for each mixture; ends with 1 where a token or an id differs."""
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, None)
    llama_cpp.llama_backend_init()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), corpus()
        for kind, path in tokenizer_files(folder):
            wrong = differing_ids(path, texts)
            failed |= wrong > 0 and kind not in ORIGINAL
            print(f"ids, {kind}: {len(texts) - wrong} of {len(texts)} texts as llama.cpp has them", flush=True)
        random_llama(folder / "wide", **WIDE)
        for source in (TINY_LM, folder / "wide"):
            print(f"\n{source.name}\n")
            failed |= compared_mixtures(source, folder)
    sys.exit(failed)


def compared_mixtures(source: Path, folder: Path) -> bool:
    """Prints a table; whether a token differs."""
    print(
        "| mixture | types | precision | equal | near-ties | others | logits apart | to F32: own | theirs | own f32 |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    f16, failed = folder / "F16.gguf", False
    if not (source / "tokenizer.json").exists():
        write_folder(source, (TINY_LM / "tokenizer.json").read_text())
    write_gguf(source, f16, stored_as("f16"))
    for name, mixture in MIXTURES.items():
        path = folder / f"{name}.gguf"
        if path != f16:
            quantised(f16, path, mixture)
        found = compared(path)
        failed |= (found["others"] > 0 and source == TINY_LM) or found["exactly"] > EXACT
        row = " | ".join(str(found[key]) for key in ("precision", "equal", "near-ties", "others"))
        row += "".join(f" | {found[key]:.1e}" for key in ("apart", "own error", "their error", "exactly"))
        print(f"| {name} | {types_of(path)} | {row} |", flush=True)
    return failed


def types_of(path: Path) -> str:
    """The types of a file's matrices, and how many there are of each."""
    counts = Counter(tensor.type for tensor in read_gguf(path).tensors.values() if len(tensor.shape) > 1)
    return ", ".join(f"{count} {type}" for type, count in counts.most_common())


if __name__ == "__main__":
    main()
