import pytest

from optree.errors import SetupError
from optree_formats.markdown import EventLog, LogEvent, extract_events, read_log, verify
from optree_formats.markdown.integrity import set_aside
from tests.formats.markdown.logs import SEED, call, log, session

DAMAGES = {
    "no title": b"something else\n",
    "zero bytes": SEED.encode() + b"\0\0\0\n",
    "no UTF-8": SEED.encode().replace(b"expression", b"\xff\xfe", 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_corrupted_log_is_set_aside(tmp_path, damage):
    """A corrupted log is renamed, and a new one begins, which names it (S3-31, S3-43, S3-44, S3-45, S3-46, S3-48)."""
    path = tmp_path / "sess-001" / "session-log.md"
    path.parent.mkdir()
    path.write_bytes(DAMAGES[damage])
    made = log(tmp_path)
    made.append(call())
    backup = path.with_name("session-log.md.corrupted")
    assert DAMAGES[damage] == backup.read_bytes()
    entries = read_log(path).entries
    assert ["session_start", "recovery", "tool_call"] == [entry.kind for entry in entries]
    recovery = entries[1]
    assert ("corruption", "session-log.md.corrupted") == (recovery.fields["from"], recovery.fields["backup"])
    assert "Human should review corrupted file" == recovery.comment("").end
    assert [] == verify(path)


@pytest.mark.parametrize("rest", [b"\xe2", b"\xe2\x80", "é".encode()[:1], "😀".encode()[:3]])
def test_tear_within_a_character_costs_one_event(tmp_path, rest):
    """A writer that was stopped within a character leaves a torn event, and no corrupted log, each time it is opened (S3-02, S3-43)."""
    path = tmp_path / "sess-001" / "session-log.md"
    path.parent.mkdir()
    torn = SEED.encode() + b"## 12:00:09 - Tool " + rest
    path.write_bytes(torn)
    log(tmp_path).append(call(1))
    log(tmp_path).append(call(2))
    assert path.read_bytes().startswith(torn)
    assert ["session-log.md"] == [one.name for one in path.parent.iterdir()]
    assert ["call-001", "call-002"] == [fields["call_id"] for fields in extract_events(path)[-2:]]


def test_foreign_files_stay(tmp_path):
    """A file that never was a log is left alone, and what to do is said (S3-43)."""
    path = tmp_path / "README.md"
    path.write_text("# My project\n")
    for _ in range(2):
        with pytest.raises(SetupError, match="name another file"):
            EventLog(path, "x")
    assert {"README.md": "# My project\n"} == {one.name: one.read_text() for one in tmp_path.iterdir()}


@pytest.mark.parametrize("text", ["# Session-Log: x\n", "# Title\nProtocol: EVENT-LOG/0.2\n", "x\n<!-- seal 0123456789abcdef -->\n"])
def test_what_was_a_log_is_set_aside(tmp_path, text):
    """A file of any name that has an older title, a protocol or a seal was a log: it is set aside (S3-43)."""
    path = tmp_path / "notes.md"
    path.write_text(text)
    EventLog(path, "x").close()
    assert text == (tmp_path / "notes.md.corrupted").read_text()


def test_older_backups_stay(tmp_path):
    """No backup is ever overwritten: each gets a name of its own (S3-47)."""
    path = tmp_path / "session-log.md"
    for number in range(4):
        path.write_text(f"number {number}")
        set_aside(path)
    assert not path.exists()
    names = ["session-log.md.corrupted", *(f"session-log.md.corrupted.{number}" for number in (1, 2, 3))]
    assert [f"number {number}" for number in range(4)] == [(tmp_path / name).read_text() for name in names]


def test_corruption_under_a_writer(tmp_path):
    """A log that is damaged while it is open is set aside at the next event, which is in the new one (S3-43)."""
    made = log(tmp_path)
    made.append(call(1))
    made.path.write_bytes(b"\0" * made.path.stat().st_size)
    made.append(call(2))
    found = extract_events(made.path)
    assert ["session_start", "recovery", "tool_call"] == [fields["type"] for fields in found]
    assert "call-002" == found[-1]["call_id"]


def test_whole_logs_are_left_alone(tmp_path):
    """Neither a whole log, nor one of the seed's, nor one with bad YAML in it counts as corrupted (S3-43)."""
    session(tmp_path)
    seed = tmp_path / "seed" / "session-log.md"
    seed.parent.mkdir()
    seed.write_text(SEED + "\n## 12:00:09 — X\n\n```yaml\ntype: [\n```\n")
    log(tmp_path)
    log(tmp_path, "seed")
    assert [] == list(tmp_path.rglob("*.corrupted"))


@pytest.mark.parametrize("mark", ["—", "<!-- seal", "```\n"])
def test_logs_longer_than_a_read_are_whole(tmp_path, mark):
    """A long log is opened again as it is, wherever the pieces that it is read in are cut (S3-14, S3-43)."""

    def written(name, padding):
        made = log(tmp_path, name, verbosity="verbose")
        made.append(LogEvent("note", text="x" * 500_000))
        made.append(LogEvent("note", text="x" * (padding - 500_000) + "—"))
        made.append(LogEvent("note", text="last"))
        made.close()
        return made.path, made.path.read_bytes()

    border = 1 << 20
    _, first = written("sess-000", border)
    path, data = written("sess-001", border - (first.index(mark.encode(), border) + 1 - border))
    assert mark.encode() == data[border - 1 : border - 1 + len(mark.encode())]
    log(tmp_path).append(call())
    assert data == path.read_bytes()[: len(data)]
    assert ["session_start", *["note"] * 3, "tool_call"] == [fields["type"] for fields in extract_events(path)]
    assert ["session-log.md"] == [one.name for one in path.parent.iterdir()]
    assert [] == verify(path)
