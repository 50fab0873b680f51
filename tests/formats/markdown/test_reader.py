import gzip
import io
import re
import time

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from optree._store.files.lines import Fault
from optree_formats.markdown import FORMAT, Entry, LogEvent, extract_events, read_log, state_at, stream_log, verify
from optree_formats.markdown.retention import fewer_events
from tests.formats.markdown.logs import SEED, call, log, naive_blocks, session
from tests.growth import SQUARE, growth

NEXT = "\n\n## 12:00:09 — Next\n\n```yaml\ntype: next\n```\n"
FENCE = "```"


def written(tmp_path, data):
    """Write a log's bytes; returns its path."""
    path = tmp_path / "session-log.md"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_the_seeds_own_log(tmp_path):
    """The seed's log is read whole: head, lines, times, narratives, raw text, values and comments (S3-03, S3-16, S3-53, S3-71)."""
    found = read_log(written(tmp_path, SEED))
    assert ("sess-001", "2025-12-30T12:00:00Z", "EVENT-LOG/0.2") == (found.head.session_id, found.head.started, found.head.protocol)
    assert ([], ["session_start", "tool_call", "tool_result"]) == (found.faults, [entry.kind for entry in found.entries])
    first, second, third = found.entries
    assert "<!-- Minimal metadata for session initialization -->" == first.narrative
    assert (20, 25, "Tool Call: fs.read", "12:00:05", 1767096005000.0) == (
        second.line,
        second.block_line,
        second.title,
        second.time,
        second.at,
    )
    assert "Reading parser to check recursive descent handling." == second.narrative
    assert "Check if the recursive descent handles nested expressions\nThis is part of the expression parser audit" == (
        second.comment("args.why").before
    )
    assert third.raw.startswith("type: tool_result\ncall_id: call-001")
    assert "File contains the expected parseExpression function" == third.comment("result").end


def test_extract_events(tmp_path):
    """`extract_events` returns the fields of all events as dicts, in order (S3-53)."""
    path = written(tmp_path, SEED)
    assert ["session_start", "tool_call", "tool_result"] == [fields["type"] for fields in extract_events(str(path))]
    assert {"lines": 50} == extract_events(path)[2]["result"]


def test_the_seeds_own_extractor(tmp_path):
    """The extractor that the seed shows, with any YAML reader, finds the same in what we write (S3-53)."""
    path = session(tmp_path)
    assert extract_events(path) == [YAML(typ="safe", pure=True).load(block) for block in naive_blocks(path.read_text())]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (f"{FENCE}yml\ntype: a\n{FENCE}", ["a"]),
        (f'{FENCE}json\n{{"type": "a", "n": [1, null]}}\n{FENCE}', ["a"]),
        (f'{FENCE}json\n{{"type": "a",}}\n{FENCE}', ["a"]),
        (f"{FENCE}YAML title=x\ntype: a\n{FENCE}", ["a"]),
        ("~~~yaml\ntype: a\n~~~", ["a"]),
        (f"   {FENCE}yaml\n   type: a\n   b:\n     c: 1\n   {FENCE}", ["a"]),
        (f"      {FENCE}yaml\n      type: a\n      {FENCE}", ["a"]),
        (f"{FENCE}yaml\r\ntype: a\r\nb: |\r\n  c\r\n{FENCE}\r\n", ["a"]),
        (f"{FENCE}`yaml\ntype: a\nb: |\n  {FENCE}\n  code\n  {FENCE}\n{FENCE}`", ["a"]),
        (f"{FENCE}yaml\ntype: a\nb: |\n  {FENCE}\n  code\n  {FENCE}\nc: 1\n{FENCE}", ["a"]),
        (f"{FENCE}yaml\ntype: a\n---\ntype: b\n...\n---\ntype: c\n{FENCE}", ["a", "b", "c"]),
        (f"{FENCE}yaml\n- type: a\n- type: b  # second\n{FENCE}", ["a", "b"]),
        (f"{FENCE}yaml\nevent: bootstrap_complete\n{FENCE}", ["bootstrap_complete"]),
        (f"{FENCE}yaml\ntype: a\nb: 2020-01-01\n{FENCE}", ["a"]),
        (f"{FENCE}python\ntype: no\n{FENCE}\n\n{FENCE}yaml\ntype: a\n{FENCE}", ["a"]),
        (f"{FENCE}yaml\ntype: a\n  {FENCE}", ["a"]),
    ],
)
def test_blocks_of_any_form(tmp_path, block, expected):
    """Blocks are found however they are fenced, and what follows them is read (S3-54)."""
    found = read_log(written(tmp_path, f"# Session Log: x\n\nStarted: 2025-12-30T12:00:00Z\n\n---\n\n## 12:00:05 — X\n\n{block}{NEXT}"))
    assert [*expected, "next"] == [entry.kind for entry in found.entries]
    assert [] == found.faults
    assert "12:00:05" == found.entries[0].time


