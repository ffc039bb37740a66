"""Options of a trainer: schedules, clipping, gradient accumulation, gradients, sessions, other sources."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_trainer import ADAMW, MODELS, made, vectors
from torch import nn

import ingot
from ingot.errors import InputError, KindError, MissingFileError
from onnx_export import export_onnx


def by_torch(module, optimizer, batches, *, clip=None, schedule=None):
    """The losses of each step."""
    losses = []
    for i, (x, target) in enumerate(batches):
        if schedule is not None:
            optimizer.param_groups[0]["lr"] = schedule(i)
        y = module(torch.from_numpy(x))
        value = F.cross_entropy(y.flatten(0, -2), torch.from_numpy(target).flatten())
        optimizer.zero_grad()
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def test_schedules_rise_and_fall():
    linear = ingot.Linear(lr=2.0, steps=10, warmup=2, floor=0.4)
    assert [linear(0), linear(1), linear(2), linear(6), linear(10), linear(99)] == pytest.approx(
        [1, 2, 2, 1.2, 0.4, 0.4]
    )
    cosine = ingot.Cosine(lr=1.0, steps=8)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    expected = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for step in range(9):
        assert cosine(step) == pytest.approx(expected.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        expected.step()
    for wrong in ({"lr": -1.0, "steps": 5}, {"lr": 1.0, "steps": 5, "warmup": 5}, {"lr": 1.0, "steps": 0}):
        with pytest.raises(InputError, match=r"Cosine (lr|warmup|steps): out of range, got"):
            ingot.Cosine(**wrong)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_clipped_and_scheduled_steps_are_those_of_torch(accumulate, rng):
    module, batch = made("transformer")
    batches = [
        tuple(np.concatenate(parts) for parts in zip(*(batch(rng) for _ in range(4)), strict=True)) for _ in range(20)
    ]
    schedule = ingot.Linear(lr=3e-3, steps=20, warmup=4)
    optimizer = ingot.AdamW(lr=schedule, weight_decay=0.1)
    trainer = ingot.Trainer(
        module, example_inputs=batches[0], optimizer=optimizer, clip=0.5, accumulate=accumulate, threads=1
    )
    assert trainer.rate == schedule(0)
    losses = [trainer.step(*each) for each in batches]
    assert trainer.steps == 20 and trainer.rate == 0
    expected = torch.optim.AdamW(module.parameters(), weight_decay=0.1)
    np.testing.assert_allclose(
        losses, by_torch(module, expected, batches, clip=0.5, schedule=schedule), rtol=0, atol=1e-4
    )


def test_a_schedule_may_be_any_function_of_the_step(rng):
    module, batch = made("mlp")
    batches = [batch(rng) for _ in range(3)]
    rates = [0.1, 0.02, 0.3]
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ingot.SGD(lr=lambda step: rates[step]))
    losses = [trainer.step(*each) for each in batches]
    expected = torch.optim.SGD(module.parameters(), lr=0.0)
    np.testing.assert_allclose(
        losses, by_torch(module, expected, batches, schedule=lambda step: rates[step]), rtol=1e-5
    )


class Parted(nn.Module):
    """A model that ends gradients in every way that torch has."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 6, padding_idx=2)
        self.frozen, self.seen, self.head = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, ids):
        x = self.tokens(ids)
        with torch.no_grad():
            shift = self.frozen(x).tanh_()
        y = self.seen(x + shift)
        return self.head(y.detach() * y)


