"""A language model -> a program in C: its modes over one set of weights, its tokenizer, its chat format."""
