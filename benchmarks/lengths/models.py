"""The models as ONNX files: `python -m benchmarks.lengths.models FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

TOKENS, FRAMES = 512, 1000  # at most; ten seconds of sound
LAYERS = {
    "bert 4x256": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm 6x384": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
}
MODELS = (*LAYERS, "whisper-tiny encoder")


def export(folder: Path) -> None:
    """The models as ONNX files."""
    import torch
    import transformers
    from torch.nn.functional import gelu

    class Bert(torch.nn.Module):
        def __init__(self, layers: dict[str, int]) -> None:
            super().__init__()
            self.model = transformers.BertModel(transformers.BertConfig(**layers), add_pooling_layer=False)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    class Whisper(torch.nn.Module):
        """The encoder without the check that makes it refuse every length but one."""

        def __init__(self) -> None:
            super().__init__()
            config = transformers.WhisperConfig(
                d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1
            )
            self.encoder = transformers.WhisperModel(config).encoder

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            encoder = self.encoder
            x = gelu(encoder.conv2(gelu(encoder.conv1(x)))).permute(0, 2, 1)
            x = x + encoder.embed_positions.weight[: x.shape[1]]
            for layer in encoder.layers:
                x = layer(x, None)
            return encoder.layer_norm(x)

    tokens = torch.zeros(1, 7, dtype=torch.long), torch.ones(1, 7, dtype=torch.long)
    cases: list[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...], list[str], int, int]] = [
        (name, Bert(layers), tokens, ["ids", "mask"], 1, TOKENS) for name, layers in LAYERS.items()
    ]
    cases.append(("whisper-tiny encoder", Whisper(), (torch.randn(1, 80, 100),), ["x"], 2, FRAMES))
    for name, module, example, names, axis, most in cases:
        torch.manual_seed(0)
        dims = tuple({axis: torch.export.Dim("length", min=2, max=most)} for _ in names)
        program = torch.onnx.export(
            module.eval(), example, input_names=names, dynamic_shapes=dims, dynamo=True, verbose=False
        )
        program.save(folder / f"{name}.onnx")


if __name__ == "__main__":
    export(Path(sys.argv[1]))
