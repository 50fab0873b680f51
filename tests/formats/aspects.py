"""Parts of a session that formats hold or leave out, each as a plain value."""

from typing import Any, NamedTuple

from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.conversation.events import AgentCreated, PieceOfText, TranscriptEntry
from optree.conversation.of_tree import events_of


class Aspect(NamedTuple):
    """A part, and how the words begin in which a format says that it has no place for it."""

    of: Any
    left_out_as: tuple[str, ...]


def agents(tree):
    """Return who called whom."""
    return sorted(session.call_path for session in walk_sessions(tree.session))


def ops(tree):
    """Return what was done, and where."""
    return [(op.path, op.kind, op.name or op.kind) for _, _, op in walk_ops(tree.session)]


def logs(tree):
    """Return what was logged."""
    return [(op.path, entry.severity, entry.message) for _, _, op in walk_ops(tree.session) for entry in op.logs]


def bill(tree):
    """Return each accounting entry."""
    entries = [(op.path, entry) for _, _, op in walk_ops(tree.session) for entry in op.accounting]
    return [(path, one.type, one.status, one.tokens, one.cost_usd, one.characters_in, one.characters_out) for path, one in entries]


def model_bill(tree):
    """Return what each model call took, in all its attempts."""
    found = {}
    for _, _, op in walk_ops(tree.session):
        calls = [entry for entry in op.accounting if entry.type == "llm"]
        if calls:
            tokens = [entry.tokens for entry in calls if entry.tokens is not None]
            found[op.path] = (
                sum(one.input_tokens for one in tokens),
                sum(one.output_tokens for one in tokens),
                sum(entry.cost_usd or 0.0 for entry in calls),
            )
    return found


def prompts(tree):
    """Return what users asked."""
    every = [turn for session in walk_sessions(tree.session) for turn in session.turns]
    return [(turn.path, {role: text for role, text in (turn.prompts or {}).items() if text}) for turn in every]


def payloads(tree):
    """Return what was sent and received, in full."""
    parts = [(op.path, part) for _, _, op in walk_ops(tree.session) for part in (op.request, op.response)]
    return [(path, part and tree.pool.resolve(decode(part.payload))) for path, part in parts]


def transcripts(tree):
    """Return what was said, in the order of the stream."""
    names = ("message_id", "role", "content", "substance", "tool_calls", "tool_call_id")
    events = [event for event in events_of(tree) if not isinstance(event, AgentCreated)]
    speakers = [event.agent_id if isinstance(event, TranscriptEntry) else "" for event in events]
    return [(speaker, *(getattr(event, name, None) for name in names)) for speaker, event in zip(speakers, events, strict=True)]


def makers(tree):
    """Return who made each text that was for others."""
    return [(event.message_id, event.agent_id) for event in events_of(tree) if isinstance(event, PieceOfText)]


ASPECTS = {
    "agents": Aspect(agents, ("who created",)),
    "ops": Aspect(ops, ("ops",)),
    "logs": Aspect(logs, ("logs",)),
    "bill": Aspect(bill, ("accounting",)),
    "model bill": Aspect(model_bill, ("accounting,", "accounting$")),
    "prompts": Aspect(prompts, ("turns",)),
    "payloads": Aspect(payloads, ("requests$", "of llm ops' requests")),
    "transcripts": Aspect(transcripts, ("messages",)),
    "makers": Aspect(makers, ("messages", "who made")),
}


def holds(form, name):
    """Tell whether a format holds a part."""
    return not any(f"{what}$".startswith(begin) for what in form.cannot_hold for begin in ASPECTS[name].left_out_as)
