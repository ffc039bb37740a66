"""A training step as a program in C."""
