"""Errors of events over a websocket that ask for no response: each is a log line, and is given again in a replay."""

import contextvars
import json

import pytest
import websockets.sync.client

import optree
from optree._capture.clients.realtime import merged
from optree._capture.replay.recorded import key_of_event
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.clients.websocket_model import ASKED, CREATE, HEARS, SESSION, answer, asked_of, item, ops_of
from tests.capture.conftest import record

pytestmark = pytest.mark.usefixtures("hooked")
UPDATE = {"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}}}
BAD_ITEM = {"type": "conversation.item.create", "item": item("user", "Snow?")}


def error(event_id=None, param=None, code="invalid_value", message="Not possible"):
    """Return the error that a server says."""
    about = {"type": "invalid_request_error", "code": code, "message": message, "param": param, "event_id": event_id}
    return {"type": "error", "event_id": "ev-e", "error": about}


def talking(url, *steps):
    """Send events, and read as many as stand between them; returns what was read, by type, and the errors whole."""
    read = []
    with websockets.sync.client.connect(f"ws://{url}/realtime?model=gpt-realtime") as connection:
        for step in steps:
            if isinstance(step, dict):
                connection.send(json.dumps(step))
                continue
            for _ in range(step):
                event = json.loads(connection.recv())
                read.append(event["error"] if event["type"] == "error" else event["type"])
    return read


def lines_of(recording):
    """Return the log lines of refused events: op, text, and what is in their details."""
    lines = [(op, log) for _, _, op in walk_ops(recording.tree) for log in op.logs if "was refused" in log.message]
    return [(op.kind, log.severity, log.message, decode(log.details)) for op, log in lines]


@pytest.mark.parametrize(
    ("event_id", "param"), [("mine", None), ("mine", "session.audio.output.voice"), (None, "session.audio.output.voice")]
)
def test_a_refused_update(model, event_id, param):
    """It is a log line of an op of its own where no response is under way; a replay refuses it again, and the response is as it was."""
    sent = UPDATE | ({"event_id": event_id} if event_id else {})
    model.says(SESSION, HEARS, error(event_id, param), HEARS, *answer("r-1", "It rains"))
    steps = (1, sent, 1, CREATE, 3)
    expected, recorded = record(lambda: talking(model.url, *steps))
    [(kind, severity, line, details)] = lines_of(recorded)
    assert ("system", "WRN", "session.update was refused: Not possible") == (kind, severity, line)
    assert ("session.update", "invalid_value") == (details["event"], details["error.type"])
    refused, response = ops_of(recorded)
    assert ("failed", "Not possible", "openai-compatible session.update") == (refused.status, refused.error, refused.name)
    assert "marin" == asked_of(recorded, response)["audio"]["output"]["voice"]
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: talking(model.url, 1, sent, 1, CREATE))
    assert expected[:2] == found
    assert lines_of(recorded) == lines_of(again)


def test_a_refused_item(model):
    """One while a response waits is a log line of that, and what was refused is not said to have been sent with a later one."""
    model.says(
        SESSION, HEARS, HEARS, HEARS, error("bad"), *answer("r-1", "It rains"), HEARS, *answer("r-2", "It snows"),
    )  # fmt: skip
    steps = (1, ASKED, CREATE, BAD_ITEM | {"event_id": "bad"}, 4, CREATE, 3)
    _, recorded = record(lambda: talking(model.url, *steps))
    [(kind, _, line, _)] = lines_of(recorded)
    assert ("llm", "conversation.item.create was refused: Not possible") == (kind, line)
    first, second = ops_of(recorded)
    assert ("ok", "ok") == (first.status, second.status)
    assert [item("user", "Weather?"), item("assistant", "It rains")] == asked_of(recorded, second)["messages"]


def test_within_an_open_op(model):
    """Within an op of the program's it is a log line of that."""
    model.says(SESSION, HEARS, error("mine"))
    with capture() as recorded, optree.session("agent"), optree.turn(), optree.tool("speak"):
        talking(model.url, 1, UPDATE | {"event_id": "mine"}, 1)
    assert [("tool", "session.update was refused: Not possible")] == [(kind, line) for kind, _, line, _ in lines_of(recorded)]


