"""Networks in plain torch that transformers does not have, small but whole."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv(channels: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, its norm, and ReLU."""
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


class UNet(nn.Module):
    """Down by max pooling, up by transposed convolutions, with what each level saw carried across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_conv(3, 8), _conv(8, 16), _conv(16, 32)])
        self.middle = _conv(32, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(c, c // 2, 2, 2) for c in (32, 32, 16)])
        self.merge = nn.ModuleList([_conv(16 + 32, 32), _conv(16 + 16, 16), _conv(8 + 8, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for stage in self.down:
            x = stage(x)
            seen.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([seen.pop(), up(x)], dim=1))
        return self.head(x)


class ResidualBlock(nn.Module):
    """GroupNorm, SiLU, convolution, twice; an embedding of the time is added in between where there is one."""

    def __init__(self, channels: int, out: int, time: int = 0) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out) if time else None
        self.across = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None:
            h = h + self.time(F.silu(time))[:, :, None, None]
        return self.across(x) + self.conv2(F.silu(self.norm2(h)))


class PixelAttention(nn.Module):
    """Attention among the pixels of an image, and to a text where there is one."""

    def __init__(self, channels: int, context: int | None = None) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.q = nn.Linear(channels, channels)
        self.k, self.v = (nn.Linear(context or channels, channels) for _ in range(2))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        batch, channels, height, width = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        source = h if context is None else context
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (self.q(h), self.k(source), self.v(source)))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(h).transpose(1, 2).reshape(batch, channels, height, width)


class VaeDecoder(nn.Module):
    """Latents to an image: residual blocks, attention among pixels, nearest upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.middle = nn.ModuleList([ResidualBlock(32, 32), PixelAttention(32), ResidualBlock(32, 32)])
        self.up = nn.ModuleList([ResidualBlock(32, 16), ResidualBlock(16, 8)])
        self.after = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])
        self.norm, self.last = nn.GroupNorm(4, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for part in self.middle:
            x = part(x)
        for block, conv in zip(self.up, self.after, strict=True):
            x = conv(F.interpolate(block(x), scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))


class DiffusionBlock(nn.Module):
    """A step of a diffusion U-Net: sinusoids of the time, a residual block, attention to pixels and to a text."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first = nn.Conv2d(4, 16, 3, padding=1)
        self.down, self.shrink = ResidualBlock(16, 32, 64), nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.self_attention, self.cross_attention = PixelAttention(32), PixelAttention(32, 24)
        self.feed = nn.Linear(32, 256)
        self.feed_out = nn.Linear(128, 32)
        self.up, self.last = ResidualBlock(64, 16, 64), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        rates = torch.exp(-9.2 * torch.arange(16, dtype=x.dtype) / 16)
        angles = timestep[:, None].to(x.dtype) * rates[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))
        kept = self.down(self.first(x), time)
        x = self.cross_attention(self.self_attention(self.shrink(kept)), context)
        value, gate = self.feed(x.permute(0, 2, 3, 1)).chunk(2, dim=-1)
        x = x + self.feed_out(value * F.gelu(gate)).permute(0, 3, 1, 2)
        x = F.interpolate(x, size=kept.shape[-2:], mode="nearest")
        return self.last(self.up(torch.cat([x, kept], dim=1), time))


class DenseNet(nn.Module):
    """Each layer sees all before it in its block; blocks are joined by 1 x 1 convolutions and average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks, self.joints = nn.ModuleList(), nn.ModuleList()
        channels = 16
        for _ in range(2):
            layers = [self._layer(channels + 8 * i) for i in range(3)]
            channels += 24
            self.blocks.append(nn.ModuleList(layers))
            norm = nn.BatchNorm2d(channels)
            self.joints.append(nn.Sequential(norm, nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)))
            channels //= 2
        self.head = nn.Linear(channels, 10)

    def _layer(self, channels: int) -> nn.Sequential:
        narrow = [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 32, 1, bias=False)]
        return nn.Sequential(*narrow, nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        for block, joint in zip(self.blocks, self.joints, strict=True):
            for layer in block:
                x = torch.cat([x, layer(x)], dim=1)
            x = joint(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inception(nn.Module):
    """Branches of 1 x 1, 3 x 3, factored 7 x 7 and pooling, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 16, 3, 2), nn.MaxPool2d(3, 2))
        self.one, self.three = _conv(16, 8, 1), nn.Sequential(_conv(16, 8, 1), _conv(8, 12))
        wide = nn.Conv2d(8, 8, (1, 7), padding=(0, 3)), nn.Conv2d(8, 12, (7, 1), padding=(3, 0)), nn.ReLU()
        self.seven = nn.Sequential(_conv(16, 8, 1), *wide)
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), _conv(16, 8, 1))
        self.shrink = _conv(40, 16, 3, 2)
        self.head = nn.Linear(16 + 40, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([self.one(x), self.three(x), self.seven(x), self.pooled(x)], dim=1)
        x = torch.cat([self.shrink(x), F.max_pool2d(x, 3, 2, 1)], dim=1)
        return self.head(x.mean((2, 3)))


class ShuffleNet(nn.Module):
    """Grouped convolutions whose channels are shuffled between them, and squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 24, 3, 2)
        self.left = nn.Sequential(_conv(12, 12, 1), _conv(12, 12, 3, groups=12), _conv(12, 12, 1))
        self.squeeze, self.excite = nn.Linear(24, 6), nn.Linear(6, 24)
        self.grouped = _conv(24, 24, 3, groups=3)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, dim=1)
        x = torch.cat([self.left(a), b], dim=1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        x = self.grouped(F.hardswish(x) * gate[:, :, None, None])
        return self.head(x.amax((2, 3)))


class YoloHead(nn.Module):
    """Features of three scales, joined by upsampling and concatenation, to boxes and the scores of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([_conv(3, 16, 3, 2), _conv(16, 24, 3, 2), _conv(24, 32, 3, 2)])
        self.pool = _conv(4 * 32, 32, 1)
        self.lateral = nn.ModuleList([_conv(32 + 24, 24), _conv(24 + 16, 16)])
        self.heads = nn.ModuleList([nn.Conv2d(c, 4 + 5, 1) for c in (16, 24, 32)])
        self.strides = (2, 4, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(F.silu(x))
        small, middle, large = features
        pooled = [large]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        large = self.pool(torch.cat(pooled, dim=1))
        middle = self.lateral[0](torch.cat([F.interpolate(large, scale_factor=2.0), middle], dim=1))
        small = self.lateral[1](torch.cat([F.interpolate(middle, scale_factor=2.0), small], dim=1))
        boxes, scores = [], []
        for feature, head, stride in zip((small, middle, large), self.heads, self.strides, strict=True):
            raw = head(feature).flatten(2).transpose(1, 2)
            height, width = feature.shape[-2:]
            y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
            centre = torch.stack([x, y], dim=-1).reshape(-1, 2)
            near, far = raw[..., :4].exp().split(2, dim=-1)
            boxes.append(torch.cat([centre - near, centre + far], dim=-1) * stride)
            scores.append(raw[..., 4:].sigmoid())
        best, kept = torch.cat(scores, dim=1).amax(-1).topk(20, dim=1)
        return best, torch.cat(boxes, dim=1).gather(1, kept[..., None].expand(-1, -1, 4))


class SuperResolution(nn.Module):
    """Convolutions, then pixels out of channels (ESPCN), beside a bicubic and a bilinear enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 12, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        smooth = F.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False)
        soft = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True)
        return F.pixel_shuffle(self.body(x), 2) + smooth + soft


