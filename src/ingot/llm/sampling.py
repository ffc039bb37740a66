"""Sampling of the next token: the checked options, and the state of one sequence for the native sampler."""

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
from ingot.support.columns import table

MAX_BIASES = 1024  # tokens with a bias
MAX_LOGPROBS = 20  # the capacity of ingot_sampler
INT32_MAX = 2**31 - 1

# option -> (type, least, greatest, the range in words)
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
_LEAST_FLOAT = 2.0**-126  # the least normal float32: smaller values may become 0 in C
_MAY_BE_NONE = ("seed", "logprobs")
_NOT_LEAST = ("top_p",)  # must be above its least number, because a subnormal bound may be flushed to 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options of sampling, in the order in which they are applied.

    logit_bias: token -> number added to its logit, -100 to 100, at most 1024 tokens. repetition_penalty: divides
    positive and multiplies negative logits of tokens in the prompt or the output (Keskar et al. 2019, "CTRL").
    frequency_penalty: subtracted from a token's logit once per occurrence in the output; presence_penalty: subtracted
    once if the output contains the token. temperature: divides the logits; 0 chooses the most probable token, the
    lowest id of equals. top_k: keep only the most probable tokens, 0 all. top_p: keep the fewest tokens whose
    probabilities sum to at least this (Holtzman et al. 2019). min_p: keep tokens with at least this share of the
    highest probability (Nguyen et al. 2024). seed: the same seed gives the same tokens; None draws a random seed.
    logprobs: None, or how many of the most probable tokens to report in addition to the chosen one, at most 20.

    Raises InputError for a value outside its range, LimitError for more than 1024 biases.
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
        """Whether a penalty changes the logits of tokens used before."""
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


@dataclass(frozen=True, slots=True)
class LogProbs:
    """The natural logarithms of the probabilities of a token and of the most probable tokens, before sampling options.

    top: (token, logprob) of as many tokens as `logprobs` requests, most probable first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]

    def __repr__(self) -> str:
        return f"<LogProbs of token {self.token}: {self.logprob:.4g}, and the {len(self.top)} most probable>"

    def __str__(self) -> str:
        return table(repr(self), [(str(token), f"{logprob:.4g}") for token, logprob in self.top])


def sampling_defaults(folder: Folder) -> dict[str, Any]:
    """Return the sampling options of a folder's generation_config.json; greedy unless it sets do_sample."""
    config = folder.json("generation_config.json", MAX_CONFIG_BYTES) or {}
    names = ["repetition_penalty"]  # also applies to greedy decoding
    if config.get("do_sample", False):
        names += ["temperature", "top_k", "top_p", "min_p"]
    given = {name: config[name] for name in names if config.get(name) is not None}
    return given if len(names) > 1 else {"temperature": 0.0, **given}


class Sampler:
    """Draws the tokens of one sequence. All memory is allocated here; C code draws through `native`.

    token, logprob, top: results of the last call. Not for several threads at once.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, mask: np.ndarray | None = None):
        """mask: uint32[ceil(vocab_size / 32)], row-major; at each call bit i % 32 of word i // 32 allows token i.

        Raises InputError if a bias is for a token outside the vocabulary.
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

    def unadjusted(self, vocab_size: int) -> Sampler:
        """Return a sampler with the same random numbers for other logits, without biases, penalties and a mask."""
        own, seed = self.sampling, int(self._struct.seed)
        plain = Sampling(own.temperature, own.top_k, own.top_p, own.min_p, seed=seed)
        return Sampler(plain, vocab_size)

    @property
    def draws(self) -> int:
        """The number of tokens drawn so far, which chooses the next random number."""
        return int(self._struct.draws)

    @draws.setter
    def draws(self, count: int) -> None:
        self._struct.draws = count

    def accept(self, ids: Iterable[int]) -> None:
        """Count the prompt's tokens for the repetition penalty. Tokens that are drawn are counted by `sample`."""
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
        """Draw the next token. logits: float32[vocab_size], row-major, not modified. Raises the errors of `check`."""
        assert logits.dtype == np.float32 and logits.shape == (self._vocab_size,)
        token = self.native.draw(logits)
        if token < 0:
            self.check()
        return token

    def check(self) -> None:
        """Raise InputError if the last call drew no token: a logit was NaN or infinite, or no token was allowed."""
        if not self._struct.status:
            return
        faults = {
            abi.constant("INGOT_SAMPLE_NAN"): "a logit is NaN, got nan, expected numbers or -inf",
            abi.constant("INGOT_SAMPLE_INFINITE"): "a logit is infinite, got inf, expected numbers or -inf",
            abi.constant(
                "INGOT_SAMPLE_NONE"
            ): "no token is allowed, got -inf or a mask bit of 0 for all, expected at least one allowed token",
        }
        raise InputError(f"sampling: {faults[self._struct.status]}")

    @property
    def token(self) -> int:
        """The token drawn by the last call."""
        return int(self._struct.token)

    @property
    def logprob(self) -> float:
        """The natural logarithm of the token's probability before sampling options; valid if `logprobs` is set."""
        return float(self._struct.logprob)

    @property
    def top(self) -> list[tuple[int, float]]:
        """The most probable tokens before sampling options, with their logprobs, most probable first."""
        tokens, logprobs = self._struct.top_tokens, self._struct.top_logprobs
        return [(tokens[i], logprobs[i]) for i in range(self._struct.top_count) if tokens[i] >= 0]

    @property
    def logprobs(self) -> LogProbs | None:
        """The logprobs of the token drawn by the last call; None unless the option `logprobs` is set."""
        return None if self.sampling.logprobs is None else LogProbs(self.token, self.logprob, self.top)

    def probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the last distribution at a temperature above 0: tokens int64[n], probabilities float64[n]."""
        kept = self._struct.kept
        tokens = np.arange(kept) if self._struct.all_kept else self._arrays["tokens"][:kept].astype(np.int64)
        return tokens, self._arrays["weights"][:kept] / self._struct.mass
