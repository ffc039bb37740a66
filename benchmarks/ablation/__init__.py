"""What is each part of Ingot worth, compared with torch?

All variants of a workload run in one process, in interleaved rounds, on one thread unless stated otherwise. One call
per kernel: a call from Python for each node; unfused: one call for all; no passes: fused as the model is spelled.
"""
