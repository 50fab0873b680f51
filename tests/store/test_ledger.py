"""The ledger: each accounting entry once, one line each, whoever else writes."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

import optree
from optree._builder import SessionTreeBuilder
from optree._store import Directory, load, open_session
from optree._store.files.system import OS
from optree._store.ledger import Ledger
from optree._store.saving import StoreOptions
from optree._syscalls import calls
from tests.store.faults import Faulty
from tests.store.test_journal import busy


def agent(txn, calls=3):
    """Return a builder with an LLM call, a tool call and a sub-agent's LLM calls, in memory."""
    builder = SessionTreeBuilder("asker", txn=txn)
    builder.begin_turn()
    op = builder.begin_op("llm", "openai:gpt-4o")
    op.account(
        input_tokens=17, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, cost_usd=0.25, latency=7.0,
        actual_provider="azure", actual_model="gpt-4o-mini", upstream_inference_cost_usd=0.2,
    )  # fmt: skip
    op.end()
    tool = builder.begin_op("tool", "fetch")
    tool.account(mcp_server="web", characters_in=12, characters_out=90, status="failed", error="404", latency=3.0)
    tool.end()
    child = builder.attach_child_session(builder.begin_op("session", "reader"), "reader")
    for _ in range(calls):
        busy(child, 1)
    return builder


def test_a_line_says_all_of_an_llm_call(tmp_path):
    """An LLM entry names provider, model, their actual ones, tokens, costs, status, latency, and where it belongs (S4-101, S4-102)."""
    builder = agent("txn-1")
    assert 5 == Ledger(tmp_path / "new" / "ledger.jsonl").append(builder.node)
    line = (tmp_path / "new" / "ledger.jsonl").read_bytes().splitlines()[0]
    first = json.loads(line)
    assert b"%08x" % crc32(line[: line.rindex(b',"c":')]) == first.pop("c").encode()
    assert builder.node.turns[0].ops[0].accounting[0].timestamp == first.pop("timestamp")
    assert {
        "id": "txn-1:1.1#1", "type": "llm", "status": "ok", "latency": 7.0, "provider": "openai", "model": "gpt-4o",
        "actualProvider": "azure", "actualModel": "gpt-4o-mini",
        "tokens": {
            "inputTokens": 10, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 4, "totalTokens": 19,
        },
        "costUsd": 0.25, "upstreamInferenceCostUsd": 0.2,
        "path": "1.1", "agentId": "asker", "callPath": "asker", "txnId": "txn-1", "parentTxnId": None, "originTxnId": "txn-1",
    } == first  # fmt: skip


def test_a_line_says_all_of_a_tool_call(tmp_path):
    """A tool entry names server, command, characters in and out, status and error (S4-101, S4-103)."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(agent("txn-1").node)
    tool = ledger.read()[1]
    expected = {
        "id": "txn-1:1.2#2", "type": "tool", "status": "failed", "latency": 3.0, "mcpServer": "web", "command": "fetch",
        "charactersIn": 12, "charactersOut": 90, "error": "404", "originTxnId": "txn-1", "agentId": "asker",
    }  # fmt: skip
    assert expected == {key: tool[key] for key in expected}
    assert {"asker->reader"} == {entry["callPath"] for entry in ledger.read()[2:]}


def test_a_status_stands_in_every_line(tmp_path):
    """Every entry has a status, ok ones too (S4-101)."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(agent("txn-1").node)
    assert ["ok", "failed", "ok", "ok", "ok"] == [entry["status"] for entry in ledger.read()]


@pytest.mark.parametrize("status", ["ok", "failed", "cancelled"])
def test_entries_come_at_the_end_of_a_session_however_it_ends(begin, directory, status):
    """The whole tree's entries are appended when the root ends, in success, failure and stop, not before (S4-104)."""
    builder, store = begin()
    busy(builder, 2)
    assert store.snapshot()
    assert not directory.billing.exists()
    builder.end_session(status)
    assert store.flush("snapshot")
    assert ["txn-1:1.1#1", "txn-1:1.2#2"] == [entry["id"] for entry in Ledger(directory.billing).read()]


