"""The names of the stages of a model, of the levels of detail of a drawing, and of the sides of a comparison."""

STAGES = ("graph", "optimized", "lowered", "plan")
DETAILS = ("full", "layers", "summary")
SIDES = ("native", "webgpu", "emit-c", "interpret", "float64", "onnxruntime", "torch")
TRANSFORMERS = "transformers"  # side B of a language model
