"""From any source to runs: load, compile per shape, save, report."""