@pytest.mark.parametrize(
    ("block", "kind", "said"),
    [
        (f"{FENCE}yaml\ntype: tool_error\nwhy: a -> b: c\n{FENCE}", "tool_error", "mapping values"),
        (f"{FENCE}yaml\ntype: x\na: &a [*a]\n{FENCE}", "x", "contains itself"),
        (f"{FENCE}yaml\ntype: x\na: [1,\n{FENCE}", "x", "expected"),
        (f"{FENCE}yaml\njust text\n{FENCE}", "", "no map"),
        (f"{FENCE}yaml\n{FENCE}", "", "no map"),
        (f'{FENCE}json\n{{"type": "x" "y"}}\n{FENCE}', "x", "expected"),
        (f"{FENCE}yaml\ntype: torn\na: 1", "torn", "torn"),
    ],
)
def test_bad_blocks_are_said_and_kept(tmp_path, block, kind, said):
    """A bad block is reported with its line, its text and type are kept, and the rest is read (S3-04, S3-54)."""
    found = read_log(written(tmp_path, f"# Session Log: x\n\n## 12:00:05 — X\n\n{block}{NEXT}"))
    assert [kind, "next"] == [entry.kind for entry in found.entries]
    assert said in found.faults[0].said
    assert 5 <= found.faults[0].line <= 6
    assert "\n".join(block.split("\n")[1:]).removesuffix(FENCE).strip("\n") == found.entries[0].raw.strip("\n")


def test_torn_end_is_said(tmp_path):
    """A log that breaks off within a block keeps the events before it, and what is there of the last, and says so (S3-54)."""
    text = SEED[: SEED.index("duration_ms")]
    found = read_log(written(tmp_path, text))
    assert ["session_start", "tool_call", "tool_result"] == [entry.kind for entry in found.entries]
    assert [Fault(39, "the block that begins here has no end: it was torn")] == found.faults


def test_key_that_comes_twice(tmp_path):
    """Of a key that comes twice the last value holds, and the line is said (S3-54)."""
    found = read_log(written(tmp_path, f"## 12:00:05 — X\n\n{FENCE}yaml\ntype: x\na: 1\na: 2\n{FENCE}\n"))
    assert ({"type": "x", "a": 2}, 6) == (found.entries[0].fields, found.faults[0].line)