def test_a_sub_agent_that_ends_after_its_root_bills_nothing_twice(begin, directory):
    """What a straggler records is in the last snapshot and the ledger when its process ends, and no entry twice (S4-82, S4-104)."""
    builder, store = begin()
    busy(builder, 2)
    op = builder.begin_op("session", "straggler")
    child = builder.attach_child_session(op, "straggler")
    builder.end_session()
    assert store.flush("snapshot")
    busy(child, 1)
    child.end_session()
    assert store.close(5.0)
    assert [directory.snapshot("txn-1")] == list(directory.sessions.iterdir())
    assert msgspec.json.encode(builder.tree) == msgspec.json.encode(load("txn-1", directory).tree)
    found = [entry["id"] for entry in Ledger(directory.billing).read()]
    assert ["txn-1:1.1#1", "txn-1:1.2#2", "txn-1:2.1.1.1#3"] == sorted(found)


def test_with_again_only_what_is_missing_is_written(tmp_path):
    """A resumed session's entries are looked up first; those of other sessions do not matter, though their names begin alike."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    builder = agent("txn-1")
    assert 5 == ledger.append(agent("txn-11").node)
    assert 5 == ledger.append(builder.node, again=True)
    builder.begin_op("tool", "more").end()
    assert 1 == ledger.append(builder.node, again=True)
    ids = [entry["id"] for entry in ledger.read()]
    assert (11, 11) == (len(ids), len(set(ids)))


def test_a_torn_last_line_is_healed(tmp_path):
    """A line that a killed process left half written spoils no other line, and its entry is written again on resume (S4-106)."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    builder = agent("txn-1")
    ledger.append(builder.node)
    whole = ledger.path.read_bytes()
    for cut in (1, 2, 40, 150):
        ledger.path.write_bytes(whole[:-cut])
        ledger.append(agent("txn-2").node)
        ledger.append(builder.node, again=True)
        ids = [entry["id"] for entry in ledger.read()]
        assert (10, 10) == (len(ids), len(set(ids)))


def test_half_a_line_whose_whole_follows_is_no_damage(tmp_path):
    """What a killed process left half written only repeats a line once it is billed; half a line alone, or an altered one, is damaged."""
    ledger, builder = Ledger(tmp_path / "ledger.jsonl"), agent("txn-1")
    ledger.append(builder.node)
    whole, entries = ledger.path.read_bytes(), ledger.read()
    last = whole.splitlines()[-1]
    for kept in (len(last) - 1, 150, 40):
        ledger.path.write_bytes(whole[: kept - len(last) - 1])
        assert (0, [5]) == (ledger.book().repeated, ledger.book().unreadable)
        ledger.append(builder.node, again=True)
        assert (entries, 1, []) == (ledger.read(), ledger.book().repeated, ledger.book().unreadable)
    for kept, half in ((8, last[:8]), (-1, last[:40].replace(b"17", b"18"))):
        ledger.path.write_bytes(whole[: -len(last) - 1] + half + b"\n" + last + b"\n")
        assert (entries, 0, [5]) == (ledger.read(), ledger.book().repeated, ledger.book().unreadable), kept


