"""Options of wrong types and out of range: each is a typed error that names the option and what it may be."""

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.errors import InputError, KindError
from ingot.training.finetune import FineTuning
from ingot.training.memory import training_memory_of

X, Y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
TEXT = "def add(a, b):\n    return a + b\n" * 20


def trainer(**options):
    return ingot.Trainer(nn.Linear(3, 2), **{"example_inputs": (X, Y), "optimizer": ingot.SGD(lr=0.1)} | options)


def tuning(**options):
    return FineTuning(FOLDER, **{"text": TEXT, "steps": 1, "context": 8, "batch": 2, "threads": 1} | options)


def training_bytes(**options):
    return training_memory_of(FOLDER, **{"adapters": None, "context": 8, "batch": 2} | options)


class Named:
    """Something that has parameters and is no module."""

    def named_parameters(self):
        return [("weight", 1.0)]


class Shifted(nn.Linear):
    """A layer with an input that has to be named."""

    def forward(self, x, *, shift):
        return super().forward(x + shift)


NUMBER, WHOLE = "not a number, got", "not a whole number, got"
# What takes the option, its name, a wrong value, and a piece of the error.
KINDS = [
    *((ingot.AdamW, name, value, f"AdamW {name}: {NUMBER} ")
      for name in ("lr", "eps", "weight_decay") for value in ("x", None, True, [1.0], 1j)),
    (ingot.AdamW, "lr", lambda step: "x", f"AdamW lr: {NUMBER} 'x'"),
    (ingot.AdamW, "betas", 0.9, r"AdamW betas: no pair, got 0\.9"),
    (ingot.AdamW, "betas", (0.9,), r"AdamW betas: no pair, got \(0\.9,\)"),
    (ingot.AdamW, "betas", (0.9, "x"), f"AdamW betas: {NUMBER} 'x'"),
    (ingot.SGD, "lr", "x", f"SGD lr: {NUMBER} 'x'"),
    (lambda **options: ingot.SGD(lr=1, **options), "momentum", "x", f"SGD momentum: {NUMBER} 'x'"),
    (lambda **options: ingot.Linear(steps=5, **options), "lr", "x", f"Linear lr: {NUMBER} 'x'"),
    (lambda **options: ingot.Linear(lr=1, **options), "steps", 5.0, rf"Linear steps: {WHOLE} 5\.0"),
    (lambda **options: ingot.Cosine(lr=1, steps=5, **options), "warmup", "x", f"Cosine warmup: {WHOLE} 'x'"),
    (ingot.CrossEntropy, "label_smoothing", "x", f"label_smoothing: {NUMBER} 'x'"),
    (ingot.CrossEntropy, "ignore_index", 1.5, rf"ignore_index: {WHOLE} 1\.5"),
    *((ingot.lora, "r", value, f"lora r: {WHOLE} ") for value in ("x", 2.0, None, True)),
    (ingot.lora, "alpha", "x", f"lora alpha: {NUMBER} 'x'"),
    (ingot.lora, "seed", "x", f"lora seed: {WHOLE} 'x'"),
    *((ingot.lora, "targets", value, "lora targets: not a list of patterns, got ") for value in ("q", 5, [5])),
    *((trainer, name, value, f"option {name}: {WHOLE} ")
      for name in ("seed", "threads", "accumulate") for value in ("x", 1.0, None)),
    (trainer, "clip", "x", f"option clip: {NUMBER} 'x'"),
    (trainer, "trainable", "weight", "trainable: not a list of patterns, got 'weight'"),
    (trainer, "trainable", 5, "trainable: not a list of patterns, got 5"),
    (trainer, "loss", ["mse"], r"loss: unknown, got \['mse'\]"),
    (trainer, "loss", 5, "loss: unknown, got 5"),
    *((trainer, "optimizer", value, r"optimizer: got a \w+, expected an ingot\.AdamW or ingot\.SGD")
      for value in ("adamw", ingot.AdamW, None, torch.optim.Adam([nn.Parameter(torch.zeros(1))]))),
    *((trainer, "example_inputs", value, "example_inputs: not a list, got ") for value in (X, None, 5, "xy")),
    (lambda source: ingot.Trainer(source, example_inputs=(X, Y), optimizer=ingot.SGD(lr=0.1)), "source", nn.Linear,
     "source: cannot be trained, got type, expected a module"),
    (lambda source: ingot.Trainer(source, example_inputs=(X, Y), optimizer=ingot.SGD(lr=0.1)), "source", Named(),
     "source: cannot be trained, got Named, expected a module"),
    (tuning, "text", b"def", "text: got bytes, expected a text"),
    (tuning, "adapters", 8, r"option adapters: got int, expected ingot\.lora\(\.\.\.\) or None"),
    *((tuning, name, "x", f"option {name}: {WHOLE} 'x'") for name in ("steps", "context", "batch", "seed")),
    (tuning, "rate", "x", f"Cosine lr: {NUMBER} 'x'"),
    *((training_bytes, name, "x", f"option {name}: {WHOLE} 'x'") for name in ("context", "batch", "accumulate")),
]  # fmt: skip
RANGES = [
    (ingot.AdamW, "lr", 10**400, "AdamW lr: out of range, got 1000"),
    (ingot.AdamW, "lr", lambda step: -1.0, r"AdamW lr: out of range, got -1\.0"),
    (ingot.CrossEntropy, "label_smoothing", float("nan"), "label_smoothing: out of range, got nan"),
    (ingot.lora, "seed", -1, "lora seed: out of range, got -1, expected 0 or more"),
    (ingot.lora, "alpha", float("inf"), "lora alpha: out of range, got inf, expected more than 0"),
    (trainer, "seed", 2**63, "option seed: out of range, got 9223372036854775808"),
    (trainer, "threads", 257, r"option threads: out of range, got 257, expected 0\.\.256"),
    *((trainer, "clip", value, "option clip: out of range, got ") for value in (-1, float("nan"), float("inf"))),
    (trainer, "memory", -5, "option memory: got -5, expected bytes"),
    (trainer, "prediction", "nowhere", "option prediction: no such value, got 'nowhere'"),
    (trainer, "example_inputs", (X,), "example_inputs: got 1, expected the model's inputs and a target"),
    (
        trainer,
        "example_inputs",
        (X, X, Y),
        "module Linear: example_inputs: .*, got 2 and a target, expected 1 and a target: input$",
    ),
    (
        lambda **options: ingot.Trainer(nn.Bilinear(3, 3, 2), optimizer=ingot.SGD(lr=0.1), **options),
        "example_inputs",
        (X, Y),
        "module Bilinear: example_inputs: .*, got 1 and a target, expected 2 and a target: input1, input2$",
    ),
    (
        lambda **options: ingot.Trainer(nn.MultiheadAttention(4, 2), optimizer=ingot.SGD(lr=0.1), **options),
        "example_inputs",
        (X, Y),
        "module MultiheadAttention: .* got 1 and a target, expected 3..8 and a target: query, key, value, key_padding",
    ),
    *(
        (
            lambda **options: ingot.Trainer(Shifted(3, 2), optimizer=ingot.SGD(lr=0.1), **options),
            "example_inputs",
            inputs,
            f"module Shifted: .* got {len(inputs) - 1} and .*, expected 1 and a target: x; shift by keyword alone",
        )
        for inputs in ((X, Y), (X, X, Y))
    ),
    (
        trainer,
        "example_inputs",
        (X[:0], Y[:0]),
        r"example_inputs: an empty batch, got a target \[0\], expected at least",
    ),
    (trainer, "example_inputs", ([[1.0], [2.0, 3.0]], Y), "example_inputs: not arrays, .*expected arrays"),
    (trainer, "example_inputs", (np.array(["a"]), Y), "example_inputs: not arrays, .*expected arrays"),
    *((tuning, name, -1, f"option {name}: out of range, got -1") for name in ("steps", "context", "batch", "seed")),
    (tuning, "batch", 0, "option batch: out of range, got 0, expected 1 or more"),
    *((training_bytes, name, -1, f"option {name}: out of range, got -1") for name in ("context", "batch")),
    (training_bytes, "memory", "many", "option memory: got 'many', expected bytes with a unit"),
]


