"""A server of language models: OpenAI's and Anthropic's protocols over HTTP in front of one `Service` for each model.

Rule: this package computes nothing. It reads requests, checks them, and writes what the service draws.
"""

from ingot.serve.app import app

__all__ = ["app"]
