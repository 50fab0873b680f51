"""What of a tree a format holds: the tree as plain values, without what the format's `cannot_hold` names."""

from optree._nodes import AS_TOLD
from optree._tree import Tree
from optree._tree.walk import to_plain
from optree.conversation.of_tree import events_of
from tests.formats.transcript.held import held as held_by_transcript

TIMES = ("startedAt", "endedAt", "timestamp", "ts", "latency")
OWN_NAMES = {"provider", "model", "name", "latency", "error"}


def held(form, tree):
    """Return what a format is to keep of a tree. Totals are summed anew by each reader, and are not in it."""
    if form.name.startswith("events"):
        return [_event(event, form.cannot_hold) for event in events_of(tree)]
    if form.name == "transcript":
        return held_by_transcript(tree)
    plain = whole(tree)
    if form.name in ("ai-agent", "ai-agent-v1"):  # what a file said otherwise is noted, so that it is written so again
        for node in [one for session in sessions(plain) for one in (session, *session["turns"])]:
            node.get("attributes", {}).pop(AS_TOLD, None)
            if not node.get("attributes"):
                node.pop("attributes", None)
    for what in form.cannot_hold:
        WITHOUT[what](plain)
    return plain


def whole(tree: Tree):
    """Return a tree with each payload in full, and without totals and the pool that payloads refer to."""
    plain = to_plain(tree)["session"]
    for session in sessions(plain):
        session.pop("totals", None)
        for op in ops(session):
            for part in ("request", "response"):
                if part in op:
                    op[part]["payload"] = tree.pool.resolve(op[part].get("payload"))
    return plain


def sessions(session):
    """Return a session and all below it."""
    found = [session]
    for one in found:
        found += [op["childSession"] for op in ops(one) if "childSession" in op]
    return found


def ops(session):
    """Return a session's own ops."""
    return [op for turn in session["turns"] for op in turn["ops"]]


def _event(event, cannot_hold):
    kind = type(event).__name__
    made = {name: getattr(event, name) for name in event.__struct_fields__}
    if "times" in cannot_hold:
        made["timestamp"] = None
    if "who created an agent" in cannot_hold and kind == "AgentCreated":
        made["parent"], made["cause"] = None, ()
    if "causes of entries" in cannot_hold and kind == "TranscriptEntry":
        made["cause"] = ()
    if "who made a text" in cannot_hold and kind == "PieceOfText":
        made["agent_id"] = ""
    return {"kind": kind, **made}


def _each(session_too, *names):
    """Return what takes members out of all ops, or of all sessions."""

    def strip(plain):
        for session in sessions(plain):
            for node in [session] if session_too else ops(session):
                for name in names:
                    node.pop(name, None)

    return strip


def _turns(*names):
    def strip(plain):
        for session in sessions(plain):
            for turn in session["turns"]:
                for name in names:
                    turn.pop(name, None)

    return strip


def _two_statuses(plain):
    for session in sessions(plain):
        for node in [session, *session["turns"], *ops(session)]:
            if node.get("status") in ("cancelled", "interrupted"):
                node["status"] = "failed"


def _names(plain):
    for session in sessions(plain):
        for op in ops(session):
            op["name"] = op["name"] or op["kind"]


def _own_attributes(plain):
    for session in sessions(plain):
        for node in [session, *ops(session)]:
            node["attributes"] = {key: value for key, value in node.get("attributes", {}).items() if key not in OWN_NAMES}


def _attributes_of_turns(plain):
    for session in sessions(plain):
        for turn in session["turns"]:
            names = ("prompts", "assistant", "warnings", "errors")
            turn["attributes"] = {key: value for key, value in turn.get("attributes", {}).items() if key not in names}


def _whole_milliseconds(plain):
    for session in sessions(plain):
        for turn in session["turns"]:
            entries = [
                entry for op in turn["ops"] for entry in (*op["logs"], *op["accounting"], *op.get("reasoning", {}).get("chunks", ()))
            ]
            for node in [session, turn, *turn["ops"], *entries]:
                node.update({name: int(node[name]) for name in TIMES if node.get(name) is not None})
        session.update({name: int(session[name]) for name in TIMES if session.get(name) is not None})


def _no_ids(plain):
    for session in sessions(plain):
        for op in ops(session):
            for entry in op["accounting"]:
                entry.pop("id", None)


def _titles(plain):
    for session in sessions(plain):
        if not session.get("sessionTitle"):
            session.pop("sessionTitle", None)


def _logs(plain):
    for session in sessions(plain):
        for op in ops(session):
            op["logs"] = []


def _model_accounting(plain):
    for session in sessions(plain):
        for op in ops(session):
            op["accounting"] = [entry for entry in op["accounting"] if entry["type"] == "llm"]


def _sums(plain):
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    for session in sessions(plain):
        for op in ops(session):
            counts = {name: sum(entry.get("tokens", {}).get(name, 0) for entry in op["accounting"]) for name in names}
            cost = sum(entry.get("costUsd") or 0.0 for entry in op["accounting"])
            op["accounting"] = [{"tokens": counts, "costUsd": cost}] if op["accounting"] else []


