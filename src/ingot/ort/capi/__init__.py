"""Where ONNX Runtime keeps its compiled half, which clients name for its errors."""
