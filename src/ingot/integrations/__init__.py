"""Ingot behind interfaces of other projects: the torch.compile backend and the ONNX backend test interface."""
