"""Does Ingot read GGUF files as llama.cpp does?

Tokenizers are those of the shipped model, with every way to cut words, and small ones of SentencePiece's kind, on the
documents and on random text. The shipped model is written as F16 by `tests/kit/gguf_models.py` and quantized by
llama.cpp; a random one is wide enough that all its matrices become k-quants. Both engines follow the tokens that
llama.cpp draws, so that one near-tie does not decide all that come after it.

Both engines round activations to eight bits where weights are quantized, llama.cpp by 256 or 32 elements, as the type
is. How far that moves them is measured from the logits that the file's weights give in float64: an engine's error of a
step is that of the difference between the two best of these. Where they are further apart than either engine's error,
both must draw the first: then tokens must be equal. The bound of a prompt is the largest error of both engines after
the other prompts; steps within it are near-ties, and counted. An engine that computes something else would widen its
own bound: so Ingot's logits may not be further from float64, in the mean, than what it rounds moves logits of float64
after any prompt, unless llama.cpp's are; and in f32, where it rounds nothing, not further than those of llama.cpp on
the same file decoded to F32, which rounds the cache. Tokens of a random model prove little, and only its logits must
agree. Ends with 1 where an id or a token differs.
"""
