import errno
import os

import pytest

import optree
from optree.store import Directory, open_session
from optree.store.options import StoreOptions
from optree.store.system import OS
from optree.tracing.problems import problems_of
from tests.store.faults import Faulty
from tests.tracing.conftest import LONG


class FullDisk(Faulty):
    """Has no room for a journal's first write after `arm`, and none for a ledger, ever."""

    def __init__(self, code):
        super().__init__(code=code, times=1)
        self.append = self._append

    def _append(self, path):
        if path.name == "accounting.jsonl":
            raise OSError(self.code, os.strerror(self.code))
        return OS.append(self, path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    ("system", "parts"), [(FullDisk, ["ledger of session", "j-0000-000001.jsonl: "]), (Faulty, ["snapshot of session"])]
)
def test_no_room_is_said_once_for_each_place(tmp_path, code, system, parts):
    """Where there is no room for snapshot and journal one text says it; a ledger elsewhere without room is another's matter (S4-131)."""
    disk = system(code=code)
    place = Directory.of(tmp_path / "base", billing=tmp_path / "bills" / "accounting.jsonl")
    builder, store = open_session("agent", StoreOptions(place, system=disk))
    disk.arm("write")
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "p:m")
    op.account(input_tokens=1)
    op.end()
    turn.end()
    builder.end_session()
    store.wait(LONG)
    said = [one for one in problems_of(store) if os.strerror(code) in one]
    assert (len(parts), []) == (len(said), [one for one in said if not any(part in one for part in parts)]), said
    disk.mend()
    store.close(LONG)


def test_where_to_send_is_given_before_the_first_session(capfd):
    """A mirror that is configured once a session has begun is not taken: a problem says so, once; the same again is none, nor is off."""
    said = "OpenTelemetry: configure(otel=…) is not taken once a session has begun: give it before the first one"
    found = []
    for otel in ("auto", "auto", "off", "auto", {"endpoint": "http://127.0.0.1:9"}, {"endpoint": "http://127.0.0.1:9"}, "auto"):
        optree.configure(otel=otel)
        with optree.session("a"):
            found.append(optree.health()["problems"].count(said))
    assert ([0, 0, 0, 0, 1, 1, 1], 1) == (found, capfd.readouterr().err.count(said))


def test_where_to_send_is_given_during_the_only_session():
    """It is a problem as soon as it is given; so is the same mapping with another content."""
    optree.configure(otel={"endpoint": "http://127.0.0.1:9", "deliver_at_exit": False})
    with optree.session("a"):
        options = {"endpoint": "http://127.0.0.1:9", "deliver_at_exit": False}
        optree.configure(otel=options)
        before = len(optree.health()["problems"])
        options["endpoint"] = "http://127.0.0.1:10"
        optree.configure(otel=options)
        assert ["is not taken once a session has begun" in one for one in optree.health()["problems"][before:]] == [True]
