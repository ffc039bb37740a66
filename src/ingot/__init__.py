"""Ingot: pour in a model; out comes one planned, inspectable program."""