def test_eight_processes_append_at_once_and_no_line_is_torn(tmp_path):
    """Eight processes append 500 sessions each to one file: each entry is there once, each line is whole (S4-100, S4-106)."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom optree._builder import SessionTreeBuilder\nfrom optree._store.ledger import Ledger\n"
        "from optree._store.files.system import OS\n"
        "class NoSync(OS):\n    def datasync(self, fd): pass\n"
        "ledger, who = Ledger(Path(sys.argv[1]), NoSync()), sys.argv[2]\n"
        "sys.stdin.readline()\n"
        "for number in range(500):\n"
        "    builder = SessionTreeBuilder('a', txn=f'p{who}-{number}')\n"
        "    for _ in range(3):\n"
        "        op = builder.begin_op('llm', 'openai:gpt-4o')\n"
        "        op.account(cost_usd=0.01, error='x' * 300)\n"
        "        op.end()\n"
        "    ledger.append(builder.node)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(optree.__file__).parents[1])}
    path = tmp_path / "ledger.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path), str(who)], env=env, stdin=subprocess.PIPE) for who in range(8)]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [0] * 8 == [process.wait() for process in processes]
    ids = [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
    expected = {f"p{who}-{number}:1.{op}#{op}" for who in range(8) for number in range(500) for op in (1, 2, 3)}
    assert 12_000 == len(ids)
    assert expected == set(ids)
    assert 120.0 == pytest.approx(sum(entry["costUsd"] for entry in Ledger(path).read()))


@pytest.mark.parametrize("call", ["append", "lock_waiting", "write", "datasync", "make_directory"])
def test_an_append_that_failed_can_be_made_again(begin, directory, call):
    """Whichever call fails, the ledger lets go of its lock, and a second try brings each entry once (S4-106)."""
    system = Faulty(call, errno.EIO)
    builder, store = begin(system=system)
    busy(builder)
    store.flush()
    ledger = Ledger(directory.billing.parent / "bills" / "ledger.jsonl", system)
    system.arm()
    with pytest.raises(OSError, match="Input/output"):
        ledger.append(builder.node)
    system.mend()
    ledger.append(builder.node, again=True)
    assert [f"txn-1:1.{number}#{number}" for number in range(1, 6)] == [entry["id"] for entry in ledger.read()]


@pytest.mark.parametrize("removed", [True, False])
def test_a_ledger_that_is_replaced_while_it_is_waited_for(tmp_path, removed):
    """Another process has it locked, and puts another file in its place, or none: the lines are in the file that has the name (S4-106)."""
    path, replaced = tmp_path / "ledger.jsonl", []

    class Replaced(OS):
        def lock_waiting(self, fd):
            super().lock_waiting(fd)
            if not replaced:
                replaced.append(path.rename(tmp_path / "before.jsonl"))
                if not removed:
                    path.touch()

    assert 5 == Ledger(path, Replaced()).append(agent("txn-1").node)
    assert (b"", 5) == (replaced[0].read_bytes(), len(Ledger(path).read()))


def test_no_part_of_a_line_stays_where_the_disk_is_full(tmp_path):
    """What a full disk took of some lines is taken back; once there is room each entry is there, once, and every line can be read."""

    class Full(OS):
        def write_all(self, fd, data):
            super().write_all(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, builder = tmp_path / "ledger.jsonl", agent("txn-1")
    Ledger(path).append(agent("txn-2").node)
    whole = path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        Ledger(path, Full()).append(builder.node)
    assert whole == path.read_bytes()
    assert 5 == Ledger(path).append(builder.node, again=True)
    assert (10, []) == (len(Ledger(path).read()), Ledger(path).book().unreadable)


def test_a_ledger_in_a_place_that_is_none_is_said(tmp_path):
    """A billing file whose folder is a file: the session is saved, its journals stay, `problems` says why (S4-105, S4-130)."""
    (tmp_path / "file").write_text("")
    directory = Directory.of(tmp_path / "base", billing=tmp_path / "file" / "ledger.jsonl")
    builder, store = open_session("agent", StoreOptions(directory), txn="txn-1")
    busy(builder)
    builder.end_session()
    assert not store.flush("snapshot")
    assert "ledger of session txn-1" in store.problems[0]
    assert ("ended", "clean") == (load("txn-1", directory).state, load("txn-1", directory).damage.state)
    assert store.live.is_dir()
    store.close(1.0)


def test_lines_that_say_the_same_are_one_entry(tmp_path):
    """A line repeats another with its id if it says the same, else it conflicts; one without an id, if it has its bytes (S4-106)."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    original = b'{"type":"llm","costUsd":1.0}'
    ours = b'{"id":"t:1.1#1","costUsd":2.0}', b'{"costUsd":2.0,"id":"t:1.1#1"}'
    other = b'{"id":"t:1.1#1","costUsd":3.0}'
    ledger.path.write_bytes(
        b"\n".join([original, *ours, b"", b"{torn", b"[]", b"  ", original + b"\r", b'{"id":7}', b"\t" + original, other])
    )
    assert [{"type": "llm", "costUsd": 1.0}, {"id": "t:1.1#1", "costUsd": 2.0}, {"id": 7}] == ledger.book().entries
    assert (3, [5, 6]) == (ledger.book().repeated, ledger.book().unreadable)
    assert [({"id": "t:1.1#1", "costUsd": 2.0}, {"id": "t:1.1#1", "costUsd": 3.0})] == ledger.book().conflicting


