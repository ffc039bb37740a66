"""The file formats of traces, by name, and the programs that open them."""

from __future__ import annotations

from typing import Literal

Format = Literal["chrome", "speedscope", "model-explorer"]
Quantity = Literal["time", "bytes", "flops"]

VIEWERS: dict[Format, str] = {
    "chrome": "Perfetto or Chrome's page `tracing`",
    "speedscope": "speedscope",
    "model-explorer": "Model Explorer, as node data of the model's file",
}
FORMATS: tuple[Format, ...] = tuple(VIEWERS)
QUANTITIES: tuple[Quantity, ...] = ("time", "bytes", "flops")
