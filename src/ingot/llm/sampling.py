"""How the next token is chosen: the options, checked once, and the state of one sequence that C draws from."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from ingot.errors import InputError, LimitError
from ingot.load.hf import Folder
from ingot.load.hf.config import MAX_CONFIG_BYTES
from ingot.run.sampler import NativeSampler
from ingot.support import abi

MAX_BIASES = 1024  # tokens with a bias
MAX_LOGPROBS = 20  # the room that ingot_sampler has
INT32_MAX = 2**31 - 1

# (kind, least, greatest, the range in words)
_RANGES: dict[str, tuple[type, float, float, str]] = {
    "temperature": (Real, 0, 1000, "0 to 1000"),
    "top_k": (Integral, 0, INT32_MAX, "0 (all) to 2147483647"),
    "top_p": (Real, 0, 1, "above 0, at most 1"),
    "min_p": (Real, 0, 1, "0 to 1"),
    "repetition_penalty": (Real, 0.001, 1000, "0.001 to 1000"),
    "presence_penalty": (Real, -2, 2, "-2 to 2"),
    "frequency_penalty": (Real, -2, 2, "-2 to 2"),
    "seed": (Integral, -(2**63), 2**64 - 1, "none or a 64-bit number"),
    "logprobs": (Integral, 0, MAX_LOGPROBS, f"none or 0 to {MAX_LOGPROBS}"),
}
_LEAST_FLOAT = 2.0**-126  # C's float makes less than this 0, which would be no share of anything
_MAY_BE_NONE = ("seed", "logprobs")
_NOT_LEAST = ("top_p",)  # is above; a least number above 0 would be 0 to a host that flushes subnormals


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options of sampling, in the order in which they act.

    logit_bias: token -> what is added to its logit, -100 to 100, at most 1024 tokens. repetition_penalty: divides
    positive and multiplies negative logits of tokens in the prompt or the output (Keskar et al. 2019, "CTRL").
    frequency_penalty, presence_penalty: taken from a token's logit for each time, and once, that the output has it.
    temperature: divides logits; 0 takes the most probable token, the lowest of equals. top_k: only so many, 0 all.
    top_p: the fewest tokens with that much probability (Holtzman et al. 2019). min_p: only tokens with at least that
    share of the best one's probability (Nguyen et al. 2024). seed: the same one gives the same tokens; None is a random
    one. logprobs: None, or how many of the most probable tokens to report beside the chosen one, at most 20.

    Raises InputError for a value outside its range, LimitError for more biases.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (kind, least, greatest, words) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            is_in = _is_number(value, kind) and least <= value <= greatest
            if not is_in or (name in _NOT_LEAST and value == least):
                number = "an integer" if kind is Integral else "a number"
                raise InputError(f"{name}: not allowed, got {value!r}, expected {number}, {words}")
        if self.logit_bias is not None:
            _check_biases(self.logit_bias)

    @property
    def penalises(self) -> bool:
        """Whether tokens that were seen before get other logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_biases(biases: Any) -> None:
    if not isinstance(biases, Mapping):
        raise InputError(f"logit_bias: not a mapping, got {type(biases).__name__}, expected token -> number")
    if len(biases) > MAX_BIASES:
        raise LimitError(f"logit_bias: too many tokens, got {len(biases)}, expected at most {MAX_BIASES}")
    for token, bias in biases.items():
        if not _is_number(token, Integral):
            raise InputError(f"logit_bias: not a token, got {token!r}, expected an integer")
        if not _is_number(bias, Real) or not -100 <= bias <= 100:
            raise InputError(f"logit_bias: token {token}: not allowed, got {bias!r}, expected a number, -100 to 100")


def sampling_defaults(folder: Folder) -> dict[str, Any]:
    """What a folder's generation_config.json says of sampling; greedy where it says nothing."""
    config = folder.json("generation_config.json", MAX_CONFIG_BYTES) or {}
    names = ["repetition_penalty"]  # which greedy answers heed, too
    if config.get("do_sample", False):
        names += ["temperature", "top_k", "top_p", "min_p"]
    given = {name: config[name] for name in names if config.get(name) is not None}
    return given if len(names) > 1 else {"temperature": 0.0, **given}


