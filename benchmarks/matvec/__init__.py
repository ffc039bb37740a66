"""Does the matrix-vector product keep the bounds of `src/ingot/contracts/matvec.yaml`?

Ends with 1 when a bound is broken. --record adds the figures to the contract's history.
"""
