"""Where does the time of a language model go?

The steps of a prefill of 512 tokens and of the decode of one token after them, equal ones of all layers together, each
with the machine's limit measured in the same run. The model is that of `benchmarks/llm`.
"""
