"""The event log of seed 003: Markdown for people, with a block of YAML for each event, for programs. See docs/reference/markdown-log.md.

In come events, by `EventLog`, by a tree or by a running session's records; out go a log, its summary and its compressed form, and a tree
again. A log is only appended to: `writer.py` does it, and what changes its bytes otherwise is found out by the chain in `integrity.py`.
"""

from optree_formats.markdown.events import LogEvent, Refused, tool_call, tool_error
from optree_formats.markdown.format import FORMAT
from optree_formats.markdown.integrity import verify
from optree_formats.markdown.live import follow
from optree_formats.markdown.reader import Entry, Log, extract_events, read_log, stream_log
from optree_formats.markdown.summary import State, state_at, summarise, write_summary
from optree_formats.markdown.writer import EventLog, log_path

__all__ = [
    "FORMAT",
    "Entry",
    "EventLog",
    "Log",
    "LogEvent",
    "Refused",
    "State",
    "extract_events",
    "follow",
    "log_path",
    "read_log",
    "state_at",
    "stream_log",
    "summarise",
    "tool_call",
    "tool_error",
    "verify",
    "write_summary",
]
