import resource
import threading
from datetime import UTC, datetime, timedelta

import pytest

from optree.errors import SetupError
from optree_formats.markdown import EventLog, LogEvent, extract_events, read_log, retention, summarise, verify
from optree_formats.markdown.retention import Policy, apply, archive, compress
from tests.formats.markdown.logs import STARTED, call, log, session

BEGAN = datetime.fromtimestamp(STARTED, UTC)


def files(path):
    """Return the names beside a log, its summary left out."""
    return sorted(one.name for one in path.parent.iterdir() if one.name != "session-summary.yml")


@pytest.mark.parametrize(
    ("days", "what", "expected"),
    [
        (0, "keep", ["session-log.md"]),
        (6.9, "keep", ["session-log.md"]),
        (7.1, "compress", ["session-log.compressed.md", "session-log.md"]),
        (29.9, "compress", ["session-log.compressed.md", "session-log.md"]),
        (30.1, "archive", ["session-log.md", "session-log.md.zst"]),
    ],
)
def test_age_decides(tmp_path, days, what, expected):
    """Recent logs stay alone, older ones get a compressed copy, much older ones an archive (S3-56, S3-57, S3-58, S3-63)."""
    path = session(tmp_path)
    before = path.read_bytes()
    dry = apply(tmp_path, now=BEGAN + timedelta(days=days), dry_run=True)
    assert ["session-log.md"] == files(path)
    done = apply(tmp_path, now=BEGAN + timedelta(days=days))
    assert [what] == [action.what for action in done] == [action.what for action in dry]
    assert (expected, before) == (files(path), path.read_bytes())


def test_policy_may_replace(tmp_path):
    """Only a policy that says so removes the log, once its archive was read back to the byte (S3-63)."""
    path = session(tmp_path)
    whole, events = path.read_bytes(), extract_events(path)
    (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=40))
    assert action.removed
    assert ["session-log.md.zst"] == files(path)
    assert events == extract_events(action.made)
    assert [] == verify(action.made)
    assert len(action.made.read_bytes()) < len(whole)


@pytest.mark.parametrize("ended", ["never", "taken up again"])
def test_running_sessions_are_left_alone(tmp_path, ended):
    """The log of a session that has not ended keeps all its events, however old it is (S3-55)."""
    path = session(tmp_path) if ended == "taken up again" else log(tmp_path).path
    if ended == "taken up again":
        log(tmp_path, reopen=True).append(call())
    (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=400))
    assert ("keep", ["session-log.md"]) == (action.what, files(path))


def test_a_log_that_cannot_be_packed_stays(tmp_path):
    """Where an archive cannot be written, the log stays and the reason is said (S3-63)."""
    path = session(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=40))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ["session-log.md"] == files(path)
    assert ("keep", True) == (action.what, path.exists())
    assert "Error" in action.why


def test_compression(tmp_path):
    """Runs of calls become one summary; errors, repairs, narratives, comments stay (S3-59, S3-60, S3-61, S3-62, S3-71)."""
    path = session(tmp_path, calls=20)
    made = compress(path, path.with_name("small.md"))
    found = read_log(made)
    assert ["session_start", "user_message", "tool_summary", "tool_call", "tool_error", "repair", "session_end"] == [
        entry.kind for entry in found.entries
    ]
    summary = found.entries[2]
    assert ("fs.read", 20, 20, 240) == tuple(summary.fields[key] for key in ("tool", "calls", "succeeded", "duration_ms"))
    assert all(f"Look at {number}." in summary.narrative for number in range(1, 21))
    said = {said for entry in found.entries for one in entry.comments.values() for said in "\n".join(one.texts()).split("\n")}
    whole = {said for entry in read_log(path).entries for one in entry.comments.values() for said in one.texts()}
    assert whole == said
    assert ([], []) == (found.faults, verify(made))
    assert len(made.read_bytes()) < len(path.read_bytes()) / 3
    before, after = summarise(read_log(path).entries), summarise(found.entries)
    assert before == after


