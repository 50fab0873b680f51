"""Generated conversations: agents that create agents, entries with links, pieces of text, tool calls."""

from hypothesis import strategies as st

from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.to_tree import tree_of

_text = st.text(max_size=12)
_content = st.none() | _text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _text}), min_size=1, max_size=2)
_step = st.tuples(
    st.sampled_from(["agent", "say", "say", "hear", "call", "result", "text"]),
    st.integers(0, 9),
    st.integers(0, 9),
    _content,
    st.booleans(),
)


class _Stream:
    """Makes events out of steps; each refers only to what is there."""

    def __init__(self, timed):
        self.timed = timed
        self.events = []
        self.agents = []
        self.calls = []

    def add(self, kind, **fields):
        time = 1_700_000_000_000.0 + len(self.events) * 0.25 if self.timed else None
        self.events.append(kind(message_id=f"msg_{len(self.events) + 1:03d}", timestamp=time, **fields))

    def step(self, verb, which, other, content, flag):
        agent = self.agents[which % len(self.agents)] if self.agents else None
        link = self.events[other % len(self.events)].message_id if self.events else None
        if agent is None or verb == "agent":
            name = f"agent_{len(self.agents):03d}"
            self.add(AgentCreated, agent_id=name, parent=agent, name=f"n{which}" if flag else None, language_model="m" if flag else None)
            self.agents.append(name)
        elif verb == "call":
            call = {"id": f"c{len(self.events)}", "type": "function", "function": {"name": "task", "arguments": "{}"}}
            self.calls.append(call["id"])
            self.add(TranscriptEntry, agent_id=agent, role="assistant", content=content if flag else None, tool_calls=[call])
        elif verb == "result" and self.calls:
            self.add(TranscriptEntry, agent_id=agent, role="tool", content=content, tool_call_id=self.calls[other % len(self.calls)])
        elif verb == "text":
            self.add(PieceOfText, agent_id=agent, content=content or "", cause=(link,) if flag else (link, f"{link}.c1"))
        elif verb == "hear":
            self.add(TranscriptEntry, agent_id=agent, role="user", content=content, substance=link)
        else:
            self.add(TranscriptEntry, agent_id=agent, role="assistant" if flag else "user", content=content)


def _played(steps, timed):
    stream = _Stream(timed)
    for step in steps:
        stream.step(*step)
    return stream.events


event_lists = st.builds(_played, st.lists(_step, min_size=1, max_size=15), st.booleans())
"""Streams of events, with and without times."""
streams = event_lists.map(lambda events: tree_of(events, txn="t", start=1_700_000_000_000.0))
"""The same as trees."""