def test_template_of_the_userland_skill(tmp_path):
    """The companion's template is read: its head in quotes, and timestamps as headings (S3-06)."""
    text = f"""# Session Log

> **Session**: sess-7
> **Started**: 2025-12-30T23:59:58Z
> **Protocol**: SESSION-LOG/0.1

---

## 2025-12-30T23:59:58Z — Session Start

{FENCE}yaml
event: "bootstrap_complete"
{FENCE}
"""
    found = read_log(written(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert ("sess-7", "SESSION-LOG/0.1") == (found.head.session_id, found.head.protocol)
    assert ("bootstrap_complete", 1767139198000.0) == (found.entries[0].kind, found.entries[0].at)


def test_sessions_pass_midnight(tmp_path):
    """Headings have no date: it follows from the log's start and the order of events, also over several midnights (S3-03, S3-12)."""
    times = ["23:59:58", "23:59:57", "00:00:01", "12:30:00", "23:00:00", "01:00:00"]
    text = "# Session Log: x\n\nStarted: 2025-12-30T23:59:58Z\n\n---\n" + "".join(
        f"\n## {one} — X\n\n{FENCE}yaml\ntype: x\n{FENCE}\n\n---\n" for one in times
    )
    found = read_log(written(tmp_path, text))
    start = 1767139198000.0
    assert [0, -1, 3, 45002, 82802, 90002] == [(entry.at - start) / 1000 for entry in found.entries]


def test_what_stands_behind_a_block(tmp_path):
    """People's remarks behind a block, and sections without one, are kept (S3-08)."""
    text = f"## 12:00:00 — X\n\nBefore.\n\n{FENCE}yaml\ntype: x\n{FENCE}\n\nBehind.\n\n---\n\n## 12:00:01 — Thought\n\nOnly words.\n"
    first, second = read_log(written(tmp_path, text)).entries
    assert ("Before.", "Behind.") == (first.narrative, first.after)
    assert ("", "Thought", "Only words.", 0) == (second.kind, second.title, second.narrative, second.number)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_packed_logs_are_read(tmp_path, pack):
    """An archived log is read as it is (S3-58)."""
    path = session(tmp_path)
    assert extract_events(path) == extract_events(written(tmp_path, pack(path.read_bytes())))


PARTS = [
    "```yaml\n", "```\n", "  ```\n", "~~~yml\n", "---\n", "## 12:00:00 — X\n", "type: x\n", "  a: |\n", "&a ", "*a", "\0", "# ", "[", "{",
    '"', "\r\n", "- ", "? ", ": ", "<<: ", "!!x ", "%YAML 1.1\n", "<!-- seal 0011223344556677 -->\n", "\t", 'path: "1.1"\n',
    "timestamp: .nan\n",
    "continues:\n  path: '9'\n  count: -1\n", "accounting: [1, {id: 3}]\n", "session_id: x\n", "tree: optree/1\n", "type: session_start\n",
]  # fmt: skip


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200) | st.lists(st.sampled_from(PARTS), max_size=40).map(lambda parts: "".join(parts).encode()))
def test_no_bytes_stop_the_reader(tmp_path, data):
    """Whatever the bytes are, reading, replaying, verifying and compressing come to their end (S3-54)."""
    path = written(tmp_path, data)
    found = read_log(path)
    assert all(entry.line > 0 for entry in found.entries)
    assert len([entry for entry in found.entries if entry.kind]) == state_at(path).events
    assert isinstance(verify(path), list)
    assert len(fewer_events(found.entries)) <= len(found.entries)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damage_costs_only_what_it_hits(tmp_path, data):
    """One damaged byte costs the events it touches; all others are read with all their fields (S3-02, S3-54)."""
    directory = tmp_path / str(time.monotonic_ns())
    path = session(directory, calls=5)
    whole = extract_events(path)
    text = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.sampled_from(b"`#\n\0\xff x"))
    path.write_bytes(text)
    found = extract_events(path)
    assert len(whole) - 3 <= sum(fields in found for fields in whole)


def test_a_damaged_fence_does_not_make_the_log_another_format(tmp_path):
    """A fence whose first character became another costs the events it touches, also that of the first event (S3-02, S3-54)."""
    path = session(tmp_path / "log", calls=5)
    whole, text = extract_events(path), path.read_bytes()
    fences = [match.start() for match in re.finditer(rb"(?m)^```", text)]
    for at in fences:
        path.write_bytes(text[:at] + b"#" + text[at + 1 :])
        found = extract_events(path)
        assert len(whole) - 3 <= sum(fields in found for fields in whole)


def test_memory_is_bounded():
    """A long log is read event by event: the first is there before the last is looked at (S3-05)."""

    class Source(io.BytesIO):
        given = 0

        def read(self, size=-1):
            piece = super().read(min(size, 4096))
            self.given += len(piece)
            return piece

    data = SEED.encode() + (f"\n## 12:00:07 — X\n\n{FENCE}yaml\ntype: x\n{FENCE}\n\n---\n" * 5000).encode()
    source = Source(data)
    reading = stream_log(source)
    first = next(found for found in reading if isinstance(found, Entry))
    assert "session_start" == first.kind
    assert source.given < len(data) / 10
    assert 5002 == sum(isinstance(found, Entry) for found in reading)


def test_huge_block_is_read(tmp_path):
    """An event of a million characters comes back whole (S3-34, S3-54)."""
    made = log(tmp_path, verbosity="verbose")
    text = "long: line of - text # here\n" * 37_000
    made.append(LogEvent("note", text=text, items=[{"a": number} for number in range(2000)]))
    assert text == extract_events(made.path)[-1]["text"]


def test_comments_can_be_asked_for(tmp_path):
    """Comments are found by event and field, as data: those that speak of a file, say (S3-05, S3-71, S3-72)."""
    made = log(tmp_path)
    made.append(call(1).comment("args.path", "renamed in May", where="beside"))
    made.append(call(2).comment("", "slow today"))
    found = [(entry.number, said) for entry in read_log(made.path).entries for one in entry.comments.values() for said in one.texts()]
    assert [(2, "renamed in May"), (3, "slow today")] == found
    assert "slow today" == read_log(made.path).entries[2].comment("").end
    with pytest.raises(KeyError):
        read_log(made.path).entries[2].comment("args.nothing")


