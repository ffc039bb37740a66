"""The README.md next to the weights: the model and its training."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model import Config
    from train import Progress, Text


def model_card(config: Config, text: Text, progress: Progress, facts: dict[str, Any]) -> str:
    """The card of a model after `progress`; facts["final"] is None until all held-out text was read."""
    tokens = progress.curve[-1][1]
    return f"""# tiny-lm

A language model of {facts["parameters"]:,} parameters that continues Python source text. It is small enough to ship,
was trained by `examples/tiny-lm/train.py`, and is an ordinary Hugging Face folder (`LlamaForCausalLM`, bf16). It writes
what looks like Python; whether that does anything useful is chance, and left to the most probable token alone it
soon repeats itself.

## Text

The source text of the standard library of CPython {facts["python"]}: every different `.py` file but tests, tables in
`encodings`, the manual in `pydoc_data` and files that are generated when Python is built. Whole files are held out,
chosen by the hash of their paths. Two blank lines became the end token, so that the model knows where a function ends.

| | files | bytes | tokens |
|---|---:|---:|---:|
| training | {text.files} | {text.training_bytes:,} | {len(text.training):,} |
| held out | {text.held_out_files} | {text.held_out_bytes:,} | {len(text.held_out):,} |

The text is licensed under the Python Software Foundation License Version 2 (PSF-2.0), copyright Python Software
Foundation; some modules carry notices of their own, which Python's LICENSE lists. The weights are distributed under
Ingot's licence, Apache-2.0.

## Training

| | |
|---|---|
| Shape | {shape(config)} |
| Vocabulary | byte-level BPE of {config.vocabulary} tokens, learned from the training text |
| Optimiser | Muon for matrices, AdamW for the embedding; batch {facts["batch"]} x {config.context}, \
learning rate {facts["learning_rate"]:g} with warm-up, then half a cosine to 0 |
| Arithmetic | products in bf16, the rest in f32; torch {facts["torch"]}, {facts["threads"]} thread |
| Seed | {facts["seed"]} |
| Time | {progress.seconds / 60:.1f} of {facts["minutes"]:g} minutes by the clock, {progress.step:,} steps |
| Tokens | {tokens:,.0f}, which is the text {tokens / len(text.training):.1f} times |
| Loss | {losses(text, progress, facts["final"])} |

The learning rate follows the clock, so another machine ends with other weights.

| minutes | million tokens | training loss | held-out loss |
|---:|---:|---:|---:|
{curve(progress)}

Losses are in nats per token; the held-out ones are of weights rounded to bf16, over windows of {config.context} tokens,
and in this table over a sample of the windows.
"""


def shape(config: Config) -> str:
    """The sizes in words."""
    sizes = asdict(config)
    return (
        "{layers} layers, width {width}, {heads} heads of {head_dim} over {kv_heads} of keys and values, FFN {ffn}, "
        "context {context}, rotary base {rope_base:g}, embedding tied to the output"
    ).format(**sizes)


def losses(text: Text, progress: Progress, final: float | None) -> str:
    """The last losses, and bits per byte, which do not depend on the vocabulary."""
    if final is None:
        return f"{progress.curve[-1][3]:.4f} held out so far"
    bits = final * len(text.held_out) / text.held_out_bytes / math.log(2)
    return f"{progress.curve[-1][2]:.4f} in training, {final:.4f} held out ({bits:.3f} bits per byte)"


def curve(progress: Progress, rows: int = 16) -> str:
    """Rows of the table, evenly chosen, the last one always among them."""
    last = len(progress.curve) - 1
    chosen = sorted({round(last * k / max(rows - 1, 1)) for k in range(rows)})
    return "\n".join(
        f"| {seconds / 60:.1f} | {tokens / 1e6:.2f} | {training:.4f} | {held_out:.4f} |"
        for seconds, tokens, training, held_out in (progress.curve[k] for k in chosen)
    )
