"""`optree ledger`: sums of all sessions, and the proof that the bill is right."""

import gzip
import json
from datetime import UTC, datetime

import msgspec
import pytest

from optree._store.files.compression import unpack

CALL = {"type": "llm", "status": "ok", "provider": "openai", "model": "gpt-4o", "agentId": "a", "originTxnId": "t1"}


def write_ledger(optree, entries):
    """Write a ledger."""
    optree.base.mkdir(exist_ok=True)
    (optree.base / "accounting.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_sums(optree):
    """By day, agent, model and session; input includes what was cached; a cost that nobody gave is unknown."""
    tokens = {"inputTokens": 200, "cacheReadInputTokens": 1000, "outputTokens": 64, "totalTokens": 1264}
    noon = 1_700_000_000_000.0
    entries = [
        {**CALL, "id": "t1:1.1#1", "timestamp": noon, "tokens": tokens, "costUsd": 0.0031},
        {**CALL, "id": "t1:1.2#2", "timestamp": noon + 86_400_000, "tokens": tokens},
        {**CALL, "id": "t2:1.1#1", "timestamp": noon + 86_400_000, "agentId": "b", "originTxnId": "t2", "costUsd": 0},
        {"id": "t2:1.2#2", "timestamp": noon + 86_400_000, "type": "tool", "command": "search", "agentId": "b", "originTxnId": "t2"},
    ]
    write_ledger(optree, entries)
    found = optree.json("ledger")
    groups = ["byDay", "byAgent", "byModel", "bySession"]
    assert ["of", "since", "total", *groups, "credits", "notEnded", "repeated", "unreadable", "damagedLines"] == list(found)
    assert (4, 2400, 2000, 128, 0.0031, 1) == tuple(
        found["total"][name] for name in ("calls", "inputTokens", "cacheReadInputTokens", "outputTokens", "costUsd", "unknownCosts")
    )
    assert [(1, 0.0031, 0), (3, 0.0, 1)] == [(day["calls"], day["costUsd"], day["unknownCosts"]) for day in found["byDay"]]
    assert [("t1", 2, 0.0031), ("t2", 2, 0.0)] == [(one["name"], one["calls"], one["costUsd"]) for one in found["bySession"]]
    lines = {line.split()[0]: line for line in optree.read("ledger").stdout.splitlines()}
    assert ["openai:gpt-4o", "3", "0", "2,400", "2,000", "0", "128", "$0.003100", "+", "1", "unknown"] == lines["openai:gpt-4o"].split()
    assert "$0" == lines["t2"].split()[-1]


@pytest.mark.parametrize("name", ["agentId", "provider", "model", "mcpServer", "command"])
def test_names_hold_no_credentials(optree, name):
    """A name that is a credential is hidden in table and JSON; two of them are one group."""
    keys = ["sk-abcdefghijklmnop1234", "sk-qrstuvwxyzabcdef5678"]
    kind = "tool" if name in ("mcpServer", "command") else "llm"
    write_ledger(optree, [{**CALL, "type": kind, "id": f"t1:1.1#{key}", "timestamp": 1e12, name: key} for key in keys])
    told = optree.json("cost", "--all")
    group = {"agentId": "byAgent", "provider": "byModel", "model": "byModel"}.get(name, "byTool")
    assert [2] == [one["calls"] for one in told[group]]
    assert [] == [key for key in keys for said in (json.dumps(told), optree.read("cost", "--all").stdout) if key in said]


def test_unknown_costs_are_none(optree):
    """Where nobody gave any cost there is no sum of money: null in JSON, unknown in the table, a dash for what costs nothing."""
    write_ledger(
        optree, [{**CALL, "id": "t1:1.1#1", "timestamp": 1e12}, {"id": "t1:1.2#2", "timestamp": 1e12, "type": "tool", "command": "x"}]
    )
    found = optree.json("cost", "--all")
    assert (None, 1) == (found["total"]["costUsd"], found["total"]["unknownCosts"])
    assert (0.0, 0) == (found["byTool"][0]["costUsd"], found["byTool"][0]["unknownCosts"])
    cells = {line.split()[0]: line.split()[-1] for line in optree.read("cost", "--all").stdout.splitlines()}
    assert ("unknown", "-") == (cells["total"], cells["x"])


def test_repeated_lines_count_once(optree):
    """The original repeats entries byte by byte: said, and counted once; entries that only look alike are two."""
    line = {**CALL, "timestamp": 1e12, "latency": 5, "tokens": {"inputTokens": 10, "outputTokens": 2, "cachedTokens": 4}, "costUsd": 0.5}
    write_ledger(optree, [line, line, {**line, "latency": 6}, line])
    found = optree.json("ledger")
    assert (2, 2, 1.0, 28) == (found["repeated"], found["total"]["calls"], found["total"]["costUsd"], found["total"]["inputTokens"])
    assert f"optree: 2 lines of {optree.base}/accounting.jsonl repeat others and are counted once" in optree.read("ledger").stderr
    assert "counted once (optree ledger --check)" in optree.read("ledger").stderr
    assert "counted once\n" in optree.read("ledger", "--check", code=None).stderr


def test_a_sound_bill(optree):
    """Ledger, totals and leaves of all sessions that ended agree; what has not ended is said."""
    optree.record(), optree.record("fail", code=1), optree.record("kill", code=-9)
    found = optree.json("ledger", "--check")
    assert (2, 1, [], []) == (found["checked"], found["notEnded"], found["withoutSession"], found["differing"])
    assert "2 of 2 sessions agree: leaves = totals = ledger · 1 not ended\n" == optree.read("ledger", "--check").stdout
    assert 1 == optree.json("ledger")["notEnded"]
    assert (
        "optree: 1 session is not in the ledger yet (optree ls; optree load TXN --end ends what broke off)\n"
        == optree.read("ledger").stderr
    )


@pytest.mark.parametrize("change", ["lost", "altered", "strange"])
def test_a_wrong_bill(optree, change):
    """A line that is lost, altered, or of no entry of the session is found, by its id, and the exit code is 1."""
    txn, other = optree.record(), optree.record()
    path = optree.base / "accounting.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    bill = next(line for line in lines if line["originTxnId"] == txn and line["type"] == "llm")
    rest = [line for line in lines if line is not bill]
    changed = {"lost": [], "altered": [{**bill, "costUsd": 9.0}], "strange": [bill, {**bill, "id": f"{txn}:9.9#9"}]}[change]
    write_ledger(optree, rest + changed)
    [found] = optree.json("ledger", "--check", code=1)["differing"]
    assert txn == found["txn"] != other
    expected = {"lost": f"not in the ledger: {bill['id']}", "altered": "costUsd: leaves $0.003100, ledger $9.000000"}
    assert expected.get(change, f"only in the ledger: {txn}:9.9#9") in found["differences"]
    assert f"{txn}: " in optree.read("ledger", "--check", code=1).stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [({"costUsd": 9.0}, "costUsd 0.0031, 9.0"), ({"txnId": "t9"}, ", t9"), ({"bytes": 7}, "bytes null, 7"), ({"agentId": [1]}, ", [1]")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_line_twice_with_something_else(optree, change, said):
    """A line with the id of another that says something else is no repetition: it is named, and the exit code is 1."""
    txn = optree.record()
    path = optree.base / "accounting.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    bill = next(line for line in lines if line["type"] == "llm")
    write_ledger(optree, [*lines, {**bill, **change}])
    checked = optree.json("ledger", "--check", code=1)
    [found] = checked["differing"]
    assert (txn, 0, 0) == (found["txn"], checked["repeated"], checked["agreed"])
    [difference] = found["differences"]
    assert difference.startswith(f"{bill['id']} is in the ledger twice: ")
    assert difference.endswith(said)
    assert "1 line of " in optree.read("ledger").stderr
    write_ledger(optree, [*lines, dict(reversed(bill.items()))])
    assert ([], 1) == tuple(optree.json("ledger", "--check")[name] for name in ("differing", "repeated"))
    assert "repeats another and is counted once" in optree.read("cost", "--all").stderr


@pytest.mark.parametrize("name", ["provider", "model", "agentId", "status"])
def test_a_line_that_names_something_else(optree, name):
    """A line that bills another model, provider or agent than its entry, or tells of another end, is found."""
    optree.record()
    path = optree.base / "accounting.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    bill = next(line for line in lines if line["type"] == "llm")
    told, bill[name] = bill[name], "other"
    write_ledger(optree, lines)
    [found] = optree.json("ledger", "--check", code=1)["differing"]
    assert [f"{bill['id']}: leaf, ledger: {name} {told}, other"] == found["differences"]


def test_totals_that_are_wrong(optree):
    """Totals that a file holds and its leaves do not come to are found."""
    txn = optree.record()
    [path] = (optree.base / "sessions").glob(f"{txn}.json*")
    saved = msgspec.json.decode(unpack(path.read_bytes())[0])
    saved["session"]["totals"]["inputTokens"] += 1
    path.unlink()
    (optree.base / "sessions" / f"{txn}.json.gz").write_bytes(gzip.compress(msgspec.json.encode(saved)))
    [found] = optree.json("ledger", "--check", code=1)["differing"]
    assert [["inputTokens: leaves 800, stored totals 801"]] == [found["differences"]]


def test_a_line_that_cannot_be_read(optree):
    """It is counted, and the exit code is 3."""
    write_ledger(optree, [{**CALL, "timestamp": 1e12}])
    with (optree.base / "accounting.jsonl").open("a") as file:
        file.write("torn\n")
    found = optree.json("ledger", code=3)
    assert (1, [2], 1) == (found["unreadable"], found["damagedLines"], found["total"]["calls"])
    said = f"1 line of {optree.base}/accounting.jsonl cannot be read, or not in full (damaged: line 2); what cannot"
    assert [True, True] == [said in optree.read(*command, code=3).stderr for command in (["ledger"], ["cost", "--all"])]


def test_what_the_original_billed_is_not_billed_again(optree, tmp_path):
    """A session of the original, imported with its own ledger, adds no line to it: not for those that it repeats either."""
    context = {"agentId": "a", "callPath": "a", "txnId": "txn-1", "originTxnId": "txn-1"}
    call = {"type": "llm", "timestamp": 1_700_000_000_123, "status": "ok", "latency": 5, "provider": "openai", "model": "m"}
    call |= {"tokens": {"inputTokens": 200, "outputTokens": 9, "cachedTokens": 1000, "totalTokens": 1209}, "costUsd": 0.25}
    tool = {"type": "tool", "timestamp": 1_700_000_000_200, "status": "ok", "latency": 7, "mcpServer": "web", "command": "fetch"}
    tool |= {"charactersIn": 3, "charactersOut": 90}
    ops = [
        {"opId": "o1", "kind": "llm", "startedAt": 1_700_000_000_100, "endedAt": 1_700_000_000_123, "status": "ok"}
        | {"attributes": {"provider": "openai", "model": "m"}, "logs": [], "accounting": [{**call, **context}]},
        {"opId": "o2", "kind": "tool", "startedAt": 1_700_000_000_150, "endedAt": 1_700_000_000_200, "status": "ok"}
        | {"attributes": {"name": "fetch", "provider": "web"}, "logs": [], "accounting": [{**tool, **context}]},
        {"opId": "o3", "kind": "tool", "startedAt": 1_700_000_000_210, "attributes": {"name": "lost"}, "logs": [], "accounting": []},
    ]
    session = {
        "id": "txn-1",
        "agentId": "a",
        "callPath": "a",
        "startedAt": 1_700_000_000_000,
        "endedAt": 1_700_000_000_300,
        "success": True,
    }
    turn = {"id": "x", "index": 1, "startedAt": 1_700_000_000_000, "endedAt": 1_700_000_000_300, "ops": ops}
    file = tmp_path / "txn-1.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"version": 1, "reason": "final", "opTree": {**session, "turns": [turn]}}).encode()))
    write_ledger(optree, [{**call, **context}, {**tool, **context}, {**call, **context}])
    before = (optree.base / "accounting.jsonl").read_bytes()
    optree.read("import", str(file))
    assert before == (optree.base / "accounting.jsonl").read_bytes()
    total = optree.json("ledger")["total"]
    assert (2, 1200, 0.25) == (total["calls"], total["inputTokens"], total["costUsd"])
    [row] = optree.json("ls")
    assert (2, 1, 1200, 0.25) == tuple(row[name] for name in ("toolsRun", "llmRequests", "inputTokens", "costUsd"))
    check = optree.json("ledger", "--check")
    assert (1, []) == (check["checked"], check["differing"])
    written = tmp_path / "again.json"
    optree.read("export", "last", "--to", "ai-agent", "--output", str(written))


def test_a_tool_that_took_no_tokens(optree, tmp_path):
    """A tool's entry whose tokens are all 0, as other writers have it, costs nothing: said in the same way everywhere."""
    file = tmp_path / "zeros.json"
    none = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    entry = {
        "type": "tool",
        "timestamp": 1_700_000_000_200,
        "status": "ok",
        "latency": 7,
        "mcpServer": "web",
        "command": "fetch",
        "tokens": none,
    }
    op = {"opId": "o1", "kind": "tool", "startedAt": 1_700_000_000_100, "endedAt": 1_700_000_000_200, "status": "ok", "logs": []}
    turn = {"id": "x", "index": 1, "startedAt": 1_700_000_000_000, "endedAt": 1_700_000_000_300, "ops": [{**op, "accounting": [entry]}]}
    session = {"id": "t", "traceId": "t", "agentId": "a", "startedAt": 1_700_000_000_000, "endedAt": 1_700_000_000_300, "success": True}
    file.write_text(json.dumps({"version": 2, "reason": "final", "opTree": {**session, "turns": [turn]}}))
    optree.read("import", str(file))
    assert "unknown" not in optree.read("tree").stdout
    assert "-" == optree.read("cost").stdout.splitlines()[-1].split()[-1]
    assert (1, []) == tuple(optree.json("ledger", "--check")[name] for name in ("checked", "differing"))


BEGUN = 1_700_000_000_000
BILLED = {"type": "llm", "timestamp": BEGUN + 123, "status": "ok", "latency": 5, "provider": "openai", "model": "m"} | {
    "tokens": {"inputTokens": 200, "outputTokens": 9, "cacheWriteInputTokens": 3, "cachedTokens": 1000, "totalTokens": 1212},
    "costUsd": 0.25,
}


def context(txn):
    """Return what a line of the original says of its session."""
    return {"agentId": "a", "callPath": "a", "txnId": txn, "originTxnId": txn}


def original(folder, entries, *, txn="txn-1", ids=None):
    """Write a session of the original with an op for each accounting entry; returns its file."""
    ids = ids or [f"{txn}-o{number}" for number in range(len(entries))]
    ops = [
        {"opId": name, "kind": "llm", "startedAt": BEGUN + 100, "endedAt": BEGUN + 200, "status": "ok", "logs": []}
        | {"attributes": {"provider": "openai", "model": "m"}, "accounting": [entry]}
        for name, entry in zip(ids, entries, strict=True)
    ]
    turn = {"id": f"{txn}-turn", "index": 1, "startedAt": BEGUN, "endedAt": BEGUN + 300, "ops": ops}
    session = {"id": txn, "agentId": "a", "callPath": "a", "startedAt": BEGUN, "endedAt": BEGUN + 300, "success": True, "turns": [turn]}
    path = folder / f"{txn}.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": 1, "reason": "final", "opTree": session}).encode()))
    return path