def test_gradients_end_where_torch_ends_them(rng):
    torch.manual_seed(0)
    module = Parted()
    batches = [(rng.integers(0, 9, (4, 5)), rng.integers(0, 6, (4, 5))) for _ in range(20)]
    program = torch.export.export(module, (torch.from_numpy(batches[0][0]),))
    trainers = [
        ingot.Trainer(source, example_inputs=batches[0], optimizer=ADAMW, threads=1) for source in (module, program)
    ]
    losses = [[trainer.step(*each) for each in batches] for trainer in trainers]
    optimizer = torch.optim.AdamW(module.parameters(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    expected = by_torch(module, optimizer, batches)
    for found, trainer in zip(losses, trainers, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        for name, value in trainer.state_dict().items():
            np.testing.assert_allclose(value, module.state_dict()[name].numpy(), rtol=0, atol=1e-4)
        assert not any(node.op.name in ("detach", "where") for node in trainer.session().graph.nodes)


def test_gradients_can_be_had_and_applied(rng):
    module, batch = made("mlp")
    x, target = batch(rng)
    stepped, applied = (
        ingot.Trainer(module, example_inputs=(x, target), optimizer=ADAMW, clip=1.0, threads=1) for _ in range(2)
    )
    before = applied.state_dict()
    for _ in range(3):
        expected = stepped.step(x, target)
        assert applied.evaluate(x, target) == pytest.approx(expected, rel=1e-6)
        loss, gradients = applied.gradients(x, target)
        applied.apply(gradients)
        assert loss == expected
    for name, value in stepped.state_dict().items():
        np.testing.assert_array_equal(applied.state_dict()[name], value)
        assert not np.array_equal(before[name], value)
    with pytest.raises(InputError, match=r"gradients: do not fit, got 0\.weight \[33, 10\], expected 0\.weight"):
        applied.apply({"0.weight": gradients["0.weight"]})
    for bad in ("text", np.array(["text"]), None, {}, [[1.0], []]):
        with pytest.raises(InputError, match=r"0\.weight"):
            applied.apply(gradients | {"0.weight": bad})
    with pytest.raises(KindError, match=r"gradients: not a mapping, got list, expected 0\.weight"):
        applied.apply(list(gradients.values()))
    for rate in (np.nan, np.inf, -1.0, "fast", None, 10**400):
        with pytest.raises(InputError, match=r"rate: "):
            applied.rate = rate
    assert applied.rate == ADAMW.lr
    applied.apply({name: torch.from_numpy(value) for name, value in gradients.items()})
    assert applied.steps == 4


def test_names_train_what_requires_no_gradients(rng):
    module, batch = made("mlp")
    batches = [batch(rng) for _ in range(3)]
    program = torch.export.export(module.requires_grad_(False), (torch.from_numpy(batches[0][0]),))
    options = {"example_inputs": batches[0], "optimizer": ADAMW, "trainable": ["3.*"], "threads": 1}
    trainers = [ingot.Trainer(source, **options) for source in (module, program)]
    losses = [[trainer.step(*each) for each in batches] for trainer in trainers]
    assert [trainer.parameters for trainer in trainers] == 2 * [["3.weight", "3.bias"]]
    parameters = list(module[3].requires_grad_(True).parameters())
    expected = by_torch(module, torch.optim.AdamW(parameters, lr=ADAMW.lr, weight_decay=ADAMW.weight_decay), batches)
    np.testing.assert_allclose(losses, 2 * [expected], rtol=0, atol=1e-5)


def test_a_session_runs_on_the_parameters_without_a_copy(rng):
    module, batch = made("transformer")
    x, target = batch(rng)
    trainer = ingot.Trainer(module, example_inputs=(x, target), optimizer=ADAMW, threads=1)
    session = trainer.session()
    for _ in range(3):
        (logits,) = session.run(None, {"ids": x})
        loss = F.cross_entropy(torch.from_numpy(logits).flatten(0, 1), torch.from_numpy(target).flatten())
        assert trainer.step(x, target) == pytest.approx(loss.item(), rel=1e-5)
    trainer.gradients(x, target)  # states move where there are more of them
    assert trainer.evaluate(x, target) == pytest.approx(trainer.step(x, target), rel=1e-6)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in trainer.state_dict().items()}, strict=False)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"ids": x})[0], expected, rtol=0, atol=1e-5)


def test_what_a_session_saves_is_what_was_trained(rng, tmp_path):
    module, batch = made("transformer")
    x, target = batch(rng)
    trainer = ingot.Trainer(module, example_inputs=(x, target), optimizer=ADAMW, threads=1)
    session = trainer.session()
    for _ in range(3):
        trainer.step(x, target)
    (expected,) = session.run(None, {"ids": x})
    session.save(tmp_path / "saved")
    ingot.export_onnx(trainer.snapshot(), tmp_path / "trained.onnx")
    trainer.step(x, target)  # what was saved stays as it was
    for source in ("saved", "trained.onnx"):
        (found,) = ingot.InferenceSession(tmp_path / source, threads=1).run(None, {"ids": x})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


