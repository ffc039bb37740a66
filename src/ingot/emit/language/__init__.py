"""Emit a language model as a C program: its modes over one set of weights, its tokenizer, its chat format."""
