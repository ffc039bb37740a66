"""How fast is a model of 3 B parameters in 4 bits ready, and in how much memory?

Of Llama 3.2's shape with random weights, in a folder as `ingot quantize --format int4` writes it, or in blocks of a
GGUF file; written one tensor at a time, so that no matrix ever exists in floats. In one run: the seconds until it is
ready, the most memory on the way, and the share of the read bandwidth that decode uses, reads and tokens alternating.
The model is read once before, so that it is in the page cache and no disk is measured. The table also has what as much
fresh memory alone takes: on virtual machines that may be most of it.

Memory counts from before the model is opened, so that Python's objects of the compiled modes, what malloc keeps and
modules that are first imported then are in it, in addition to packed weights, cache and arenas. None of this grows with
the rows or the context.
"""
