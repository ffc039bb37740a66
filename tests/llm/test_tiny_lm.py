"""The language model that ships: an ordinary folder, and the tokens that transformers gives."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ingot
from ingot.cli import demo_language
from ingot.cli.demo_language import FOLDER

TOKENS = 64
FUNCTION = 'def is_package(path):\n    """Return True if the path is a package."""\n'
TIE = 1e-3  # logits this close may come in either order

PROMPTS = [
    "def fibonacci(n):\n",
    "def read_lines(path):\n",
    "def is_prime(number):\n    ",
    "class Stack:\n    def __init__(self):\n",
    "class Error(Exception):\n",
    "import os\nimport sys\n",
    "from collections import ",
    "def main():\n    parser = argparse.ArgumentParser(",
    "for name in sorted(names):\n",
    "while True:\n    line = file.readline()\n    if not line:\n",
    "try:\n    value = int(text)\nexcept ",
    "with open(filename) as f:\n",
    "def __repr__(self):\n    return ",
    "    def close(self):\n        ",
    "        if not isinstance(other, ",
    'raise TypeError("',
    '"""Utilities for ',
    "# This module ",
    "if __name__ == '__main__':\n",
    "naïve = 'é漢😀'\n",
]


@functools.cache
def model() -> ingot.LLM:
    return ingot.LLM(FOLDER, precision="f32")


@functools.cache
def reference() -> transformers.LlamaForCausalLM:
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@functools.cache
def reference_tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


def reference_logits(ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return reference()(torch.tensor([ids])).logits[0].numpy()


def test_it_is_small_and_names_its_origin():
    files = {f.name: f.stat().st_size for f in Path(FOLDER).iterdir()}
    assert set(files) == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert sum(files.values()) <= 6 << 20
    card = (Path(FOLDER) / "README.md").read_text()
    for word in ("PSF-2.0", "Seed", "held-out loss", "CPython", "bits per byte"):
        assert word in card
    assert json.loads((Path(FOLDER) / "config.json").read_text())["model_type"] == "llama"


def test_transformers_loads_every_weight():
    _, report = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]


def test_prompts_are_twenty():
    assert len(set(PROMPTS)) == 20


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_those_of_transformers(prompt):
    ids = reference_tokenizer()(prompt).input_ids
    assert ids == [model().tokenizer.bos, *model().tokenizer.encode(prompt)]
    got = list(model().generate_tokens(ids, max_tokens=TOKENS, temperature=0))
    logits = reference_logits([*ids, *got])[len(ids) - 1 :]
    for index, token in enumerate(got):
        row = logits[index]
        assert row[token] >= row.max() - TIE, f"token {index}: got {token}, expected {int(row.argmax())}"
    assert len(got) == TOKENS or int(logits[len(got)].argmax()) in model().tokenizer.eos


@pytest.mark.parametrize("prompt", PROMPTS[::5])
def test_logits_are_those_of_transformers(prompt):
    ids = reference_tokenizer()(prompt).input_ids
    np.testing.assert_allclose(model().logits(ids), reference_logits(ids), atol=1e-3, rtol=0)


@pytest.mark.parametrize("prompt", demo_language.PROMPTS)
def test_the_functions_of_the_demo_are_functions(prompt):
    completion = model().complete(prompt, seed=1, **demo_language.SAMPLING)
    assert completion.finish_reason == "stop"
    compile(prompt + completion.text, "answer", "exec")


def test_a_function_ends():
    """Two blank lines became the end token in training: where a function ends, so does the answer."""
    completion = model().complete(FUNCTION, temperature=0)
    assert completion.finish_reason == "stop" and model().tokenizer.eos.isdisjoint(completion.tokens)
    compile(FUNCTION + completion.text, "answer", "exec")