def _thoughts(plain):
    for session in sessions(plain):
        for op in ops(session):
            if "reasoning" in op:
                chunks = "".join(chunk["text"] for chunk in op["reasoning"].get("chunks", ()))
                op["reasoning"] = {"final": op["reasoning"].get("final", chunks)}


def _joined_thoughts(plain):
    for session in sessions(plain):
        for op in ops(session):
            chunks = op.get("reasoning", {}).get("chunks")
            if chunks:
                op["reasoning"]["chunks"] = [{"text": "".join(chunk["text"] for chunk in chunks), "ts": chunks[0]["ts"]}]


def _partial(plain):
    for session in sessions(plain):
        for op in ops(session):
            if op.get("response", {}).pop("partial", False):
                op["response"]["truncated"] = True


def _no_turn_0(plain):
    for session in sessions(plain):
        session["turns"] = [turn for turn in session["turns"] if turn["index"] > 0]


def _sizes(plain):
    for session in sessions(plain):
        for op in ops(session):
            for part in ("request", "response"):
                op.get(part, {}).pop("size", None)


def _open_turns(plain):
    for session in sessions(plain):
        for turn in session["turns"] if session.get("endedAt") is not None else []:
            if all(op.get("endedAt") is not None for op in turn["ops"]) and turn.get("endedAt") is None:
                turn["endedAt"] = max((op["endedAt"] for op in turn["ops"]), default=session["endedAt"])


def _accounting(plain):
    for session in sessions(plain):
        for op in ops(session):
            op["accounting"] = []


def _of_kinds(part, *kinds):
    def strip(plain):
        for session in sessions(plain):
            for op in ops(session):
                if op["kind"] in kinds:
                    op.pop(part, None)

    return strip


def _unfinished_responses(plain):
    for session in sessions(plain):
        for op in ops(session):
            if op["kind"] != "llm" and op.get("endedAt") is None:
                op.pop("response", None)


def _unfinished_answers(plain):
    for session in sessions(plain):
        for op in ops(session):
            if op["kind"] == "llm" and op.get("endedAt") is None:
                op.pop("response", None)


def _empty_payloads(plain):
    for session in sessions(plain):
        for op in ops(session):
            for part in ("request", "response"):
                if part in op and op[part]["payload"] in (None, {}, [], ""):
                    del op[part]


def _empty_prompts(plain):
    for session in sessions(plain):
        for turn in session["turns"]:
            turn["prompts"] = {role: text for role, text in turn.get("prompts", {}).items() if text}


def _empty_reasoning(plain):
    for session in sessions(plain):
        for op in ops(session):
            thought = op.get("reasoning", {})
            if not thought.get("final", "".join(chunk["text"] for chunk in thought.get("chunks", ()))):
                op.pop("reasoning", None)


def _null_reports(plain):
    for session in sessions(plain):
        if session.get("finalReport", 0) is None:
            del session["finalReport"]


def _nothing(plain):
    """Leave the tree: builders make nothing of the kind."""


WITHOUT = {
    "that an answer broke off: it is said to be truncated": _partial,
    "messages": _each(True, "messages"),
    "resumes": _each(True, "resumedAt"),
    "reports": _each(True, "finalReport"),
    "parents of ops": _each(False, "parentOp"),
    "statuses of turns": _turns("status"),
    "errors of turns": _turns("error"),
    "statuses other than ok and failed": _two_statuses,
    "empty names of ops": _names,
    "empty titles": _titles,
    "attributes of names that it uses itself": _own_attributes,
    "attributes of turns that are named prompts, assistant, warnings or errors": _attributes_of_turns,
    "fractions of milliseconds": _whole_milliseconds,
    "ids of accounting entries": _no_ids,
    "logs": _logs,
    "accounting of tools": _model_accounting,
    "accounting entry by entry": _sums,
    "chunks of reasoning": _thoughts,
    "where reasoning was cut into chunks, and when each came: its text is held, and when the first came": _joined_thoughts,
    "accounting": _accounting,
    "requests of session and system ops": _of_kinds("request", "session", "system"),
    "responses of unfinished tools, sessions and system ops": _unfinished_responses,
    "payloads that are null or empty": _empty_payloads,
    "of llm ops' requests all but new texts and tool results": _of_kinds("request", "llm"),
    "of unfinished llm ops' responses all but texts and calls": _unfinished_answers,
    "that reasoning in a response is not the op's own": _of_kinds("reasoning", "llm"),
    "latencies as they were measured": _each(False, "latency"),
    "empty prompts": _empty_prompts,
    "empty reasoning": _empty_reasoning,
    "reports that are null": _null_reports,
    "content in the pool that nothing refers to": _nothing,
    "turn 0": _no_turn_0,
    "sizes of payloads as they were counted": _sizes,
    "that turns were left open in sessions that have ended": _open_turns,
    "gaps in ops' numbers": _nothing,
    "colons in call paths": _nothing,
}
"""What takes out of plain values what a format says it cannot hold, by the format's own words."""
