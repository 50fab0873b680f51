"""The hooks view: where what was heard differs from what was said, as a diff. Both stay readable; nothing is taken for intended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Literal

from msgspec import Struct

from optree.conversation.views.stream import Eyes, StreamView, is_seen

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_WORDS = 400
"""Longer differing middles are shown whole, as taken out and put in: comparing them word by word takes their product in time."""

Part = tuple[Literal["same", "removed", "added"], str]
"""A piece of text, and whether both have it, only the original, or only what was heard."""


class Intervention(Struct):
    """A content that reached an agent in other words."""

    message_id: str
    """What was heard."""
    agent_id: str
    substance: str
    """The original's id."""
    author: str
    original: str | None
    """None where its author is not among the chosen agents."""
    received: str
    framed: bool
    """Whether the original stands whole in what was heard, as in ``[Jack]: Hello``: something was put around it."""
    diff: list[Part]
    """Without the original, what was heard as it is."""


def interventions(stream: StreamView, agents: Eyes = None, *, framed: bool = False) -> Iterator[Intervention]:
    """Yield each delivery whose words are not the original's; with *framed* also those where something was only put around them.

    Of *agents*, it is what they heard, with the original where its author is one of them. A delivery whose original is not in the
    stream cannot be compared, and is left out.
    """
    for root, entries in stream.copies.items():
        for entry in entries:
            change = stream.change(entry) if is_seen(entry.agent_id, agents) else None
            if change == "changed" or (framed and change == "framed"):
                author = stream.by_id[root].agent_id
                original = stream.original(root) if is_seen(author, agents) else None
                received = stream.said(entry, agents)
                told: list[Part] = [("same", received)] if original is None else difference(original, received)
                yield Intervention(entry.message_id, entry.agent_id, root, author, original, received, change == "framed", told)


def difference(before: str, after: str) -> list[Part]:
    """Return how a text became another, in words; parts of *before* and of *after* join up to them."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    head = _shared(old, new)
    tail = _shared(old[head:][::-1], new[head:][::-1])
    before_it: Part = ("same", "".join(old[:head]))
    behind_it: Part = ("same", "".join(old[len(old) - tail :]))
    parts = [before_it, *_middle(old[head : len(old) - tail], new[head : len(new) - tail]), behind_it]
    return [part for part in parts if part[1]]


def _middle(old: list[str], new: list[str]) -> Iterator[Part]:
    if len(old) > _MOST_WORDS or len(new) > _MOST_WORDS or not old or not new:
        yield "removed", "".join(old)
        yield "added", "".join(new)
        return
    for verb, first, last, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if verb == "equal":
            yield "same", "".join(old[first:last])
        else:
            yield "removed", "".join(old[first:last])
            yield "added", "".join(new[start:stop])


def _shared(one: list[str], other: list[str]) -> int:
    """Return how many items two lists begin with in common."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
