"""What Ingot is to reach, workload by workload, and what it reached."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from benchmarks.harness.report import ratio, table, verdict
from benchmarks.harness.rounds import Results


@dataclass(frozen=True)
class Goal:
    """For the workloads whose names match: the most that the geometric mean of Ingot / best other may be, and that each
    may be."""

    name: str
    pattern: str
    mean: float
    each: float = math.inf


GOALS = (
    Goal("MLPs", "mlp ", 0.88, 1.05),
    Goal("transformer blocks", "block-", 0.70),
    Goal("transformer block 1x16x64", r"block-\w+ 1x16x64", 0.45, 0.45),
    Goal("transformer block 4x128x256", r"block-\w+ 4x128x256", 0.90, 0.90),
    Goal("GPT-2 small, 16 tokens", "gpt2 16", 0.85),
    Goal("GPT-2 small, 128 tokens", "gpt2 128", 0.92),
    Goal("BERT 6x384, 32 tokens", "bert 32", 0.80),
    Goal("BERT 6x384, 128 tokens", "bert 128", 0.90),
    Goal("ViT-S/16", "vit", 0.93),
    Goal("ResNet-50", "resnet50", 1.05),
    Goal("MobileNetV2", "mobilenetv2", 1.00),
    Goal("attention 12x512x64", "sdpa 12x512x64", 0.90),
    Goal("causal attention 2x8x777x80", "sdpa-causal ", 0.60),
    Goal("LSTM 2 layers, 50x256", "lstm 1x", 0.90, 0.90),
    Goal("LSTM and GRU, 8 sequences", r"(lstm|gru) 8x", 0.90),
    Goal("GRU 2 layers, 50x256", "gru 1x", 0.90),
    Goal("U-Net at 128 x 128", "unet 128", 0.90),
    Goal("wav2vec2's front end", "wav2vec2-features ", 0.90),
    Goal("EfficientNet-B0", "efficientnet-b0", 0.90),
    Goal("SegFormer-B0", "segformer-b0", 0.90),
    Goal("element-wise chain 300x1000", "chain ", 0.50),
    Goal("matvec 1x1536x1536", "matvec 1x1536x1536", 0.95),
    Goal("matvec 1x4096x4096", "matvec 1x4096x4096", 1.03),
    Goal("matvec 1x4096x11008", "matvec 1x4096x11008", 1.03),
)


def reached(results: Results) -> str:
    """A row for each goal of which a workload was measured."""
    rows = []
    for goal in GOALS:
        ratios = [ratio(measured) for name, measured in results.items() if re.match(goal.pattern, name)]
        ratios = [r for r in ratios if not math.isnan(r)]
        if not ratios:
            continue
        mean, worst = statistics.geometric_mean(ratios), max(ratios)
        rows.append(
            [goal.name, str(len(ratios)), f"{mean:.2f}", f"{goal.mean:.2f}", f"{worst:.2f}",
             "" if math.isinf(goal.each) else f"{goal.each:.2f}", verdict(mean <= goal.mean and worst <= goal.each)]
        )  # fmt: skip
    return table(["Ingot / best other", "workloads", "mean", "goal", "worst", "goal", ""], rows)
