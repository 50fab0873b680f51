"""Limits that the documents promise are those of the code."""

import re
from pathlib import Path

import pytest

from optree import _interrupts as interrupts
from optree._builder.stream import WAIT_SECONDS
from optree._store import upkeep
from optree._store.files import descriptors, lock
from optree._store.journal import HELD_RECORDS
from optree._store.reading import numbering
from optree._store.settle import BACKGROUND_BYTES, BEGIN_SECONDS, SMALL_BYTES
from optree._store.upkeep import SYNC_SECONDS
from optree._tracing.runtime import EXIT_SECONDS, IDLE_SESSIONS, ROOM_SECONDS

ROOT = Path(__file__).parents[2]
WORDS = {"second": "1"}
PROMISES = [
    ("README.md", r"A power cut costs about the last (second)", SYNC_SECONDS),
    ("README.md", r"The exit of your program is delayed by ([\d.]+) s at most", EXIT_SECONDS),
    ("docs/howto/opentelemetry.md", r"the exit is delayed by ([\d.]+) s at", EXIT_SECONDS),
    ("README.md", r"What the disk refuses is kept, ([\d,]+) records of each session", HELD_RECORDS),
    ("docs/reliability.md", r"is tried each second; ([\d,]+) records of the session", HELD_RECORDS),
    ("docs/reference/files.md", r"could be kept meanwhile \(([\d,]+) records\)", HELD_RECORDS),
    ("docs/reliability.md", r"Of sessions that have ended, the last (\d+) wait", IDLE_SESSIONS),
    ("docs/decisions/006-waiting-is-bounded.md", r"others wait, at most ([\d.]+) s", WAIT_SECONDS),
    ("docs/decisions/006-waiting-is-bounded.md", r"a begin waits ([\d.]+) s at most", ROOM_SECONDS),
    ("docs/reference/files.md", r"only sessions of at most (\d+) MiB", BACKGROUND_BYTES / (1 << 20)),
    ("docs/reference/files.md", r"takes one beyond ([\d,]+)\.", numbering._FREE[0]),
    ("docs/reliability.md", r"More than ([\d,]+) such files are not kept in mind", upkeep._MOST_LEFT),
    ("docs/reliability.md", r"and (\d+) where it does not answer", 4 * IDLE_SESSIONS),
    ("docs/reliability.md", r"is removed after (\d+) s by whoever settles", BEGIN_SECONDS),
    ("docs/decisions/007-sessions-are-settled-by-whoever-comes.md", r"if the session is below (\d+) MiB", SMALL_BYTES / (1 << 20)),
    ("docs/decisions/007-sessions-are-settled-by-whoever-comes.md", r"the ledger is free within (\d+) ms", lock.TRY_SECONDS * 1e3),
    ("docs/decisions/030-a-forked-child-closes-what-is-for-locks.md", r"that function, for ([\d.]+) s at most", descriptors._FORK_SECONDS),
    ("docs/decisions/030-a-forked-child-closes-what-is-for-locks.md", r"waits for the fork, for ([\d.]+) s at", descriptors._LONG_SECONDS),
    ("docs/decisions/030-a-forked-child-closes-what-is-for-locks.md", r"imports for optree, for (\d) s at", interrupts._IMPORT_SECONDS),
]


@pytest.mark.parametrize(("page", "sentence", "value"), PROMISES)
def test_a_limit_is_what_is_promised(page, sentence, value):
    """The figure in the sentence is the value that the code has."""
    found = re.findall(sentence, " ".join((ROOT / page).read_text("utf-8").split()))
    assert [value] == [float(WORDS.get(figure, figure).replace(",", "")) for figure in found]
