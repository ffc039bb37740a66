"""Ids, tokens and logits of GGUF files on Ingot and on llama.cpp."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from ml_dtypes import bfloat16

from benchmarks import ROOT
from benchmarks.gguf.llama_float64 import Roundings
from benchmarks.gguf.llama_float64 import logits as exact_logits
from benchmarks.harness import report
from gguf_models import TINY_LM, gguf_name, read_tensors, stored_as, write_gguf, write_tokens
from ingot import LLM
from ingot.llm.tokenizer import Tokenizer
from ingot.load.gguf import GgufModel, read_gguf
from ingot.load.gguf.tokenizer import WAYS_TO_CUT
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
THREADS = 1  # of each engine: results do not depend on them, and none waits for another on a busy machine
ROUNDED_GROUP = 256  # elements of a row that Ingot rounds to eight bits together
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
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
        context.n_threads = context.n_threads_batch = THREADS
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        return llama_cpp.llama_init_from_model(self.model, context)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, after the begin token; control tokens in the text are text."""
        content = text.encode()
        found = (llama_cpp.llama_token * (2 * len(content) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, content, len(content), found, len(found), True, False)
        return list(found[:count])

    def follow(self, ids: list[int], tokens: list[int] | None = None) -> tuple[list[int], np.ndarray]:
        """The ids that follow, those given or the most probable ones, and the logits before each."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        fed, drawn, rows = ids, [], []
        for position in range(TOKENS):
            batch = (llama_cpp.llama_token * len(fed))(*fed)
            assert not llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(batch, len(fed)))
            logits = llama_cpp.llama_get_logits_ith(self.context, -1)
            rows.append(np.ctypeslib.as_array(logits, (self.size,)).copy())
            fed = [int(rows[-1].argmax()) if tokens is None else tokens[position]]
            drawn += fed
        return drawn, np.stack(rows)

    def close(self) -> None:
        if self.context is not None:
            llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


def quantized(source: Path, path: Path, mixture: int) -> None:
    """Writes a file by llama.cpp's quantizer."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = mixture, 2, True
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(options))
    assert not failed, f"llama.cpp cannot quantize to {path}"


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


