"""Where a node stands in its run: ``turn_1`` for a turn, ``turn_1.op_2`` for an op. The numbers are those of the node's own path."""

from __future__ import annotations

import re
from typing import Final

from optree.tree.path import last_index, parent_label

WORKFLOW: Final = "workflow"
TURN: Final = "turn"
CALL: Final = "call_workflow"
KINDS: Final = {"llm": "agent", "session": CALL, "system": "operation", "tool": "tool"}
"""Kinds of ops, and those of steps."""
_PATH = re.compile(r"turn_(0|[1-9]\d{0,17})(?:\.op_([1-9]\d{0,17}))?", re.ASCII)


def step_path(path: str) -> str:
    """Return a node's path as that of a step of its run."""
    index = last_index(path)
    return f"turn_{last_index(parent_label(path))}.op_{index}" if path.count(".") % 2 else f"turn_{index}"


def own_path(step: str) -> tuple[int, int] | None:
    """Return the numbers of the turn and the op (0: the turn itself) that a step is; None for a step that others wrote."""
    found = _PATH.fullmatch(step)
    return None if found is None else (int(found[1]), int(found[2] or 0))
