"""`python -m ingot` is the command line."""

from ingot.cli import main

main()
