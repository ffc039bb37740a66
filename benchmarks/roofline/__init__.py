"""What can this machine do at best?

Arithmetic on registers, reading from memory and from caches, barriers and empty runs: so that a kernel's speed can be
given as a share of it.
"""
