"""The model with a vocabulary, and the prompts: `python -m benchmarks.serve.model FOLDER PRECISION`."""

from __future__ import annotations

import json
import random
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.llm import model

PRECISIONS = ("bf16", "int4")
SYSTEM_TOKENS = 256
PROMPT_TOKENS = (64, 512)  # at least and at most, after the system prompt
ANSWER_TOKENS = (32, 128)
SEED = 43


def gguf_path(folder: Path, precision: str) -> Path:
    """The path of the file that every server reads."""
    return folder / f"llama-serve-{precision}.gguf"


def sources() -> list[Path]:
    """The modules of Python's library, whose texts the vocabulary and the prompts are from."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer of byte pairs with as many tokens as the model has, written into `folder` once."""
    path = folder / "serve-tokenizer" / "tokenizer.json"
    if not path.exists():
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = decoders.ByteLevel()
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=model.VOCAB_SIZE, initial_alphabet=letters, show_progress=False)
        trained.train([str(source) for source in sources()], trainer)
        if trained.get_vocab_size() != model.VOCAB_SIZE:
            sys.exit(f"vocabulary: got {trained.get_vocab_size()} tokens, expected {model.VOCAB_SIZE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        trained.save(str(path))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.CONTEXT}
        path.with_name("tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.from_file(str(path))


def requests(folder: Path, count: int, seed: int) -> list[dict[str, object]]:
    """Requests of /v1/completions: a system prompt that all of this seed share, and a text of their own."""
    tokens = tokenizer(folder)
    draw = random.Random(SEED + seed)
    ids = tokens.encode("\n".join(source.read_text() for source in sources()[:60])).ids
    begin = draw.randrange(len(ids) - SYSTEM_TOKENS)
    system, found = ids[begin : begin + SYSTEM_TOKENS], []
    for _ in range(count):
        length, begin = draw.randint(*PROMPT_TOKENS), draw.randrange(len(ids) - PROMPT_TOKENS[1])
        prompt = tokens.decode([*system, *ids[begin : begin + length]])
        found.append({"model": "model", "prompt": prompt, "max_tokens": draw.randint(*ANSWER_TOKENS)})
    return found


def write(folder: Path, precision: str) -> None:
    """The GGUF file with the vocabulary."""
    tokenizer(folder)
    document = json.loads((folder / "serve-tokenizer" / "tokenizer.json").read_text())
    tensors = {
        name: model.interleaved(name, model.stored(tensor, precision)).copy() for _, name, tensor in model.weights()
    }
    path = gguf_path(folder, precision)
    part = path.with_suffix(".part")
    model.write_gguf(tensors, part, precision, document["model"])
    part.rename(path)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
