"""Inspection of a model without running it: the model is opened once, viewed at a stage, described as plain data.

Each `*_document` function returns one JSON document, whose keys docs/inspecting.md lists; all text is printed from it.
"""
