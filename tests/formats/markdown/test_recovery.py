import pytest

from optree_formats.markdown import extract_events, read_log, verify
from optree_formats.markdown.recovery import corruption, set_aside
from tests.formats.markdown.logs import SEED, call, log, session

DAMAGES = {
    "no title": b"something else\n",
    "zero bytes": SEED.encode() + b"\0\0\0\n",
    "no UTF-8": SEED.encode().replace(b"expression", b"\xff\xfe", 1),
    "torn in a character": SEED.encode() + "## 12:00:09 — Tool".encode()[:13],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_corrupted_log_is_set_aside(tmp_path, damage):
    """A corrupted log is renamed, and a new one begins, which names it (S3-31, S3-43, S3-44, S3-45, S3-46, S3-48)."""
    path = tmp_path / "sess-001" / "session-log.md"
    path.parent.mkdir()
    path.write_bytes(DAMAGES[damage])
    assert corruption(path)
    made = log(tmp_path)
    made.append(call())
    backup = path.with_name("session-log.md.corrupted")
    assert DAMAGES[damage] == backup.read_bytes()
    entries = read_log(path).entries
    assert ["session_start", "recovery", "tool_call"] == [entry.kind for entry in entries]
    recovery = entries[1]
    assert ("corruption", "session-log.md.corrupted") == (recovery.fields["from"], recovery.fields["backup"])
    assert "Human should review corrupted file" == recovery.comment("").end
    assert ("", []) == (corruption(path), verify(path))


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
    path = session(tmp_path)
    assert "" == corruption(path)
    seed = tmp_path / "seed.md"
    seed.write_text(SEED + "\n## 12:00:09 — X\n\n```yaml\ntype: [\n```\n")
    assert "" == corruption(seed)
