"""Plan -> text."""
