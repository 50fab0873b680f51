"""The dialog view: what passed between some agents, each content once, whoever heard it how often."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from optree.conversation.content import Kind, is_utterance, kind_of
from optree.conversation.events import AnyEvent, TranscriptEntry
from optree.conversation.views.stream import Eyes, StreamView, is_seen


class Heard(Struct):
    """That an agent heard a content, and in which words."""

    agent_id: str
    message_id: str
    content: str
    changed: bool = False
    """Whether the words are not the original's any more, a frame such as ``[Jack]: `` around them apart."""


class DialogLine(Struct, omit_defaults=True):
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
    apart: list[Heard] = []
    """Those of them whose words are not the ones of this line, a frame apart."""


def dialog(stream: StreamView, agents: Eyes, *, original: bool = False, spoken: bool = False) -> Iterator[DialogLine]:
    """Yield each content in the transcripts of some agents once, in the order in which it first entered one of them.

    A content has its author's words if its author is among *agents*, else those that the first of them heard: a text that a hook
    changed on the way is not shown as it was before. With *original* it always has its author's words, as in the seeds.
    With *spoken* only utterances, and what was heard, are shown: no instructions, calls and results.
    """
    eyes = None if original else agents
    lines: dict[int | str, tuple[DialogLine, str]] = {}
    for event in stream.events:
        if not isinstance(event, TranscriptEntry) or not is_seen(event.agent_id, agents):
            continue
        if spoken and not (is_utterance(event) or kind_of(event) == "heard"):
            continue
        source = stream.source(event)
        key = stream.origin(event) if source is None else id(source)
        if key not in lines:
            lines[key] = _line(stream, event, source, eyes)
        line, words = lines[key]
        if event.message_id != line.message_id and stream.words(event, eyes) is not None:
            line.heard.append(one := heard(stream, event, eyes))
            line.apart += [one] if stream.is_apart(event, words, eyes) else []
    yield from (line for line, words in lines.values() if words)


def heard(stream: StreamView, entry: TranscriptEntry, agents: Eyes = None) -> Heard:
    """Return how an agent heard the content that an entry represents."""
    return Heard(entry.agent_id, entry.message_id, stream.said(entry, agents), changed=stream.change(entry) == "changed")


def _line(stream: StreamView, entry: TranscriptEntry, source: AnyEvent | None, eyes: Eyes) -> tuple[DialogLine, str]:
    """Return a line with its words, as they are compared. An entry whose id another has too is its own original."""
    origin = stream.origin(entry)
    words = stream.words(entry, eyes) if source is entry else stream.words_for(origin, eyes)
    author = "" if source is None else source.agent_id
    return DialogLine(origin, stream.shown(words or ""), author, entry.role, kind_of(entry)), words or ""
