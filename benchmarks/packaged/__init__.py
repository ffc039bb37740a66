"""How fast are trained models that packages ship, compared with ONNX Runtime?

Medians in microseconds of one run through the engine's Python interface, by number of threads; rounds are interleaved,
each engine is in a process of its own that is stopped while the other is measured. Inputs are those of
`tests/whole/test_packaged_models.py`. Differences are relative to the largest output or 1.

Where Ingot is slower: PLCMOS is 3 x 3 convolutions over large images, as ResNet-50 is.
"""
