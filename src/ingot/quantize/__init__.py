"""Model folders with weights of 8 and 4 bits: how they are made, and what is lost."""

from ingot.quantize.folder import Written, quantize_folder
from ingot.quantize.matrices import Plan
from ingot.quantize.report import Report, report

__all__ = ["Plan", "Report", "Written", "quantize_folder", "report"]