class Sampler:
    """Chooses the tokens of one sequence. All memory is made here; C draws through `native`.

    token, logprob, top: of the last call. Not for several threads at once.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, mask: np.ndarray | None = None):
        """mask: uint32[ceil(vocab_size / 32)], row-major; at each call bit i % 32 of word i // 32 allows token i.

        Raises InputError when a bias names a token outside the vocabulary.
        """
        assert 0 < vocab_size <= INT32_MAX
        assert mask is None or (mask.dtype == np.uint32 and mask.shape == (-(-vocab_size // 32),))
        biases = sampling.logit_bias or {}
        for token in biases:
            if not 0 <= token < vocab_size:
                raise InputError(f"logit_bias: no such token, got {token}, expected 0 to {vocab_size - 1}")
        self.sampling, self._vocab_size = sampling, vocab_size
        chooses = sampling.temperature > 0 or sampling.logprobs is not None
        adjusts = bool(biases) or sampling.penalises or mask is not None
        seed = secrets.randbits(64) if sampling.seed is None else int(sampling.seed) % 2**64
        self._arrays: dict[str, np.ndarray] = {
            "bias_tokens": np.array(list(biases), np.int32),
            "biases": np.array(list(biases.values()), np.float32),
            "scores": np.empty(vocab_size * adjusts, np.float32),
            "weights": np.empty(vocab_size * chooses, np.float32),
            "tokens": np.empty(vocab_size * chooses, np.int32),
            "occurrences": np.zeros(vocab_size * sampling.penalises, np.int32),
            "seen": np.empty(vocab_size * sampling.penalises, np.int32),
        }
        if mask is not None:
            self._arrays["mask"] = mask
        fields = {
            "vocab": vocab_size,
            "bias_count": len(biases),
            "seed": seed,
            "wants_logprobs": sampling.logprobs is not None,
            "top_count": sampling.logprobs or 0,
            "top_k": sampling.top_k,
            "temperature": sampling.temperature,
            "top_p": max(sampling.top_p, _LEAST_FLOAT),
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        self.native = NativeSampler(self._arrays, fields)
        self._struct, self.nbytes = self.native.struct, self.native.nbytes
        self._struct.top_tokens = [-1] * MAX_LOGPROBS

    def accept(self, ids: Iterable[int]) -> None:
        """Tells the repetition penalty about the prompt's tokens. What is drawn is counted as it is drawn."""
        if not self._arrays["seen"].size:
            return
        occurrences, seen = self._arrays["occurrences"], self._arrays["seen"]
        ids = np.unique(np.fromiter(ids, np.int64))
        assert ids.size == 0 or 0 <= ids[0] <= ids[-1] < self._vocab_size
        unseen = ids[occurrences[ids] == 0]
        seen[self._struct.seen_count :][: unseen.size] = unseen
        occurrences[unseen] = 1
        self._struct.seen_count += unseen.size

    def sample(self, logits: np.ndarray) -> int:
        """The next token. logits: float32[vocab_size], row-major, left as they are. Raises as `check` does."""
        assert logits.dtype == np.float32 and logits.shape == (self._vocab_size,)
        token = self.native.draw(logits)
        if token < 0:
            self.check()
        return token

    def check(self) -> None:
        """Raises InputError when the last call chose no token: logits NaN or infinite, or none that may be chosen."""
        faults = {
            abi.constant("INGOT_SAMPLE_NAN"): "a logit is NaN, got nan, expected numbers or -inf",
            abi.constant("INGOT_SAMPLE_INFINITE"): "a logit is infinite, got inf, expected numbers or -inf",
            abi.constant(
                "INGOT_SAMPLE_NONE"
            ): "no token may be chosen, got -inf or a closed mask for all, expected one at least",
        }
        if self._struct.status:
            raise InputError(f"sampling: {faults[self._struct.status]}")

    @property
    def token(self) -> int:
        """The token of the last call."""
        return int(self._struct.token)

    @property
    def logprob(self) -> float:
        """The natural logarithm of the token's probability in the model's own distribution, where `logprobs` is set."""
        return float(self._struct.logprob)

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most probable tokens of the model's own distribution with their logprobs, the most probable first."""
        tokens, logprobs = self._struct.top_tokens, self._struct.top_logprobs
        return [(tokens[i], logprobs[i]) for i in range(self._struct.top_count) if tokens[i] >= 0]

    def probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """What the last call at a temperature above 0 chose from: tokens int64[n] in order, float64[n] of them."""
        kept = self._struct.kept
        tokens = np.arange(kept) if self._struct.all_kept else self._arrays["tokens"][:kept].astype(np.int64)
        return tokens, self._arrays["weights"][:kept] / self._struct.mass
