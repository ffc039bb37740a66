"""How fast is a training step, compared with torch and torch.compile?

A step is forward, backward and AdamW (fused, in torch), of the mean cross entropy, on a batch that stays. Modules are
in eval mode: dropout does nothing, batch norm keeps its statistics. Medians of milliseconds, each engine in a process
of its own, rounds interleaved, the others stopped meanwhile; the ratio is of those medians, to the faster of torch's
two, and losses are marked. Ready: seconds from a module in memory until Ingot can take a step. First step: seconds to
the end of that, in which a run touches its memory for the first time; where a virtual machine's host has to find that
memory, this may take as long as all else. Planned: every byte of Ingot's run, MiB; peak: the most memory that a process
has had, its libraries included. Losses: the first and the fifth of each engine, from the same weights on the same
batches, and the largest difference from those of eager torch.
"""