def agrees(optree, calls):
    """Assert that the ledger has so many calls, and proves right."""
    assert calls == optree.json("ledger")["total"]["calls"]
    assert [] == optree.json("ledger", "--check")["differing"]


@pytest.mark.parametrize("other", [{"latency": 6}, context("txn-2"), {"status": "failed"}], ids=["latency", "txn", "status"])
def test_a_line_that_says_otherwise_is_not_that_call(optree, other):
    """A call of which the ledger has no line is billed, though a line of another session, or of another duration, is like it."""
    write_ledger(optree, [{**BILLED, **context("txn-1"), **other}])
    optree.read("import", original(optree.folder, [{**BILLED, **context("txn-1")}]))
    [line] = [json.loads(line) for line in (optree.base / "accounting.jsonl").read_text().splitlines()[1:]]
    assert ("txn-1-o0#1", "txn-1", 5.0) == (line["id"], line["originTxnId"], line["latency"])


@pytest.mark.parametrize("silent", [("txnId",), ("txnId", "originTxnId")], ids=["on its agent", "on its session"])
def test_a_line_that_is_silent_is_that_call(optree, silent):
    """A line that does not say its session, and else says what a call does, is its bill."""
    said = {**BILLED, **context("txn-1")}
    write_ledger(optree, [{name: value for name, value in said.items() if name not in silent}])
    optree.read("import", original(optree.folder, [said]))
    assert 1 == optree.json("ledger")["total"]["calls"]


