"""Delivery over OTLP: batches, the thread that sends each signal, HTTP and gRPC, and what collectors answer.

In come encoded entries and a destination, out go requests; whoever queued an entry is told whether a collector acknowledged or refused it.
Nothing here knows a tree.
"""
