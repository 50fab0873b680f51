"""Files below the store: the seam over the system's calls, descriptors, locks, lines that several processes append, compression.

In come bytes and paths; out go bytes, and errors that say what to do. Nothing here knows what is in a session.
"""