@pytest.mark.parametrize(("make", "name", "value", "message"), KINDS)
def test_a_value_of_another_kind_is_refused(make, name, value, message):
    with pytest.raises(KindError, match=message):
        make(**{name: value})


@pytest.mark.parametrize(("make", "name", "value", "message"), RANGES)
def test_a_value_out_of_range_is_refused(make, name, value, message):
    with pytest.raises(InputError, match=message):
        make(**{name: value})


@pytest.mark.parametrize(
    ("option", "value", "code", "message"),
    [
        ("--alpha", "-1", 65, "lora alpha: out of range, got -1.0"),
        ("--alpha", "x", 2, "'x' is not a valid float"),
        ("--lora", "2000", 65, "lora r: out of range, got 2000, expected 1..1024"),
        ("--lora", "-1", 2, "-1 is not in the range x>=0"),
        ("--target", "nothing.*", 65, "lora targets: no such matrix, got 'nothing.*'"),
        ("--rate", "nan", 65, "Cosine lr: out of range, got nan"),
        ("--rate", "-1", 65, "Cosine lr: out of range, got -1.0"),
        ("--clip", "0", 65, "option clip: out of range, got 0.0"),
        ("--accumulate", "3", 65, "option accumulate: does not divide the batch, got 3"),
        ("--memory", "some", 65, "option memory: got 'some', expected bytes with a unit"),
        ("--steps", "0", 2, "0 is not in the range x>=1"),
        ("--batch", "-2", 2, "-2 is not in the range x>=1"),
        ("--context", "100000", 65, "text: too short"),
        ("--every", "0", 2, "0 is not in the range x>=1"),
        ("--threads", "300", 2, "300 is not in the range 0<=x<=256"),
        ("--resume", None, 66, "checkpoint.safetensors"),
        ("--merge", ".", 73, ".: exists, expected a free name"),
        ("--output", "text", 73, "text"),
    ],
)
def test_the_command_refuses_wrong_values(option, value, code, message, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(TEXT)
    words = [option] if value is None else [option, value]
    found, _, err = call("train", FOLDER, "text", "--context", 8, "--batch", 2, "--steps", 1, "--threads", 1, *words)
    assert (found, message in err) == (code, True), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_lists_are_examples_as_they_are_inputs():
    x, y = X.tolist(), Y.tolist()
    made = trainer(example_inputs=(x, y))
    assert made.step(x, y) > made.step(X, Y)


def test_parameters_that_have_no_shape_yet_are_named():
    message = r"module LazyLinear: never called, got \['weight', 'bias'\], expected shapes for them"
    with pytest.raises(InputError, match=message):
        ingot.Trainer(nn.LazyLinear(2), example_inputs=(X, Y), optimizer=ingot.SGD(lr=0.1))
    with pytest.raises(InputError, match=message):
        ingot.InferenceSession(nn.LazyLinear(2), example_inputs=(torch.from_numpy(X),))
