"""The programs of a language model: one Graph lowered for each mode, over one set of weights and one cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.compile import Compiler, Mode
from ingot.ir.dim import AtMost
from ingot.ir.graph import Graph, TensorType
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence, Sequences
from ingot.load.hf import LanguageModel
from ingot.load.hf.decoder import slots_axis
from ingot.lower import Target
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.run.modes import Bound, BoundModes
from ingot.support.locks import OwnedLock

PREFILL_ROWS = 512
SCORE_ROWS = 64  # each with logits over the whole vocabulary


def modes_of(sequences: int) -> tuple[str, ...]:
    """The modes that generating takes."""
    return ("prefill", "decode", "batch") if sequences > 1 else ("prefill", "decode")


def mode_of(name: str, context: int, sequences: int) -> Mode:
    """A mode of a language model's graph by its name.

    "prefill" takes a sequence's new rows and gives the logits of the last, "decode" one row, "batch" a row of each of
    several sequences; "score" gives the logits of every row, "embed" their final states.
    """
    match name:
        case "prefill":
            sizes = {"rows": AtMost(min(PREFILL_ROWS, context), "rows"), "taken": 1, "sequences": 1}
        case "decode":
            sizes = {"rows": 1, "taken": 1, "sequences": 1}
        case "batch":
            rows = AtMost(sequences, "rows")
            sizes = {"rows": rows, "taken": rows, "sequences": AtMost(sequences, "sequences")}
        case _:
            rows = AtMost(min(SCORE_ROWS if name == "score" else PREFILL_ROWS, context), "rows")
            sizes = {"rows": rows, "taken": rows, "sequences": 1}
    outputs = ("hidden",) if name == "embed" else ("logits",) if name == "score" else ("tokens", "best", "logits")
    return Mode(name, sizes, outputs, every_row=() if name == "prefill" else ("take",), state="append")


def choose_on_device(graph: Graph) -> None:
    """Adds the place of the largest of each row of logits, "tokens", and that logit, "best", as outputs before them."""
    logits = graph.outputs["logits"]
    graph.remove_output("logits")
    tokens = graph.add("argmax", [logits], "tokens", axis=1, keepdims=False)
    best = graph.add("reduce_max", [logits], "best", axes=(1,), keepdims=False)
    for name, value in (("tokens", tokens.output), ("best", best.output), ("logits", logits)):
        graph.set_output(name, value)


class Engine:
    """Runs tokens through a language model. Not for several threads at once: whoever calls it holds `lock`."""

    def __init__(self, model: LanguageModel, target: Target, sequences: int):
        self.model = model
        self.target = target
        # A fork waits for the steps of other threads: half a step is in no state that a child could go on from.
        self.steps = OwnedLock("language model", is_awaited=True)
        self.sequences = Sequences(sequences, model.blocks_per_sequence)
        if target.device == "webgpu":
            choose_on_device(model.graph)
        self._compiler = Compiler(model.graph, target)
        self._bound = BoundModes(target)
        self.on_prefill: Callable[[int, int], None] | None = None  # told after each chunk: tokens computed, of how many
        self.prepare(modes_of(sequences))  # all memory is had before the first token

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """For `with`. Raises InputError in a thread that holds it, as in a signal handler during a step."""
        return self.steps.once()

    @property
    def modes(self) -> BoundModes:
        """The modes that are compiled, by name."""
        return self._bound

    def prepare(self, names: Iterable[str]) -> None:
        """Compiles modes, first the one that takes least time: nearly all weights are packed while the others are
        compiled.
        """
        soonest = sorted(names, key=lambda name: name != "decode")
        modes = (mode_of(name, self.model.context, self.sequences.count) for name in soonest)
        self._bound.add(map(self._compiler.compile, modes))
        if "batch" in soonest:  # a row of each sequence
            owners = self._bound["batch"].inputs["owners"]
            owners[:] = np.arange(len(owners))

    def mode(self, name: str) -> Bound:
        """A mode's program, whose inputs are i32; compiled on first use."""
        if name not in self._bound:
            self.prepare([name])
        return self._bound[name]

    def prefill(self, sequence: Sequence, tokens: Tokens[int], sampler: Sampler | None = None) -> Bound:
        """Appends tokens to a sequence, and draws one. Returns the mode, whose `output` are the logits after the last,
        f32[1, vocabulary], until the next run.

        Chunks are bounded, and each computes only as many rows as it has tokens.
        """
        mode = self.mode("prefill")
        size = len(mode.inputs["ids"])
        for begin in range(0, len(tokens), size):
            part = tokens[begin : begin + size]
            is_last = begin + size >= len(tokens)
            mode.inputs["take"][0] = len(part) - 1
            self._append(mode, sequence, part, 1, [sampler] if sampler is not None and is_last else ())
            if self.on_prefill is not None:
                self.on_prefill(min(begin + size, len(tokens)), len(tokens))
        return mode

    def each(self, sequence: Sequence, tokens: Tokens[int], mode_name: str) -> np.ndarray:
        """Appends tokens to a sequence. Returns the mode's output for each of them: "score" logits, "embed" states."""
        mode = self.mode(mode_name)
        results = np.empty((len(tokens), mode.output.shape[1]), mode.output.dtype)
        size = len(mode.inputs["ids"])
        for begin in range(0, len(tokens), size):
            part = tokens[begin : begin + size]
            self._append(mode, sequence, part, len(part))
            results[begin : begin + len(part)] = mode.output[: len(part)]
        return results

    def decode(self, steps: Tokens[tuple[Sequence, int, Sampler | None]]) -> Bound:
        """Appends a token to each sequence, and draws its next. Returns the mode, whose `output` are the logits,
        f32[at least as many rows, vocabulary], until the next run.

        In f32 each sequence gets the bits that it would get alone, on the CPU.
        """
        mode = self.mode("decode" if len(steps) == 1 else "batch")
        ids, positions, blocks = mode.inputs["ids"], mode.inputs["positions"], mode.inputs["blocks"]
        for row, (sequence, token, _) in enumerate(steps):
            length = len(sequence.tokens)
            self.sequences.reserve(sequence, length + 1)
            ids[row], positions[row], blocks[row] = token, length, sequence.blocks
        self._run(mode, len(steps), len(steps), len(steps), [sampler for _, _, sampler in steps if sampler is not None])
        for sequence, token, _ in steps:
            sequence.tokens.append(token)
        return mode

    def cached(self, sequence: Sequence) -> dict[str, np.ndarray]:
        """The keys and values of a sequence: copies, [blocks of the sequence, ...] by the name of the state."""
        blocks, used = sequence.blocks[: sequence.block_count], len(sequence.tokens) % CACHE_BLOCK
        cached = self._bound.read_blocks(blocks)
        for name, copy in cached.items() if used else ():
            # What another sequence left behind in the last block is nobody's business.
            slots = np.moveaxis(copy, slots_axis(name), 1)
            slots[-1, used:] = 0
        return cached

    def cached_types(self, length: int) -> dict[str, TensorType]:
        """The types of what `cached` gives for so many tokens."""
        blocks = -(-length // CACHE_BLOCK)
        states = ((name, self.model.graph.type(name)) for name in self.model.graph.states)
        return {name: TensorType(type.dtype, (blocks, *type.shape[1:])) for name, type in states}

    def restore(self, tokens: Tokens[int], cached: Mapping[str, np.ndarray]) -> None:
        """Keeps a sequence whose keys and values were computed before."""
        sequence = self.sequences.start(())
        self.sequences.reserve(sequence, len(tokens))
        self._bound.write_blocks(sequence.blocks[: sequence.block_count], cached)
        sequence.tokens += tokens
        self.sequences.finish(sequence)

    def _append(
        self, mode: Bound, sequence: Sequence, tokens: Tokens[int], taken: int, samplers: Tokens[Sampler] = ()
    ) -> None:
        """Runs a mode over new tokens of one sequence."""
        start, count = len(sequence.tokens), len(tokens)
        self.sequences.reserve(sequence, start + count)
        mode.inputs["ids"][:count] = tokens
        mode.inputs["positions"][:count] = np.arange(start, start + count)
        mode.inputs["blocks"][0] = sequence.blocks
        self._run(mode, count, taken, 1, samplers)
        sequence.tokens += tokens

    def _run(self, mode: Bound, rows: int, taken: int, sequences: int, samplers: Tokens[Sampler] = ()) -> None:
        """Runs over the first rows of a mode's inputs; a sampler for each taken row draws from its logits.

        Raises what a sampler that found no token raises.
        """
        sizes = {"rows": rows, "taken": taken, "sequences": sequences}
        mode.run(sizes, [sampler.native for sampler in samplers])
        for sampler in samplers:
            sampler.check()
