"""How fast are models on WebGPU, compared with onnxruntime-webgpu?

Milliseconds of one run through the engine's Python interface, inputs and outputs in the host's memory: the least of
interleaved rounds, each engine in a process of its own that is stopped while the other is measured; onnxruntime-webgpu
is among packages of its own, because its module has onnxruntime's name. CPUs: what all threads of an engine take
together, which depends less on what else the machine does. The models are the small ones of `tests/kit/models.py`, from
the same ONNX files. Differences are relative to the largest output or 1. By default the device is SwiftShader, in
software.
"""