SLOW = {
    "fences": lambda n: "```yaml\n  ```\n" * n,
    "headings": lambda n: "## 12:00:00 — X\n" * n,
    "torn": lambda n: "```yaml\n" + "a: 1\n" * n,
    "odd fences": lambda n: "```\n" * (4 * n + 1),
    "long line": lambda n: "x" * n * 200,
    "no seals": lambda n: "<!-- seal " * n * 10,
    "head": lambda n: "Session: a" + " " * n * 20 + "x\n",
    "heading": lambda n: "## a" + " " * n * 20 + "x\n",
    "tilde": lambda n: "~" * n * 20 + "`\n",
    "own comments": lambda n: f"{FENCE}yaml\ntype: a\n" + "#\n" * n * 20 + f"{FENCE}\n",
    "foreign comments": lambda n: f"{FENCE}yaml\ntype: [a]\n" + "#x\n" * n + f"{FENCE}\n",
    "brackets": lambda n: f"{FENCE}yaml\ntype: a\nb: " + "[" * n + f"\n{FENCE}\n",
    "dashes": lambda n: f"{FENCE}yaml\ntype: a\nb:\n  " + "- " * n + f"1\n{FENCE}\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_time_grows_with_the_text(tmp_path, name):
    """Texts made to be slow are read in the time that their length deserves: eight times as long for eight times as much (S3-54)."""

    def reading(n):
        path = written(tmp_path, SLOW[name](n))
        return lambda: read_log(path)

    assert SQUARE > growth(reading, 1000)


@pytest.mark.parametrize("said", [r"\UFFFFFFFF", r"\U00110000", r"\ud800"])
def test_codes_of_no_character(tmp_path, said):
    """An escape that names no character raises nothing, and what follows is read (S3-54)."""
    found = read_log(written(tmp_path, f'{FENCE}yaml\ntype: x\na: "{said}"\n{FENCE}{NEXT}'))
    assert ["x", "next"] == [entry.kind for entry in found.entries]
    assert all(str(entry.fields).encode() for entry in found.entries)


DOCUMENTS = """# Session Log: sess-001
# kept by hand
---
type: session_start
timestamp: "2025-12-30T12:00:00Z"
session_id: sess-001
protocol: EVENT-LOG/0.2
# why this session is
purpose: "Debugging"
---
type: tool_call
timestamp: "2025-12-30T12:00:05Z"
tool: fs.read
call_id: call-001
args:
  path: src/parser.ts  # the parser
  why: "Check it"
  text: |
    # not a heading
    ```
    not a fence
---
type: [torn
---
- type: tool_result
  timestamp: "2025-12-30T12:00:06Z"
  call_id: call-001
  success: true
- type: session_end
  timestamp: "2025-12-30T12:00:07Z"
  session_id: sess-001
  reason: user_exit
...
"""


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_log_of_yaml_documents(tmp_path, pack):
    """A `.yml` log of whole YAML documents is read like one in Markdown: events, comments, times, and a bad document by its line."""
    path = tmp_path / "session-log.yml"
    path.write_bytes(pack(DOCUMENTS.encode()))
    log = read_log(path)
    kinds = ["session_start", "tool_call", "torn", "tool_result", "session_end"]
    assert kinds == [entry.kind or "torn" for entry in log.entries]
    assert [23] == [fault.line for fault in log.faults]
    assert "why this session is" in log.entries[0].comment("purpose").before
    assert "# not a heading\n```\nnot a fence\n" == log.entries[1].fields["args"]["text"]
    assert [4, 11, 23, 25, 25] == [entry.block_line for entry in log.entries]
    assert 7_000.0 == log.entries[-1].at - log.entries[0].at


def test_a_folder_with_a_log_of_yaml_documents_is_imported(tmp_path):
    """The format takes such a file, and a session's folder with one, for its own; any other YAML it does not."""
    path = tmp_path / "session-log.yml"
    path.write_text(DOCUMENTS)
    for place in (path, tmp_path):
        assert FORMAT.detect(place, path.read_bytes() if place == path else b"")
        [tree] = FORMAT.read(place).trees
        assert ("sess-001", "ok", ["fs.read"]) == (
            tree.session.origin_txn_id,
            tree.session.status,
            [op.name for turn in tree.session.turns for op in turn.ops if op.kind == "tool"],
        )
    for other in ("type: object\nproperties: {}\n", "services:\n  web:\n    type: session_start\n", "- a\n- b\n"):
        assert not FORMAT.detect(tmp_path / "x.yml", other.encode())
