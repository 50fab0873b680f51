"""What a package outside optree builds on, beside `optree` itself: file formats, exporters, and whatever follows a running session.

A *format* writes saved trees to files and reads them back; an *exporter* sends sessions to another system while they run, and afterwards.
Both are objects that a package names by an entry point, in the group `FORMATS` or `EXPORTERS`. What only watches a session of its own
program needs neither: a `RecordSubscription` hands it the records.

The names, by what they are for:

- formats: `FORMATS`, `Format`, `Read`, `Fault`, `write_new`, `open_new`, `installed_formats`, `format_named`, `save`
- exporters: `EXPORTERS`, `Exporter`, `Resender`, `Delivery`, `SpanReader`, `Mirror`, `MakeMirror`, `Traced`
- records: `Record` and its kinds; `unfold` makes them of a tree, and `Fold` a tree of them, `RecordedTree` one that is read from elsewhere;
  `RecordSubscription`, `Taker`
- parts of nodes: `Payload`, `Pool`, `PooledHistory`, `Reasoning`, `ReasoningChunk`, `Tokens`, and the words `OpKind`, `Severity`,
  `Status`, `ENDED`, `UNKNOWN`
- about nodes: `state`, `parts_of_name`, `parent_path`, `last_index`, `add_entry`, `add_op`, `totals_of`, `cost_said`,
  `leave_out_impossible`, `MAX_NESTED`
- ids and time: `is_txn`, `txn_of`, `node_id`, `span_id`, `trace_id`, `now_ms`
- JSON values: `encode`, `raw`, `dumps`, `decode`, `TypedDecoder`, `is_object`, `is_list`, `plain`, `text`, `clean`, `sanitize`, `cut`
- credentials: `redact`, `redact_pieces`, `redaction_settings`, `REDACTION_VARIABLE`, `may_hold_secret`, `names_secret`, `REDACTED`,
  `Remembered`, `remembered`; `without_quoted`, for the user's words in errors
- what messages say, whichever provider's form they have: `parse_message`, `parse_parts`, `parse_answers`, `is_message`,
  `payload_body`, `payload_shown`, `json_text`, `Answer`, `Part` and its kinds; what usage says: `read_usage`, `usage_count`,
  `usage_dollars`
- files: `open_file`, `open_regular`, `decoded_lines`, `line_blocks`, `LineBlock`, `BadLine`, `LineLog`, `unpack`, `OS`, `REAL`, and
  locks on them: `lock_file`, `lock_shared`, `unlock`; what they say of a session: `has_ended`
- inside a program: `begin_session`, `forget_session`, `current_scope`, `Scope`, `report_problem`, `pass_on`, `new_rlock`, `if_free`,
  `register_at_fork`, `BackgroundThread`, `Wake`, `usable_accelerator`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from optree._background import Wake
from optree._builder.histories import PooledHistory
from optree._builder.outcome import without_quoted
from optree._builder.stream import Taker
from optree._clock import now_ms
from optree._ids import is_txn, node_id, span_id, trace_id, txn_of
from optree._interrupts import if_free, new_rlock, pass_on
from optree._mirrors import EXPORTERS, Delivery, Exporter, MakeMirror, Mirror, Resender, SpanReader, Traced
from optree._nodes import OpKind, Payload, Pool, Reasoning, ReasoningChunk, Severity, Status, Tokens, parts_of_name
from optree._providers.amounts import count as usage_count
from optree._providers.amounts import dollars as usage_dollars
from optree._providers.usage import read as read_usage
from optree._records import (
    Accounted,
    Entries,
    MessageAdded,
    OpBegin,
    OpEnd,
    OpSet,
    Pooled,
    Record,
    Requested,
    Responded,
    SessionBegin,
    SessionEnd,
    SessionResume,
    SessionSet,
    TurnBegin,
    TurnEnd,
    TurnSet,
    sanitize,
)
from optree._speed import usable as usable_accelerator
from optree._store.files.compression import unpack
from optree._store.files.descriptors import open_regular
from optree._store.files.lock import hold as lock_shared
from optree._store.files.lock import release as unlock
from optree._store.files.lock import take as lock_file
from optree._store.files.system import OS, REAL
from optree._store.reading.snapshot import MAX_NESTED
from optree._store.settle import has_ended
from optree._syscalls import register_at_fork
from optree._threads import BackgroundThread
from optree._tracing.context import Scope, current_scope
from optree._tracing.controls import begin_session, forget_session
from optree._tracing.runtime import report_problem
from optree._tree.fold import UNKNOWN, Fold
from optree._tree.path import last_index
from optree._tree.path import parent_label as parent_path
from optree._tree.text import ENDED, state
from optree._tree.totals import add_entry, add_op, cost_said, leave_out_impossible
from optree._tree.totals import of_entries as totals_of
from optree._values import TypedDecoder, clean, cut, decode, dumps, encode, is_list, is_object, plain, raw, text
from optree.redaction import REDACTED, Remembered, may_hold_secret, names_secret, redact, redact_pieces, remembered
from optree.redaction import VARIABLE as REDACTION_VARIABLE
from optree.redaction import settings as redaction_settings

if TYPE_CHECKING:
    from optree._builder.subscription import RecordSubscription
    from optree._formats import FORMATS, Fault, Format, Read, open_new, write_new
    from optree._formats.installed import format_named, installed_formats
    from optree._formats.recorded import RecordedTree
    from optree._providers.messages import Answer, Other, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart, is_message, json_text
    from optree._providers.messages import answers as parse_answers
    from optree._providers.messages import body as payload_body
    from optree._providers.messages import message as parse_message
    from optree._providers.messages import opened as payload_shown
    from optree._providers.messages import parts as parse_parts
    from optree._store.files.line_log import LineLog
    from optree._store.files.lines import BadLine, LineBlock
    from optree._store.files.lines import blocks as line_blocks
    from optree._store.files.lines import decoded as decoded_lines
    from optree._store.files.lines import opened as open_file
    from optree._store.importing import save
    from optree._tree.unfold import unfold

_LATER = {
    "builder.subscription": ("RecordSubscription",),
    "formats": ("FORMATS", "Fault", "Format", "Read", "open_new", "write_new"),
    "formats.installed": ("format_named", "installed_formats"),
    "formats.recorded": ("RecordedTree",),
    "providers.messages": (
        "Answer",
        "Other",
        "Part",
        "ReasoningPart",
        "TextPart",
        "ToolCallPart",
        "ToolResultPart",
        "is_message",
        "json_text",
        "answers=parse_answers",
        "body=payload_body",
        "message=parse_message",
        "opened=payload_shown",
        "parts=parse_parts",
    ),
    "store.importing": ("save",),
    "store.files.line_log": ("LineLog",),
    "store.files.lines": ("BadLine", "LineBlock", "blocks=line_blocks", "decoded=decoded_lines", "opened=open_file"),
    "tree.unfold": ("unfold",),
}
"""Names that are imported when they are asked for, since few packages need them; behind ``=`` the name that each has here."""
_MODULES = {name.rpartition("=")[2]: (module, name.partition("=")[0]) for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _MODULES[name]
    value = globals()[name] = getattr(import_module(f"optree._{module}"), own)
    return value


__all__ = [
    "ENDED",
    "EXPORTERS",
    "FORMATS",
    "MAX_NESTED",
    "OS",
    "REAL",
    "REDACTED",
    "REDACTION_VARIABLE",
    "UNKNOWN",
    "Accounted",
    "Answer",
    "BackgroundThread",
    "BadLine",
    "Delivery",
    "Entries",
    "Exporter",
    "Fault",
    "Fold",
    "Format",
    "LineBlock",
    "LineLog",
    "MakeMirror",
    "MessageAdded",
    "Mirror",
    "OpBegin",
    "OpEnd",
    "OpKind",
    "OpSet",
    "Other",
    "Part",
    "Payload",
    "Pool",
    "Pooled",
    "PooledHistory",
    "Read",
    "Reasoning",
    "ReasoningChunk",
    "ReasoningPart",
    "Record",
    "RecordSubscription",
    "RecordedTree",
    "Remembered",
    "Requested",
    "Resender",
    "Responded",
    "Scope",
    "SessionBegin",
    "SessionEnd",
    "SessionResume",
    "SessionSet",
    "Severity",
    "SpanReader",
    "Status",
    "Taker",
    "TextPart",
    "Tokens",
    "ToolCallPart",
    "ToolResultPart",
    "Traced",
    "TurnBegin",
    "TurnEnd",
    "TurnSet",
    "TypedDecoder",
    "Wake",
    "add_entry",
    "add_op",
    "begin_session",
    "clean",
    "cost_said",
    "current_scope",
    "cut",
    "decode",
    "decoded_lines",
    "dumps",
    "encode",
    "forget_session",
    "format_named",
    "has_ended",
    "if_free",
    "installed_formats",
    "is_list",
    "is_message",
    "is_object",
    "is_txn",
    "json_text",
    "last_index",
    "leave_out_impossible",
    "line_blocks",
    "lock_file",
    "lock_shared",
    "may_hold_secret",
    "names_secret",
    "new_rlock",
    "node_id",
    "now_ms",
    "open_file",
    "open_new",
    "open_regular",
    "parent_path",
    "parse_answers",
    "parse_message",
    "parse_parts",
    "parts_of_name",
    "pass_on",
    "payload_body",
    "payload_shown",
    "plain",
    "raw",
    "read_usage",
    "redact",
    "redact_pieces",
    "redaction_settings",
    "register_at_fork",
    "remembered",
    "report_problem",
    "sanitize",
    "save",
    "span_id",
    "state",
    "text",
    "totals_of",
    "trace_id",
    "txn_of",
    "unfold",
    "unlock",
    "unpack",
    "usable_accelerator",
    "usage_count",
    "usage_dollars",
    "without_quoted",
    "write_new",
]
