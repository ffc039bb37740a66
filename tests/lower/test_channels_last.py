"""Images and signals in lowered programs: channels last from first to last, and no copies between."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.load.aten import load_module
from ingot.run.interpret import interpret
from ingot.run.library import load
from onnx_export import export_onnx


def conv(inputs: int, outputs: int, kernel: int = 3, **options) -> nn.Module:
    """A convolution without bias, and its batch norm."""
    options = {"padding": kernel // 2, "bias": False} | options
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, **options), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """ResNet's block: the activation after the sum; the shortcut is a strided 1 x 1 convolution."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 24), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.shortcut, self.body = (
            conv(24, 40, 1, stride=2),
            nn.Sequential(conv(24, 40, stride=2), nn.ReLU(), conv(40, 40)),
        )
        self.last = conv(40, 40, 1)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.body(x) + self.shortcut(x))
        return torch.relu(self.last(x) + x).mean((2, 3))


class Inverted(nn.Module):
    """MobileNet's block with padding of its own, and a squeeze-and-excitation."""

    def __init__(self):
        super().__init__()
        self.stem, self.expand = conv(3, 16, stride=2), conv(16, 48, 1)
        self.depthwise, self.reduce = conv(48, 48, stride=2, groups=48, padding=0), conv(48, 16, 1)
        self.squeeze, self.excite = nn.Conv2d(48, 12, 1), nn.Conv2d(12, 48, 1)
        self.again = nn.Sequential(
            conv(16, 48, 1), nn.Hardswish(), conv(48, 48, 5, groups=48), nn.ReLU6(), conv(48, 16, 1)
        )
        self.head = nn.Linear(16, 7)

    def forward(self, x):
        x = F.relu6(self.stem(F.pad(x, (0, 1, 0, 1))))
        x = F.relu6(self.depthwise(F.pad(F.relu6(self.expand(x)), (0, 1, 0, 1))))
        x = x * F.hardsigmoid(self.excite(torch.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        x = self.reduce(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.again(x) + x, 1), 1))


class Branches(nn.Module):
    """Branches joined by channels, as in Inception and DenseNet, split by channels, and shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16), nn.ReLU())
        self.narrow, self.wide = nn.Sequential(conv(16, 20, 1), nn.ReLU()), nn.Sequential(conv(16, 33, 5), nn.SiLU())
        self.pooled = conv(16, 11, 1)
        self.dense, self.grouped = conv(64, 32), conv(32, 32, dilation=2, padding=2, groups=2)

    def forward(self, x):
        x = self.stem(x)
        pooled = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        x = torch.cat([self.narrow(x), self.wide(x), self.pooled(pooled)], 1)
        grown = torch.cat([x, F.leaky_relu(self.dense(x), 0.2)], 1)
        left, right = grown.chunk(2, 1)
        return self.grouped(left[:, :32] + right[:, 16:]).amax((2, 3))


class Upsampled(nn.Module):
    """A decoder: upsampling with a skip connection; the result is an image of one channel."""

    def __init__(self, mode="nearest"):
        super().__init__()
        self.mode = mode
        self.down, self.deep = nn.Sequential(conv(3, 20), nn.ReLU()), nn.Sequential(conv(20, 36, stride=2), nn.ReLU())
        self.up = nn.Sequential(conv(56, 24), nn.ReLU(), nn.Conv2d(24, 1, 1))

    def forward(self, x):
        x = self.down(x)
        deep = F.interpolate(self.deep(x), scale_factor=2, mode=self.mode)
        return self.up(torch.cat([x, deep], 1))


class Patches(nn.Module):
    """Patches as the rows of a transformer, behind a class token."""

    def __init__(self):
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, 32, 4, stride=4), nn.Parameter(torch.randn(1, 1, 32))
        self.positions, self.norm, self.head = nn.Parameter(torch.randn(1, 17, 32)), nn.LayerNorm(32), nn.Linear(32, 40)

    def forward(self, x):
        rows = self.embed(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1) + self.positions
        return self.head(self.norm(rows))


class Signal(nn.Module):
    """Along one dim: strided, depthwise and pointwise convolutions, a residual sum and pools."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv1d(3, 16, 5, stride=2, padding=2), nn.Conv1d(16, 16, 3, padding=2, dilation=2)
        self.depthwise, self.head = nn.Conv1d(16, 16, 7, padding=3, groups=16), nn.Conv1d(16, 24, 1)

    def forward(self, x):
        x = F.max_pool1d(F.gelu(self.stem(x)), 2)
        x = torch.relu(self.deep(x) + x)
        return F.avg_pool1d(torch.tanh(self.head(self.depthwise(x))), 3, 2, 1).mean(2)


