"""Quantization of model folders to 8 and 4 bits and of ONNX models to integers, with reports of the error."""

from ingot.quantize.folder import Written, quantize_folder
from ingot.quantize.matrices import Plan
from ingot.quantize.report import Report, report
from ingot.quantize.static import Calibrated, quantize_model

__all__ = ["Calibrated", "Plan", "Report", "Written", "quantize_folder", "quantize_model", "report"]
