"""What does a fixed order of summation cost?

Each kernel compared with itself in the fastest order, on one thread. Product-sums: one chain over all of k instead of
blocks of 256. Reductions (`free_order.c`): eight chains a row and no chunks, instead of one chain a row in chunks of
4096.
"""
