"""Language models on a cluster of Ray: answers to a data set, and a server with replicas.

Rule: Ray distributes the work. This package schedules nothing.
"""

from ingot.ray.batch import generate
from ingot.ray.deployment import deployment

__all__ = ["deployment", "generate"]
