"""The dialog view: what passed between some agents, each content once, whoever heard it how often."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct

from optree.conversation.content import Kind, is_utterance, kind_of
from optree.conversation.events import TranscriptEntry
from optree.conversation.views.stream import Stream


class Heard(Struct):
    """That an agent heard a content, and in which words."""

    agent_id: str
    message_id: str
    content: str
    changed: bool = False
    """Whether the words are not the original's any more, a frame such as ``[Jack]: `` around them apart."""


class Line(Struct, omit_defaults=True):
    """One content of a dialog."""

    message_id: str
    """The original's id."""
    content: str
    author: str = ""
    """Whose content it is; empty where that is not known."""
    role: str = ""
    kind: Kind | None = None
    """What it is in the first of the chosen agents' transcripts that has it."""
    heard: list[Heard] = []
    """How the chosen agents heard it, in order."""


def dialog(stream: Stream, agents: Collection[str], *, original: bool = False, spoken: bool = False) -> Iterator[Line]:
    """Yield each content in the transcripts of some agents once, in the order in which it first entered one of them.

    A content has its author's words if its author is among *agents*, else those that the first of them heard: a text that a hook
    changed on the way is not shown as it was before. With *original* it always has its author's words, as in the seeds.
    With *spoken* only utterances, and what was heard, are shown: no instructions, calls and results.
    """
    lines: dict[str, Line] = {}
    for event in stream.events:
        if not isinstance(event, TranscriptEntry) or event.agent_id not in agents:
            continue
        if spoken and not (is_utterance(event) or kind_of(event) == "heard"):
            continue
        root = stream.root(event.message_id)
        line = lines.get(root)
        if line is None:
            line = lines[root] = _line(stream, root, event, agents, original=original)
        if event.message_id != root:
            line.heard.append(heard(stream, event))
    yield from (line for line in lines.values() if line.content)


def heard(stream: Stream, entry: TranscriptEntry) -> Heard:
    """Return how an agent heard the content that an entry represents."""
    return Heard(entry.agent_id, entry.message_id, stream.said(entry), changed=stream.change(entry) == "changed")


def _line(stream: Stream, root: str, entry: TranscriptEntry, agents: Collection[str], *, original: bool) -> Line:
    source = stream.by_id.get(root)
    author = "" if source is None else source.agent_id
    if author in agents or (original and source is not None) or entry.message_id == root:
        said = stream.original(root) or ""
    else:
        said = stream.said(entry)
    return Line(root, said, author, entry.role, kind_of(entry))
