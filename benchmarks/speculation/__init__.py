"""What is speculative decoding worth where a text repeats?

The shipped model in f32 continues functions of Python's library as their edited copies: a prompt is a function and the
first two lines of its copy. Prompt lookup drafts from the text so far. The tokens are those of plain decoding, which is
checked. Times are of 150 tokens after the prompt, or of fewer where the text ends, in interleaved rounds; medians.
"""
