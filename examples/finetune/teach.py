"""Teaches the shipped language model a style, and shows what it wrote before and after.

    python examples/finetune/teach.py FOLDER

pirate.txt holds small functions in the words of a pirate. FOLDER receives the adapters, a checkpoint, the curve of the
losses and, as `model`, an ordinary model folder: `ingot chat FOLDER/model`.
"""

import argparse
from pathlib import Path

import ingot
from ingot.training.curve import drawn
from ingot.training.finetune import FineTuning, Progress

TEXT = Path(__file__).with_name("pirate.txt")
PROMPT = "def count_keys(mapping):\n"


def written_by(folder: str | Path) -> str:
    """What a model makes of the beginning of a function."""
    return PROMPT + ingot.LLM(folder, context=256).generate(PROMPT, max_tokens=60, stop=("\n\n\n",), temperature=0)


def show(progress: Progress) -> None:
    """A line for every 25 steps."""
    point = progress.point
    if (point.step + 1) % 25 == 0:
        print(f"step {point.step + 1}: loss {point.loss:.3f}, {progress.tokens_per_second:,.0f} tok/s")


def main() -> None:
    """Trains, merges and compares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    tuning = FineTuning("tiny-lm", TEXT.read_text(), steps=options.steps, context=128, adapters=ingot.lora(r=8))
    before = tuning.held_out_loss()
    tuning.run(options.folder, on_progress=show)
    tuning.merge(options.folder / "model")
    print("\n".join(drawn(tuning.curve)))
    print(f"held-out loss: {before:.3f} before, {tuning.held_out_loss():.3f} after\n")
    print(f"before:\n{written_by('tiny-lm')}\nafter:\n{written_by(options.folder / 'model')}")


if __name__ == "__main__":
    main()
