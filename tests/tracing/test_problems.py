import contextvars
import errno
import json
import os
import re
import threading
import time

import pytest

import optree
from optree._store import Directory, open_session
from optree._store.files.system import OS
from optree._store.saving import StoreOptions
from optree._tracing.problems import Problems, problems_of
from optree._tracing.runtime import RUNTIME
from optree.testing import capture
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


def test_so_many_problems_are_kept():
    """A program that meets ever new problems keeps the first thousand."""
    problems = Problems({}, has_console=lambda: True)
    for number in range(1001):
        problems.report(f"problem {number}")
    assert [f"problem {number}" for number in range(1000)] == problems.reported


PARENTS = """
import json
from pathlib import Path
from optree.redaction import redact
from optree._tracing.faults import fault
from optree._tracing.runtime import RUNTIME

def raises(text):
    raise ValueError(text)

def many_ended():
    for _ in range(90):
        with optree.session("a"), optree.turn(), optree.llm(provider="p", model="m") as op:
            op.account(input_tokens=1)
    for store in list(RUNTIME.stores.values()):
        assert store.wait(60)
    with optree.session("a"):
        pass

def told():
    said = optree.health()
    return [*said["problems"], *RUNTIME.problems.reported, *(name for name in ("lost", "late", "failures") if said[name])]

base = Path(os.environ["OPTREE_BASE_DIR"])
(base / "accounting.jsonl").mkdir(parents=True)
many_ended()
(base / "file").touch()
optree.configure(sessions_dir=base / "file" / "sessions")
many_ended()
optree.configure(sessions_dir=base / "sessions")
with optree.session("a") as session, optree.turn(), optree.tool(7) as op:
    op.log("a line", details=object())
    session.builder.core.stream.fault("a step failed")
    session.builder.core.stream.report("an odd value")
    session.builder.core.stream.late += 1
    RUNTIME.stores[session.txn]._problem("snapshot", OSError(5, "Input/output error"))
    fault(ValueError("a fault"))
    RUNTIME._guarded(raises, "in a thread")
    optree.configure(redact={"callback": raises})
    redact("a text")
    optree.configure(redact={})
    parents, (reader, writer) = told(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(told()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(json.dumps([parents, json.loads(os.read(reader, 1 << 16))]))
"""
OF_PARENT = [
    *("sessions that have ended are left in ", "ledger of session ", " are lost of ", "tool() was given a name", "a step failed"),
    *("an odd value", "snapshot of session ", "a fault", "in a thread", "redact's callback raised", "lost", "late", "failures"),
]
"""Parts of what a process says that has all these problems."""


def test_a_forked_child_says_of_its_parents_problems_only_how_both_are_set_up(finished):
    """What went wrong in the parent's sessions and threads is the parent's to say; a setting that is ignored is so in the child too."""
    code, out, err = finished(PARENTS, env={"OPTREE_SYNC": "sometimes"})
    assert 0 == code, err
    parents, childs = json.loads(out)
    assert [] == [part for part in OF_PARENT if not any(part in one for one in parents)]
    assert ["OPTREE_SYNC"] * 2 == [one[:11] for one in childs], childs


def test_a_forked_child_says_nothing_of_what_went_wrong_in_its_parents_mirror(finished):
    """Faults of the mirror, and what it has left of earlier runs, are the parent's to say."""
    code, out, err = finished("""
        from optree._tracing.runtime import RUNTIME
        optree.configure(otel={"endpoint": "http://127.0.0.1:9", "deliver_at_exit": False})

        def told():
            parts = ("faults of the mirror", "too large", "passed over")
            return sum(part in one for part in parts for one in optree.health()["problems"])

        with optree.session("a"):
            mirror = RUNTIME.mirroring._mirror
            mirror.faults.note(ValueError("a fault"))
            mirror.large = mirror._passed_over = 1
            print(told(), flush=True)
            if (child := os.fork()) == 0:
                print(told(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
    """)
    assert (0, ["3", "0"]) == (code, out.split()), err


@optree.session(agent="decorated")
def decorated():
    """Yield twice."""
    yield 1
    yield 2


def by_with():
    """Do so in a block."""
    with optree.session("by with"):
        yield 1
        yield 2


@pytest.mark.parametrize(("steps", "said"), [(decorated, []), (by_with, ["the block of session by with ended in another context"])])
def test_a_generator_whose_steps_run_in_several_contexts(steps, said):
    """A session that such a generator opens by `with` has lost what was recorded in between, and that is said; a decorated one has not."""
    with capture():
        items = steps()
        for _ in range(3):
            contextvars.copy_context().run(next, items, None)
    assert said == [one[:53] for one in optree.health()["problems"]]


def test_a_write_that_hangs():
    """While a thread waits for the disk within a write, health() says for how long, also right behind another such wait (S4-131)."""

    class Hanging:
        def __init__(self):
            self.inside, self.answers = threading.Event(), threading.Event()

        def take(self, _batch):
            self.inside.set()
            self.answers.wait(LONG)

    def hangs():
        return [problem for problem in optree.health()["problems"] if problem.startswith("the disk has not taken a write for ")]

    def until(expected):
        until = time.monotonic() + LONG
        while expected != bool(hangs()) and time.monotonic() < until:
            time.sleep(0.05)
        return hangs()

    with optree.session("root"):
        [store] = RUNTIME.stores.values()
        for _ in range(2):
            store.stream.subscribe(hanging := Hanging())
            writer = threading.Thread(target=contextvars.copy_context().run, args=(lambda: optree.tool("work").__enter__(),))
            writer.start()
            assert hanging.inside.wait(LONG)
            [problem] = until(True)
            hanging.answers.set()
            writer.join()
            store.stream.unsubscribe(hanging)
            assert 2 <= int(re.match(r"the disk has not taken a write for (\d+) s: .* in memory alone, and lost with", problem)[1])
            assert [] == until(False)
