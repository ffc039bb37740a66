"""The model with a vocabulary, and the prompts: `python -m benchmarks.serve.model FOLDER PRECISION`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import sysconfig
import tempfile
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


def openvino_path(folder: Path, precision: str) -> Path:
    """The folder of OpenVINO's model."""
    return folder / f"llama-serve-openvino-{precision}"


def path_of(engine: str, folder: Path, precision: str) -> Path:
    """The path of the model that an engine's server reads."""
    return (openvino_path if engine == "openvino" else gguf_path)(folder, precision)


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


def write_openvino(folder: Path, precision: str, python: str) -> None:
    """OpenVINO's model of the same weights, by optimum-intel; int4 has groups of 32 values and no zero point."""
    tokenizer(folder)
    source, _ = model.paths(folder, "bf16")
    if not (source / "config.json").exists():
        subprocess.run([sys.executable, "-m", "benchmarks.llm.model", str(folder), "bf16"], check=True)
    target = openvino_path(folder, precision)
    part = target.with_suffix(".part")
    with tempfile.TemporaryDirectory() as whole:
        for path in (*source.iterdir(), *(folder / "serve-tokenizer").iterdir()):
            (Path(whole) / path.name).symlink_to(path.resolve())
        quantized = ["int4", "--sym", "--group-size", "32", "--ratio", "1.0"]
        subprocess.run(
            [
                str(Path(python).with_name("optimum-cli")), "export", "openvino", "--model", whole, "--task",
                "text-generation-with-past", "--weight-format", *(quantized if precision == "int4" else ["fp16"]),
                str(part),
            ],
            check=True,
        )  # fmt: skip
    part.rename(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
