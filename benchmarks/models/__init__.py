"""How fast are whole models, compared with torch, torch.compile, ONNX Runtime and OpenVINO?

Models have random weights and one input, the same in every process. Figures are medians in microseconds of one run
through the engine's Python interface; each engine is in a process of its own, rounds are interleaved, and all others
are stopped meanwhile. Differences are from torch in float64, relative to the largest output. Goals are geometric means
of Ingot's time over that of the best other engine.

In bf16 and bf16amx, models that have products are compared with OpenVINO in bf16; in int8, encoders and vision models
with the models of the quantizers of ONNX Runtime and OpenVINO.
"""
