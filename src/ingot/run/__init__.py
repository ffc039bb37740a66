"""Execute plans: one module per executor."""
