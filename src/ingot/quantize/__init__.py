"""Model folders with weights of 8 and 4 bits, and models of integers: how they are made, and what is lost."""

from ingot.quantize.folder import Written, quantize_folder
from ingot.quantize.matrices import Plan
from ingot.quantize.report import Report, report
from ingot.quantize.static import Calibrated, quantize_model

__all__ = ["Calibrated", "Plan", "Report", "Written", "quantize_folder", "quantize_model", "report"]
