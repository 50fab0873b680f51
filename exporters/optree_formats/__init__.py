"""Formats that a tree is written to and read from."""
