"""BERT-base as ONNX files: `python -m benchmarks.cold_start.model FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

TOKENS = 128


def export(folder: Path) -> list[Path]:
    """BERT-base twice: in one file, and with external data."""
    import torch
    import transformers

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig())

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    torch.manual_seed(0)
    example = torch.zeros(1, TOKENS, dtype=torch.long), torch.ones(1, TOKENS, dtype=torch.long)
    program = torch.onnx.export(Bert().eval(), example, input_names=["ids", "mask"], dynamo=True, verbose=False)
    models = [folder / "one_file.onnx", folder / "external.onnx"]
    for model in models:
        program.save(model, external_data=model.stem == "external")
    return models


if __name__ == "__main__":
    export(Path(sys.argv[1]))
