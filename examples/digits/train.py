"""Trains the digit classifier that ships in the package, and writes the model and the held-out digits.

    python examples/digits/train.py [FOLDER]      (default: src/ingot/data)

Data: scikit-learn's copy of the UCI "Optical Recognition of Handwritten Digits" test set (E. Alpaydin and C. Kaynak,
1998, CC BY 4.0): 1797 images, 8x8 pixels, values 0 to 16. A fifth is held out, by a fixed seed.
Writes digits.onnx (image f32[batch, 1, 8, 8] -> probabilities f32[batch, 10]) and digits.npz (images u8[n, 8, 8],
labels u8[n]). Fails when the model gets less than 97 % of the held-out digits right.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import nn

SEED = 7
HELD_OUT = 360
EPOCHS = 40
BATCH = 64
REQUIRED_ACCURACY = 0.97


class Digits(nn.Module):
    """Two convolutions and two linear layers; the input keeps the data's own scale."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(32 * 4 * 4, 64),
            nn.GELU(),
            nn.LayerNorm(64),
            nn.Linear(64, 10),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """image f32[batch, 1, 8, 8], 0 to 16 -> logits f32[batch, 10]."""
        return self.classifier(self.features(image / 16))


class Probabilities(nn.Module):
    """The classifier with its softmax, as it is shipped."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """image f32[batch, 1, 8, 8], 0 to 16 -> probabilities f32[batch, 10]."""
        return self.classifier(image).softmax(-1)


def train(images: torch.Tensor, labels: torch.Tensor) -> Digits:
    """A classifier fitted to images f32[n, 1, 8, 8] and labels i64[n]."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {total / len(images):.4f}")
    return model.eval()


def export(model: nn.Module, path: Path) -> None:
    """Writes one self-contained ONNX file with a symbolic batch."""
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        path,
        input_names=["image"],
        output_names=["probabilities"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        opset_version=18,
        external_data=False,
        verbose=False,
    )
    exported = onnx.load(path)
    for node in exported.graph.node:  # drop stack traces: they hold paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    graph = exported.graph
    for value in [*graph.value_info, *graph.input, *graph.output, *graph.initializer]:
        del value.metadata_props[:]
    del graph.metadata_props[:]
    del exported.metadata_props[:]
    onnx.checker.check_model(exported, full_check=True)
    onnx.save(exported, path)


def main(folder: Path) -> None:
    """Trains, checks and writes."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    model = Probabilities(train(images[rest], labels[rest])).eval()
    with torch.no_grad():
        accuracy = float((model(images[held_out]).argmax(-1) == labels[held_out]).float().mean())
    print(f"held-out accuracy {accuracy:.4f} over {HELD_OUT} digits")
    if accuracy < REQUIRED_ACCURACY:
        sys.exit(f"accuracy too low, got {accuracy:.4f}, expected at least {REQUIRED_ACCURACY}")
    folder.mkdir(parents=True, exist_ok=True)
    export(model, folder / "digits.onnx")
    np.savez_compressed(
        folder / "digits.npz",
        images=digits.images[held_out].astype(np.uint8),
        labels=digits.target[held_out].astype(np.uint8),
    )
    print(f"wrote {folder / 'digits.onnx'} ({(folder / 'digits.onnx').stat().st_size // 1024} KiB) and digits.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "src/ingot/data")