class Normalised(nn.Module):
    """A norm of each channel along one dim, between convolutions, as a recogniser of speech begins."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv1d(3, 40, 5, stride=2), nn.GroupNorm(40, 40)
        self.norm.weight.data, self.norm.bias.data = torch.randn(40), torch.randn(40)
        self.head = nn.Conv1d(40, 24, 3)

    def forward(self, x):
        return torch.relu(self.head(F.gelu(self.norm(self.stem(x))))).mean(2)


class Shuffled(nn.Module):
    """The pixels of a larger image, made as channels of a smaller one."""

    def __init__(self):
        super().__init__()
        self.grow, self.last = nn.Sequential(conv(3, 20), nn.ReLU(), conv(20, 96)), nn.Conv2d(24, 6, 1)

    def forward(self, x):
        return self.last(F.pixel_shuffle(self.grow(x), 2)).mean((2, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {  # image size, copies that must be
    "residual": (Residual, (33, 18), 0),
    "inverted": (Inverted, (19, 24), 0),
    "branches": (Branches, (9, 14), 2),
    "upsampled": (Upsampled, (12, 10), 2),
    "interpolated": (functools.partial(Upsampled, "bilinear"), (12, 10), 2),
    "patches": (Patches, (16, 16), 1),
    "signal": (Signal, (41,), 0),
    "normalised": (Normalised, (77,), 0),
    "shuffled": (Shuffled, (9, 8), 1),
}


def randomise(module: nn.Module) -> nn.Module:
    """Statistics of their own for the batch norms."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.3)
            layer.running_var.uniform_(0.5, 2.0)
            layer.weight.data.uniform_(0.5, 1.5)
            layer.bias.data.normal_(0, 0.3)
    return module


@functools.cache
def built(name: str, batch: int = 2) -> tuple[nn.Module, torch.Tensor]:
    make, size, _ = NETS[name]
    torch.manual_seed(3)
    module = randomise(make().eval())
    torch.manual_seed(4)
    return module, torch.randn(2, 3, *size)[:batch]


def expect_close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("name", NETS)
def test_close_to_torch_and_the_reference_through_both_doors(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("INGOT_CHECK", "3")
    module, x = built(name)
    with torch.inference_mode():
        expected = module(x).numpy()
    export_onnx(module, (x,), tmp_path / "net.onnx")
    graph = load_module(module, (x,))
    expect_close(next(iter(interpret(graph, {next(iter(graph.inputs)): x.numpy()}).values())), expected)
    for source in (graph, *tmp_path.glob("*.onnx")):
        session = ingot.InferenceSession(source, threads=2, strict=True)
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        expect_close(got, expected)
        ops = {node.op.name for node in session.graph.nodes}
        assert not ops & {"batch_norm", "pad"}


@pytest.mark.parametrize("name", NETS)
def test_no_copies_but_those_that_must_be(name: str) -> None:
    """Between convolutions images stay as they lie; a token or a stretched image is written where it belongs."""
    module, x = built(name)
    session = ingot.InferenceSession(module, example_inputs=(x,), threads=2)
    feeds = {session.get_inputs()[0].name: x.numpy()}
    kernels = [step.kernel for step in session.profile(feeds).steps]
    assert sum(kernel.startswith("copy") for kernel in kernels) == NETS[name][2], kernels
    assert session.plan.arena_bytes == session.plan.lower_bound_bytes


@pytest.mark.parametrize("name", NETS)
def test_same_bits_for_threads_instruction_sets_and_batches(name: str, monkeypatch) -> None:
    module, x = built(name)
    results = []
    for isa in load().isas():
        monkeypatch.setenv("INGOT_ISA", isa)
        for threads in (1, 3):
            session = ingot.InferenceSession(module, example_inputs=(x,), threads=threads)
            results.append(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    alone = ingot.InferenceSession(module, example_inputs=(x[1:],), threads=2)
    single = alone.run(None, {alone.get_inputs()[0].name: x[1:].contiguous().numpy()})[0]
    assert single[0].tobytes() == results[0][1].tobytes()


def test_activations_ride_along(monkeypatch) -> None:
    """Every activation and every sum of the residual net is an epilogue."""
    monkeypatch.setenv("INGOT_ISA", "scalar")  # sets choose different kernels for a 1 x 1 convolution of few channels
    module, x = built("residual")
    session = ingot.InferenceSession(module, example_inputs=(x,), threads=2)
    steps = session.profile({session.get_inputs()[0].name: x.numpy()}).steps
    convolutions = ["conv2d_f32_planes", *["conv2d_f32_packed"] * 2, "conv2d_f32_winograd"]
    assert sorted(step.kernel for step in steps) == sorted(
        ["max_pool_f32", *convolutions, "gemm_f32_packed", "reduce_mean_f32"]
    )


def test_outputs_of_a_depthwise_convolution_are_averaged_by_rows() -> None:
    """The mean reads the row sums that the convolution writes, and does not read the image again."""
    module, x = built("inverted")
    session = ingot.InferenceSession(module, example_inputs=(x,), threads=2)
    session.run(None, {session.get_inputs()[0].name: x.numpy()})
    shapes = [each["shape"] for each in session.plan.layout()["tensors"] if each["name"].endswith(".rows")]
    assert shapes == [[2, 5, 48]]


def test_a_saved_program_keeps_its_layout(tmp_path) -> None:
    module, x = built("inverted")
    session = ingot.InferenceSession(module, example_inputs=(x,), threads=2)
    feeds = {session.get_inputs()[0].name: x.numpy()}
    expected = session.run(None, feeds)[0]
    session.save(tmp_path / "saved")
    again = ingot.InferenceSession(tmp_path / "saved", threads=1).run(None, feeds)[0]
    assert again.tobytes() == expected.tobytes()
