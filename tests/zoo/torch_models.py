"""Rows of the zoo: the networks of `torch_modules`."""

from __future__ import annotations

import functools

import torch
import torch_modules as modules
from architecture import BATCH, LENGTH, Architecture, prompts

_IMAGES = ((2, 32), (3, 48))


def _square(batch: int, size: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 3, size, size)}


_SIDES = {"x": {0: BATCH, 2: LENGTH, 3: LENGTH}}


def _diffusion(batch: int, size: int) -> dict[str, torch.Tensor]:
    timestep = torch.randint(0, 1000, (batch,))
    return {"x": torch.randn(batch, 4, 8, 8), "timestep": timestep, "context": torch.randn(batch, size, 24)}


def _edges(nodes: int, edges: int) -> dict[str, torch.Tensor]:
    return {"nodes": torch.randn(nodes, 6), "edges": torch.randint(0, nodes, (2, edges))}


PLAIN = [
    Architecture("U-Net", modules.UNet, _square, _SIDES, sizes=_IMAGES, quick="symbolic"),
    Architecture("VAE decoder", modules.VaeDecoder, lambda b, n: {"x": torch.randn(b, 4, n, n)},
                 {"x": {0: BATCH, 2: LENGTH, 3: LENGTH}}, sizes=((2, 6), (3, 8)), quick="static"),
    Architecture("diffusion U-Net block", modules.DiffusionBlock, _diffusion,
                 {"x": {0: BATCH}, "timestep": {0: BATCH}, "context": {0: BATCH, 1: LENGTH}}),
    Architecture("DenseNet", modules.DenseNet, _square, {"x": {0: BATCH}}, sizes=((2, 64), (3, 64))),
    Architecture("Inception", modules.Inception, _square, _SIDES, sizes=_IMAGES),
    Architecture("ShuffleNet", modules.ShuffleNet, _square, _SIDES, sizes=_IMAGES),
    Architecture("YOLO-style head", modules.YoloHead, _square, {"x": {0: BATCH}}, sizes=((2, 32), (3, 32)),
                 quick="static"),
    Architecture("super-resolution", modules.SuperResolution, _square, _SIDES, sizes=_IMAGES),
    Architecture("style transfer", modules.Style, _square, _SIDES, sizes=_IMAGES),
    Architecture("DCGAN generator", modules.Generator, lambda b, n: {"x": torch.randn(b, 16)}, {"x": {0: BATCH}}),
    Architecture("MLP-Mixer", modules.Mixer, _square, {"x": {0: BATCH}}, sizes=((2, 32), (3, 32))),
    Architecture("spatial transformer", modules.SpatialTransformer, _square, {"x": {0: BATCH}},
                 sizes=((2, 32), (3, 32))),
    Architecture("TCN", modules.TemporalConvolutions, lambda b, n: {"x": torch.randn(b, 4, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 40), (3, 57))),
    Architecture("WaveNet", modules.WaveNet, lambda b, n: {"x": torch.randn(b, 1, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 40), (3, 57))),
    Architecture("Conv1d net", modules.Conv1dNet, lambda b, n: {"x": torch.randn(b, 2, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 40), (3, 57)), quick="symbolic"),
    Architecture("Conv3d net", modules.Conv3dNet, lambda b, n: {"x": torch.randn(b, 2, n, 8, 8)},
                 {"x": {0: BATCH}}, sizes=((2, 8), (3, 8))),
    Architecture("LSTM tagger", functools.partial(modules.Tagger, torch.nn.LSTM, 2), prompts, {"input_ids": {0: BATCH}},
                 sizes=((2, 12), (3, 12))),
    Architecture("GRU tagger", functools.partial(modules.Tagger, torch.nn.GRU, 1), prompts, {"input_ids": {0: BATCH}},
                 sizes=((2, 12), (3, 12))),
    Architecture("recommender", modules.Recommender,
                 lambda b, n: {"numbers": torch.randn(b, 6), "categories": torch.randint(0, 50, (b, 3, 4))},
                 {"numbers": {0: BATCH}, "categories": {0: BATCH}}),
    Architecture("PointNet", modules.PointNet, lambda b, n: {"x": torch.randn(b, 3, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 40), (3, 57))),
    Architecture("torch transformer", modules.Sequencer,
                 lambda b, n: {"source": torch.randn(b, n, 16), "target": torch.randn(b, 5, 16)},
                 {"source": {0: BATCH, 1: LENGTH}, "target": {0: BATCH}}),
    Architecture("spectrogram net", modules.Spectrogram, lambda b, n: {"x": torch.randn(b, n)},
                 {"x": {0: BATCH}}, sizes=((2, 512), (3, 512))),
    Architecture("graph convolution", modules.GraphConvolution, _edges,
                 {"nodes": {0: LENGTH}, "edges": {1: LENGTH}}),
]  # fmt: skip
