"""A model that computes what tiny-lm computes, in more layers.

The added layers add zero to their input, so that tiny-lm predicts each token of this model: the best case of a draft.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ingot.load.language import read_model

LAYERS = 100
_ZERO = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def write(folder: Path) -> Path:
    """Write the model into a new folder, and return the folder."""
    source = Path(read_model("tiny-lm").path)
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for layer in range(config["num_hidden_layers"], LAYERS):
        first = {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.0.")}
        for name, tensor in first.items():
            is_zero = name.endswith(_ZERO)
            own = name.replace(".0.", f".{layer}.", 1)
            tensors[own] = torch.zeros_like(tensor) if is_zero else tensor.clone()
    save_file(tensors, path)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    return folder
