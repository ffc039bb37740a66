"""Nodes on the reference cause one warning; models in f16 and f64 have none."""

import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import ReferenceWarning
from ingot.ir.text import parse

CUT = "graph cut\ninput x: f32[n, 3, 3]\ne = sigmoid(x)\nd = pairwise_coupling(e)\ny = exp(d)\noutput y = y\n"
X = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)


def test_an_op_is_reported_once_in_a_session() -> None:
    session = ingot.InferenceSession(parse(CUT))
    told = r"no kernel for pairwise_coupling 'd': the numpy reference took \d+% of the run; strict=True .* `explain`"
    with pytest.warns(ReferenceWarning, match=told) as first:
        session.run(None, {"x": X})
    assert len(first) == 1 and first[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in (1, 2):  # another binding, another queue
            session.run(None, {"x": X[:batch]})
        session.context().run(None, {"x": X})
        session.io_binding()
    with pytest.warns(ReferenceWarning):
        ingot.InferenceSession(parse(CUT)).run(None, {"x": X})


def test_kernels_and_the_specification_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ingot.InferenceSession(parse(CUT), executor="interpret").run(None, {"x": X})
        plain = "graph g\ninput x: f32[n, 3, 3]\ny = exp(x)\noutput y = y\n"
        ingot.InferenceSession(parse(plain)).run(None, {"x": X})


class Convolutions(nn.Module):
    """What image networks are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Hardswish(), nn.Conv2d(16, 24, 1), nn.SiLU(),
            nn.MaxPool2d(2), nn.ConvTranspose2d(24, 8, 2, 2), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(8, 10), nn.Softmax(-1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Transformer(nn.Module):
    """Two layers over embedded ids."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.table, self.layers = nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(x))


class Recurrent(nn.Module):
    """Both ways over a sequence, by an LSTM and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(8, 12, bidirectional=True), nn.GRU(24, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)[0])[0]


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize(
    "network, dtype, tolerance",
    [
        (Convolutions, torch.float16, 4e-3),
        (Convolutions, torch.float64, 1e-11),
        (Transformer, torch.float16, 4e-3),
        (Transformer, torch.float64, 1e-11),
        (Recurrent, torch.float16, 4e-3),
    ],
)
def test_half_and_double_run_natively(network: type[nn.Module], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    module = network().eval().to(dtype)
    shapes = {Convolutions: (2, 3, 20, 20), Recurrent: (7, 2, 8)}
    x = torch.randint(0, 50, (2, 9)) if network is Transformer else torch.randn(shapes[network]).to(dtype)
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, opset_version=17, input_names=["x"])
    session = ingot.InferenceSession(file.getvalue(), strict=True)
    (got,) = session.run(None, {"x": x})
    with torch.no_grad():
        expected = module.double()(x.double() if x.is_floating_point() else x).numpy()
    assert got.dtype == x.new_empty(0, dtype=dtype).numpy().dtype
    assert np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max())
