"""The passes together: names, the check and debug ladders, and what becomes of models written in PyTorch."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import models
from ingot.errors import InputError
from ingot.ir.graph import Graph
from ingot.ir.text import dump
from ingot.load.aten import load_module
from ingot.load.onnx import load_onnx
from ingot.passes import PASSES, optimize
from ingot.run.interpret import interpret
from onnx_export import export_onnx
from pass_case import read

TEXT = """
input x: f32[2, 3]
constant one: f32[] = [1.0]
a = mul(x, one)
y = relu(a)
output y = y
"""


def test_named_passes_run_alone_and_in_the_order_given():
    graph = read(TEXT)
    optimize(graph, ())
    assert dump(graph) == dump(read(TEXT))
    optimize(graph, ("dce", "cse"))
    assert dump(graph) == dump(read(TEXT))
    optimize(graph, ("dce", "identity"))
    assert [node.op.name for node in graph.nodes] == ["relu"]


def test_unknown_name():
    with pytest.raises(InputError, match="got inline, expected some of dce, absorb_transpose") as error:
        optimize(read(TEXT), ("dce", "inline"))
    assert all(name in str(error.value) for name in PASSES)


def test_debug_level_3_prints_what_each_pass_changed(monkeypatch, capsys):
    monkeypatch.setenv("INGOT_DEBUG", "3")
    optimize(read(TEXT))
    printed = capsys.readouterr().err
    assert printed.count("pass ") == 2  # identity, then dce takes the constant
    assert "pass identity\n" in printed and "\n-a = mul(x, one): f32[2, 3]\n" in printed
    assert "pass dce\n" in printed and "\n-constant one" in printed


def test_check_level_1_validates_the_result(monkeypatch):
    def break_graph(graph: Graph) -> bool:
        (node,) = (node for node in graph.nodes if node.op.name == "relu")
        node.operands = ("x",)
        return False

    monkeypatch.setitem(PASSES, "dce", break_graph)
    monkeypatch.setenv("INGOT_CHECK", "0")
    optimize(read(TEXT), ("dce",))
    monkeypatch.setenv("INGOT_CHECK", "1")
    with pytest.raises(AssertionError, match="has a wrong use list"):
        optimize(read(TEXT), ("dce",))


def optimized(module: nn.Module, inputs: tuple, dynamic_shapes=None) -> Counter:
    """The ops of the optimised graph, whose numbers are those of the module and of the plain graph."""
    graph = load_module(module, inputs, dynamic_shapes)
    feeds = {name: x.numpy() for name, x in zip(graph.inputs, inputs, strict=True)}
    plain = list(interpret(graph, feeds).values())
    optimize(graph)
    results = list(interpret(graph, feeds).values())
    with torch.no_grad():
        made = module(*inputs)
    wanted = [made] if isinstance(made, torch.Tensor) else list(made.values())
    for result, before, expected in zip(results, plain, wanted, strict=True):
        np.testing.assert_allclose(result, before, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4, atol=1e-5)
    return Counter(node.op.name for node in graph.nodes)


class Attention(nn.Module):
    """q, k, v [batch, heads, rows, width] or without heads, in one spelling, scaled in one place, masked one way."""

    def __init__(self, spelling: str, scale: str, mask: str):
        super().__init__()
        self.spelling, self.scale, self.mask = spelling, scale, mask

    def hidden(self, rows: int) -> torch.Tensor:
        return torch.ones(rows, rows, dtype=torch.bool).triu(1)

    def scores(self, q, k):
        width = q.shape[-1]
        match self.scale:
            case "query":
                return (q * width**-0.5) @ k.transpose(-2, -1)
            case "both":
                return (q / width**0.25) @ (k / width**0.25).transpose(-2, -1)
            case "divided":
                return q @ k.transpose(-1, -2) / math.sqrt(width)
            case "root":
                return q @ k.transpose(-1, -2) / torch.sqrt(torch.tensor(float(width)))
        return q @ k.transpose(-1, -2)

    def masked(self, scores):
        rows = scores.shape[-1]
        match self.mask:
            case "fill":
                return scores.masked_fill(self.hidden(rows), float("-inf"))
            case "added":
                return scores + torch.full((rows, rows), torch.finfo(torch.float32).min).triu(1)
            case "where":
                return torch.where(torch.ones(rows, rows).tril() == 1, scores, torch.tensor(-1e30))
        return scores

    def forward(self, q, k, v):
        if self.spelling == "sdpa":
            added = None if self.mask != "added" else self.masked(torch.zeros(q.shape[-2], q.shape[-2]))
            scale = 1.0 if self.scale == "none" else None
            causal = self.mask in ("fill", "where")
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=causal, scale=scale)
        scores = self.masked(self.scores(q, k))
        if self.spelling == "functional":
            return functional.softmax(scores, -1) @ v
        power = torch.exp(scores - scores.max(-1, keepdim=True).values)
        return power / power.sum(-1, keepdim=True) @ v


SPELLINGS = [
    *itertools.product(("sdpa", "functional", "manual"), ("divided", "none"), ("none", "fill")),
    *itertools.product(("functional", "manual"), ("query", "both", "root"), ("fill",)),
    *itertools.product(("functional", "manual"), ("divided",), ("added", "where")),
    ("sdpa", "divided", "added"),
]


@pytest.mark.parametrize(("spelling", "scale", "mask"), SPELLINGS)
def test_attention_spellings(spelling, scale, mask):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 16) for _ in range(3))
    module = Attention(spelling, scale, mask)
    graph = load_module(module, (q, k, v))
    optimize(graph)
    (node,) = graph.nodes
    assert node.op.name == "attention" and len([o for o in node.operands if o]) == 3
    assert node.causal == (mask != "none") and node.causal_offset == 0
    assert node.scale == pytest.approx(1.0 if scale == "none" else 0.25, rel=1e-6)
    got = interpret(graph, dict(zip(graph.inputs, (x.numpy() for x in (q, k, v)), strict=True)))
    np.testing.assert_allclose(*got.values(), module(q, k, v).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", ["functional", "manual"])
def test_attention_without_heads(spelling):
    torch.manual_seed(0)
    inputs = tuple(torch.randn(2, 5, 16) for _ in range(3))
    ops = optimized(Attention(spelling, "divided", "fill"), inputs)
    assert ops == {"reshape": 4, "attention": 1}


class Grouped(nn.Module):
    """Attention with repeated keys and values, as Hugging Face models repeat them, after rotary embedding."""

    def __init__(self, spelling: str):
        super().__init__()
        self.spelling = spelling
        self.q, self.k, self.v = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(32, 16)

    def rotated(self, x, cos, sin):
        low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return x * cos.unsqueeze(1) + torch.cat((-high, low), -1) * sin.unsqueeze(1)

    def repeated(self, x):
        batch, heads, rows, width = x.shape
        return x[:, :, None].expand(batch, heads, 2, rows, width).reshape(batch, heads * 2, rows, width)

    def forward(self, x, cos, sin):
        q, k, v = (f(x).view(*x.shape[:2], -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        k, v = self.repeated(k), self.repeated(v)
        mixed = Attention(self.spelling, "divided", "fill")(q, k, v)
        return mixed.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("spelling", ["sdpa", "functional", "manual"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_grouped_heads_and_rotary(spelling, symbolic):
    torch.manual_seed(0)
    inputs = (torch.randn(3, 5, 32), torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    batch, rows = torch.export.Dim("B", min=2, max=64), torch.export.Dim("S", min=2, max=64)
    shapes = ({0: batch, 1: rows}, {1: rows}, {1: rows}) if symbolic else None
    ops = optimized(models.seeded(lambda: Grouped(spelling)), inputs, shapes)
    assert (ops["attention"], ops["rotary"], ops["matmul"], ops["expand"], ops["softmax"]) == (1, 2, 1, 0, 0)


class Norms(nn.Module):
    """Layer norm, RMS norm and two spellings of GELU by hand."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        y = self.weight * (x - mean) / torch.sqrt(variance + 1e-5) + self.bias
        y = y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))
        z = self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))
        return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3))) * torch.sigmoid(x)


