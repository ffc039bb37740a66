"""Small GGUF files, cut at every byte and with every bit flipped, in a process with limits of memory and time.

`python tests/kit/gguf_damage.py [NAME]` takes every damage to the files, or to one of them, and opens what is left as a
language model with its tokenizer. The exit code is 1 when there are findings.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

from attacks.hostile_gguf import (
    F16_TENSOR,
    F32,
    F32_TENSOR,
    I32,
    PIECES,
    Q8_0_TENSOR,
    STRING,
    U32,
    array,
    key,
    llama,
    tensor,
    value,
)
from attacks.hostile_gguf import content as gguf_content
from forked import Say, batch, limited
from ingot.errors import IngotError
from ingot.llm.tokenizer import Tokenizer
from ingot.load.gguf.file import SIZES, TYPES
from ingot.load.hf import load_language_model, longest_context
from ingot.load.language import read_model
from onnx_damage import damaged, places

SECONDS = 10  # of a file
CONTEXT = 16  # tables of angles are as long as a context
WIDTH, INNER, TOKENS = 32, 64, 6
PARTS = {
    "attn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, WIDTH // 2), "attn_v": (WIDTH, WIDTH // 2),
    "attn_output": (WIDTH, WIDTH), "ffn_norm": (WIDTH,), "ffn_gate": (WIDTH, INNER), "ffn_up": (WIDTH, INNER),
    "ffn_down": (INNER, WIDTH),
}  # fmt: skip


def whole(kind: int, **keys: bytes | None) -> bytes:
    """A llama of one layer with matrices of a type."""
    sizes = {"embedding_length": WIDTH, "feed_forward_length": INNER}
    changed: dict[str, bytes | None] = {f"llama.{name}": value(U32, size) for name, size in sizes.items()}
    changed |= {f"tokenizer.ggml.{name}": made for name, made in keys.items()}
    shapes = {"token_embd": (WIDTH, TOKENS), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{part}": dims for part, dims in PARTS.items()}
    headers, offset = [], 0
    for name, dims in shapes.items():
        type = kind if len(dims) > 1 else F32_TENSOR
        headers.append(tensor(f"{name}.weight", dims, type, offset))
        elements, nbytes = SIZES[TYPES[type]]
        size = dims[0] * (dims[1] if len(dims) > 1 else 1) // elements * nbytes
        offset += -(-size // 32) * 32
    return llama(changed, tensors=headers, data=bytes(offset))


@functools.cache
def files() -> dict[str, bytes]:
    """The whole files, by name."""
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    return {
        "bytes": whole(Q8_0_TENSOR),
        "pieces": whole(F16_TENSOR, model=PIECES, tokens=array(STRING, pieces), pre=None, merges=None),
        "metadata": gguf_content(
            [key("a", array(I32, [1, 2])), key("b", array(STRING, ["x", "yz"])), key("c", array(F32, [0.5]))]
        ),
    }


def open_model(content: bytes, say: Say) -> str:
    """What became of a file; raises what is not an error of Ingot. A limit ends what takes too long."""
    say("! slow to open")
    with limited(SECONDS), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(content)
        try:
            model = read_model(path)
            Tokenizer.read(model).encode("ab ba")
            load_language_model(model, context=min(CONTEXT, longest_context(model))).graph.validate()
        except IngotError:
            return "refused"
    return "opened"


def header_bytes(name: str) -> int:
    """The bytes before those of tensors, which may be anything."""
    return files()[name].rstrip(b"\0").__len__() + 16


def survive(name: str, chosen: range) -> dict[int, str]:
    """What became of a file with each of these damages, by place; findings begin with `!`."""
    content = files()[name]

    def judge(place: int, say: Say) -> str:
        return open_model(damaged(content, place), say)

    outcomes: dict[int, str] = {}
    for first in range(0, len(chosen), 2000):  # a process each
        outcomes |= batch(chosen[first : first + 2000], judge)
    return outcomes


def main() -> int:
    bad = 0
    for name in sys.argv[1:] or files():
        outcomes = survive(name, range(places(files()[name][: header_bytes(name)])))
        found = {place: outcome for place, outcome in outcomes.items() if outcome.startswith("!")}
        bad += len(found)
        kinds = [*outcomes.values()]
        told = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("refused", "opened"))
        print(f"{name}: {told}", *(f"{p}: {o}" for p, o in found.items()), sep="\n  ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
