"""A server of models: OpenAI's protocol over HTTP in front of one `llm.service.Service` for each language model.

Rule: this package computes nothing. It reads requests, checks them, and writes what the service draws.
"""

from ingot.serve.app import app

__all__ = ["app"]
