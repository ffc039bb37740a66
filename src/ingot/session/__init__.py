"""Sessions: load a model from any source, compile it per shape, run, save and report."""