def test_norms_and_activations_by_hand():
    torch.manual_seed(0)
    ops = optimized(models.seeded(Norms), (torch.randn(3, 16),))
    assert ops == {"layer_norm": 1, "gelu": 2, "rms_norm": 1, "sigmoid": 1, "mul": 1}


def test_batch_norm_leaves_no_trace():
    ops = optimized(*models.convnet())
    assert (ops["conv"], ops["batch_norm"], ops["mul"], ops["sqrt"]) == (2, 0, 0, 0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_gpt2(attention, symbolic):
    module, inputs = models.gpt2(attention)
    rows, batch = torch.export.Dim("S", min=2, max=64), torch.export.Dim("B", min=2, max=64)
    ops = optimized(module, inputs, ({0: batch, 1: rows},) if symbolic else None)
    assert (ops["attention"], ops["layer_norm"], ops["gelu"], ops["softmax"]) == (2, 5, 2, 0)
    assert ops["matmul"] == 2 * 4 + 1
    assert ops["gather"] == 1  # the tokens; positions are a slice of their table, the mask is gone
    assert not any(ops[name] for name in ("where", "less_equal", "logical_and", "equal", "expand", "cumsum"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_bert(attention, symbolic):
    module, inputs = models.bert(attention)
    rows, batch = torch.export.Dim("S", min=2, max=64), torch.export.Dim("B", min=2, max=64)
    ops = optimized(module, inputs, ({0: batch, 1: rows},) * 2 if symbolic else None)
    assert (ops["attention"], ops["layer_norm"], ops["gelu"], ops["softmax"]) == (2, 5, 2, 0)
    assert ops["matmul"] == 2 * 4 + 1  # query, key and value are one; and the pooler
    assert ops["gather"] == 1


@pytest.mark.parametrize(("model", "attention"), [("gpt2", "sdpa"), ("bert", "sdpa"), ("bert", "eager")])
def test_models_through_onnx(model, attention):
    module, inputs = getattr(models, model)(attention)
    rows, batch = torch.export.Dim("S", min=2, max=64), torch.export.Dim("B", min=2, max=64)
    shapes = tuple({0: batch, 1: rows} for _ in inputs) if model == "bert" else None
    exported = export_onnx(module, inputs, dynamic_shapes=shapes)
    graph = load_onnx(exported.model_proto.SerializeToString())
    feeds = {name: x.numpy() for name, x in zip(graph.inputs, inputs, strict=True)}
    plain = interpret(graph, feeds)
    optimize(graph)
    for name, result in interpret(graph, feeds).items():
        np.testing.assert_allclose(result, plain[name], rtol=1e-5, atol=1e-5)
    ops = Counter(node.op.name for node in graph.nodes)
    assert (ops["attention"], ops["layer_norm"], ops["gelu"], ops["softmax"], ops["isnan"]) == (2, 5, 2, 0, 0)
    assert (ops["matmul"], ops["gather"]) == (9, 1)
