"""The engine of a language model: one graph lowered for each mode, with shared weights and one KV cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Tokens
from functools import partial
from typing import TypeVar

import numpy as np

from ingot.compile import Compiler, Mode
from ingot.ir.dim import AtMost
from ingot.ir.graph import Graph, TensorType
from ingot.llm.disk_cache import BLOCK, STATES, Arrays, DiskCache
from ingot.llm.sampling import Sampler
from ingot.llm.sequences import CacheFullError, Run, Sequence, Sequences
from ingot.load.hf import LanguageModel
from ingot.load.hf.decoder import slots_axis
from ingot.load.hf.recurrent import SLOTS, is_recurrent
from ingot.load.hf.windows import WINDOW_BLOCKS
from ingot.lower import Target
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.run.modes import Bound, BoundModes
from ingot.support.locks import OwnedLock

PREFILL_ROWS = 512
PAUSE_SECONDS = 0.005  # until a free sequence is looked for again
VERIFY_ROWS = 16  # with more, kernels may round activations: the tokens would depend on the draft
SCORE_ROWS = 64  # rows of a scoring run, each with logits over the whole vocabulary

Result = TypeVar("Result")


def modes_of(sequences: int) -> tuple[str, ...]:
    """Return the names of the modes that generation uses."""
    return ("prefill", "decode", "batch") if sequences > 1 else ("prefill", "decode")


def mixed_rows(context: int, sequences: int) -> int:
    """Return the most rows of a run of the mode "mixed"."""
    return min(PREFILL_ROWS, context) + sequences - 1


def mode_of(name: str, context: int, sequences: int) -> Mode:
    """Return a mode of a language model's graph by its name.

    "prefill" appends new rows of a sequence and computes the logits of the last row; "decode" appends one row, "batch"
    one row of each of several sequences; "verify" appends several rows of each and computes the logits of every row;
    "mixed" appends any number of rows of each, and computes the logits of the last row of some; "score" computes the
    logits of every row, "embed" their final states.
    """
    match name:
        case "prefill":
            sizes = {"rows": AtMost(min(PREFILL_ROWS, context), "rows"), "taken": 1, "sequences": 1}
        case "decode":
            sizes = {"rows": 1, "taken": 1, "sequences": 1}
        case "batch":
            rows = AtMost(sequences, "rows")
            sizes = {"rows": rows, "taken": rows, "sequences": AtMost(sequences, "sequences")}
        case "verify":
            rows = AtMost(VERIFY_ROWS, "rows")
            sizes = {"rows": rows, "taken": rows, "sequences": AtMost(sequences, "sequences")}
        case "mixed":
            several = {size: AtMost(sequences, size) for size in ("taken", "sequences")}
            sizes = {"rows": AtMost(mixed_rows(context, sequences), "rows"), **several}
        case _:
            rows = AtMost(min(SCORE_ROWS if name == "score" else PREFILL_ROWS, context), "rows")
            sizes = {"rows": rows, "taken": rows, "sequences": 1}
    outputs = ("hidden",) if name == "embed" else ("logits",) if name == "score" else ("tokens", "best", "logits")
    return Mode(name, sizes, outputs, every_row=() if name in ("prefill", "mixed") else ("take",), state="append")


def choose_on_device(graph: Graph) -> None:
    """Add, before the logits, the outputs "tokens", the index of each row's largest logit, and "best", that logit."""
    logits = graph.outputs["logits"]
    graph.remove_output("logits")
    tokens = graph.add("argmax", [logits], "tokens", axis=1, keepdims=False)
    best = graph.add("reduce_max", [logits], "best", axes=(1,), keepdims=False)
    for name, value in (("tokens", tokens.output), ("best", best.output), ("logits", logits)):
        graph.set_output(name, value)


