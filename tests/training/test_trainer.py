"""Trainers compared with torch: losses per step, bits for every ISA and number of threads, checkpoints, bad input."""

import os
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compile import compile_mode
from ingot.emit.c import refusals
from ingot.errors import InputError, KindError, LoadError, UnsupportedError
from ingot.ir.graph import Graph
from ingot.ir.text import dump, parse
from ingot.lower import Target
from ingot.run.interpret import interpret
from ingot.run.library import load

STEPS = 200
LOSSES = {
    "cross_entropy": lambda y, target: F.cross_entropy(y.flatten(0, -2), target.flatten()),
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


class Block(nn.Module):
    """A transformer's, with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        # No bias: that of keys changes no score, so that Adam would take steps by what is rounded.
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(split).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A language model whose table of tokens is also its head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(19, 16), nn.Embedding(12, 16)
        self.blocks = nn.ModuleList(Block(16, 2) for _ in range(2))

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x @ self.tokens.weight.T


def mlp():
    return nn.Sequential(nn.Linear(10, 33), nn.SiLU(), nn.LayerNorm(33), nn.Linear(33, 7))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, stride=2), nn.ReLU(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


class Classifier(nn.Module):
    """BERT with random weights, two narrow layers, and a class for each sentence."""

    def __init__(self):
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
        sizes = dict(zip(names, (2, 32, 4, 64, 61), strict=True))
        self.model = BertForSequenceClassification(BertConfig(**sizes, num_labels=3))

    def forward(self, ids):
        return self.model(input_ids=ids).logits


def vectors(rng):
    return rng.standard_normal((16, 10), np.float32), rng.integers(0, 7, 16)


def digits(rng):
    with np.load(str(files("ingot") / "data" / "digits.npz")) as stored:
        chosen = rng.integers(0, len(stored["labels"]), 64)
        images, labels = stored["images"][chosen], stored["labels"][chosen]
    return images[:, None].astype(np.float32) / 16, labels.astype(np.int64)


def text(rng):
    start = rng.integers(0, 19, (3, 1))
    tokens = (start + 5 * np.arange(13)) % 19
    return tokens[:, :-1], tokens[:, 1:]


def sentences(rng):
    ids = rng.integers(0, 61, (16, 10))
    return ids, ids[:, 0] % 3


MODELS = {"mlp": (mlp, vectors), "cnn": (cnn, digits), "transformer": (Transformer, text)}
BERT = {"bert": (Classifier, sentences)}
NO_MATTER = "key.bias"  # adds the same to all scores of a row: its gradient is what is rounded, and so its steps
ADAMW = ingot.AdamW(lr=3e-3, weight_decay=0.1)


torch.set_num_threads(1)  # its threads spin, and the models are small


def made(name, seed=0):
    """A module of fixed weights, and what gives it batches."""
    torch.manual_seed(seed)
    module, batch = (MODELS | BERT)[name]
    return module().eval(), batch


def trained_by_torch(module, optimizer, loss, batches):
    """The losses of each step."""
    losses = []
    for x, target in batches:
        value = LOSSES[loss](module(torch.from_numpy(x)), torch.from_numpy(target))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("name", MODELS | BERT)
def test_losses_are_those_of_torch(name, rng):
    module, batch = made(name)
    batches = [batch(rng) for _ in range(STEPS)]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, threads=1)
    losses = [trainer.step(*each) for each in batches]
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items()), "the module's own"
    optimizer = torch.optim.AdamW(module.parameters(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    expected = trained_by_torch(module, optimizer, "cross_entropy", batches)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    found = trainer.state_dict()
    assert list(found) == [key for key, _ in module.named_parameters()]
    for key, parameter in module.named_parameters():
        if key.endswith(NO_MATTER):
            continue
        np.testing.assert_allclose(found[key], parameter.detach().numpy(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("loss", ["mse", "bce"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_other_losses_and_sgd_are_those_of_torch(loss, momentum, rng):
    module, batch = made("mlp")
    batches = [(batch(rng)[0], rng.uniform(0, 1, (16, 7)).astype(np.float32)) for _ in range(20)]
    settings = {"lr": 0.05, "momentum": momentum, "weight_decay": 0.01}
    trainer = ingot.Trainer(module, loss=loss, example_inputs=batches[0], optimizer=ingot.SGD(**settings), threads=1)
    losses = [trainer.step(*each) for each in batches]
    expected = trained_by_torch(module, torch.optim.SGD(module.parameters(), **settings), loss, batches)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_bits_are_the_same_for_every_isa_and_thread(name, rng, monkeypatch):
    module, batch = made(name)
    batches = [batch(rng) for _ in range(3)]
    first = None
    best = load().best_isa
    for isa, threads in [*((isa, 1) for isa in load().isas()), (best, 2), (best, 3)]:
        monkeypatch.setenv("INGOT_ISA", isa)
        trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, threads=threads)
        losses = [trainer.step(*each) for each in batches]
        bits = losses, {key: value.tobytes() for key, value in trainer.state_dict().items()}
        first = first or bits
        assert bits == first, (isa, threads)
    is_shared = any(step.parts == 3 for step in trainer.compiled.native[0].steps)
    assert is_shared or name == "mlp", "whose steps are too short to be shared"


def test_a_step_is_what_the_reference_computes(rng):
    module, batch = made("transformer")
    x, target = batch(rng)
    trainer = ingot.Trainer(module, example_inputs=(x, target), optimizer=ADAMW)
    feeds = dict(zip(trainer.graph.inputs, (x, target, np.array(ADAMW.lr)), strict=True))
    expected = interpret(trainer.graph, feeds, float64=True)
    assert trainer.step(x, target) == pytest.approx(expected["loss"], rel=1e-6)
    for name, value in trainer.state_dict().items():
        np.testing.assert_allclose(value, expected[f"state:{name}"], rtol=0, atol=1e-5)


def test_a_training_graph_has_a_text_and_names_what_is_trained(rng, tmp_path, call):
    module, batch = made("mlp")
    trainer = ingot.Trainer(module, example_inputs=batch(rng), optimizer=ADAMW, trainable=["3.*"])
    assert trainer.parameters == ["3.weight", "3.bias"]
    graph = trainer.graph
    graph.validate()
    data = {name: value.data for name, value in graph.values.items() if value.data is not None} | graph.initial
    again = parse(dump(graph), data)
    assert dump(again) == dump(graph) and again.initial.keys() == set(trainer.parameters)
    ops = [node.op.name for node in graph.nodes]
    assert ops.count("adamw") == 2 and ops.count("matmul") == 3, "frozen layers are not differentiated"
    session = ingot.InferenceSession(graph, threads=1)
    session.save(tmp_path / "saved")
    x, target = batch(rng)
    feeds = dict(zip(graph.inputs, (x, target, np.array(ADAMW.lr)), strict=True))
    losses = [session.run(None, feeds)[0] for _ in range(3)]
    assert losses == [trainer.step(x, target) for _ in range(3)]
    for words, piece in ((("explain",), "adamw_f32"), (("dot",), "adamw"), (("inspect", "--stage", "plan"), "states")):
        code, out, _ = call(words[0], tmp_path / "saved", *words[1:])
        assert code == 0 and piece in out


def test_training_goes_on_from_a_checkpoint_bit_by_bit(rng, tmp_path):
    batches = [text(rng) for _ in range(8)]
    make = lambda seed: ingot.Trainer(  # noqa: E731
        made("transformer", seed)[0], example_inputs=batches[0], optimizer=ADAMW, threads=1
    )
    whole, losses = make(0), []
    for i, each in enumerate(batches):
        whole.save(tmp_path / str(i))
        losses.append(whole.step(*each))
    resumed = make(1)
    for i in range(len(batches)):
        resumed.load(tmp_path / str(i))
        assert resumed.steps == i
        assert [resumed.step(*each) for each in batches[i:]] == losses[i:]
        for name, value in whole.state_dict().items():
            np.testing.assert_array_equal(resumed.state_dict()[name], value)
    assert sorted(os.listdir(tmp_path)) == [str(i) for i in range(len(batches))]


LINE = """
import sys
import numpy as np
import ingot
import ingot.ops
from ingot.ir.text import parse

text = "graph line\\ninput x: f32[4, 3]\\nweight w: f32[3, 2]\\ny = matmul(x, w): f32[4, 2]\\noutput y = y"
graph = parse(text, {"w": np.ones((3, 2), np.float32)})
x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
trainer = ingot.Trainer(graph, loss="LOSS", example_inputs=(x, y), optimizer=ingot.SGD(lr=0.1), threads=1)
"""


@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_training_goes_on_in_another_process(loss, tmp_path):
    script, names = LINE.replace("LOSS", loss), {}
    saving = f"{script}\ntrainer.step(x, y)\ntrainer.save(sys.argv[1])"
    subprocess.run([sys.executable, "-c", saving, tmp_path / "checkpoint"], check=True)
    exec(script, names)
    names["trainer"].load(tmp_path / "checkpoint")
    assert names["trainer"].steps == 1


def test_what_is_no_checkpoint_of_a_trainer_is_refused(rng, tmp_path):
    module, batch = made("mlp")
    example = batch(rng)
    trainer = ingot.Trainer(module, example_inputs=example, optimizer=ADAMW, threads=1)
    trainer.step(*example)
    path, bad = tmp_path / "checkpoint", tmp_path / "bad"
    trainer.save(path)
    before = trainer.state_dict()
    content = path.read_bytes()
    for cut in (0, 4, 100, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:cut])
        with pytest.raises(LoadError):
            trainer.load(bad)
    for place in (0, 9, 40):
        bad.write_bytes(content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :])
        with pytest.raises((LoadError, ingot.LimitError)):
            trainer.load(bad)
    other = ingot.Trainer(module, example_inputs=example, optimizer=ingot.AdamW(betas=(0.8, 0.9)))
    other.save(bad)
    with pytest.raises(LoadError, match=r"got a checkpoint of another model, loss or optimizer"):
        trainer.load(bad)
    with pytest.raises(LoadError, match=r"cannot be resumed, got a folder, expected the file of a checkpoint"):
        trainer.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        trainer.load(tmp_path / "none")
    assert all(np.array_equal(value, before[name]) for name, value in trainer.state_dict().items())


class Stuck(nn.Module):
    """Two ops on the way to the loss without a gradient, and one off it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        seen = self.first(x)
        first = torch.zeros_like(seen, dtype=torch.int64)
        joined = (seen.scatter_reduce(2, first, seen, how).sum() for how in ("amax", "prod"))
        return sum(joined) + seen.argmax(-1, keepdim=True)


def test_bad_input_is_a_typed_error_and_trains_nothing(rng):
    module, batch = made("mlp")
    x, labels = batch(rng)
    settings = {"example_inputs": (x, labels), "optimizer": ADAMW}
    trainer = ingot.Trainer(module, **settings)
    before = trainer.state_dict()
    for label in (-1, 7, 2**40):
        with pytest.raises(InputError, match=rf"input 'target': index out of range, got {label}, expected 0\.\.6"):
            trainer.step(x, np.where(labels == labels[3], label, labels))
    for inputs, message in (
        ((x,), r"inputs: got 1, expected 2: input, target"),
        ((x[:4], labels[:4]), r"input 'input': wrong dim 0, got 4, expected 16"),
        ((x, labels.astype(np.float32)), r"input 'target': wrong dtype, got float32"),
    ):
        with pytest.raises(InputError, match=message):
            trainer.step(*inputs)
    assert all(np.array_equal(value, before[name]) for name, value in trainer.state_dict().items())
    with pytest.raises(InputError, match=r"nothing to train, got '9\.\*', expected some of \['0\.weight'"):
        ingot.Trainer(module, trainable=["9.*"], **settings)
    with pytest.raises(InputError, match=r"nothing to train"):
        ingot.Trainer(nn.ReLU(), example_inputs=(x, labels), optimizer=ADAMW)
    with pytest.raises(InputError, match=r"nothing to train, got no float weight that is not frozen"):
        ingot.Trainer(mlp().requires_grad_(False), **settings)
    with pytest.raises(KindError, match=r"loss: unknown, got 'hinge', expected one of cross_entropy, mse, bce"):
        ingot.Trainer(module, loss="hinge", **settings)
    with pytest.raises(InputError, match=r"AdamW betas: out of range, got 1\.0"):
        ingot.AdamW(betas=(0.9, 1.0))
    steps = rng.standard_normal((3, 2, 4), np.float32)
    with pytest.raises(
        UnsupportedError,
        match=r"got scatter_elements '.*', updates combined by 'max'; scatter_elements '.*', .* by 'mul'$",
    ):
        ingot.Trainer(Stuck(), loss="mse", example_inputs=(steps, steps), optimizer=ADAMW)


class Root(nn.Module):
    """The root of what two layers make."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).sqrt())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_that_is_no_number_is_blamed_on_the_first_node(accumulate, monkeypatch):
    torch.manual_seed(0)
    module = Root()
    nn.init.constant_(module.first.weight, 1.0)
    x, y = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    options = {"loss": "mse", "example_inputs": (x, y), "optimizer": ingot.SGD(lr=0.0), "accumulate": accumulate}
    trainer = ingot.Trainer(module, **options)
    assert trainer.step(x, y) > 0
    monkeypatch.setenv("INGOT_CHECK", "0")
    with pytest.raises(InputError, match=r"step 2: the loss is nan, INGOT_CHECK=1 finds the node that computed it"):
        trainer.step(-4 * x, y)
    monkeypatch.setenv("INGOT_CHECK", "1")
    for bad, message in ((-4, r"computed by sqrt 'sqrt'"), (np.nan, r"input 'x' contains such a number")):
        trainer = ingot.Trainer(module, **options)
        with pytest.raises(InputError, match=rf"step 1: the loss is nan, {message}, expected a number"):
            trainer.step(np.float32(bad) * x, y)


def test_a_checkpoint_over_other_frozen_weights_is_refused(tmp_path, rng):
    module, batch = made("mlp")
    options = {"example_inputs": batch(rng), "optimizer": ADAMW, "trainable": ["3.*"], "threads": 1}
    trainer = ingot.Trainer(module, **options)
    trainer.save(tmp_path / "checkpoint")
    with torch.no_grad():
        module[3].weight += 1  # which is trained: what it begins with does not matter
    ingot.Trainer(module, **options).load(tmp_path / "checkpoint")
    with torch.no_grad():
        module[0].weight[0, 0] += 1
    with pytest.raises(LoadError, match=r"a checkpoint of another model, loss or optimizer"):
        ingot.Trainer(module, **options).load(tmp_path / "checkpoint")
    content = (tmp_path / "checkpoint").read_bytes()
    for length in (0, 7, 100, len(content) - 1):
        (tmp_path / "short").write_bytes(content[:length])
        with pytest.raises(LoadError):
            trainer.load(tmp_path / "short")


class Reader(nn.Module):
    """Reads a table at indices that it is fed, or that it computes of them."""

    def __init__(self, offset):
        super().__init__()
        self.table, self.offset = nn.Embedding(10, 4), offset

    def forward(self, ids):
        return self.table(ids + self.offset if self.offset else ids)


def test_an_index_outside_a_table_never_leaves_a_half_trained_model_unnoticed(tmp_path):
    ids, target = np.array([[1, 2, 9]]), np.array([[0, 1, 3]])
    for offset, bad, message in (
        (0, np.array([[1, 2, 10]]), r"input 'ids': index out of range, got 10, expected 0\.\.9"),
        (1, ids, r"index out of range, got 10, expected 0\.\.9"),
    ):
        trainer = ingot.Trainer(Reader(offset), example_inputs=(ids - offset, target), optimizer=ADAMW, threads=1)
        trainer.step(ids - offset, target)
        trainer.save(tmp_path / "checkpoint")
        before = trainer.state_dict()["table.weight"]
        with pytest.raises(InputError, match=message):
            trainer.step(bad, target)
        if offset:
            for use in (
                trainer.state_dict,
                lambda t=trainer: t.save(tmp_path / "no"),
                lambda t=trainer: t.step(ids, target),
            ):
                with pytest.raises(InputError, match=r"a step is incomplete, .* expected a checkpoint to load"):
                    use()
            trainer.load(tmp_path / "checkpoint")
        np.testing.assert_array_equal(trainer.state_dict()["table.weight"], before)


COUNTER = """graph counter
input x: f32[2]
state total: f32[2] = given -> next
next = add(total, x): f32[2]
output y = next
"""


def counter() -> Graph:
    return parse(COUNTER, {"total": np.array([3, 4], np.float32)})


def test_states_begin_with_their_data_wherever_they_run(tmp_path):
    x = np.array([1, 2], np.float32)
    assert interpret(counter(), {"x": x})["y"].tolist() == [4, 6]
    session = ingot.InferenceSession(counter())
    session.save(tmp_path / "saved")
    for each in (session, ingot.InferenceSession(str(tmp_path / "saved"))):
        assert [each.run(None, {"x": x})[0].tolist() for _ in range(2)] == [[4, 6], [5, 8]]
    assert refusals(compile_mode(counter(), Target())) == []
    without = "emit: states have no data, got total, expected initial values"
    assert refusals(compile_mode(parse(COUNTER), Target())) == [without]
    with pytest.raises(LoadError, match=r"state 'total': has no data"):
        interpret(parse(COUNTER), {"x": x})
    with pytest.raises(LoadError, match=r"state 'total': has no data"):
        ingot.InferenceSession(parse(COUNTER)).run(None, {"x": x})
    with pytest.raises(LoadError, match=r"its data are float32\[3\]|its data are float32\(3,\)"):
        parse(COUNTER, {"total": np.zeros(3, np.float32)})


def test_a_model_trains_alike_whatever_it_is_loaded_from(rng):
    module, batch = made("mlp")
    batches = [batch(rng) for _ in range(3)]
    program = torch.export.export(module, (torch.from_numpy(batches[0][0]),))
    graph = ingot.InferenceSession(program).graph
    losses = []
    for source in (module, program, graph, ingot.export_onnx(graph).SerializeToString()):
        trainer = ingot.Trainer(source, example_inputs=batches[0], optimizer=ADAMW, threads=1)
        losses.append([trainer.step(*each) for each in batches])
    for each in losses[1:]:
        np.testing.assert_allclose(each, losses[0], rtol=1e-6)
