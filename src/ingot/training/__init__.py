"""Training: graphs whose states are parameters, and the trainer that runs them."""

from ingot.training.adapters import lora
from ingot.training.losses import CrossEntropy
from ingot.training.optimizers import SGD, AdamW
from ingot.training.schedules import Cosine, Linear
from ingot.training.trainer import Trainer

__all__ = ["SGD", "AdamW", "Cosine", "CrossEntropy", "Linear", "Trainer", "lora"]
