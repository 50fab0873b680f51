"""Puts the compiled twins in the place of the hot path's functions, where there are any."""

from __future__ import annotations

from msgspec import UNSET, Raw

from optree import _clock as clock
from optree import _nodes as nodes
from optree import _records as records
from optree import _speed as speed
from optree import _values as values
from optree._builder import entries, figures, handles, histories
from optree._builder.core import Core, Encoded
from optree._builder.guard import FAULTS, UNRECORDED, fault
from optree._builder.session_tree import SessionTreeBuilder
from optree._builder.stream import Stream, Wants
from optree._builder.turns import Turn
from optree._interrupts import from_handler
from optree._providers.usage import Usage


def install() -> None:
    """Tell the twins what they work on, and put them in place."""
    if speed.prepare(
        op_type=handles.Op,
        turn_type=Turn,
        core_type=Core,
        stream_type=Stream,
        op_begin_type=records.OpBegin,
        op_end_type=records.OpEnd,
        accounted_type=records.Accounted,
        op_node_type=nodes.OperationNode,
        turn_node_type=nodes.TurnNode,
        session_node_type=nodes.SessionNode,
        entry_type=nodes.AccountingEntry,
        tokens_type=nodes.Tokens,
        usage_type=Usage,
        totals_type=nodes.Totals,
        log_type=nodes.LogEntry,
        chunk_type=nodes.ReasoningChunk,
        wants_type=Wants,
        entries_type=records.Entries,
        encoded_type=Encoded,
        payload_type=nodes.Payload,
        raw_type=Raw,
        requested_type=records.Requested,
        responded_type=records.Responded,
        encode_into=values.encode_into,
        plain_line=records.line,
        provider_and_model=figures.provider_and_model,
        price_entry=Core.price,
        handles=vars(handles),
        wall=clock.wall,
        unset=UNSET,
        from_handler=from_handler,
        fault=fault,
        faults=FAULTS,
        unrecorded=UNRECORDED["op"],
    ):
        speed.quicken(entries, "read_entries")
        speed.quicken(values, "_is_plain")
        speed.quicken(histories, "is_same")
        speed.quicken(Stream, "leave", "together")
        speed.quicken(handles.Op, "log", "think", "chunk", "account", "end")
        speed.quicken(SessionTreeBuilder, "begin_op")
