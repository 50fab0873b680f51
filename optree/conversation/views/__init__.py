"""The views of a conversation, each a function of its `Stream`, and their renderings.

In come events (`stream.py` looks up their links once), out go rows (`perspectives.py`, `sections.py`) and their text, Markdown, JSON
or diagram (`rendering.py`, `diagrams.py`). Nothing here reads a file or changes an event.
"""
