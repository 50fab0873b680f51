"""A call of a model, as it passes over HTTP or a websocket: its request and its answer, read, and the op that it becomes.

In come what a client sends and the pieces that it receives; out go the request, messages, answer, usage and refusals of one llm op, an
attempt each. An `Exchange` is touched by the client's thread and, for the pieces of a stream, by the worker, under its lock.
"""
