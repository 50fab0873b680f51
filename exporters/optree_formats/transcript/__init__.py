"""Agent exchange transcripts (seed 002): what a run and its agents, messages and tools did, one line an event, one file a run.

In come events: `Recorder` writes them and hands them to subscribers. Out they come again by `read`, past whatever is wrong; `follow`
writes those of a session that is recorded right now, and `FORMAT` turns trees into them and back. Lines that are written are never
changed.
"""

from optree_formats.transcript.format import FORMAT
from optree_formats.transcript.live import Follower, follow
from optree_formats.transcript.reader import (
    OutOfOrder,
    UnknownBlockType,
    UnknownBlockTypeError,
    UnknownEventType,
    UnknownEventTypeError,
    batches,
    read,
)
from optree_formats.transcript.recorder import FanOut, InvalidEventError, NopRecorder, Recorder, Stats, Subscription
from optree_formats.transcript.runs import Family, Run, family, run_id_of
from optree_formats.transcript.to_tree import tree_of
from optree_formats.transcript.wire import ContentBlock, Event, MessagePayload, StepPayload, ToolPayload, line

__all__ = [
    "FORMAT",
    "ContentBlock",
    "Event",
    "Family",
    "FanOut",
    "Follower",
    "InvalidEventError",
    "MessagePayload",
    "NopRecorder",
    "OutOfOrder",
    "Recorder",
    "Run",
    "Stats",
    "StepPayload",
    "Subscription",
    "ToolPayload",
    "UnknownBlockType",
    "UnknownBlockTypeError",
    "UnknownEventType",
    "UnknownEventTypeError",
    "batches",
    "family",
    "follow",
    "line",
    "read",
    "run_id_of",
    "tree_of",
]