class Centred(nn.Module):
    """Takes away a mean that each call moves."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 3)
        self.register_buffer("mean", torch.full((10,), 0.5))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
        return self.linear(x - self.mean)


def test_buffers_that_a_model_writes_move_with_steps_alone(rng):
    torch.manual_seed(0)
    module, batches = Centred(), [(rng.standard_normal((8, 10), np.float32), rng.integers(0, 3, 8)) for _ in range(6)]
    options = {"example_inputs": batches[0], "optimizer": ADAMW, "threads": 1}
    trainer, parts = ingot.Trainer(module, **options), ingot.Trainer(module, **options, accumulate=2)
    losses = []
    for each in batches:
        assert trainer.evaluate(*each) == trainer.evaluate(*each)
        losses.append(trainer.step(*each))
    optimizer = torch.optim.AdamW(module.parameters(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    np.testing.assert_allclose(losses, by_torch(module, optimizer, batches), rtol=0, atol=1e-5)
    found, expected = trainer.state_dict(), module.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name].numpy(), rtol=0, atol=1e-5)
    x, target = batches[0]
    before, bad = parts.state_dict()["mean"], x.copy()
    bad[6] = np.nan
    with pytest.raises(InputError, match="nan"):
        parts.step(bad, target)
    np.testing.assert_array_equal(parts.state_dict()["mean"], before)
    assert np.isfinite(parts.step(x, target))


def test_onnx_trains_as_the_module_it_is_of(rng):
    module, batch = made("cnn")
    batches = [batch(rng) for _ in range(5)]
    program = export_onnx(module, (torch.from_numpy(batches[0][0]),), optimize=False)  # batch norm stays
    trainers = [
        ingot.Trainer(source, example_inputs=batches[0], optimizer=ADAMW, threads=1)
        for source in (module, program.model_proto.SerializeToString())
    ]
    losses = [[trainer.step(*each) for each in batches] for trainer in trainers]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)


class Tied(nn.Module):
    """A table that is its own head, and layers that are one."""

    def __init__(self):
        super().__init__()
        self.table, self.head, layer = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False), nn.Linear(6, 6)
        self.head.weight = self.table.weight
        self.layers = nn.Sequential(layer, nn.Tanh(), layer)

    def forward(self, ids):
        return self.head(self.layers(self.table(ids)))


def test_parameters_of_several_names_go_by_the_first_as_in_torch(rng):
    module, ids = Tied().eval(), rng.integers(0, 7, (2, 5))
    names = [name for name, _ in module.named_parameters()]
    for source in (module, torch.export.export(module, (torch.from_numpy(ids),))):
        trainer = ingot.Trainer(source, example_inputs=(ids, ids), optimizer=ADAMW, threads=1)
        assert sorted(trainer.parameters) == sorted(names)
        _, gradients = trainer.gradients(ids, ids)
        module.zero_grad()
        F.cross_entropy(module(torch.from_numpy(ids)).flatten(0, -2), torch.from_numpy(ids).flatten()).backward()
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-5, atol=1e-6)
    options = {"example_inputs": (ids, ids), "optimizer": ADAMW, "threads": 1}
    assert ingot.Trainer(module, trainable=["table.*"], **options).parameters == ["table.weight"]


def test_adapters_are_trained_as_in_torch(rng):
    module, batch = made("transformer")
    batches = [batch(rng) for _ in range(20)]
    wanted = ingot.lora(r=4, alpha=6, targets=["*.qkv.weight", "*.up.weight"], seed=3)
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, trainable=wanted, threads=1)
    begun = trainer.state_dict()
    assert len(begun) == 8 and all(not value.any() for name, value in begun.items() if "lora_B" in name)
    losses = [trainer.step(*each) for each in batches]
    factors = {name: nn.Parameter(torch.from_numpy(value)) for name, value in begun.items()}
    for name, part in module.named_modules():
        if f"{name}.lora_A.weight" in factors:
            a, b = factors[f"{name}.lora_A.weight"], factors[f"{name}.lora_B.weight"]
            part.register_forward_hook(lambda _, x, y, a=a, b=b: y + 6 / 4 * (x[0] @ a.T @ b.T))
    expected = torch.optim.AdamW(factors.values(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
    np.testing.assert_allclose(losses, by_torch(module, expected, batches), rtol=0, atol=1e-4)
    for name, value in trainer.state_dict().items():
        np.testing.assert_allclose(value, factors[name].detach().numpy(), rtol=0, atol=2e-3)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_bad_options_are_typed_errors(rng, tmp_path):
    module = MODELS["mlp"][0]()
    settings = {"example_inputs": vectors(rng), "optimizer": ADAMW}
    for options, message in (
        ({"clip": 0.0}, r"option clip: out of range, got 0\.0"),
        ({"accumulate": 3}, r"option accumulate: does not divide the batch, got 3, expected a divisor of \[16, 16\]"),
        ({"accumulate": 0}, r"option accumulate: does not divide"),
        ({"trainable": ingot.lora(targets=["9.*"])}, r"lora targets: no such matrix, got '9\.\*', expected some of"),
    ):
        with pytest.raises(InputError, match=message):
            ingot.Trainer(module, **options, **settings)
    for options, message in (({"r": 0}, r"lora r: out of range"), ({"alpha": 0.0}, r"lora alpha: out of range")):
        with pytest.raises(InputError, match=message):
            ingot.lora(**options)
    (tmp_path / "saved.pt2").touch()
    for source, error, message in (
        (5, KindError, r"source: cannot be trained, got int, expected a module"),
        (
            torch.jit.script(module),
            KindError,
            r"cannot be exported, got a script of torch\.jit, expected the module",
        ),
        (tmp_path / "none.onnx", MissingFileError, r"none\.onnx: no such file"),
        (
            tmp_path / "saved.pt2",
            KindError,
            r"saved\.pt2: cannot be trained, .* expected it loaded by torch\.export\.load",
        ),
    ):
        with pytest.raises(error, match=message):
            ingot.Trainer(source, **settings)
    with pytest.raises(MissingFileError, match=r"none: no such file"):
        ingot.Trainer(module, **settings).load(tmp_path / "none")


def test_a_loss_that_is_no_number_is_an_error(rng, tmp_path):
    module, batch = made("mlp")
    x, target = batch(rng)
    trainer = ingot.Trainer(module, example_inputs=(x, target), optimizer=ADAMW, threads=1)
    trainer.save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"step 1: the loss is nan"):
        trainer.step(np.full_like(x, np.nan), target)
    with pytest.raises(InputError, match=r"a step is incomplete"):
        trainer.step(x, target)
    trainer.load(tmp_path / "checkpoint")
    assert np.isfinite(trainer.step(x, target))


class Rows(nn.Module):
    """Tokens that are looked at alone: every gradient is a sum over them."""

    def __init__(self):
        super().__init__()
        self.tokens, self.up, self.norm, self.down = (
            nn.Embedding(11, 9),
            nn.Linear(9, 20),
            nn.LayerNorm(20),
            nn.Linear(20, 3),
        )

    def forward(self, ids):
        return self.down(self.norm(self.up(self.tokens(ids)).relu()))


def test_parts_of_256_rows_have_the_bits_of_the_whole(rng):
    torch.manual_seed(0)
    module = Rows()
    batches = [(rng.integers(0, 11, (3, 256)), rng.integers(0, 3, (3, 256))) for _ in range(3)]
    states = []
    for accumulate in (1, 3):
        trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=ADAMW, accumulate=accumulate, threads=1)
        losses = [trainer.step(*each) for each in batches]
        states.append(trainer.state_dict())
    assert losses[2] < losses[0]
    for name, value in states[0].items():
        assert value.tobytes() == states[1][name].tobytes(), name
