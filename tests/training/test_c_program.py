"""Trainers as programs in C: XOR and the shipped digits, fitted by nothing but a compiler, with native's bits."""

import subprocess
from importlib.resources import files

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import ingot
from attacks.hostile_configs import write_llama
from ingot.cli import main
from ingot.errors import InputError

FLAGS = "CFLAGS=-O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
UNOPTIMISED = FLAGS.replace("-O1", "-O0 -Wno-sign-conversion")  # GCC has intrinsics as macros there, which convert


def shell(folder, *words):
    """Runs a program in a folder: (exit code, stdout, stderr)."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def xor(tmp_path_factory):
    """A folder in which `out/train` fits a net to XOR, and what it is fitted to."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    y = (x.sum(1, keepdims=True) == 1).astype(np.float32)
    trainer = ingot.Trainer(net, loss="bce", example_inputs=(x, y), optimizer=ingot.AdamW(lr=0.1), threads=1)
    folder = tmp_path_factory.mktemp("xor")
    trainer.emit_c(folder / "out", x, y)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    y.tofile(folder / "y.raw")
    assert trainer.steps == 0
    code, _, err = shell(folder, "make", "-C", "out", FLAGS)
    assert (code, err) == (0, "")
    return folder, trainer, (x, y)


def test_xor_is_learnt_with_natives_bits(xor, tmp_path):
    folder, trainer, batch = xor
    code, out, err = shell(folder / "out", "make", "check")
    assert (code, err) == (0, "") and "3 losses: the bits of train-test" in out
    code, out, err = shell(folder, "out/train", "input=x.npy", "target=y.raw", "--steps", 60, "--save", "half")
    assert (code, err) == (0, "") and out.splitlines()[-1].startswith("step 60: loss ")
    words = ("input=x.npy", "target=y.npy", "--steps=60", "--from=half", "--save=whole", "--threads=1")
    assert shell(folder, "out/train", *words)[0] == 0
    losses = [trainer.step(*batch) for _ in range(120)]
    trainer.save(tmp_path / "native")
    assert (folder / "whole").read_bytes() == (tmp_path / "native").read_bytes()
    assert trainer.evaluate(*batch) < 0.05 < losses[0]
    trainer.load(folder / "half")
    assert trainer.steps == 60


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("input=x.npy",), 2, "target: no file for this input"),
        (("input=x.npy", "target=x.npy"), 65, "x.npy: of another shape or type"),
        (("input=x.npy", "target=y.npy", "--from", "y.npy"), 65, "y.npy: not a checkpoint of this model"),
        (("input=x.npy", "target=y.npy", "--rate", "fast"), 2, "--rate: not a rate, got fast"),
        (("input=x.npy", "target=y.npy", "--rate=fast"), 2, "--rate: not a rate, got fast"),
        (("input=x.npy", "target=y.npy", "--steps=0"), 2, "--steps: out of range, got 0"),
        (("input=x.npy", "--step=3", "target=y.npy"), 2, "--step=3: neither an option nor"),
        (("input=x.npy", "target=y.npy", "--rate"), 2, "--rate: neither an option nor"),
        (("input=none", "target=y.npy"), 66, "none: cannot be opened"),
        (("input=x.npy", "target=nan.raw"), 65, "the loss of step 1 is nan, expected a number"),
        (("--weights", "x.npy"), 65, "x.npy: not the weights of this model"),
        (("--weights", "none"), 66, "none: cannot be opened; --weights gives its path"),
    ],
)
def test_errors_are_reported(xor, words, code, message):
    folder, _, _ = xor
    np.full(4, np.nan, np.float32).tofile(folder / "nan.raw")
    found, _, err = shell(folder, "out/train", *words)
    assert found == code and message in err


def test_what_is_printed_into_nothing_is_an_error(xor):
    code, _, err = shell(xor[0], "sh", "-c", "out/train input=x.npy target=y.npy --steps 1 >/dev/full")
    assert (code, err) == (74, "stdout: cannot be written whole\n")


def test_the_digits_model_goes_on_in_c(tmp_path, rng):
    with np.load(str(files("ingot") / "data" / "digits.npz")) as stored:
        images, labels = stored["images"][:64, None].astype(np.float32), stored["labels"][:64].astype(np.int64)
    path = str(files("ingot") / "data" / "digits.onnx")
    batch = images[:16], labels[:16]
    schedule = ingot.Linear(lr=1e-3, steps=8)
    trainer = ingot.Trainer(
        path, prediction="linear_1", example_inputs=batch, optimizer=ingot.AdamW(lr=schedule), threads=1
    )
    for at in (0, 16):
        trainer.step(images[at : at + 16], labels[at : at + 16])
    trainer.emit_c(tmp_path / "out", *batch, threads=2)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "rates.npy", np.array([schedule(i) for i in range(8)]))
    assert shell(tmp_path, "make", "-C", "out", "check", "CFLAGS=-O0")[::2] == (0, "")
    words = ("image=../images.npy", "target=../labels.npy", "rate=../rates.npy", "--steps", 3, "--save", "in_c")
    assert shell(tmp_path / "out", "./train", *words)[0] == 0
    for at in (32, 48, 0):
        trainer.step(images[at : at + 16], labels[at : at + 16])
    trainer.save(tmp_path / "native")
    assert (tmp_path / "out" / "in_c").read_bytes() == (tmp_path / "native").read_bytes()


