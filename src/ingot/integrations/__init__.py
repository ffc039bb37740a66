"""Integrations with other projects: the torch.compile backend and the ONNX backend interface."""
