"""Language model engines, each in a process of its own: `python -m benchmarks.llm.engines ENGINE FOLDER THREADS`.

Reads one JSON request a line and answers with one JSON line. {"load": precision} opens the model and warms up; then
{"prefill": n} gives the seconds from a prompt of n tokens to the first new one; {"decode": n} the seconds of a token
after the first, over n of them; {"logits": n} those that follow a prompt of n tokens; {"greedy": n} n new tokens;
{"peak": 0} the most resident memory. "seed" chooses the prompt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.harness.resources import peak_bytes
from benchmarks.harness.serve import answer_requests
from benchmarks.llm.greedy import Greedy
from benchmarks.llm.model import VOCAB_SIZE, openvino_path, paths, streamed_bytes

PREFILLS = (128, 512)
DECODE_PROMPT = 16
DECODE_TOKENS = 32
GREEDY_TOKENS = 32
LOGITS_PROMPT = 128
WARM_TOKENS = 4
WARM_SEED = 1 << 20  # no round has so many prompts
OUTPUT_SEED = WARM_SEED - 1  # of prompts whose outputs are compared, which no round has
CHUNK = 512
READS = 16  # at most: the bandwidth is the same for more
LOG_LEVELS = (3, 4)  # GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR


class Engine(Protocol):
    """A model that continues prompts greedily. `setting` describes its options for the named measure."""

    def setting(self, measure: str) -> str: ...
    def choose(self, measure: str, ids: list[int], count: int) -> None: ...
    def prefill(self, ids: list[int]) -> float: ...
    def decode(self, ids: list[int], count: int) -> float: ...
    def logits(self, ids: list[int]) -> list[float]: ...
    def greedy(self, ids: list[int], count: int) -> list[int]: ...


def quiet(level: int, text: bytes, _: Any) -> None:
    """Passes warnings and errors on, and drops what llama.cpp tells about itself."""
    if level in LOG_LEVELS:
        sys.stderr.write(text.decode(errors="replace"))


class LlamaCpp(Greedy):
    """llama.cpp through its C interface: no mmap, logits of the last token only, the greatest of them by numpy.

    Flash attention is tried on and off, and the faster stays, for each measure.
    """

    tries = 2  # of each setting

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        self.open(paths(folder, precision)[1], threads)

    def open(self, path: Path, threads: int) -> None:
        import llama_cpp

        self.c = llama_cpp
        self.quiet = self.c.llama_log_callback(quiet)
        self.c.llama_log_set(self.quiet, None)
        self.c.llama_backend_init()
        if os.environ.get("INGOT_ISA") == "avx2" and b"AVX512 = 1" in self.c.llama_print_system_info():
            sys.exit("this llama.cpp uses AVX-512: set LLAMA_CPP_LIB_PATH to the lib folder of a build for AVX2")
        options = self.c.llama_model_default_params()
        options.load_mode = self.c.LLAMA_LOAD_MODE_NONE
        self.model = self.c.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.size = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.model))
        self.contexts = {
            "flash attention": self.context(threads, self.c.LLAMA_FLASH_ATTN_TYPE_ENABLED),
            "no flash attention": self.context(threads, self.c.LLAMA_FLASH_ATTN_TYPE_DISABLED),
        }
        self.settings: dict[str, str] = {}
        self.use("flash attention")

    def context(self, threads: int, flash_attention: int) -> Any:
        options = self.c.llama_context_default_params()
        options.n_ctx = 2 * CHUNK
        options.n_batch = options.n_ubatch = CHUNK
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = flash_attention
        return self.c.llama_init_from_model(self.model, options)

    def use(self, setting: str) -> None:
        self.active = self.contexts[setting]
        self.memory = self.c.llama_get_memory(self.active)

    def use_chosen(self, measure: str) -> None:
        """While none is chosen, what is used goes on."""
        if measure in self.settings:
            self.use(self.settings[measure])

    def setting(self, measure: str) -> str:
        return self.settings[measure]

    def choose(self, measure: str, ids: list[int], count: int) -> None:
        """Measures under both settings, and keeps the better."""
        seconds: dict[str, float] = {}
        for setting in [*self.contexts] * self.tries:
            self.use(setting)
            took = self.decode(ids, count) if count else self.prefill(ids)
            seconds[setting] = min(took, seconds.get(setting, took))
        self.settings[measure] = min(seconds, key=seconds.__getitem__)

    def run(self, ids: list[int]) -> np.ndarray:
        """The logits that follow these tokens, which follow those before them."""
        tokens = (self.c.llama_token * len(ids))(*ids)  # the batch points to it
        status = self.c.llama_decode(self.active, self.c.llama_batch_get_one(tokens, len(ids)))
        if status:
            sys.exit(f"llama_decode gives {status}")
        return np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.active, -1), (self.size,))

    def start(self, ids: list[int]) -> int:
        self.c.llama_memory_clear(self.memory, False)
        return int(self.run(ids).argmax())

    def follow(self, token: int) -> int:
        return int(self.run([token]).argmax())

    def prefill(self, ids: list[int]) -> float:
        self.use_chosen(f"prefill {len(ids)}")
        return super().prefill(ids)

    def decode(self, ids: list[int], count: int) -> float:
        self.use_chosen("decode")
        return super().decode(ids, count)

    def logits(self, ids: list[int]) -> list[float]:
        self.use_chosen("prefill 128")
        self.start(ids)
        return np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.active, -1), (self.size,)).tolist()

    def greedy(self, ids: list[int], count: int) -> list[int]:
        self.use_chosen("decode")
        return super().greedy(ids, count)


class OpenVino(Greedy):
    """OpenVINO with its own defaults for one sequence: it chooses the precision of products and of cached keys."""

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        import openvino

        options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        model = openvino.Core().compile_model(openvino_path(folder, precision), "CPU", options)
        self.request = model.create_infer_request()
        self.length = 0

    def run(self, ids: list[int]) -> np.ndarray:
        """The logits that follow these tokens, which follow those before them."""
        positions = np.arange(self.length, self.length + len(ids))[None]
        feeds = {"input_ids": np.array([ids]), "position_ids": positions, "beam_idx": np.zeros(1, np.int32)}
        self.length += len(ids)
        return self.request.infer(feeds, share_inputs=True, share_outputs=True)["logits"][0, 0]

    def begin(self, ids: list[int]) -> np.ndarray:
        """The logits after a prompt."""
        self.request.reset_state()
        self.length = 0
        return self.run(ids)

    def start(self, ids: list[int]) -> int:
        return int(self.begin(ids).argmax())

    def follow(self, token: int) -> int:
        return int(self.run([token]).argmax())

    def logits(self, ids: list[int]) -> list[float]:
        return self.begin(ids).tolist()


class Ingot(Greedy):
    """Ingot as a program uses it."""

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        hf, _ = paths(folder, precision)
        self.open(hf, threads, None if hf.is_file() else precision)

    def open(self, path: Path, threads: int, precision: str | None) -> None:
        from ingot import LLM

        self.model = LLM(path, context=CHUNK * 2, threads=threads, precision=precision)
        self.tokens: Iterator[int] = iter(())

    def start(self, ids: list[int]) -> int:
        self.tokens = self.model.generate_tokens(ids, temperature=0)
        return next(self.tokens)

    def follow(self, token: int) -> int:
        return next(self.tokens)

    def logits(self, ids: list[int]) -> list[float]:
        """Those that the first token is drawn from: in bf16 the mode that scores all of a text rounds more."""
        self.start(ids)
        return self.model.engine.mode("prefill").output[0].tolist()


class Read:
    """Reads as many bytes as a token's weights have, and computes nothing: what memory allows."""

    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        self.open(streamed_bytes(folder, precision), threads)

    def open(self, nbytes: int, threads: int) -> None:
        from ingot.run.library import load
        from ingot.run.probe import Probe

        self.probe = Probe("probe_read_f32", load().isa(), threads, nbytes=nbytes)

    def setting(self, measure: str) -> str:
        return ""

    def choose(self, measure: str, ids: list[int], count: int) -> None:
        self.probe.seconds()

    def decode(self, ids: list[int], count: int) -> float:
        return self.probe.seconds(min(count, READS))