class Engine:
    """Runs tokens through a language model. Not thread-safe: the caller holds `lock`."""

    def __init__(self, model: LanguageModel, target: Target, sequences: int, disk: DiskCache | None = None):
        """disk: files with blocks of prefixes, None for none."""
        self.model = model
        self._disk = disk
        self.target = target
        # A fork waits for the steps of other threads: a child could not continue from an unfinished step.
        self.steps = OwnedLock("language model", is_awaited=True)
        self.sequences = Sequences(
            sequences,
            model.blocks_per_sequence,
            model.cache_blocks,
            slots=model.state_slots,
            copy_state=self._copy_state if model.state_slots else None,
            windows=model.windows,
        )
        if target.device == "webgpu":
            choose_on_device(model.graph)
        self._compiler = Compiler(model.graph, target)
        self._bound = BoundModes(target)
        self.on_prefill: Callable[[int, int], None] | None = None  # called after each chunk: (tokens computed, total)
        self.prepare(modes_of(sequences))  # all memory is allocated before the first token

    @property
    def lock(self) -> threading.RLock:  # type: ignore[valid-type]
        """The lock, for `with`. Raises InputError if this thread holds it, as in a signal handler during a step."""
        return self.steps.once()

    def with_room(self, work: Callable[[], Result]) -> Result:
        """Wait until one more sequence can be active, and return the result of the work, which runs under the lock.

        The work may run again if it raises CacheFullError while other threads use the cache. If no other thread has an
        active sequence, the work is done at once: `Sequences.start` then raises InputError.
        """
        while True:
            with self.lock:
                is_shared = self.sequences.is_shared
                try:
                    if self.sequences.has_room or not is_shared:
                        return work()
                except CacheFullError:
                    if not is_shared:
                        raise
            time.sleep(PAUSE_SECONDS)

    @property
    def modes(self) -> BoundModes:
        """The compiled modes by name."""
        return self._bound

    def prepare(self, names: Iterable[str]) -> None:
        """Compile modes, the fastest to compile first: nearly all weights are packed while the others are compiled."""
        ordered = sorted(names, key=lambda name: name != "decode")
        modes = (mode_of(name, self.model.context, self.sequences.count) for name in ordered)
        self._bound.add(map(self._compiler.compile, modes))
        if "batch" in ordered:  # row i belongs to sequence i
            owners = self._bound["batch"].inputs["owners"]
            owners[:] = np.arange(len(owners))

    def mode(self, name: str) -> Bound:
        """Return the program of a mode, compiled on first use. Its inputs are i32."""
        if name not in self._bound:
            self.prepare([name])
        return self._bound[name]

    def start(self, tokens: Tokens[int], run: Run | None = None) -> Sequence:
        """Return a sequence with a cached prefix of the tokens, in memory or in files, as `Sequences.start` does."""
        sequence = self.sequences.start(tokens, run)
        if self._disk is not None:
            self._attach(self._disk, sequence, list(tokens)[:-1])
        return sequence

    def prefill(self, sequence: Sequence, tokens: Tokens[int], sampler: Sampler | None = None) -> Bound:
        """Append tokens to a sequence, and draw the next token if there is a sampler.

        Returns the mode, whose `output` holds the logits after the last token, f32[1, vocabulary], until the next run.
        The tokens run in chunks of bounded size; each chunk computes only as many rows as it has tokens.
        """
        mode = self.mode("prefill")
        size, end = len(mode.inputs["ids"]), 0
        while end < len(tokens):
            part = tokens[end:][: self.sequences.piece(sequence, min(size, len(tokens) - end))]
            end += len(part)
            mode.inputs["take"][0] = len(part) - 1
            self._append(mode, sequence, part, 1, [sampler] if sampler is not None and end == len(tokens) else ())
            if self.on_prefill is not None:
                self.on_prefill(end, len(tokens))
        return mode

    def mixed(self, parts: Tokens[tuple[Sequence, Tokens[int], Sampler | None]]) -> None:
        """Append tokens to each of several sequences in one run, and draw the next token of those with a sampler.

        parts: all together at most `mixed_rows` tokens. On the CPU in f32, a sequence's results have the same bits as
        if it ran alone. A sampler may have drawn no token: the caller calls `Sampler.check`.
        """
        mode = self.mode("mixed")
        rows = self._fill(mode, [(sequence, tokens) for sequence, tokens, _ in parts])
        mode.inputs["take"][0] = rows - 1
        taken: list[Sampler] = []
        last = -1
        for _, tokens, sampler in parts:
            last += len(tokens)
            if sampler is not None:
                mode.inputs["take"][len(taken)] = last
                taken.append(sampler)
        sizes = {"rows": rows, "taken": max(1, len(taken)), "sequences": len(parts)}
        self._run(mode, sizes, [(sequence, tokens) for sequence, tokens, _ in parts], taken)

    def verify(self, parts: Tokens[tuple[Sequence, Tokens[int]]]) -> np.ndarray:
        """Append tokens to each of several sequences, all together at most `VERIFY_ROWS`, in one run.

        Returns the logits after each token, f32[all tokens, vocabulary], valid until the next run. On the CPU in f32,
        they have the bits of those of `decode`.
        """
        mode = self.mode("verify")
        rows = self._fill(mode, parts)
        self._run(mode, {"rows": rows, "taken": rows, "sequences": len(parts)}, parts)
        return mode.output[:rows]

    def each(self, sequence: Sequence, tokens: Tokens[int], mode_name: str) -> np.ndarray:
        """Append tokens to a sequence. Return the output for each token: logits for "score", states for "embed"."""
        mode = self.mode(mode_name)
        results = np.empty((len(tokens), mode.output.shape[1]), mode.output.dtype)
        size = len(mode.inputs["ids"])
        for begin in range(0, len(tokens), size):
            part = tokens[begin : begin + size]
            self._append(mode, sequence, part, len(part))
            results[begin : begin + len(part)] = mode.output[: len(part)]
        return results

    def decode(self, steps: Tokens[tuple[Sequence, int, Sampler | None]]) -> Bound:
        """Append a token to each sequence, and draw its next token.

        Returns the mode, whose `output` holds the logits, f32[len(steps) or more, vocabulary], until the next run. On
        the CPU in f32, a sequence's results have the same bits as if it ran alone. A sampler may have drawn no token:
        the caller calls `Sampler.check`.
        """
        mode = self.mode("decode" if len(steps) == 1 else "batch")
        ids, positions = mode.inputs["ids"], mode.inputs["positions"]
        for row, (sequence, token, _) in enumerate(steps):
            length = len(sequence.tokens)
            self.sequences.reserve(sequence, length + 1)
            ids[row], positions[row] = token, length
            self._place(mode, row, sequence)
        count = len(steps)
        samplers = [sampler for _, _, sampler in steps if sampler is not None]
        parts = [(sequence, (token,)) for sequence, token, _ in steps]
        self._run(mode, {"rows": count, "taken": count, "sequences": count}, parts, samplers)
        return mode

    def cached(self, sequence: Sequence) -> dict[str, np.ndarray]:
        """Return copies of a sequence's keys and values, [blocks of the sequence, ...], and of its recurrent states,
        [1, ...], by the name of the state; in layers with a window only of the blocks that the next token sees.
        """
        length = len(sequence.tokens)
        used = length % CACHE_BLOCK
        cached = self._bound.read_states(self._places(sequence, length))
        for name, copy in cached.items() if used else ():
            if is_recurrent(name):
                continue
            # Clear old data of another sequence in the last block: it must not leak into the copy.
            slots = np.moveaxis(copy, slots_axis(name), 1)
            slots[-1, used:] = 0
        return cached

    def cached_types(self, length: int) -> dict[str, TensorType]:
        """Return the types of the arrays that `cached` returns for a sequence of `length` tokens."""
        blocks = -(-length // CACHE_BLOCK)
        types = {name: self.model.graph.type(name) for name in self.model.graph.states}
        counts = {name: 1 if is_recurrent(name) else blocks - self._first_block(name, length) for name in types}
        return {name: TensorType(type.dtype, (counts[name], *type.shape[1:])) for name, type in types.items()}

    def restore(self, tokens: Tokens[int], cached: Mapping[str, np.ndarray]) -> None:
        """Add a finished sequence with keys, values and recurrent states that were computed before."""
        sequence = self.sequences.start(())
        self.sequences.reserve(sequence, len(tokens), is_restored=True)
        self._bound.write_states(self._places(sequence, len(tokens)), cached)
        sequence.tokens += tokens
        sequence.state_length = len(tokens)
        self.sequences.finish(sequence)

    def _attach(self, disk: DiskCache, sequence: Sequence, tokens: list[int]) -> None:
        """Continue a sequence with the longest prefix of the tokens that files have, if it is longer."""
        first = len(sequence.tokens) // CACHE_BLOCK
        names, found, states = disk.names(tokens), [], None
        for index, name in enumerate(names[first:], first):
            part = tokens[index * CACHE_BLOCK :][:CACHE_BLOCK]
            arrays = disk.read(name, BLOCK, part, self._block_types(is_state=False))
            if arrays is None:
                break
            found.append(arrays)
        while found and self.sequences.has_state:
            index = first + len(found) - 1
            part = tokens[index * CACHE_BLOCK :][:CACHE_BLOCK]
            if (states := disk.read(names[index], STATES, part, self._block_types(is_state=True))) is not None:
                break
            found.pop()
        if not found:
            return
        begin, count = len(sequence.tokens), first + len(found)
        length = count * CACHE_BLOCK
        self.sequences.reserve(sequence, length, is_restored=True)
        windows, seen = self.model.windows, self._first_seen(length)
        for index, arrays in enumerate(found, first):
            indices = dict.fromkeys(arrays, sequence.blocks[index : index + 1])
            if windows is not None:
                held = [name for name in arrays if windows.holds(name)]
                indices |= dict.fromkeys(held, sequence.window_blocks[index : index + 1])
                arrays = {name: array for name, array in arrays.items() if index >= seen or name not in held}
            self._bound.write_states(indices, arrays)
        if states is not None:
            sequence.state_length = -1
            self._bound.write_states({name: np.array([sequence.slot]) for name in states}, states)
        sequence.tokens += tokens[begin:length]
        sequence.state_length = length
        self.sequences.keep(sequence, begin)
        disk.use(names[:count])

    def _store(self, disk: DiskCache, sequence: Sequence, begin: int) -> None:
        """Write the blocks that a run filled, since a length, and the states if it ended at a checkpoint."""
        blocks = range(begin // CACHE_BLOCK, len(sequence.tokens) // CACHE_BLOCK)
        if not blocks:
            return
        names = disk.names(sequence.tokens)

        def content(index: int, is_state: bool) -> Arrays:
            indices = self._places(sequence, len(sequence.tokens), blocks=slice(index, index + 1))
            chosen = [name for name in indices if is_recurrent(name) == is_state]
            return self._bound.read_states({name: indices[name] for name in chosen})

        for index in blocks:
            part = sequence.tokens[index * CACHE_BLOCK :][:CACHE_BLOCK]
            disk.write(names[index], BLOCK, part, partial(content, index, False))
        if self.sequences.has_state and len(sequence.tokens) in sequence.checkpoints:
            disk.write(names[-1], STATES, part, partial(content, -1, True))
        disk.use(names)

    def _block_types(self, *, is_state: bool) -> dict[str, TensorType]:
        """Return the types of the states that have blocks, or slots, for one of them."""
        types = {name: self.model.graph.type(name) for name in self.model.graph.states}
        return {
            name: TensorType(type.dtype, (1, *type.shape[1:]))
            for name, type in types.items()
            if is_recurrent(name) == is_state
        }

    def _first_seen(self, length: int) -> int:
        windows = self.model.windows
        return 0 if windows is None else windows.first_seen(length)

    def _first_block(self, state: str, length: int) -> int:
        """Return the index of the first block that the next token of a sequence of `length` tokens reads in a state."""
        windows = self.model.windows
        return windows.first_seen(length) if windows is not None and windows.holds(state) else 0

    def _places(self, sequence: Sequence, length: int, blocks: slice | None = None) -> dict[str, np.ndarray]:
        """Return the indices, in the first axis of each state, of what a sequence of `length` tokens has there: all
        that the next token reads, or some blocks.
        """
        windows, indices = self.model.windows, {}
        for name in self.model.graph.states:
            is_windowed = windows is not None and windows.holds(name)
            table = sequence.window_blocks if is_windowed else sequence.blocks
            own = slice(self._first_block(name, length), sequence.block_count) if blocks is None else blocks
            indices[name] = np.array([sequence.slot]) if is_recurrent(name) else table[own]
        return indices

    def _copy_state(self, source: int, slot: int) -> None:
        self._bound.copy_states(filter(is_recurrent, self.model.graph.states), source, slot)

    def _place(self, mode: Bound, owner: int, sequence: Sequence) -> None:
        """Write the blocks and the slot of a sequence into a mode's inputs."""
        mode.inputs["blocks"][owner] = sequence.blocks
        if self.sequences.windows is not None:
            mode.inputs[WINDOW_BLOCKS][owner] = sequence.window_blocks
        if self.sequences.has_state:
            mode.inputs[SLOTS][owner] = sequence.slot

    def _run(
        self,
        mode: Bound,
        sizes: Mapping[str, int],
        parts: Tokens[tuple[Sequence, Tokens[int]]],
        samplers: Tokens[Sampler] = (),
    ) -> None:
        """Run a mode over new tokens of sequences, and add the tokens to them."""
        for sequence, _ in parts:
            sequence.state_length = -1  # an interrupted run leaves states of unknown length
        mode.run(sizes, [sampler.native for sampler in samplers])
        for sequence, tokens in parts:
            begin = len(sequence.tokens)
            sequence.tokens += tokens
            sequence.state_length = len(sequence.tokens)
            self.sequences.keep(sequence, begin)
            if self._disk is not None and sequence.run is not None:
                self._store(self._disk, sequence, begin)

    def _fill(self, mode: Bound, parts: Tokens[tuple[Sequence, Tokens[int]]]) -> int:
        """Write the rows of new tokens of several sequences into a mode's inputs; return their number."""
        inputs, row = mode.inputs, 0
        for owner, (sequence, tokens) in enumerate(parts):
            start, end = len(sequence.tokens), row + len(tokens)
            self.sequences.reserve(sequence, start + len(tokens))
            inputs["ids"][row:end] = tokens
            inputs["positions"][row:end] = np.arange(start, start + len(tokens))
            inputs["owners"][row:end] = owner
            self._place(mode, owner, sequence)
            row = end
        return row

    def _append(
        self, mode: Bound, sequence: Sequence, tokens: Tokens[int], taken: int, samplers: Tokens[Sampler] = ()
    ) -> None:
        """Run a mode over new tokens of one sequence."""
        start, count = len(sequence.tokens), len(tokens)
        self.sequences.reserve(sequence, start + count)
        mode.inputs["ids"][:count] = tokens
        mode.inputs["positions"][:count] = np.arange(start, start + count)
        self._place(mode, 0, sequence)
        self._run(mode, {"rows": count, "taken": taken, "sequences": 1}, [(sequence, tokens)], samplers)
        for sampler in samplers:
            sampler.check()
