"""What a collector gets: spans, log records and metrics, and their bytes.

In come nodes of a tree (`optree`'s), out go encoded entries and the resource that they belong to. Nothing here sends, waits or keeps the
state of a session; `names.py` is the one table of attributes.
"""