@pytest.mark.slow
def test_the_command_writes_a_trainer(call, tmp_path):
    path = files("ingot") / "data" / "digits.onnx"
    options = ("--mode", "train", "--dim", "batch=16", "--prediction", "linear_1", "--rate", 0.001)
    code, out, err = call("emit-c", path, *options, "-o", tmp_path / "out")
    assert (code, err) == (0, "") and "train.c" in out
    code, out, err = shell(tmp_path, "make", "-C", "out", "check", FLAGS)
    assert (code, err) == (0, "") and "3 losses: the bits of train-test" in out
    with np.load(str(files("ingot") / "data" / "digits.npz")) as stored:
        np.save(tmp_path / "images.npy", stored["images"][:320, None].astype(np.float32))
        np.save(tmp_path / "labels.npy", stored["labels"][:320].astype(np.int64))
    code, out, _ = shell(tmp_path, "out/train", "image=images.npy", "target=labels.npy", "--steps", 60)
    assert code == 0 and float(out.splitlines()[-1].split()[-1]) < 1
    for wrong, message in (("--loss", "loss: unknown, got 'x'"), ("--optimizer", "optimizer: unknown, got 'x'")):
        code, _, err = call("emit-c", path, *options, wrong, "x", "-o", tmp_path / "no")
        assert code == 65 and message in err


@pytest.mark.parametrize(("dropped", "flags"), [(0.0, UNOPTIMISED), (0.2, FLAGS)], ids=["0.0", "0.2"])
def test_steps_in_parts_have_natives_bits(dropped, flags, tmp_path, rng):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(dropped), nn.Linear(9, 4))
    x, y = rng.standard_normal((24, 3), np.float32), rng.integers(0, 4, 24)
    options = {"optimizer": ingot.AdamW(lr=0.02), "clip": 1.0, "accumulate": 3, "threads": 1}
    trainer = ingot.Trainer(net, example_inputs=(x[:12], y[:12]), **options)
    trainer.emit_c(tmp_path / "out", x[:12], y[:12])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    code, out, err = shell(tmp_path, "make", "-C", "out", "check", flags)
    assert (code, err) == (0, "") and "3 losses: the bits of train-test" in out
    words = ("input=../x.npy", "target=../y.npy", "--steps", 5, "--save", "in_c")
    assert shell(tmp_path / "out", "./train", *words)[0] == 0
    for step in range(5):
        at = step % 2 * 12
        trainer.step(x[at : at + 12], y[at : at + 12])
    trainer.save(tmp_path / "native")
    assert (tmp_path / "out" / "in_c").read_bytes() == (tmp_path / "native").read_bytes()


def test_models_that_cannot_be_written_are_reported():
    x, y = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    options = {"loss": "mse", "example_inputs": (x, y), "optimizer": ingot.SGD(lr=0.1)}
    with pytest.raises(InputError, match=r"option prediction: no such value, got 'z', expected one of \["):
        ingot.Trainer(nn.Linear(2, 1), prediction="z", **options)


def test_what_is_half_trained_is_not_written(tmp_path):
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    trainer = ingot.Trainer(nn.Linear(2, 1), loss="mse", example_inputs=(x, y), optimizer=ingot.SGD(lr=0.1), threads=1)
    before = trainer.state_dict()
    with pytest.raises(InputError, match=r"step 1: the loss is nan"):
        trainer.emit_c(tmp_path / "out", x * np.float32(np.nan), y)
    assert all(np.array_equal(value, before[name]) for name, value in trainer.state_dict().items())
    with pytest.raises(InputError, match=r"step 1: the loss is nan"):
        trainer.step(x * np.float32(np.nan), y)
    for use in (lambda: trainer.emit_c(tmp_path / "out", x, y), trainer.state_dict):
        with pytest.raises(InputError, match=r"a step is incomplete"):
            use()
    assert not (tmp_path / "out").exists()


def test_a_language_model_is_trained_in_c_with_natives_bits(tmp_path):
    """Of windows of ids: the losses of steps, and the checkpoint behind them."""
    model = write_llama(tmp_path / "model", {"num_hidden_layers": 1, "max_position_embeddings": 16})
    weights = load_file(model / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.1." not in k}, model / "model.safetensors")
    command = ["emit-c", str(model), "--mode", "train", "--dim", "batch=2", "--context", "4", "--threads", "1"]
    main([*command, "--trainable", "*.q_proj.weight", "-o", str(tmp_path / "out")])
    code, _, err = shell(tmp_path, "make", "-C", "out", UNOPTIMISED)
    assert (code, err) == (0, "")
    assert shell(tmp_path / "out", "make", "check")[0] == 0
    ids = np.random.default_rng(2).integers(0, 99, (2, 5))
    batch = [np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])]
    np.save(tmp_path / "ids.npy", batch[0])
    np.save(tmp_path / "target.npy", batch[1])
    words = ("out/train", "ids=ids.npy", "target=target.npy", "--steps", 5, "--save", "trained")
    assert shell(tmp_path, *words)[0] == 0
    trainer = ingot.Trainer(
        str(model), example_inputs=batch, optimizer=ingot.AdamW(lr=1e-3), trainable=["*.q_proj.weight"], threads=1
    )
    losses = [trainer.step(*batch) for _ in range(5)]
    trainer.save(tmp_path / "native")
    assert (tmp_path / "trained").read_bytes() == (tmp_path / "native").read_bytes() and losses[-1] < losses[0]
