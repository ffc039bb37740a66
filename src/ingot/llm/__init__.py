"""Language models: text generation, chat and embeddings over tokens."""

from ingot.llm.completion import Completion
from ingot.llm.generation import Usage
from ingot.llm.memory import Memory, memory_of
from ingot.llm.model import LLM
from ingot.llm.sampling import Sampling

__all__ = ["LLM", "Completion", "Memory", "Sampling", "Usage", "memory_of"]
