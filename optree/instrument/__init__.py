"""Decorators and context managers that put the tree into code that exists."""

from optree.instrument.config import Config
from optree.instrument.controls import configure, current, current_session, flush, health, load
from optree.instrument.handles import Session
from optree.instrument.propagate import child_env, wrap
from optree.instrument.scopes import llm, session, tool, turn

__all__ = [
    "Config",
    "Session",
    "child_env",
    "configure",
    "current",
    "current_session",
    "flush",
    "health",
    "llm",
    "load",
    "session",
    "tool",
    "turn",
    "wrap",
]
