"""Language models: tokens, not tensors."""
