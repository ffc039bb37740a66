"""How fast does a server answer many clients, compared with llama.cpp's server and OpenVINO GenAI?

The model of `benchmarks.llm` with a vocabulary of byte pairs: Ingot and llama.cpp's server read the same GGUF file, in
bf16 or with matrices in Q4_0 (embedding and logits in Q8_0). Each server is in a process of its own, one at a time, and
draws up to 64 answers together. The load is aiperf's, the same for all: requests of /v1/completions at Poisson's
intervals, four a second for each stream of the load, and so many in flight at most as it has streams. A prompt has a
system prompt of 256 tokens, which all of a load share, and 64 to 512 tokens of its own; the answer has 32 to 128
tokens, drawn greedily, and no token ends it. Cold: the server has seen no prompt of the load. Warm: the same requests
again. All figures are aiperf's: tokens of all answers by the seconds of the run, the time to the first token, and the
time between chunks of a stream. aiperf runs on the same CPUs as the server; one run, no spread. llama.cpp's server is
built from the sources in llama-cpp-python's package, for this CPU. A load is a part of its own: `--loads` and
`--states` measure some, results are kept in the folder, and a run measures those that are missing. OpenVINO GenAI's
continuous batching has no server in its package: `openvino_server.py` puts it behind HTTP. It reads the same weights as
optimum-intel exports them, int4 in groups of 32 values without a zero point, with GenAI's defaults for the cache and
for the arithmetic.
"""
