"""What do lengths that change at every call cost, compared with ONNX Runtime?

ONNX models with random weights and a dynamic length: a BERT of 4 layers of 256, one of MiniLM's shape, and the encoder
of Whisper's smallest model. Medians of seconds from the file to the last of 200 outputs of random lengths, so that
loading, planning and first calls count; imports do not. Ingot once with `at_most` the largest length, once without a
word on lengths, and once with a program for each length. Each run is a process of its own, and rounds are interleaved.
CPU seconds are those of all threads; ratios are medians of the rounds' own.
"""
