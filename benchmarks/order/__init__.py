"""What does a fixed order of summation cost?

Each kernel beside itself in the order that is fastest, on one thread. Product-sums: one chain over all of k instead of
blocks of 256. Reductions (`free_order.c`): eight chains a row and no chunks, instead of one chain a row in chunks of
4096.
"""
