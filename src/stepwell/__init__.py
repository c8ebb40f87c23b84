"""Stepwell: reinforcement learning of LLM agents with the interaction step as its unit."""

__version__ = "0.1.0"
