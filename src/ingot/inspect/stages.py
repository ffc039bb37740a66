"""What can be asked for, by name: stages of a model, and how much of it a drawing shows."""

STAGES = ("graph", "optimized", "lowered", "plan")
DETAILS = ("full", "layers", "summary")
