"""The package of ONNX Runtime's compiled module, which clients import for its errors."""
