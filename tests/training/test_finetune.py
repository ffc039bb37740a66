"""Language models that are fitted to a text: by the library, from the command line, resumed, merged."""

import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file

import ingot
from gguf_models import stored_as, write_gguf
from ingot.cli.demo_language import FOLDER
from ingot.errors import InputError, LimitError, LoadError, MissingFileError
from ingot.ir.dtype import bf16, f32
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf import read_folder
from ingot.quantize import Plan, quantize_folder
from ingot.run.library import load
from ingot.training.adapters import adapt, lora
from ingot.training.curve import Point, drawn, svg
from ingot.training.finetune import FineTuning
from ingot.training.memory import training_memory_of
from tiny_language_models import random_llama

torch.set_num_threads(1)  # its threads spin, and the models are small

TEXT = Path(__file__).parents[2] / "examples" / "finetune" / "pirate.txt"
GUIDE = TEXT.parents[2] / "docs" / "training.md"
SMALL = {"context": 24, "batch": 2, "threads": 1, "adapters": ingot.lora(r=2)}


def tuned(steps, **options):
    return FineTuning(FOLDER, TEXT.read_text(), steps=steps, **SMALL | options)


def quiet(progress):
    pass


def test_a_folder_trains_as_transformers_does(tmp_path, rng):
    model = random_llama(tmp_path)
    ids = rng.integers(0, 97, (12, 2, 20))
    settings = {"lr": 1e-3, "weight_decay": 0.1}
    trainer = ingot.Trainer(
        str(tmp_path), example_inputs=(ids[0][:, :-1], ids[0][:, 1:]), optimizer=ingot.AdamW(**settings), threads=1
    )
    assert set(trainer.parameters) == {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    for batch in ids:
        logits = model(torch.from_numpy(batch[:, :-1])).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch[:, 1:]).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step(batch[:, :-1], batch[:, 1:]) == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.slow
