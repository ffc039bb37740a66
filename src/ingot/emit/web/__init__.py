"""Emit a model as a folder of static files that runs it in a browser, on WebGPU."""