def test_compression_drops_verbose_results(tmp_path):
    """Long texts of results go, their figures, short texts and comments stay; what is no run stays whole (S3-61, S3-62)."""
    made = EventLog(tmp_path / "s", verbosity="verbose")
    made.append(call(1))
    event = LogEvent(
        "tool_result", call_id="call-001", success=True, result={"lines": 3, "name": "short", "text": "long " * 50, "all": ["x\ny"]}
    )
    made.append(event.comment("result.text", "about the text").comment("result.lines", "few", where="beside"))
    made.end()
    _, kept_call, kept, _ = read_log(compress(made.path, tmp_path / "small.md")).entries
    assert {"path": "src/1.ts", "why": "look at 1"} == kept_call.fields["args"]
    assert {"lines": 3, "name": "short", "all": []} == kept.fields["result"]
    assert ("about the text", "few") == (kept.comment("").end, kept.comment("result.lines").beside)


def test_other_logs_are_compressed_too(tmp_path):
    """Bad blocks and sections without events stay as they are told; calls that never ended are not collapsed (S3-60, S3-62)."""
    path = tmp_path / "session-log.md"
    calls = "".join(
        f"\n## 12:00:0{number} — C\n\n```yaml\ntype: tool_call\ntool: t\ncall_id: c{number}\nargs: {{why: w}}\n```\n" for number in range(5)
    )
    path.write_text(f"# Session Log: x\n{calls}\n## 12:00:06 — Thought\n\nWords.\n\n## 12:00:07 — Bad\n\n```yaml\ntype: y\na: [\n```\n")
    found = read_log(compress(path, tmp_path / "small.md")).entries
    assert [*["tool_call"] * 5, "note", "y"] == [entry.kind for entry in found]
    assert "Words." == found[5].narrative
    assert "type: y\na: [" == found[6].fields["raw"]


def test_archive_is_read_by_everyone(tmp_path):
    """An archive holds every byte (S3-58)."""
    import zstandard

    path = session(tmp_path)
    made = archive(path, path.with_name("a.zst"))
    assert path.read_bytes() == zstandard.decompress(made.read_bytes())


@pytest.mark.parametrize(("days", "first"), [(40, "session-log.md.zst"), (10, "session-log.compressed.md")])
def test_nothing_is_overwritten(tmp_path, days, first):
    """What an earlier session of the name left stays as it is: the new one gets a free name (S3-63)."""
    kept = []
    for number in (1, 2, 3):
        path = session(tmp_path, calls=number)
        (action,) = [one for one in apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=days)) if one.log == path]
        assert action.removed
        assert number == len([kind for kind in files(path) if kind.startswith("session-log.")])
        kept.append((action.made, action.made.read_bytes()))
    assert first == kept[0][0].name
    assert all(data == made.read_bytes() for made, data in kept)
    with pytest.raises(SetupError, match="is there already"):
        archive(kept[0][0], kept[1][0])


def test_stale_copy_replaces_nothing(tmp_path):
    """A copy of the log as it was before an event came is none of the log: a new one is made before the log goes (S3-62, S3-63)."""
    path = session(tmp_path)
    apply(tmp_path, now=BEGAN + timedelta(days=10))
    log(tmp_path).append(LogEvent("violation", action="write", path="x", refused=True))
    (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=10))
    assert (True, "session-log.compressed.1.md") == (action.removed, action.made.name)
    assert "violation" == extract_events(action.made)[-1]["type"]
    assert not path.exists()


def test_session_that_is_taken_up_meanwhile_loses_nothing(tmp_path, monkeypatch):
    """A writer that comes while a log is replaced waits, and its event is in the log that it begins (S3-01, S3-55)."""
    path = session(tmp_path)
    begun = threading.Event()

    def resume():
        begun.set()
        log(tmp_path, reopen=True).append(call(7))

    writer = threading.Thread(target=resume)
    real = retention.compress

    def slow(source, target):
        made = real(source, target)
        writer.start()
        begun.wait(10)
        writer.join(0.1)  # it would be through by now if nothing held it
        assert path.read_bytes().count(b"call-007") == 0
        return made

    monkeypatch.setattr(retention, "compress", slow)
    (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=10))
    writer.join(10)
    assert action.removed
    assert "call-007" == extract_events(path)[-1]["call_id"]


def test_copy_that_replaced_its_log_is_archived(tmp_path):
    """A compressed copy that has taken its log's place is archived in its time, and read back (S3-58)."""
    path = session(tmp_path)
    apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=10))
    events = extract_events(path.with_name("session-log.compressed.md"))
    assert ["keep"] == [action.what for action in apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=11))]
    (action,) = apply(tmp_path, Policy(replace=True), BEGAN + timedelta(days=40))
    assert ("archive", True, ["session-log.compressed.md.zst"]) == (action.what, action.removed, files(path))
    assert events == extract_events(action.made)
