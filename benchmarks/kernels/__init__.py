"""Which share of the machine's limit do kernels reach?

The kernel that lowering chooses, alone, and the limit measured in the same rounds: fused multiply-adds on registers,
or reading as many bytes as the weights have.
"""
