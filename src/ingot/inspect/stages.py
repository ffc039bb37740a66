"""The names of the stages of a model, and of the levels of detail of a drawing."""

STAGES = ("graph", "optimized", "lowered", "plan")
DETAILS = ("full", "layers", "summary")
