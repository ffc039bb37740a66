"""Completes prompts on two workers of a local cluster of Ray.

pip install 'ingot-compiler[ray]'
python examples/ray_batch/batch.py [--model FOLDER] [--count 100] [--workers 2]
"""

import argparse
import time

import ray

import ingot.ray
from ingot.cli.demo_language import FOLDER


def main() -> None:
    """Print some texts, and the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(FOLDER))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    ray.init(num_cpus=asked.workers + 1, include_dashboard=False)
    prompts = ray.data.from_items([{"id": i, "prompt": f"def f{i}(a):\n"} for i in range(asked.count)])
    begin = time.perf_counter()
    texts = ingot.ray.generate(prompts, asked.model, workers=asked.workers, max_tokens=24, temperature=0, batch_size=16)
    rows = sorted(texts.take_all(), key=lambda row: row["id"])
    for row in rows[:3]:
        print(repr(row["prompt"] + row["text"]))
    print(f"{len(rows)} prompts in {time.perf_counter() - begin:.1f} s, with the start of the workers")


if __name__ == "__main__":
    main()
