"""Trains the small language model that ships in the package, on the Python standard library's own source text.

    python examples/tiny-lm/train.py FOLDER --minutes 75

FOLDER receives an ordinary Hugging Face folder, ready to use, at every checkpoint: config.json,
generation_config.json, tokenizer.json, tokenizer_config.json, model.safetensors (bf16) and a README.md with the loss
curve. FOLDER.state holds what training needs to go on: the same command continues where the last one stopped, and the
clock of --minutes goes on from there too. The learning rate follows the clock, so that training ends when it should on
a machine of any speed; another machine therefore ends with other weights.
"""

import argparse
import functools
import hashlib
import json
import math
import os
import re
import sys
import sysconfig
import time
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

import torch
from model import Config, Llama
from model_card import model_card
from safetensors.torch import save_file
from tokenizers import Tokenizer
from vocabulary import END, train_tokenizer, write_tokenizer

# Not programs: tests, generated tables, a manual as one string, and whatever else is installed there.
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data"}
SKIPPED_PREFIXES = ("_sysconfigdata", "config-")
HELD_OUT_SHARE = 25  # one file in so many is reserved for validation

BATCH = 8
LEARNING_RATE = 4e-3
WARMUP = 0.02  # share of the time
WEIGHT_DECAY = 0.1
QUICK_WINDOWS = 48  # held-out windows read at each checkpoint; all of them at the end
CHECKPOINT_SECONDS = 120


@dataclass
class Text:
    """Source files as token ids: training and held-out i64[n], and the bytes that they represent."""

    training: torch.Tensor
    held_out: torch.Tensor
    training_bytes: int
    held_out_bytes: int
    files: int
    held_out_files: int


@dataclass
class Progress:
    """How far training is: steps, seconds by the clock, and rows (seconds, tokens, training loss, held-out loss)."""

    step: int = 0
    seconds: float = 0.0
    curve: list[list[float]] = field(default_factory=list)


def read_sources(library: Path) -> tuple[list[str], list[str]]:
    """The different texts of a standard library for training and for validation, chosen by the hash of the path."""
    texts: tuple[list[str], list[str]] = ([], [])
    seen: set[bytes] = set()
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if SKIPPED_FOLDERS & set(parts) or any(part.startswith(SKIPPED_PREFIXES) for part in parts):
            continue
        with tokenize.open(path) as file:
            text = file.read()
        digest = hashlib.sha256(text.encode()).digest()
        if not text.strip() or digest in seen:
            continue
        seen.add(digest)
        name = hashlib.sha256("/".join(parts).encode()).digest()
        texts[int.from_bytes(name[:4], "big") % HELD_OUT_SHARE == 0].append(text)
    return texts


def encode(tokenizer: Tokenizer, texts: list[str], seed: int) -> torch.Tensor:
    """The texts in an order fixed by the seed, the end token after each part: ids i64[n].

    Two blank lines end a part, so that a model learns where a function ends.
    """
    end = tokenizer.token_to_id(END)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [part.rstrip("\n") + "\n" for k in order for part in re.split(r"\n{3,}(?=\S)", texts[k])]
    ids = [[*encoding.ids, end] for encoding in tokenizer.encode_batch(parts, add_special_tokens=False)]
    return torch.tensor([token for part in ids for token in part])


