"""Training: a graph whose states are parameters, and the trainer that runs it."""

from ingot.training.optimizers import SGD, AdamW
from ingot.training.trainer import Trainer

__all__ = ["SGD", "AdamW", "Trainer"]