def test_the_shipped_model_is_fitted_as_transformers_does():
    """As `ingot train --lora 0`: AdamW, a warm-up and half a cosine, gradients that are clipped."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    tuning = tuned(200, adapters=None, rate=1e-3)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    losses = []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = tuning.trainer.rate
        x, target = tuning._windows.training(step)
        loss = F.cross_entropy(model(torch.from_numpy(x)).logits.flatten(0, 1), torch.from_numpy(target).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        assert tuning.trainer.step(x, target) == pytest.approx(loss.item(), abs=1e-4)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.5


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_adapters_over_frozen_weights_of_every_format_learn(format, tmp_path):
    folder = FOLDER
    if format != "bf16":
        quantize_folder(FOLDER, tmp_path / "coded", Plan(format))
        folder = tmp_path / "coded"
    tuning = FineTuning(folder, TEXT.read_text(), steps=12, **SMALL)
    before = tuning.held_out_loss()
    tuning.run(tmp_path / "out", on_progress=quiet)
    assert tuning.held_out_loss() < before - 0.2
    if format != "bf16":
        with pytest.raises(InputError, match=r"merge: not possible into quantized weights, got \['model\.layers"):
            tuning.merge(tmp_path / "merged")
    held = tuning.trainer._programs.weights.nbytes
    ids = np.zeros((2, 24), np.int64)
    assert tuning.trainer.session().run(None, {"ids": ids})[0].shape == (2, 24, 4096)
    assert tuning.trainer._programs.weights.nbytes == held, "a session packs what is frozen again"


def test_training_goes_on_bit_by_bit_and_is_merged(tmp_path):
    whole = tuned(8)
    whole.run(tmp_path / "whole", every=4, on_progress=quiet)
    half = tuned(8)
    half.steps = 4
    half.run(tmp_path / "parts", every=4, on_progress=quiet)
    resumed = tuned(8)
    resumed.resume(tmp_path / "parts")
    resumed.run(tmp_path / "parts", every=4, on_progress=quiet)
    assert [(p.step, p.loss, p.held_out) for p in resumed.curve] == [(p.step, p.loss, p.held_out) for p in whole.curve]
    expected = whole.trainer.state_dict()
    for name, value in resumed.trainer.state_dict().items():
        np.testing.assert_array_equal(value, expected[name])
    stored = load_file(tmp_path / "parts" / "adapter_model.safetensors")
    assert {name.removeprefix("base_model.model.") for name in stored} == set(expected)
    config = json.loads((tmp_path / "parts" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 4) and "model.layers.0.mlp.up_proj" in config["target_modules"]
    whole.merge(tmp_path / "merged")
    before, after = read_folder(FOLDER).tensors, read_folder(tmp_path / "merged").tensors
    assert {n: (t.dtype, t.shape) for n, t in before.items()} == {n: (t.dtype, t.shape) for n, t in after.items()}
    name = "model.layers.1.mlp.down_proj"
    change = 2 * expected[f"{name}.lora_B.weight"] @ expected[f"{name}.lora_A.weight"]
    wide = before[f"{name}.weight"].array().astype(np.float32) + change
    np.testing.assert_array_equal(after[f"{name}.weight"].array(), wide.astype(before[f"{name}.weight"].array().dtype))
    assert isinstance(ingot.LLM(tmp_path / "merged", context=64).generate("def ", max_tokens=4), str)


def test_an_interrupt_keeps_what_was_trained(call, tmp_path, monkeypatch):
    whole = tuned(8)
    whole.run(tmp_path / "whole", every=100, on_progress=quiet)

    def stop(progress):
        if progress.point.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(8).run(tmp_path / "parts", every=100, on_progress=stop)
    resumed = tuned(8)
    resumed.resume(tmp_path / "parts")
    assert resumed.trainer.steps == len(resumed.curve) == 3
    resumed.run(tmp_path / "parts", every=100, on_progress=quiet)
    assert [point.loss for point in resumed.curve] == [point.loss for point in whole.curve]

    options = (FOLDER, TEXT, "--lora", 2, "--context", 24, "--batch", 2, "--threads", 1, "--steps", 8)
    with monkeypatch.context() as patch:
        patch.setattr("ingot.cli.train._line", lambda found: stop(found) or "a step")
        code, _, err = call("train", *options, "-o", tmp_path / "out")
    assert code == 130 and f"{tmp_path / 'out'}: stopped at step 3 of 8, --resume continues" in err
    code, out, _ = call("train", *options, "-o", tmp_path / "out", "--resume")
    assert code == 0 and "step 3 of 8, held-out loss" in out


def test_all_weights_train_and_are_merged(tmp_path):
    tuning = tuned(4, adapters=None, rate=1e-3)
    before = tuning.held_out_loss()
    tuning.run(tmp_path / "out", on_progress=quiet)
    assert tuning.held_out_loss() < before
    tuning.merge(tmp_path / "merged")
    merged = ingot.LLM(tmp_path / "merged", context=64)
    assert isinstance(merged.generate("def ", max_tokens=2), str)


ROUNDED = [name for name in ("bf16", "bf16amx") if (bf16, name == "bf16amx") in load().dots(load().isa())]


@pytest.mark.parametrize(("precision", "context"), [("f32", 24), *((name, 40) for name in ("f32", *ROUNDED))])
def test_bytes_are_known_before_anything_is_read(precision, context):
    options = SMALL | {"precision": precision, "context": context}
    tuning = tuned(1, **options)
    planned = training_memory_of(FOLDER, **options)
    programs = tuning.trainer._programs
    held = programs.weights.nbytes
    tuning.held_out_loss()
    assert programs.weights.nbytes == held or precision != "f32", "what is frozen is packed again for held-out losses"
    assert planned.states == programs.state.nbytes and planned.weights == programs.weights.nbytes
    assert planned.arena == programs._arena.nbytes
    assert planned.parameters == sum(value.size for value in tuning.trainer.state_dict().values())


@pytest.mark.parametrize("accumulate", [0, 3])
def test_a_batch_that_cannot_be_cut_is_refused_wherever_it_is_planned(accumulate):
    options = {"adapters": SMALL["adapters"], "context": 24, "batch": 4, "accumulate": accumulate}
    for use in (lambda: training_memory_of(FOLDER, **options), lambda: tuned(1, **options)):
        with pytest.raises(InputError, match=rf"accumulate: does not divide the batch, got {accumulate}, .* of \[4"):
            use()


def test_a_text_that_is_too_short_and_a_checkpoint_of_another_are_errors(tmp_path):
    with pytest.raises(InputError, match=r"text: too short, got \d tokens, expected at least 50: a window of 24"):
        FineTuning(FOLDER, "def f(): pass", steps=1, **SMALL)
    tuning = tuned(1)
    tuning.run(tmp_path, on_progress=quiet)
    with pytest.raises(LoadError, match=r"cannot be resumed, got a checkpoint of another model"):
        tuned(1, adapters=ingot.lora(r=3)).resume(tmp_path)
    row = json.loads((tmp_path / "curve.json").read_text())[0]
    changes = (("step", "1"), ("step", 1.5), ("step", True), ("step", -1), ("loss", None), ("loss", "2"), ("rate", [1]))
    changes += ("held_out", {}), ("held_out", 10**50), ("loss", -1e300), ("seconds", False), ("more", 1)
    wrong = [json.dumps([row | {name: value}]) for name, value in changes]
    for content in (*wrong, "[{}]", "[[]]", "[1]", "{}", "1", json.dumps([row, row])):
        (tmp_path / "curve.json").write_text(content)
        with pytest.raises(LoadError, match=r"curve\.json: no curve of losses"):
            tuning.resume(tmp_path)
    for content in (
        "[",
        json.dumps([row | {"loss": np.inf}]),
        json.dumps([row | {"loss": np.nan}]),
        '[{"loss": 1e999}]',
    ):
        (tmp_path / "curve.json").write_text(content)
        with pytest.raises(LoadError, match=r"curve\.json: not JSON"):
            tuning.resume(tmp_path)
    (tmp_path / "curve.json").write_text("[" * 10**6)
    with pytest.raises(LimitError, match=r"curve\.json: nested too deep"):
        tuning.resume(tmp_path)


def test_the_command_trains_resumes_and_merges(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--lora", 2, "--context", 24, "--batch", 2, "--threads", 1, "--every", 3)
    code, out, err = call("train", FOLDER, TEXT, "--steps", 6, *options, "--merge", "merged")
    assert (code, err) == (0, "") and "held-out loss" in out and "step 6 of 6, loss" in out and "tok/s" in out
    assert "• training  ○ held out" in out and "ingot chat merged" in out
    assert re.search(r"held-out loss \d\.\d+ before, \d\.\d+ after", out)
    drawing = ElementTree.parse("tiny-lm-tuned/loss.svg").getroot()
    assert len(drawing.findall(".//{*}polyline")) == 2
    assert call("generate", "merged", "def add(a, b):", "--max-tokens", 3)[0] == 0
    code, _, err = call("train", FOLDER, TEXT, "--steps", 6, *options)
    assert code == 73 and "expected another --output, or --resume" in err
    code, out, _ = call("train", FOLDER, TEXT, "--steps", 8, *options, "--resume", "--json")
    assert code == 0 and [point["step"] for point in json.loads(out)["curve"]] == list(range(8))
    code, out, _ = call("memory", FOLDER, "--train", "--lora", 2, "--context", 24, "--batch", 2, "--json")
    assert code == 0 and json.loads(out)["parameters"] == 2 * 5 * 3392
    own = ("--lora", 2, "--context", 24, "--batch", 4, "--accumulate", 2, "--target", "*.up_proj.weight")
    code, out, _ = call("memory", FOLDER, "--train", "--threads", 1, *own, "--json")
    adapters = ingot.lora(r=2, targets=["*.up_proj.weight"])
    planned = training_memory_of(FOLDER, adapters=adapters, context=24, batch=4, accumulate=2, threads=1)
    assert code == 0 and json.loads(out)["total"] == planned.total
    for name in ROUNDED:
        code, out, _ = call("train", FOLDER, TEXT, "--steps", 2, *options, "--precision", name, "--json", "-o", name)
        assert code == 0 and len(json.loads(out)["curve"]) == 2
    code, _, err = call("train", FOLDER, TEXT, *options, "--precision", "int8", "-o", "int8")
    assert code == 2 and "'int8' is not one of 'f32', 'bf16', 'bf16amx'" in err
    code, _, err = call("memory", FOLDER, "--train", "--precision", "int8")
    assert code == 65 and "option precision: unknown value, got 'int8', expected one of ['f32', 'bf16'" in err
    Path("short").write_text("def f(): pass")
    code, _, err = call("train", FOLDER, "short", *options, "-o", "other")
    assert code == 65 and "text: too short" in err


def test_a_run_is_gone_on_with_as_it_began(call, tmp_path):
    options = (FOLDER, TEXT, "--lora", 2, "--context", 24, "--batch", 2, "--threads", 1, "-o", tmp_path / "out")
    options += "--steps", 3, "--resume"
    assert call("train", *options[:-1])[0] == 0
    held = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    for name, value, expected in (
        ("--rate", 0.01, "rate, got 0.01, expected 0.002"),
        ("--seed", 1, "seed, got 1, expected 0"),
        ("--batch", 4, "batch, got 4, expected 2"),
        ("--accumulate", 2, "accumulate, got 2, expected 1"),
        ("--context", 16, "context, got 16, expected 24"),
    ):
        code, out, err = call("train", *options, name, value)
        assert (code, out) == (65, "") and f"settings.json: different {expected}" in err
    code, out, err = call("train", *options, "--steps", 2)
    assert (code, out) == (65, "") and "checkpoint.safetensors: too many steps, got 3, expected at most 2" in err
    code, out, err = call("train", FOLDER, GUIDE, *options[2:])
    assert (code, out) == (65, "") and "settings.json: different text, got '" in err
    code, out, err = call("train", *options)
    assert (code, err) == (0, "") and "step 3 of 3, held-out loss" in out and "all steps are done" in out
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == held
    tuning = tuned(2)
    before = tuning.trainer.state_dict()
    with pytest.raises(InputError, match=r"too many steps, got 3, expected at most 2"):
        tuning.resume(tmp_path / "out")
    assert tuning.trainer.steps == 0
    for name, value in tuning.trainer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    same = tuned(3)
    for content, error in ((b"[]", r"settings\.json: got \[\], expected a JSON object"), (b" " * 10**5, "too large")):
        (tmp_path / "out" / "settings.json").write_bytes(content)
        with pytest.raises(LoadError, match=error):
            same.resume(tmp_path / "out")
    (tmp_path / "out" / "settings.json").unlink()
    with pytest.raises(MissingFileError, match=r"settings\.json: no such file"):
        same.resume(tmp_path / "out")


def test_a_file_of_blocks_is_trained_and_refused_to_be_merged_beforehand(call, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(FOLDER, path, stored_as("q8_0"))
    options = ("--lora", 2, "--steps", 1, "--context", 24, "--batch", 2, "--threads", 1)
    code, _, err = call("train", path, TEXT, *options, "-o", tmp_path / "out", "--merge", tmp_path / "merged")
    assert code == 65 and "merge: not possible into a GGUF file" in err and not (tmp_path / "out").exists()
    assert call("train", path, TEXT, *options, "-o", tmp_path / "out")[0] == 0


def test_curves_are_drawn_of_few_points():
    assert drawn([]) == []
    points = [Point(step, 3.0 - step, 2.5 if step == 2 else None, 1e-3, 1.0) for step in range(3)]
    drawing = ElementTree.fromstring(svg(points, "three"))
    assert len(drawing.findall(".//{*}circle")) == 1, "a line of one held-out loss shows nothing"
    assert [text.text for text in drawing.iterfind(".//{*}text[@text-anchor='middle']")] == ["1", "2", "3"]


def test_the_examples_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)


def test_the_example_shows_what_was_learnt(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["teach.py", str(tmp_path), "--steps", "3"])
    runpy.run_path(str(TEXT.with_name("teach.py")), run_name="__main__")
    assert "before:\ndef count_keys(mapping):" in capsys.readouterr().out
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize(
    ("gathers", "is_adapted"),
    [
        ([(0, [1, 0, 2])], False),
        ([(1, [0, 2])], False),
        ([(1, [2, 0, 1])], False),
        ([(1, [2, 0, 1]), (1, [1, 2, 0])], True),
    ],
)
def test_adapters_are_for_matrices_as_they_are_stored(gathers: list[tuple[int, list[int]]], is_adapted: bool) -> None:
    """Columns that are put into an order and back again are; other rows or columns of a matrix are not it."""
    graph = Graph("model")
    matrix = graph.add_weight("w", np.ones((4, 3), np.float32))
    for axis, places in gathers:
        indices = graph.add_constant(graph.fresh("places"), np.array(places, np.int32))
        matrix = graph.add("gather", [matrix, indices], axis=axis).output
    x = graph.add_input("x", TensorType(f32, (2, graph.type(matrix).dims[1])))
    y = graph.add("matmul", [x, matrix], transpose_b=True).output
    graph.set_output("y", graph.add("relu", [y]).output)
    if is_adapted:
        assert [adapter.matrix for adapter in adapt(graph, lora())] == ["w"]
    else:
        with pytest.raises(InputError, match="nothing to train"):
            adapt(graph, lora())
