"""Files below the store: the one seam over the system's calls, descriptors, locks, lines, compression.

In come bytes and paths; out go bytes, and errors that say what to do. Nothing here knows what a session is.
"""