def test_outside_of_all_sessions(model, recording):
    """It is in the session of the program's own, and no error fails what it does not belong to."""
    cancel = {"type": "response.cancel"}
    model.says(SESSION, HEARS, error(code="response_cancel_not_active"), error(code="odd", param=None), HEARS, *answer("r-1", "It rains"))
    talking(model.url, 1, cancel, 2, CREATE, 3)
    lines = [line for _, _, line, _ in lines_of(recording)]
    assert ["response.cancel was refused: Not possible", "an event was refused: Not possible"] == lines
    assert ["failed", "failed", "ok"] == [op.status for op in ops_of(recording)]


def test_the_same_event_is_refused_as_often_as_it_was(model):
    """Of events that are the same, each gets the next error, and those behind these are taken."""
    changed = merged(SESSION["session"], UPDATE["session"])
    model.says(SESSION, HEARS, error(param="session.voice"), HEARS, {"type": "session.updated", "session": changed},
               HEARS, *answer("r-1", "It rains"))  # fmt: skip
    steps = (1, UPDATE, 1, UPDATE, 1, CREATE, 3)
    _, recorded = record(lambda: talking(model.url, *steps))
    model.says()
    with replay(recorded.tree):
        found, _ = record(lambda: talking(model.url, 1, UPDATE, 1, UPDATE, 1, CREATE))
    assert ["session.created", "Not possible", "session.updated"] == [one["message"] if isinstance(one, dict) else one for one in found]


def test_the_last_of_several_items_is_refused(model):
    """Of two items that wait an error about an item is of the last one; the other was sent, and stands in what is asked."""
    sent = {"type": "conversation.item.create", "item": item("user", "Weather?")}
    model.says(SESSION, HEARS, HEARS, error(param="item.content"), HEARS, *answer("r-1", "It rains"))
    _, recorded = record(lambda: talking(model.url, 1, sent, BAD_ITEM, 1, CREATE, 3))
    [(_, _, _, details)] = lines_of(recorded)
    assert key_of_event(BAD_ITEM) == details["event.key"]
    _, response = ops_of(recorded)
    assert [item("user", "Weather?")] == asked_of(recorded, response)["messages"]


def test_an_update_that_was_taken_is_not_refused(model):
    """An error of an update behind one that the server took is of that update."""
    taken = {"type": "session.update", "session": {"type": "realtime", "instructions": "Be long."}}
    changed = merged(SESSION["session"], taken["session"])
    model.says(SESSION, HEARS, {"type": "session.updated", "session": changed}, HEARS, error(param="session.audio.output.voice"))
    _, recorded = record(lambda: talking(model.url, 1, taken, 1, UPDATE, 1))
    [(_, _, _, details)] = lines_of(recorded)
    assert key_of_event(UPDATE) == details["event.key"]


def test_behind_an_op_that_has_ended(model):
    """What goes on in the place of an op that has ended has an op of its own for it: the other is as it ended."""
    model.says(SESSION, HEARS, error("mine"))
    with capture() as recorded, optree.session("agent"), optree.turn():
        with optree.tool("speak"):
            place = contextvars.copy_context()
        place.run(talking, model.url, 1, UPDATE | {"event_id": "mine"}, 1)
    assert [("system", "session.update was refused: Not possible")] == [(kind, line) for kind, _, line, _ in lines_of(recorded)]


def test_while_optree_is_switched_off(model, recording):
    """Then it is not recorded, and the program reads it."""
    model.says(SESSION, HEARS, error("mine"))
    optree.configure(enabled=False)
    try:
        read = talking(model.url, 1, UPDATE | {"event_id": "mine"}, 1)
    finally:
        optree.configure(enabled=True)
    assert ("Not possible", []) == (read[1]["message"], recording.sessions)
