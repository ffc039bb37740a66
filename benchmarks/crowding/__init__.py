"""How much do more threads than cores cost, and a neighbour that never rests?

Two threads for each core must take at most 1.5 of the time of one for each; and while a process keeps one core
busy, a thread for each core must take at most 1.25 of the time of a single thread. Language models decode, too: many
small steps, and a barrier after most. Ends with 1 where a limit is missed.
"""
