"""Console lines: records in, lines on stderr out. Stdout belongs to the agent."""

from optree.console.lines import LineOptions, LineRenderer
from optree.console.writer import ConsoleWriter

__all__ = ["ConsoleWriter", "LineOptions", "LineRenderer"]
