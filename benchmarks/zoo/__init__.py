"""How fast are the networks of `tests/zoo` that take more than a millisecond, compared with the other engines?

Ingot alone is measured first, to know which networks are long enough. Each is measured at the first of the sizes that
it is tested with: medians in microseconds of one run through the engine's Python interface, each engine in a process of
its own, rounds interleaved, the others stopped meanwhile. The first tensor of each network's results is compared.
"""
