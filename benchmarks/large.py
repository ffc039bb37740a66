"""`python -m benchmarks.large [--type q4_k] [--threads N] [--folder DIR]`: a model of 3 B parameters in 4 bits.

Of Llama 3.2's shape with random blocks, written one tensor at a time: no matrix is ever made in floats. Then, in one
run: the seconds until it is ready, the most memory on the way, and the share of the read bandwidth that decode uses,
reads and tokens by turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.cold import peak_bytes
from benchmarks.goals import verdict
from benchmarks.side_by_side import THREADS

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN_WIDTH, VOCAB_SIZE = 28, 3072, 24, 8, 128, 8192, 128256
CONTEXT = 1024
FOLDER = Path(__file__).parents[1] / "build" / "llm"
ROUNDS, TOKENS = 5, 8
LOAD_GOAL, READ_GOAL = 3.0, 0.9
SCALES = {"q4_k": ((0, 1 / 945), (2, 7.5 / 945)), "q4_0": ((0, 1 / 8),), "iq4_xs": ((0, 1 / 4064),)}  # bytes, factors


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor; the table is the projection to the vocabulary, too."""
    yield "token_embd", (VOCAB_SIZE, WIDTH)
    yield "output_norm", (WIDTH,)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm", (WIDTH,)
        yield f"blk.{layer}.ffn_norm", (WIDTH,)
        yield f"blk.{layer}.attn_q", (HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_k", (KV_HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_v", (KV_HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_output", (WIDTH, HEADS * HEAD_DIM)
        yield f"blk.{layer}.ffn_gate", (FFN_WIDTH, WIDTH)
        yield f"blk.{layer}.ffn_up", (FFN_WIDTH, WIDTH)
        yield f"blk.{layer}.ffn_down", (WIDTH, FFN_WIDTH)


def random_blocks(random: np.random.Generator, shape: tuple[int, ...], type: str) -> np.ndarray:
    """u8 [rows, bytes]: any codes, by scales that give them the size of a matrix's numbers."""
    from ingot.ops.blocks import BLOCKS

    rows, columns = shape
    block = BLOCKS[type]
    blocks = np.frombuffer(random.bytes(rows * columns // block.elements * block.nbytes), np.uint8).copy()
    blocks = blocks.reshape(-1, block.nbytes)
    for at, factor in SCALES[type]:
        blocks[:, at : at + 2] = np.array([2 * factor / np.sqrt(columns)], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, type: str) -> None:
    """The file, which has its name when it is whole."""
    import gguf

    part, kind = path.with_suffix(".part"), gguf.GGMLQuantizationType[type.upper()]
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(8 * CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_tokenizer_model("no_vocab")
    for name, shape in shapes():
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        if len(shape) == 1:
            writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), 4 * shape[0])
        else:
            stored = (shape[0], shape[1] // elements * nbytes)
            writer.add_tensor_info(f"{name}.weight", stored, np.dtype(np.uint8), stored[0] * stored[1], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(5)
    for _, shape in shapes():
        writer.write_tensor_data(np.ones(shape, np.float32) if len(shape) == 1 else random_blocks(random, shape, type))
    writer.close()
    part.rename(path)


def measured(path: Path, threads: int) -> None:
    """Prints a table of one run."""
    from ingot import LLM
    from ingot.run.library import load
    from ingot.run.probe import Probe

    isa, before, begin = load().isa(), peak_bytes(), time.perf_counter()
    llm = LLM(path, context=CONTEXT, threads=threads, sequences=1)
    loaded = time.perf_counter() - begin
    list(llm.generate_tokens([1, 2, 3], max_tokens=2, temperature=0))
    held, arena = peak_bytes() - before, llm.memory.total - llm.memory.weights
    probe = Probe("probe_read_f32", isa, threads, nbytes=llm.memory.weights)
    decodes, reads = [], []
    for number in range(ROUNDS):
        reads.append(probe.seconds(2))
        tokens = llm.generate_tokens([number, 2, 3], max_tokens=TOKENS + 1, temperature=0)
        next(tokens)
        begin = time.perf_counter()
        decodes.append((sum(1 for _ in tokens), time.perf_counter() - begin))
    seconds = [took / count for count, took in decodes]
    fraction = statistics.median(read / decode for read, decode in zip(reads, seconds, strict=True))
    size, token = path.stat().st_size, statistics.median(seconds)
    rows = [
        ["load, s", f"{loaded:.2f}", f"at most {LOAD_GOAL:.1f}", verdict(loaded <= LOAD_GOAL)],
        ["decode, tokens/s", f"{1 / token:.2f}", "", ""],
        ["decode, GB/s", f"{1e-9 * llm.memory.weights / token:.1f}", "", ""],
        ["of read bandwidth", f"{fraction:.0%}", f"at least {READ_GOAL:.0%}", verdict(fraction >= READ_GOAL)],
        ["most memory, MiB", f"{held / 2**20:.0f}", f"file and arena: {(size + arena) / 2**20:.0f}",
         verdict(held <= size + arena)],
    ]  # fmt: skip
    print(f"{path.name}: {size / 1e9:.2f} GB, panels of {llm.memory.weights / 1e9:.2f} GB, {threads} threads\n")
    print(report.table(["", "", "goal", ""], rows))


def main() -> None:
    """Writes the file unless it is there, and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", choices=list(SCALES), default="q4_k")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the model is, or is written")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"llama-3b-{asked.type}.gguf"
    if not path.exists():
        write(path, asked.type)
    measured(path, asked.threads)


if __name__ == "__main__":
    main()