class Style(nn.Module):
    """A style-transfer net: reflected borders, instance norms, transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(8), nn.ReLU(),
            nn.ReplicationPad2d(1), nn.Conv2d(8, 3, 3), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class Generator(nn.Module):
    """DCGAN's generator: noise to an image by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        layers += [nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, :, None, None])


class TemporalConvolutions(nn.Module):
    """TCN: causal dilated convolutions in residual blocks, with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 16, 1)
        self.convs = nn.ModuleList(
            [nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 16, 3, dilation=2**i)) for i in range(3)]
        )
        self.head = nn.Conv1d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, conv in enumerate(self.convs):
            x = x + F.relu(conv(F.pad(x, (2 * 2**i, 0))))
        return self.head(x)


class WaveNet(nn.Module):
    """Gated dilated convolutions; the sum of what each skipped is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 16, 1)
        self.gated = nn.ModuleList([nn.Conv1d(16, 32, 3, dilation=2**i, padding=2**i) for i in range(3)])
        self.mixed = nn.ModuleList([nn.Conv1d(16, 32, 1) for _ in range(3)])
        self.head = nn.Conv1d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total = torch.zeros_like(x)
        for gated, mixed in zip(self.gated, self.mixed, strict=True):
            value, gate = gated(x).chunk(2, dim=1)
            residual, skipped = mixed(torch.tanh(value) * torch.sigmoid(gate)).chunk(2, dim=1)
            x, total = x + residual, total + skipped
        return self.head(F.relu(total))


