"""Model folders with weights of 8 and 4 bits: how they are made, and what is lost."""

from ingot.quantize.folder import Written, quantize_folder
from ingot.quantize.matrices import Plan

__all__ = ["Plan", "Written", "quantize_folder"]