def test_two_calls_that_are_alike_are_two(optree):
    """Two calls of a session that say the same are billed twice: a line without an id is the bill of one; nor does importing again add."""
    call = {**BILLED, **context("txn-1")}
    write_ledger(optree, [call])
    path = original(optree.folder, [call, call])
    optree.read("import", path)
    agrees(optree, 2)
    before = (optree.base / "accounting.jsonl").read_bytes()
    optree.read("import", path, "--replace")
    assert before == (optree.base / "accounting.jsonl").read_bytes()


def test_two_lines_that_are_alike_but_for_what_identifies_none_bill_two(optree):
    """Two lines that differ, though not in what tells calls apart, are the bills of two calls; one too many stands in the ledger only."""
    call = {**BILLED, **context("txn-1")}
    write_ledger(optree, [call, {**call, "stopReason": "end"}])
    optree.read("import", original(optree.folder, [call, call]))
    agrees(optree, 2)
    write_ledger(optree, [call, {**call, "stopReason": "end"}, {**call, "stopReason": "tool"}])
    [found] = optree.json("ledger", "--check", code=1)["differing"]
    assert "only in the ledger: a line of " in found["differences"][-1]


def test_an_op_id_that_is_there_twice_is_two_ops(optree):
    """Calls of two ops to which a file gives one id are billed each, and so are those of two files with the same ids."""
    call = {**BILLED, **context("txn-1")}
    optree.read("import", original(optree.folder, [call, call], ids=["o", "o"]))
    agrees(optree, 2)
    other = {**BILLED, **context("txn-2")}
    optree.read("import", original(optree.folder, [other], txn="txn-2", ids=["o"]))
    agrees(optree, 3)