def decoded_weights(source: Path, path: Path) -> dict[str, np.ndarray]:
    """The weights of a file as gguf-py decodes them, by the tensor names of the source folder."""
    config, stored = json.loads((source / "config.json").read_text()), {t.name: t for t in GGUFReader(path).tensors}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = {}
    for name, tensor in read_tensors(source).items():
        each = stored[gguf_name(name, config["model_type"])]
        data = dequantize(each.data, each.tensor_type).reshape(tensor.shape)
        if count := heads.get(name.split(".")[-2]):  # rows are in the order of llama.cpp's rotation
            data = data.reshape(count, -1, 2, data.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        found[name] = data
    return found


def roundings_of(precision: str) -> Roundings:
    """What Ingot rounds in a precision."""
    rows = {"int8": _stepped, "bf16": _as_bf16}
    return Roundings(rows[precision], _as_bf16) if precision in rows else Roundings()


def _as_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(bfloat16).astype(np.float64)


def _stepped(rows: np.ndarray) -> np.ndarray:
    """Rows in eight bits, each group of their elements by a step of its own."""
    groups = np.split(rows, range(ROUNDED_GROUP, rows.shape[1], ROUNDED_GROUP), axis=1)
    steps = [np.abs(group).max(1, keepdims=True) / 127 for group in groups]
    return np.concatenate([np.rint(group / step) * step for group, step in zip(groups, steps, strict=True)], 1)


class Steps(NamedTuple):
    """What follows a prompt: logits of each engine [steps, vocabulary] in f64, and there with Ingot's roundings."""

    tokens: list[int]
    exact: np.ndarray
    rounded: np.ndarray
    ours: np.ndarray
    theirs: np.ndarray
    ours_in_f32: np.ndarray
    theirs_decoded: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """The two best tokens of each step in float64."""
        return np.argsort(self.exact, 1)[:, :-3:-1]

    def lead(self, logits: np.ndarray) -> np.ndarray:
        """By how much the first of these is ahead of the second, of an engine."""
        first, second = np.take_along_axis(logits, self.best, 1).T
        return first - second

    @property
    def bound(self) -> float:
        """The largest error of a lead, of both engines."""
        return max(float(np.abs(self.lead(each) - self.lead(self.exact)).max()) for each in (self.ours, self.theirs))


def steps_of(source: Path, path: Path) -> tuple[list[Steps], str]:
    """What follows each prompt on a file, and the precision that Ingot takes."""
    plain = path.with_name("F32.gguf")
    quantized(path, plain, 0)
    same, decoded = LlamaCpp(path), LlamaCpp(plain)
    own, unrounded = (LLM(path, context=CONTEXT, threads=THREADS, precision=each) for each in (None, "f32"))
    precision = str(own.options.precision)
    weights, config = decoded_weights(source, path), json.loads((source / "config.json").read_text())
    found = []
    for prompt in PROMPTS:
        ids = same.ids(prompt)
        tokens, theirs = same.follow(ids)
        fed, begin = ids + tokens[:-1], len(ids) - 1
        exact, rounded = (exact_logits(weights, config, fed, each) for each in (Roundings(), roundings_of(precision)))
        rows = (exact, rounded, own.logits(fed), theirs, unrounded.logits(fed))
        exact, rounded, ours, theirs, ours_in_f32 = (each[-TOKENS:].astype(np.float64) for each in rows)
        assert len(exact) == TOKENS == len(fed) - begin
        found.append(Steps(tokens, exact, rounded, ours, theirs, ours_in_f32, decoded.follow(ids, tokens)[1]))
    same.close()
    decoded.close()
    return found, precision


def compared(source: Path, path: Path) -> dict[str, Any]:
    """Tokens of both engines on a file, and how far their logits are from float64."""
    found, precision = steps_of(source, path)
    equal = ties = others = 0
    bounds = []
    for number, steps in enumerate(found):
        bounds.append(max(each.bound for each in found[:number] + found[number + 1 :]))
        is_tie = steps.lead(steps.exact) <= bounds[-1]
        is_equal = steps.ours.argmax(1) == steps.tokens
        ties += int(is_tie.sum())
        equal += int((is_equal & ~is_tie).sum())
        others += int((~is_equal & ~is_tie).sum())
    names = ("ours", "theirs", "rounded", "ours_in_f32", "theirs_decoded")
    distances = {name: [_distance(getattr(s, name), s.exact) for s in found] for name in names}
    errors = {name: float(np.max(each) if name == "rounded" else np.mean(each)) for name, each in distances.items()}
    bound = max(bounds) / float(np.mean([s.exact.std() for s in found]))
    return errors | {"equal": equal, "near-ties": ties, "others": others, "bound": bound, "precision": precision}


def _distance(ours: np.ndarray, exact: np.ndarray) -> float:
    """The difference of logits, relative to how they spread."""
    return float(np.sqrt(np.mean((ours - exact) ** 2)) / exact.std())


def compare() -> tuple[list[str], bool]:
    """The parts of the page: ids of each tokenizer, a row for each mixture; and whether an id or a token differs."""
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, None)
    llama_cpp.llama_backend_init()
    lines, parts, failed = [], [], False
    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), corpus()
        for kind, path in tokenizer_files(folder):
            wrong = differing_ids(path, texts)
            failed |= wrong > 0 and kind not in ORIGINAL
            lines.append(f"- ids, {kind}: {len(texts) - wrong} of {len(texts)} texts as llama.cpp has them")
            print(lines[-1], file=sys.stderr, flush=True)
        random_llama(folder / "wide", **WIDE)
        for source in (TINY_LM, folder / "wide"):
            table, differs = compared_mixtures(source, folder)
            parts += [f"## {source.name}", table]
            failed |= differs
    return ["\n".join(lines), *parts], failed


def compared_mixtures(source: Path, folder: Path) -> tuple[str, bool]:
    """A table, and whether a token differs."""
    errors = {"bound": "bound", "ours": "error", "theirs": "of llama.cpp", "rounded": "most of such rounding"}
    errors |= {"ours_in_f32": "in f32", "theirs_decoded": "of llama.cpp, decoded"}
    counts = ("precision", "equal", "near-ties", "others")
    f16, rows, failed = folder / "F16.gguf", [], False
    if not (source / "tokenizer.json").exists():
        write_folder(source, (TINY_LM / "tokenizer.json").read_text())
    write_gguf(source, f16, stored_as("f16"))
    for name, mixture in MIXTURES.items():
        path = folder / f"{name}.gguf"
        if path != f16:
            quantized(f16, path, mixture)
        found = compared(source, path)
        failed |= found["others"] > 0 and source == TINY_LM
        failed |= found["ours"] > max(found["rounded"], found["theirs"])
        failed |= found["ours_in_f32"] > found["theirs_decoded"]
        numbers = (f"{found[key]:.1e}" for key in errors)
        rows.append([name, types_of(path), *(str(found[key]) for key in counts), *numbers])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return report.table(["mixture", "types", *counts, *errors.values()], rows), failed


def types_of(path: Path) -> str:
    """The types of a file's matrices, and how many there are of each."""
    counts = Counter(tensor.type for tensor in read_gguf(path).tensors.values() if len(tensor.shape) > 1)
    return ", ".join(f"{count} {type}" for type, count in counts.most_common())
