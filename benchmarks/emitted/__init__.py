"""How fast is emitted C, compiled by `cc -O2` alone, compared with the session that it was emitted from?

The least microseconds of one run: of a session on bound arrays, and of a call of the C that it was emitted as, compiled
without any other flag. Each is in a process of its own that is stopped while the other is measured; rounds are
interleaved. Bits are those of all outputs, compared in the same processes before anything is timed; of the language
model, of its logits and 32 greedy tokens, where the time is that of a token.
"""
