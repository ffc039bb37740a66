"""How fast are language models of newer families, compared with llama.cpp?

Each is a GGUF file with random weights, which both engines read: a Qwen3-MoE and a Qwen3-Next with fewer layers and
experts than any published one, so that the largest file has 2.7 GB; a gpt-oss of half its width, whose experts are
MXFP4; and Gemma 3 1B in full. All but Gemma 3 have a vocabulary of 32000. Types of quantized matrices are those of
llama.cpp's quantizer, and blocks are random. First the logits after a prompt are compared: the largest difference,
relative to the largest logit, and the best token. Both engines round activations to eight bits where weights are
quantized, and llama.cpp keeps keys and values in f16; where two experts are nearly equally good, engines may choose
differently. Then both are measured as `llm` does it: prefill is the time from a prompt of 128 or 512 tokens to the
first new token, decode a token's after it, in interleaved rounds, each engine in a process of its own, the other
stopped meanwhile. llama.cpp runs without mmap and has the better of flash attention on and off for each measure.
`read` reads as many bytes as a token's weights have, with the experts that it chooses, and computes nothing.

A part is a model in one precision. Results are kept in the folder of the models: a run measures the parts that have
none, and `--again` measures them again.
"""
