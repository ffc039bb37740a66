"""PyTorch -> Graph: ExportedProgram, nn.Module and .pt2, by rules from ATen ops to plain ops."""

from ingot.load.aten.archive import read_facts
from ingot.load.aten.importer import to_numpy
from ingot.load.aten.program import load_any, load_exported, load_module, load_pt2, load_traced

__all__ = ["load_any", "load_exported", "load_module", "load_pt2", "load_traced", "read_facts", "to_numpy"]
