"""The files of the original ai-agent, versions 1 and 2: one JSON document ``{version, reason, opTree}``, read and written.

In come a tree or such a document's bytes, out goes the other; no file is opened here. What its files have and a tree has no field for is
kept in the attribute ``ai-agent`` of each node (`rest`), so that a session that came from such a file goes back into one equal to it.
"""

from optree._store.reading.ai_agent.reading import VERSIONS, Original, tree_of
from optree._store.reading.ai_agent.writing import document, version_of

__all__ = ["VERSIONS", "Original", "document", "tree_of", "version_of"]
