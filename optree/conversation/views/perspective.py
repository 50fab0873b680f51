"""The perspective view: what one agent heard, thought, did and said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from optree.conversation.content import kind_of, thought_of
from optree.conversation.views.stream import StreamView

LABELS = {"heard": "Heard", "called": "Action", "said": "Said", "received": "Received"}
NO_WORDS = "Taking action..."


class Lived(NamedTuple):
    """One thing that an agent lived through."""

    label: str
    text: str
    calls: str = ""
    """The calls that an action makes."""


def perspective(stream: StreamView, agent: str) -> Iterator[Lived]:
    """Yield what each entry of an agent's transcript is to it; its instructions are not part of what it lives through."""
    eyes = (agent,)
    for entry in stream.entries(agent):
        label = LABELS.get(kind_of(entry))
        if thought := thought_of(entry):
            yield Lived("Thought", stream.shown(thought))
        if label == "Action":
            calls = "\n".join(f"{call.name}({call.arguments})" for call in stream.calls(entry))
            yield Lived(label, stream.said(entry, eyes) or NO_WORDS, calls)
        elif label is not None and stream.words(entry, eyes) is not None:
            yield Lived(label, stream.said(entry, eyes))
