"""The programs of a language model: one Graph lowered for each mode, over one set of weights and one cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens

import numpy as np

from ingot.dim import AtMost
from ingot.ir import Graph, TensorType
from ingot.llm.bound import BoundProgram
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import Sequence, Sequences
from ingot.load.hf import LanguageModel
from ingot.load.hf.decoder import slots_axis
from ingot.locks import OwnedLock
from ingot.lower import Target
from ingot.lower.weights import WeightStore
from ingot.ops.cache import CACHE_BLOCK
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.native import pack_panels

PREFILL_ROWS = 512
SCORE_ROWS = 64  # each with logits over the whole vocabulary


def modes_of(sequences: int) -> tuple[str, ...]:
    """The modes that generating takes."""
    return ("prefill", "decode", "batch") if sequences > 1 else ("prefill", "decode")


def mode_sizes(mode: str, context: int, sequences: int) -> dict[str, int]:
    """What a mode binds the symbols of a language model's graph to."""
    match mode:
        case "prefill":
            return {"rows": AtMost(min(PREFILL_ROWS, context), "rows"), "taken": 1, "sequences": 1}
        case "decode":
            return {"rows": 1, "taken": 1, "sequences": 1}
        case "batch":
            return {symbol: AtMost(sequences, symbol) for symbol in ("rows", "taken", "sequences")}
    rows = min(SCORE_ROWS if mode == "score" else PREFILL_ROWS, context)
    return {"rows": AtMost(rows, "rows"), "taken": AtMost(rows, "taken"), "sequences": 1}


def mode_graph(graph: Graph, mode: str, sizes: Mapping[str, int]) -> Graph:
    """The graph of a mode: symbols bound, and only the output that it is for."""
    bound = graph.bind(sizes)
    for name in list(bound.outputs):
        if name != ("hidden" if mode == "embed" else "logits"):
            bound.remove_output(name)
    if mode != "prefill":  # every row is taken, in order
        for node in list(bound.nodes):
            if node.op.name == "gather" and node.operands[1] == "take":
                bound.replace(node, str(node.operands[0]))
    optimize(bound)
    return bound


class Mode(BoundProgram):
    """One mode's program; its inputs are i32."""

    def __init__(self, graph: Graph, mode: str, target: Target, weights: WeightStore, state: Arena):
        super().__init__(graph, mode, target, weights, state)
        self.rows = len(self.inputs["ids"])
        if mode == "batch":  # a row of each sequence
            self.inputs["owners"][:] = np.arange(self.rows)
        self._resized = tuple(self.native.planned)
        self._samplers = self.native.library.ffi.new("ingot_sampler *[]", self.rows)

    def run(self, rows: int, taken: int, sequences: int, samplers: Tokens[Sampler] = ()) -> None:
        """Runs over the first rows of the inputs; a sampler for each taken row draws from its logits in the same call.

        Raises what a sampler that found no token raises.
        """
        for symbol, size in (("rows", rows), ("taken", taken), ("sequences", sequences)):
            if symbol in self._resized:
                self.native.resize(symbol, size)
        for row, sampler in enumerate(samplers):
            self._samplers[row] = sampler.pointer
        self.call(self._samplers, len(samplers))
        for sampler in samplers:
            sampler.check()