def test_no_flipped_bit_is_taken_for_what_was_billed(tmp_path):
    """Whichever bit of a line is flipped, what is read is what was billed, the line is named, and a resume bills what it said again."""
    ledger, builder = Ledger(tmp_path / "ledger.jsonl"), agent("txn-1", calls=1)
    ledger.append(builder.node)
    whole, entries = ledger.path.read_bytes(), ledger.read()
    ends = [end for end, byte in enumerate(whole) if byte == ord("\n")]
    for bit in range((len(whole) - 1) * 8):  # the last newline says nothing
        at, flipped = bit // 8, bytearray(whole)
        flipped[at] ^= 1 << bit % 8
        ledger.path.write_bytes(flipped)
        book, number = ledger.book(), 1 + sum(end < at for end in ends)
        altered = [entry for entry in book.entries if entry not in entries]
        assert ([], [], True) == (altered, book.conflicting, number in book.unreadable), (at, bytes(flipped))
        assert len(entries) - 2 <= len(book.entries) < len(entries), at
        if bit % 97 == 0:
            assert len(entries) - len(book.entries) == ledger.append(builder.node, again=True)
            assert len(entries) == len(ledger.read()), at


def test_lines_without_a_checksum_are_read(tmp_path):
    """Lines of another program, of a version before, or that were rewritten with `c` left out, are read as they are."""
    ledger, builder = Ledger(tmp_path / "ledger.jsonl"), agent("txn-1")
    ledger.append(builder.node)
    entries = ledger.read()
    ledger.path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert (entries, []) == (ledger.book().entries, ledger.book().unreadable)
    assert 0 == ledger.append(builder.node, again=True)


def test_lines_of_another_kind_are_no_hindrance(tmp_path):
    """What other programs write into a ledger, such as lists where texts are usual, keeps no entry out of it."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.path.write_bytes(b'{"id":["txn-1"]}\n{"type":"llm","model":["txn-1"],"costUsd":{"a":1},"tokens":{"inputTokens":[]}}\n"txn-1"\n')
    assert 5 == ledger.append(agent("txn-1").node, again=True, imported=True)
    assert 0 == ledger.append(agent("txn-1").node, again=True, imported=True)
    assert 7 == len(ledger.read())


FACTS = [
    *(("llm", name) for name in ("timestamp", "type", "status", "agentId", "provider", "model", "latency", "costUsd", "txnId")),
    *(("llm", f"tokens.{name}") for name in ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")),
    *(("tool", name) for name in ("mcpServer", "command", "charactersIn", "charactersOut")),
]
"""What makes a line of the original's the bill of an entry, by the kind of entry."""


@pytest.mark.parametrize(("kind", "name"), [("llm", ""), ("tool", ""), *FACTS])
def test_a_line_without_an_id_bills_the_entry_that_says_the_same(tmp_path, kind, name):
    """An import bills no entry of which a line of the original's says the same; one that differs in any fact is another's bill."""
    builder = agent("txn-1")
    (ours := Ledger(tmp_path / "ours.jsonl")).append(builder.node)
    [line, *_] = [entry for entry in ours.read() if entry["type"] == kind]
    del line["id"]
    holder, last = (line["tokens"], name.partition(".")[2]) if "." in name else (line, name)
    if name:
        holder[last] = holder[last] + 1 if isinstance(holder[last], int | float) else f"{holder[last]}x"
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.path.write_text(json.dumps(line) + "\n")
    assert (5 if name else 4) == ledger.append(builder.node, imported=True)


