"""Messages of a transcript: their ids and links are on disk when the call returns, and texts in nobody's transcript stay out of it."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

import optree
from optree import Directory, load
from optree._nodes import PIECE_OF_TEXT
from optree._records import SessionBegin, SessionSet
from optree._tree.fold import Fold
from optree._values import decode
from optree.testing import capture

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
import optree

optree.configure(base_dir=sys.argv[1], console=False)
with optree.session("root") as session:
    session.message({"role": "user", "content": "hello"}, message_id="msg_001")
    session.message({"role": "piece_of_text", "content": "Meet."}, message_id="msg_002", cause=["msg_001", "msg_000.c1"])
    session.message({"role": "user", "content": "[Jack]: hello"}, message_id="msg_003", substance="msg_001")
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Taking:
    """Keeps what is recorded."""

    def __init__(self, taken):
        self.taken = taken

    def take(self, batch):
        """Take records."""
        self.taken.extend(batch)


def test_links_survive_a_kill(tmp_path):
    """Who is killed right after a message has it, with id, substance and cause, in the journal and in every snapshot (S0-03, S0-04)."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    expected = [
        ("msg_001", None, (), "user"),
        ("msg_002", None, ("msg_001", "msg_000.c1"), PIECE_OF_TEXT),
        ("msg_003", "msg_001", (), "user"),
    ]
    directory = Directory.of(tmp_path, None, None)
    for _ in range(2):  # from the journal, then from the snapshot that settling made of it
        messages = load("last", directory).session.messages
        assert expected == [(message.id, message.substance, message.cause, message.role) for message in messages]
        subprocess.run(
            [sys.executable, "-m", "optree", "load", "last"],
            env=os.environ | {"OPTREE_BASE_DIR": str(tmp_path)},
            check=True,
            capture_output=True,
        )


def test_history_is_what_a_provider_takes():
    """A piece of text is in nobody's transcript, so it is not sent (S0-27)."""
    with capture() as recording, optree.session("root") as session:
        session.message("hello")
        session.message({"role": "piece_of_text", "content": "Meet."}, message_id="p1", cause="m1")
        assert [{"role": "user", "content": "hello"}] == session.history()
    assert ["hello", "Meet."] == [decode(message.body)["content"] for message in recording.tree.session.messages]


def test_links_of_any_form_are_texts():
    """Ids that are numbers, or a cause that is one id, do not raise."""
    with capture() as recording, optree.session("root") as session:
        session.message("x", message_id=7, cause=3)
        session.message("y", substance=7, cause=None)
    first, second = recording.tree.session.messages
    assert ("7", ("3",), None, "7", ()) == (first.id, first.cause, first.substance, second.substance, second.cause)


def test_attributes_may_come_later():
    """What is set while a session runs is merged into what it began with, live and loaded, in whatever order the records are applied."""
    taken = []
    with capture() as recording, optree.session("root", a=1, b=1) as session:
        session.builder.core.stream.subscribe(Taking(taken), ordered=True)
        session.builder.set_title(attributes={"b": 2, "conversation": {"agentId": "root"}})
    expected = {"a": 1, "b": 2, "conversation": {"agentId": "root"}}
    found = {name: recording.tree.session.attributes[name] for name in expected}
    assert expected == found
    late = [record for record in taken if isinstance(record, SessionSet)]
    begun = SessionBegin("", 1.0, "root", "root", msgspec.Raw(b'{"a":1,"b":1}'))
    for records in ([begun, *late], [*late, begun], [begun, *late, begun, *late]):
        fold = Fold("txn")
        for record in records:
            fold.apply(record)
        assert expected == fold.finish().session.attributes
