"""A server of models over HTTP, by the protocols of OpenAI, Anthropic and Open Inference.

Rule: this package computes nothing. It reads requests, checks them, and writes what the service draws.
"""

from ingot.serve.app import app

__all__ = ["app"]
