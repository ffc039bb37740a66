"""How long does it take from a file to the first output, and how much memory?

BERT-base with random weights, 440 MB, as one ONNX file and with external data: seconds from the file to the first
output of 128 tokens, and the peak of resident memory above what the imported modules take. Each start is a process of
its own, rounds are interleaved, files are in the page cache; imports are not counted, opening Ingot's library is.
"""
