"""Lines of transcripts for tests: as the seed shows them, and as others wrote them."""

import json

RUN = "550e8400-e29b-41d4-a716-446655440000"
CHILD = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
TIME = "2026-06-08T08:14:42.123Z"


def event(seq=1, kind="run.started", payload=None, **more):
    """Return one event as plain values, its members in the seed's order."""
    links = {name: more.pop(name) for name in ("parent_run_id", "child_run_id") if name in more}
    first = {"seq": seq, "run_id": more.pop("run_id", RUN), **links, "type": kind, "path": more.pop("path", ""), "iteration": 0}
    return {**first, "timestamp": more.pop("timestamp", TIME), "payload": payload, **more}


def line(*arguments, **more):
    """Return an event as a line without its newline."""
    return json.dumps(event(*arguments, **more), separators=(",", ":"), ensure_ascii=False).encode()


def step(name="analyze", kind="agent", **more):
    """Return a step's payload."""
    return {"name": name, "kind": kind, **more}


def text(said, fidelity="router"):
    """Return a block of text."""
    return {"type": "text", "fidelity": fidelity, "text": said}


def message(*blocks, role="user"):
    """Return a message's payload."""
    return {"role": role, "blocks": list(blocks)}


def tool(call_id, name="Read", given=None, output=None, fidelity="router", **more):
    """Return a tool's payload."""
    return {"name": name, "call_id": call_id, "input": given, "output": output, **more, "fidelity": fidelity}


def write(path, *lines):
    """Write a file of lines; returns its path."""
    path.write_bytes(b"".join(one + b"\n" for one in lines))
    return path
