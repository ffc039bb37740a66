"""Small random language models of transformers, saved as folders."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import transformers

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def random_llama(folder: Path, dtype: torch.dtype = torch.float32, **sizes: int) -> transformers.PreTrainedModel:
    """Saves a random Llama into a folder; the model in f32, in eval mode."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(**{**SIZES, **sizes})
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.to(dtype).save_pretrained(folder)
    # Read again: a model that was rounded has rounded its table of angles, too.
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@cache
def reference_logits(model: transformers.PreTrainedModel, ids: tuple[int, ...]) -> torch.Tensor:
    """The logits of all positions, f32[len(ids), vocabulary]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def greedy(model: transformers.PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """The tokens that have the largest logits, one after another; asserts that none is nearly tied."""
    tokens, fed, past = list(ids), list(ids), None
    for _ in range(count):
        with torch.no_grad():
            output = model(torch.tensor([fed]), past_key_values=past, use_cache=True)
        best = torch.topk(output.logits[0, -1].float(), 2)
        assert best.values[0] - best.values[1] > 1e-5, "a tie decides nothing"
        fed, past = [int(best.indices[0])], output.past_key_values
        tokens += fed
    return tokens[len(ids) :]
