"""What a model is, without running it: opened once, seen at a stage, described as plain data.

Each `*_document` function makes one JSON document, whose keys docs/inspecting.md lists; text is printed from it alone.
"""
