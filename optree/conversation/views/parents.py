"""Which call created an agent, where files do not say it (seed 000)."""

from optree.conversation.waiting import inferred_calls

__all__ = ["inferred_calls"]