class Engine:
    """Runs tokens through a language model. Not for several threads at once: whoever calls it holds `lock`."""

    def __init__(self, model: LanguageModel, target: Target, sequences: int):
        self.model = model
        self.target = target
        # A fork waits for the steps of other threads: half a step is in no state that a child could go on from.
        self.steps = OwnedLock("language model", is_awaited=True)
        self.sequences = Sequences(sequences, model.blocks_per_sequence)
        self.weights = WeightStore(pack_panels, target.threads)
        self.state = Arena()
        self._modes: dict[str, Mode] = {}
        self.on_prefill: Callable[[int, int], None] | None = None  # told after each chunk: tokens computed, of how many
        optimize(model.graph)

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """For `with`. Raises InputError in a thread that holds it, as in a signal handler during a step."""
        return self.steps.once()

    @property
    def modes(self) -> dict[str, Mode]:
        """The modes that are compiled, by name."""
        return dict(self._modes)

    def mode(self, name: str) -> Mode:
        """A mode's program; compiled on first use."""
        if name not in self._modes:
            sizes = mode_sizes(name, self.model.context, self.sequences.count)
            graph = mode_graph(self.model.graph, name, sizes)
            self._modes[name] = Mode(graph, name, self.target, self.weights, self.state)
        return self._modes[name]

    def prefill(self, sequence: Sequence, tokens: Tokens[int], sampler: Sampler | None = None) -> np.ndarray:
        """Appends tokens to a sequence, and draws one. Returns the logits after the last, f32[1, vocabulary], until the
        next run.

        Chunks are bounded, and each computes only as many rows as it has tokens.
        """
        mode = self.mode("prefill")
        for begin in range(0, len(tokens), mode.rows):
            part = tokens[begin : begin + mode.rows]
            is_last = begin + mode.rows >= len(tokens)
            mode.inputs["take"][0] = len(part) - 1
            self._append(mode, sequence, part, 1, [sampler] if sampler is not None and is_last else ())
            if self.on_prefill is not None:
                self.on_prefill(min(begin + mode.rows, len(tokens)), len(tokens))
        return mode.output

    def each(self, sequence: Sequence, tokens: Tokens[int], mode_name: str) -> np.ndarray:
        """Appends tokens to a sequence. Returns the mode's output for each of them: "score" logits, "embed" states."""
        mode = self.mode(mode_name)
        results = np.empty((len(tokens), mode.output.shape[1]), mode.output.dtype)
        for begin in range(0, len(tokens), mode.rows):
            part = tokens[begin : begin + mode.rows]
            self._append(mode, sequence, part, len(part))
            results[begin : begin + len(part)] = mode.output[: len(part)]
        return results

    def decode(self, steps: Tokens[tuple[Sequence, int, Sampler | None]]) -> np.ndarray:
        """Appends a token to each sequence, and draws its next. Returns logits, f32[at least as many rows, vocabulary].

        In f32 each sequence gets the bits that it would get alone.
        """
        mode = self.mode("decode" if len(steps) == 1 else "batch")
        ids, positions, blocks = mode.inputs["ids"], mode.inputs["positions"], mode.inputs["blocks"]
        for row, (sequence, token, _) in enumerate(steps):
            length = len(sequence.tokens)
            self.sequences.reserve(sequence, length + 1)
            ids[row], positions[row], blocks[row] = token, length, sequence.blocks
        mode.run(len(steps), len(steps), len(steps), [sampler for _, _, sampler in steps if sampler is not None])
        for sequence, token, _ in steps:
            sequence.tokens.append(token)
        return mode.output

    def cached(self, sequence: Sequence) -> dict[str, np.ndarray]:
        """The keys and values of a sequence: copies, [blocks of the sequence, ...] by the name of the state."""
        blocks, used = sequence.blocks[: sequence.block_count], len(sequence.tokens) % CACHE_BLOCK
        cached = {name: state[blocks] for name, state in self._states().items()}
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
        blocks = sequence.blocks[: sequence.block_count]
        for name, state in self._states().items():
            state[blocks] = cached[name]
        sequence.tokens += tokens
        self.sequences.finish(sequence)

    def _states(self) -> dict[str, np.ndarray]:
        """The cache as it lies in memory: [blocks, ...] by the name of the state."""
        native = self.mode("prefill").native
        roots = [tensor for tensor in native.lowered.tensors.values() if tensor.kind == "state"]
        return {tensor.name: native.tensor(tensor.id) for tensor in roots}

    def _append(
        self, mode: Mode, sequence: Sequence, tokens: Tokens[int], taken: int, samplers: Tokens[Sampler] = ()
    ) -> None:
        """Runs a mode over new tokens of one sequence."""
        start, count = len(sequence.tokens), len(tokens)
        self.sequences.reserve(sequence, start + count)
        mode.inputs["ids"][:count] = tokens
        mode.inputs["positions"][:count] = np.arange(start, start + count)
        mode.inputs["blocks"][0] = sequence.blocks
        mode.run(count, taken, 1, samplers)
        sequence.tokens += tokens