def test_a_session_without_entries_makes_no_ledger(tmp_path):
    """No entries, no file."""
    assert 0 == Ledger(tmp_path / "ledger.jsonl").append(SessionTreeBuilder("a", txn="txn-1").node)
    assert not (tmp_path / "ledger.jsonl").exists()
    assert [] == Ledger(tmp_path / "ledger.jsonl").read()


class Losing(OS):
    """A disk whose sync fails, for one file: what was written there since the last one is lost, and nobody writes it if nothing does so."""

    def __init__(self, monkeypatch, path):
        self.path, self.failing = path, 1
        self.written, self.kept = set(), set()
        self._pwrite = calls.pwrite
        monkeypatch.setattr(calls, "pwrite", self.pwrite)

    def write(self, fd, data):
        """Note which bytes."""
        begun, done = os.fstat(fd).st_size, os.write(fd, data)
        return self._note(fd, begun, done)

    def pwrite(self, fd, data, start):
        """Note which bytes."""
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND  # Linux would write at the end
        return self._note(fd, start, self._pwrite(fd, data, start))

    def _is_of(self, fd):
        return self.path.exists() and os.path.samestat(os.fstat(fd), self.path.stat())

    def _note(self, fd, begun, done):
        if self._is_of(fd):
            self.written |= set(range(begun, begun + done))
        return done

    def datasync(self, fd):
        """Fail, or keep what was written."""
        if self._is_of(fd):
            written, self.written = self.written, set()
            if self.failing:
                self.failing -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.kept |= written
        super().datasync(fd)

    @property
    def is_kept(self):
        """Tell whether all of the file is on the disk."""
        return self.kept == set(range(self.path.stat().st_size))


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_sync_that_failed_has_lost_is_written_again(tmp_path, monkeypatch, times):
    """A sync of the ledger fails, so that its lines are lost though they can be read: before one counts they are written again (S4-106)."""
    disk = Losing(monkeypatch, tmp_path / "ledger.jsonl")
    ledger, mine, others = Ledger(disk.path, disk), agent("txn-1").node, agent("txn-2").node
    disk.failing = 0
    assert 5 == ledger.append(others)
    before, disk.failing = disk.path.read_bytes(), times
    with pytest.raises(OSError, match="Input/output"):
        ledger.append(mine)
    for _ in range(times - 1):
        with pytest.raises(OSError, match="Input/output"):
            ledger.append(mine, again=True)
    assert not disk.is_kept
    assert 0 == Ledger(disk.path, disk).append(mine, again=True)  # as another process does that comes to settle it
    assert disk.is_kept
    assert before == disk.path.read_bytes()[: len(before)]
    assert 10 == len(disk.path.read_bytes().splitlines())


def test_journals_stay_until_the_bill_is_on_the_disk(begin, directory, monkeypatch):
    """A session whose bill could not be synced has its journals, until what is read of the ledger is on the disk too (S4-106)."""
    disk = Losing(monkeypatch, directory.billing)
    builder, store = begin(system=disk)
    busy(builder)
    builder.end_session()
    while not store.flush("snapshot", 60):
        assert store.live.exists()
    assert (0, True, False) == (disk.failing, disk.is_kept, store.live.exists())
    assert len(builder.node.turns[0].ops) == len(directory.billing.read_bytes().splitlines())


def test_a_call_that_was_billed_before_its_cost_was_known(tmp_path):
    """A call outlives its session, which is billed: what it took is billed then, and the line that says nobody knows counts no more."""
    builder = SessionTreeBuilder("lead", txn="txn-1")
    op = builder.begin_op("llm", "openai:gpt-5")
    builder.end_session()
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert 1 == ledger.append(builder.node)
    op.account(cost_usd=1.0)
    assert 1 == ledger.append(builder.node, again=True)
    assert 0 == ledger.append(builder.node, again=True)
    book = ledger.book()
    assert ([1.0], 0, []) == ([entry["costUsd"] for entry in book.entries], book.repeated, book.conflicting)
