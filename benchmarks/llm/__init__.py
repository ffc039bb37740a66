"""How fast does a language model read and write, compared with llama.cpp and OpenVINO?

A Llama-shaped model with random weights, of Qwen2.5-0.5B's size with a vocabulary of 32000: the same weights as a
Hugging Face folder and as GGUF. They are written when they are not there, 7 GB for all precisions. Each engine is in a
process of its own, rounds are interleaved, the others are stopped meanwhile. Prefill is the time from a prompt of 128
or 512 tokens to the first new token; decode is a token's after it, over 32 that follow a prompt of 16. Medians ± half
the interquartile range; ratios are medians of each round's. llama.cpp runs without mmap, takes logits of the last token
only, and has the better of flash attention on and off for each measure. OpenVINO runs int8 and int4, has weights that
nncf compressed as optimum-intel asks it to by default, and its own defaults else. `read` reads as many bytes as a
token's weights have, in the same rounds, and computes nothing.
"""