@pytest.mark.parametrize("odd", [[1], {"a": 1}], ids=["list", "object"])
@pytest.mark.parametrize("name", ["costUsd", "provider", "txnId", "timestamp", "tokens", "id", "originTxnId", "latency"])
def test_a_line_with_something_else_for_a_value_stops_nothing(optree, name, odd):
    """Where a line has a list or an object in the place of a figure or a name, sessions are imported and all is summed and compared."""
    call = {**BILLED, **context("txn-1")}
    write_ledger(optree, [{**call, name: odd}, {**call, "id": "x", name: odd}])
    optree.read("import", original(optree.folder, [call]))
    assert optree.json("ledger", code=None)["total"]["calls"] >= 1
    assert 1 == optree.json("ledger", "--check", code=None)["checked"]
    optree.read("cost", "--all", code=None)


def test_a_check_of_what_came_since(optree):
    """With --since only entries from then on are compared, on both sides: what is wrong with earlier ones does not count."""
    late = {**BILLED, **context("txn-1"), "timestamp": BEGUN + 250}
    optree.read("import", original(optree.folder, [{**BILLED, **context("txn-1")}, late]))
    path = optree.base / "accounting.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    write_ledger(optree, [{**lines[0], "costUsd": 9.0}, lines[1]])
    since = datetime.fromtimestamp((BEGUN + 200) / 1e3, UTC).isoformat()
    assert ([], (BEGUN + 200.0)) == tuple(optree.json("ledger", "--check", "--since", since)[name] for name in ("differing", "since"))
    assert 1 == optree.json("ledger", "--since", since)["total"]["calls"]
    assert 1 == len(optree.json("ledger", "--check", code=1)["differing"])
    write_ledger(optree, lines[:1])
    [found] = optree.json("ledger", "--check", "--since", since, code=1)["differing"]
    assert f"not in the ledger: {lines[1]['id']}" in found["differences"]


def test_tokens_written_to_the_cache_tell_calls_apart(optree):
    """A line that has other tokens written to the provider's cache than a call, or none, is not its bill."""
    tokens = {name: count for name, count in BILLED["tokens"].items() if name != "cacheWriteInputTokens"}
    write_ledger(optree, [{**BILLED, **context("txn-1"), "tokens": tokens}])
    optree.read("import", original(optree.folder, [{**BILLED, **context("txn-1")}]))
    assert 2 == optree.json("ledger")["total"]["calls"]
