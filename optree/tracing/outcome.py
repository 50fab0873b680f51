"""What an exception says about how a node ended."""

from optree.builder.outcome import outcome

__all__ = ["outcome"]