ENGINES: dict[str, Any] = {"llama.cpp": LlamaCpp, "openvino": OpenVino, "ingot": Ingot, "read": Read}


def measures(engine: str) -> list[tuple[str, int, int]]:
    """Name, tokens of the prompt, new tokens that are measured (none: the prompt is)."""
    prefills = [] if engine == "read" else [(f"prefill {n}", n, 0) for n in PREFILLS]
    return [*prefills, ("decode", DECODE_PROMPT, WARM_TOKENS)]


def prompt(count: int, seed: int) -> list[int]:
    """Tokens that begin like those of no other seed and count: nothing of an earlier prompt can be used again."""
    return np.random.default_rng([seed, count]).integers(0, VOCAB_SIZE, count).tolist()


def answer(engine: Any, request: dict[str, Any]) -> Any:
    """The answer of a loaded engine to a request."""
    (what, count), seed = next(iter(request.items())), request.get("seed", OUTPUT_SEED)
    if what == "prefill":
        return engine.prefill(prompt(count, seed))
    if what == "decode":
        return engine.decode(prompt(DECODE_PROMPT, seed), count)
    if what == "logits":
        return engine.logits(prompt(count, seed))
    if what == "greedy":
        return engine.greedy(prompt(DECODE_PROMPT, seed), count)
    assert what == "peak", request
    return peak_bytes()


def load(engines: dict[str, Any], name: str, precision: str, folder: Path, threads: int) -> tuple[Any, dict[str, Any]]:
    """The engine warmed up; seconds of opening it, and its settings."""
    begin = time.perf_counter()
    engine = engines[name](folder, precision, threads)
    seconds = time.perf_counter() - begin
    settings = {}
    for seed, (measure, tokens, count) in enumerate(measures(name)):
        engine.choose(measure, prompt(tokens, WARM_SEED + seed), count)
        settings[measure] = engine.setting(measure)
    return engine, {"seconds": seconds, "settings": settings}


def serve(engines: dict[str, Any]) -> None:
    """Answers requests to the engine that the command line names."""
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    engine = None

    def reply(request: dict[str, Any]) -> Any:
        nonlocal engine
        if "load" in request:
            engine, opened = load(engines, name, request["load"], folder, threads)
            return opened
        return answer(engine, request)

    answer_requests(reply)


if __name__ == "__main__":
    serve(ENGINES)