def read_text(folder: Path, seed: int, vocabulary: int) -> Text:
    """Sources as ids; trains and writes the tokenizer first where the folder has none."""
    training, held_out = read_sources(Path(sysconfig.get_paths()["stdlib"]))
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(train_tokenizer(training, vocabulary), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Text(
        encode(tokenizer, training, seed),
        encode(tokenizer, held_out, seed),
        sum(len(text.encode()) for text in training),
        sum(len(text.encode()) for text in held_out),
        len(training),
        len(held_out),
    )


@functools.lru_cache(maxsize=1)
def epoch_starts(length: int, window: int, seed: int, epoch: int) -> torch.Tensor:
    """Where the windows of an epoch start, shuffled; each epoch cuts the text elsewhere: i64[windows]."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    offset = int(torch.randint(window, (), generator=generator))
    count = (length - 1 - offset) // window
    return offset + window * torch.randperm(count, generator=generator)


def batch_at(ids: torch.Tensor, window: int, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The step's ids and the ids that follow them, i64[BATCH, window] each. Depends on nothing but the arguments."""
    steps_per_epoch = ((len(ids) - window) // window) // BATCH
    epoch, index = divmod(step, steps_per_epoch)
    starts = epoch_starts(len(ids), window, seed, epoch)[index * BATCH : (index + 1) * BATCH]
    return windows(ids, starts, window)


def windows(ids: torch.Tensor, starts: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids cut at the starts, and the same one further on: i64[len(starts), window] each."""
    cut = ids[starts[:, None] + torch.arange(window + 1)]
    return cut[:, :-1], cut[:, 1:]


@torch.no_grad()
def held_out_loss(model: Llama, ids: torch.Tensor, limit: int | None = None) -> float:
    """Mean nats per token over held-out windows (evenly chosen if `limit`), computed with weights rounded to bf16."""
    rounded = Llama(model.config)
    rounded.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    window = model.config.context
    starts = torch.arange(0, len(ids) - 1 - window, window)
    if limit is not None and limit < len(starts):
        starts = starts[torch.linspace(0, len(starts) - 1, limit).long()]
    losses = [rounded.loss(*windows(ids, chosen, window)).item() * len(chosen) for chosen in starts.split(8)]
    return sum(losses) / len(starts)


def learning_rate(progress: float) -> float:
    """Linear warm-up, then half a cosine down to nothing when the time is over."""
    if progress < WARMUP:
        return LEARNING_RATE * progress / WARMUP
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARMUP) / (1 - WARMUP))))


def make_optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon (K. Jordan, 2024) for the matrices between embedding and output, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    embedding = [p for name, p in model.named_parameters() if "embed" in name]
    norms = [p for p in model.parameters() if p.ndim == 1]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [{"params": embedding, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}],
            lr=LEARNING_RATE,
            betas=(0.9, 0.95),
            fused=True,
        ),
    ]


def save_state(path: Path, model: Llama, optimizers: list[torch.optim.Optimizer], progress: Progress) -> None:
    """Everything that training needs to go on, replaced in one step."""
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    partial = path.with_name(path.name + ".partial")
    torch.save(state | {"progress": vars(progress)}, partial)
    partial.replace(path)


def load_state(path: Path, model: Llama, optimizers: list[torch.optim.Optimizer]) -> Progress:
    """Goes back to a saved state; a fresh start where there is none."""
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


def write_model(folder: Path, model: Llama, end: int) -> None:
    """The weights in bf16 and the two configurations, in Hugging Face's layout."""
    weights = {name: weight.bfloat16().contiguous() for name, weight in model.state_dict().items()}
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    os.chmod(partial, 0o644)
    partial.replace(folder / "model.safetensors")
    for name, content in (
        ("config.json", model.config.hugging_face(end)),
        ("generation_config.json", {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def train(model: Llama, text: Text, options: argparse.Namespace) -> Progress:
    """Trains until the time is over; writes a checkpoint every few minutes and at the end."""
    optimizers = make_optimizers(model)
    state = Path(f"{options.folder}.state")
    progress = load_state(state, model, optimizers)
    budget, window = options.minutes * 60, model.config.context
    loss_of = torch.compile(model.loss)
    start, since, losses = time.monotonic() - progress.seconds, progress.seconds, []
    while progress.seconds < budget:
        ids, following = batch_at(text.training, window, options.seed, progress.step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(progress.seconds / budget)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(ids, following)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        progress.step += 1
        progress.seconds = time.monotonic() - start
        if progress.seconds - since >= CHECKPOINT_SECONDS or progress.seconds >= budget:
            validation = held_out_loss(model, text.held_out, QUICK_WINDOWS)
            tokens = progress.step * BATCH * window
            progress.curve.append([progress.seconds, tokens, sum(losses) / len(losses), validation])
            write_checkpoint(options, model, text, progress)
            save_state(state, model, optimizers, progress)
            print(
                f"{progress.seconds / 60:6.1f} min  {tokens / 1e6:6.2f} M tokens  "
                f"training {progress.curve[-1][2]:.4f}  held out {validation:.4f}",
                flush=True,
            )
            since, losses = progress.seconds, []
    return progress


def write_checkpoint(
    options: argparse.Namespace, model: Llama, text: Text, progress: Progress, final: float | None = None
) -> None:
    """The folder as it is at this moment; `final` is the loss over all held-out windows, when it is known."""
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    write_model(options.folder, model, tokenizer.token_to_id(END))
    facts = {
        "seed": options.seed,
        "minutes": options.minutes,
        "threads": options.threads,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "parameters": sum(p.numel() for p in model.parameters()),
        "final": final,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }
    (options.folder / "README.md").write_text(model_card(model.config, text, progress, facts))


def main() -> None:
    """Reads the options, trains, validates on everything held out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="what is written; FOLDER.state holds the state of training")
    parser.add_argument("--minutes", type=float, default=75.0, help="time of the whole training (default: 75)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    config = Config()
    text = read_text(options.folder, options.seed, config.vocabulary)
    model = Llama(config)
    print(
        f"{sum(p.numel() for p in model.parameters()):,} parameters; {text.files} files, {len(text.training):,} tokens "
        f"({text.training_bytes / len(text.training):.2f} bytes each); {text.held_out_files} files held out",
        flush=True,
    )
    progress = train(model, text, options)
    final = held_out_loss(model, text.held_out)
    write_checkpoint(options, model, text, progress, final)
    bits = final * len(text.held_out) / text.held_out_bytes / math.log(2)
    print(f"held-out loss {final:.4f} nats per token, {bits:.3f} bits per byte")


if __name__ == "__main__":
    main()
