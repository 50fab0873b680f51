"""Conversations: what agents say to each other, as a stream of events that is their state, and the views of it (seeds 000 and 001)."""
