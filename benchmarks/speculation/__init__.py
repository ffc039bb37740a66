"""What is speculative decoding worth where a text repeats?

The shipped model in f32 with prompt lookup, which drafts from the text so far, compared with plain decoding; the tokens
must be equal. An edit is a function of Python's library with another name for a variable, after the function itself; an
expression forces it, because this model follows no instructions. A continuation is free: the model writes after the
function and the first two lines of its copy, and repeats less. With `--model FILE` another model draws the edits, whose
tokens a mask forces: it measures the steps of this model with the drafts that prompt lookup has for these texts, right
and wrong ones, also with random weights; it does not measure whether the model would write such texts. Times are of the
tokens after the first, in interleaved rounds; medians. The shipped model is small and stays in the CPU's caches: a step
of 8 rows takes twice the time of one row.
"""
