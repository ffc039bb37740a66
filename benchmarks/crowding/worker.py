"""`benchmarks.models.worker` with one workload more, a language model's decode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.harness.serve import serve
from benchmarks.models import worker

DECODE = "decode 8x512"
TOKENS = 16


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """As `worker.build`; a run of a decode gives TOKENS tokens."""
    if name != DECODE:
        return worker.build(engine, name, folder, threads, precision)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ingot import LLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "decode")
    start = time.perf_counter()
    model = LLM(folder / "decode", threads=threads, precision="f32")

    def call() -> list[int]:
        return list(model.generate_tokens([1], max_tokens=TOKENS))

    assert len(call()) == TOKENS
    return call, {"build_seconds": time.perf_counter() - start}


if __name__ == "__main__":
    serve(build)
