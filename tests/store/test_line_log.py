"""Numbered lines of many writers: whole, in order, each number once, whatever the disk or a kill does."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optree import StoreError
from optree.store.line_log import LineLog
from tests.store.faults import Short

ROOT = Path(__file__).parents[2]
WRITER = """
import json, sys
from pathlib import Path
from optree.store.line_log import LineLog

log = LineLog(Path(sys.argv[1]), lambda line: [json.loads(line)["seq"]])
for _ in range(500):
    log.append(lambda seq: json.dumps({"seq": seq, "text": "x" * (seq * 37 % 9000)}).encode())
"""


def numbers(line):
    """Return the number that a test's line has; none for one that cannot be read."""
    try:
        return [json.loads(line)["seq"]]
    except ValueError:
        return []


def numbered(seq):
    """Return a line."""
    return json.dumps({"seq": seq}).encode()


def found(path):
    """Return the numbers in a file, in the order of its lines."""
    return [json.loads(line)["seq"] for line in path.read_text().splitlines()]


def test_processes_write_in_order(tmp_path):
    """Four processes with 500 lines each, many larger than a pipe's buffer: no line is torn, the numbers have neither gap nor inversion."""
    path = tmp_path / "log.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path], env=os.environ | {"PYTHONPATH": str(ROOT)}) for _ in range(4)]
    assert [0, 0, 0, 0] == [writer.wait(60) for writer in writers]
    assert list(range(1, 2001)) == found(path)


def test_threads_write_in_order(tmp_path):
    """Threads that share a log get each number once, and it is where it belongs."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    given = []
    threads = [threading.Thread(target=lambda: given.extend(log.append(numbered) for _ in range(100))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(1, 801)) == sorted(given) == found(log.path)


def test_reopening_goes_on(tmp_path):
    """The next number follows the highest in the file, whichever line has it; the file is its owner's only."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 7}\n{"seq": 3}\n')
    path.chmod(0o600)
    log = LineLog(path, numbers)
    assert 7 == log.catch_up()
    assert 8 == log.append(numbered)
    assert 8 == log.latest
    fresh = LineLog(tmp_path / "new.jsonl", numbers)
    assert (1, 0o600) == (fresh.append(numbered), fresh.path.stat().st_mode & 0o777)


def test_a_torn_line_stays_and_harms_nothing(tmp_path):
    """What a killed writer left of a line is ended, and the next line is whole."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"seq": 1}\n{"seq": 2, "te')
    assert 2 == LineLog(path, numbers).append(numbered)
    assert ['{"seq": 1}', '{"seq": 2, "te', '{"seq": 2}'] == path.read_text().splitlines()


def test_what_is_found_is_larger_than_a_piece(tmp_path, monkeypatch):
    """Lines are found across the pieces that a file is read in."""
    monkeypatch.setattr("optree.store.line_log._PIECE", 7)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"seq": {number}}}\n' for number in range(1, 30)) + '{"seq": 99')
    log = LineLog(path, numbers)
    assert [30, 31] == [log.append(numbered), log.append(numbered)]


def test_a_line_that_cannot_be_made_uses_no_number(tmp_path):
    """An error of the caller goes to the caller; nothing is written, and the next line has the number."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    with pytest.raises(ZeroDivisionError):
        log.append(lambda seq: b"%d" % (seq // 0))
    with pytest.raises(StoreError, match="line break"):
        log.append(lambda _: b"{\n}")
    assert 1 == log.append(numbered)
    assert [1] == found(log.path)


def test_a_full_disk_leaves_no_half_line(tmp_path):
    """What was written of a line is taken back; when there is room again, the number is used."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.append(numbered)
    log._system = Short(5, until=8)
    with pytest.raises(OSError, match="No space"):
        log.append(numbered)
    log._system = Short(5)
    assert 2 == log.append(numbered)
    assert [1, 2] == found(log.path)


def test_a_file_that_was_cut_is_left_alone(tmp_path):
    """Where somebody else shortened the file, numbers could come twice: nothing more is appended."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.append(numbered)
    log.append(numbered)
    os.truncate(log.path, 11)
    with pytest.raises(StoreError, match="was cut from 22 to 11 bytes"):
        log.append(numbered)
    assert [1] == found(log.path)


def test_closed(tmp_path):
    """A closed log says so; closing it again does nothing."""
    log = LineLog(tmp_path / "log.jsonl", numbers)
    log.close()
    log.close()
    with pytest.raises(StoreError, match="closed"):
        log.append(numbered)


def test_a_missing_directory_is_not_made(tmp_path):
    """Opening says what is missing."""
    with pytest.raises(FileNotFoundError):
        LineLog(tmp_path / "none" / "log.jsonl", numbers)
