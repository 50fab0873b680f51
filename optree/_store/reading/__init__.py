"""From disk to a tree: which sessions are there, and what their snapshots and journals say, whatever is damaged in them.

In come a directory's files; out go trees, and an exact account of what could not be read. Nothing is written here; how a snapshot and a
journal's numbers are laid out stands here too, for those who write them.
"""
