"""README's chart of f32 speed, light and dark, from the first table of families in `results.md`."""

import re
from html import escape
from pathlib import Path

from benchmarks import ROOT

RESULTS = Path(__file__).with_name("results.md")
PICTURES = ROOT / "docs" / "pictures"
THEMES = {  # colours; inside: of the figures in the bars
    "light": {
        "text": "#1f2328",
        "faint": "#59636e",
        "win": "#2f7d5b",
        "loss": "#b35900",
        "line": "#8c959f",
        "inside": "#ffffff",
    },
    "dark": {
        "text": "#f0f6fc",
        "faint": "#9198a1",
        "win": "#4cb88a",
        "loss": "#e8944a",
        "line": "#6e7681",
        "inside": "#0d1117",
    },
}
NAMES = {
    "mlp": "MLPs", "block-naive": "transformer blocks, written out",
    "block-sdpa": "transformer blocks, fused attention",
    "matvec": "matrix-vector products", "gpt2": "GPT-2 small", "bert": "BERT, 6 layers", "vit": "ViT-S/16",
    "resnet50": "ResNet-50", "mobilenetv2": "MobileNetV2", "sdpa": "attention", "sdpa-causal": "causal attention",
    "chain": "element-wise chain", "noop": "an empty model", "steps": "small steps", "all": "all, geometric mean",
}  # fmt: skip
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 250, 60, 24, 44
NAMESPACE = "http:" + "//www.w3.org/2000/svg"  # a name, which nothing fetches
LONGEST = 1.2  # the ratio at the right end


def ratios(text: str) -> list[tuple[str, float]]:
    """Return (family, Ingot's time / the best other engine's time) for each row of the first table of families."""
    table = text.split("| family |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| \**([\w-]+)\** \| \d+ \| \**([\d.]+)\** \|$", table, re.MULTILINE)
    return [(family, float(ratio)) for family, ratio in rows]


def chart(rows: list[tuple[str, float]], colours: dict[str, str]) -> str:
    """Return an SVG of one bar for each row; a bar that ends left of the line at 1 is a win."""
    scale = (WIDTH - LEFT - RIGHT) / LONGEST
    height = TOP + ROW * len(rows) + 16
    font = "font-family='system-ui, sans-serif'"
    parts = [
        f"<svg xmlns='{NAMESPACE}' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' "
        f"role='img' aria-label='Time of Ingot divided by the time of the fastest other engine, by family'>",
        f"<text x='10' y='18' {font} font-size='13' fill='{colours['faint']}'>time of Ingot / time of the fastest "
        "of torch, torch.compile, ONNX Runtime, OpenVINO</text>",
    ]
    for i, (family, ratio) in enumerate(rows):
        y = TOP + ROW * i
        weight = "600" if family == "all" else "400"
        colour = colours["win" if ratio <= 1 else "loss"]
        parts += [
            f"<text x='{LEFT - 10}' y='{y + 13}' {font} font-size='13' font-weight='{weight}' text-anchor='end' "
            f"fill='{colours['text']}'>{escape(NAMES.get(family, family))}</text>",
            f"<rect x='{LEFT}' y='{y}' width='{ratio * scale:.1f}' height='{ROW - 8}' rx='2' fill='{colour}'/>",
            f"<text x='{LEFT + ratio * scale - 6:.1f}' y='{y + 12}' {font} font-size='12' font-weight='{weight}' "
            f"text-anchor='end' fill='{colours['inside']}'>{ratio:.2f}</text>",
        ]
    x = LEFT + scale
    parts += [
        f"<line x1='{x:.1f}' y1='{TOP - 8}' x2='{x:.1f}' y2='{height - 8}' stroke='{colours['line']}' "
        "stroke-dasharray='3 3'/>",
        f"<text x='{x:.1f}' y='{TOP - 12}' {font} font-size='12' text-anchor='middle' "
        f"fill='{colours['faint']}'>1</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw() -> None:
    """Write `docs/pictures/speed-light.svg` and `docs/pictures/speed-dark.svg`."""
    rows = ratios(RESULTS.read_text())
    PICTURES.mkdir(exist_ok=True)
    for theme, colours in THEMES.items():
        (PICTURES / f"speed-{theme}.svg").write_text(chart(rows, colours))
