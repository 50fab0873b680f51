"""Conversations: what agents say to each other, as a stream of events that is their state, and the views of it (seeds 000 and 001).

In come messages by `Session` and its agents, a log, or a tree; out go events, views of them and a tree again. An event is never changed
once it is in the stream; only `file_home.py` opens files.
"""

from optree.conversation.agent import Agent, restored
from optree.conversation.content import answers_of, calls_of, new_entries, text_of, thought_of
from optree.conversation.events import AgentCreated, AnyEvent, PieceOfText, TranscriptEntry
from optree.conversation.loading import load_root, load_session, load_traced
from optree.conversation.model import AnyAgent, ChatModel, Model, Reply
from optree.conversation.of_tree import events_of
from optree.conversation.registry import AgentRecord
from optree.conversation.session import ConversationSession as Session
from optree.conversation.session import MakeAgent, SessionLogger
from optree.conversation.strings import LoggedString, MessageString
from optree.conversation.to_tree import tree_of
from optree.conversation.tools import TOOLS, ApprovalHook, Hook, RedactingHook, Tool, ToolCall, deliver
from optree.conversation.viewer import SessionViewer
from optree.conversation.wire import line, read_events, stream_events

__all__ = [
    "TOOLS",
    "Agent",
    "AgentCreated",
    "AgentRecord",
    "AnyAgent",
    "AnyEvent",
    "ApprovalHook",
    "ChatModel",
    "Hook",
    "LoggedString",
    "MakeAgent",
    "MessageString",
    "Model",
    "PieceOfText",
    "RedactingHook",
    "Reply",
    "Session",
    "SessionLogger",
    "SessionViewer",
    "Tool",
    "ToolCall",
    "TranscriptEntry",
    "answers_of",
    "calls_of",
    "deliver",
    "events_of",
    "line",
    "load_root",
    "load_session",
    "load_traced",
    "new_entries",
    "read_events",
    "restored",
    "stream_events",
    "text_of",
    "thought_of",
    "tree_of",
]