class Conv1dNet(nn.Module):
    """Convolutions, pooling, a depthwise and a transposed convolution over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(2, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2))
        self.depthwise = nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.grouped = nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=4)
        self.up = nn.ConvTranspose1d(16, 8, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.elu(self.grouped(F.gelu(self.depthwise(self.first(x)))))
        return self.up(F.avg_pool1d(x, 3, 1, 1)), F.adaptive_avg_pool1d(x, 1).flatten(1)


class Conv3dNet(nn.Module):
    """A video or volume: convolutions, pooling and a transposed convolution over three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2))
        self.factored = nn.Sequential(nn.Conv3d(8, 8, (1, 3, 3), padding=(0, 1, 1)), nn.Conv3d(8, 8, (3, 1, 1)))
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.up(F.avg_pool3d(F.relu(self.factored(self.first(x))), (1, 2, 2)))
        return x, self.head(F.adaptive_avg_pool3d(x, 1).flatten(1))


class Tagger(nn.Module):
    """Embeddings, a recurrent layer in both directions, and scores of tags for each token."""

    def __init__(self, kind: type[nn.RNNBase], layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 16)
        self.recurrent = kind(16, 12, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 7)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(input_ids))[0]).log_softmax(-1)


class Recommender(nn.Module):
    """DLRM: bags of embeddings, an MLP of numbers, and the products of all pairs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(50, 8) for _ in range(3)])
        self.bottom, self.top = nn.Linear(6, 8), nn.Linear(8 + 6, 1)
        self.register_buffer("pairs", torch.tril_indices(4, 4, offset=-1), persistent=False)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = F.relu(self.bottom(numbers))
        parts = [table(categories[:, i]).sum(1) for i, table in enumerate(self.tables)]
        x = torch.stack([dense, *parts], dim=1)
        products = torch.bmm(x, x.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dense, products], dim=1)))


class PointNet(nn.Module):
    """Points to a class: the same layers at each point, a learned rotation, the maximum over all points."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.turn = nn.Linear(16, 9)
        self.layers = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 32, 1))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        turn = self.turn(self.look(x).max(dim=2)[0]).view(-1, 3, 3) + torch.eye(3)
        return F.log_softmax(self.head(self.layers(torch.bmm(turn, x)).max(dim=2)[0]), dim=-1)


class Mixer(nn.Module):
    """MLP-Mixer: patches mixed across positions, then across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in range(2)])
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norms[1](x))).mean(1)


class Sequencer(nn.Module):
    """torch's own transformer: an encoder and a causal decoder over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(16, 2, 1, 1, 32, batch_first=True, dropout=0.0)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.net(source, target, tgt_mask=mask, tgt_is_causal=True)


class Spectrogram(nn.Module):
    """Sound to the logarithm of its mel-like bands by a short-time Fourier transform, and a small net over them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64), persistent=False)
        self.bands, self.head = nn.Linear(33, 16, bias=False), nn.Conv1d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 64, 32, window=self.window, center=True, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        bands = self.bands(power.transpose(1, 2)).square().add(1e-3).log()
        return self.head(bands.transpose(1, 2))


class SpatialTransformer(nn.Module):
    """An affine map read off the image, by which the image is then sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(_conv(3, 8, 3, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 6))
        self.head = _conv(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.look(x).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False))


class GraphConvolution(nn.Module):
    """Messages along edges, summed at their targets: two layers of a graph network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 4)])

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for layer in self.layers:
            messages = layer(nodes)[source]
            summed = torch.zeros(nodes.shape[0], messages.shape[1]).index_add(0, target, messages)
            nodes = F.relu(summed)
        return nodes
