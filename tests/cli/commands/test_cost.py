import json
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta

import pytest

TOKENS = {"tokens": {"outputTokens": 1}}
SUM = [
    *("calls", "failed", "inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens", "reasoningOutputTokens"),
    *("charactersIn", "charactersOut"),
]


def test_one_session(ended):
    """A session's cost is told by agent, by model and by tool, under exact names."""
    found = ended.json("cost", ended.txn)
    assert [
        "of",
        "since",
        "total",
        "byAgent",
        "byModel",
        "byTool",
        "credits",
        "notEnded",
        "unreadable",
        "damagedLines",
        "repeated",
    ] == list(found)
    assert [*SUM, "costUsd", "unknownCosts", "unknownTokens"] == list(found["total"])
    assert ["researcher", "helper"] == [one["name"] for one in found["byAgent"]]
    [model], [tool] = found["byModel"], found["byTool"]
    assert ("openai:gpt-4o", 1, 800, 60, 0.0031) == tuple(model[key] for key in ("name", "calls", "inputTokens", "outputTokens", "costUsd"))
    assert ("search", 1, 0.0) == tuple(tool[key] for key in ("name", "calls", "costUsd"))


def test_text(ended):
    """The table ends with the total; without a txn the newest session is meant."""
    lines = ended.read("cost").stdout.splitlines()
    assert ["CALLS", "FAILED", "INPUT", "CACHED", "WRITTEN", "OUTPUT", "COST"] == lines[0].split()
    assert ["total", "2", "0", "800", "0", "0", "60", "$0.003100"] == lines[-1].split()


def test_tokens_that_nobody_told(optree):
    """Calls that were answered and whose tokens nobody told are counted and said, beside failures, replays, credits and tools."""
    entries = [
        {"timestamp": 1e12 + number, "type": "llm", "agentId": "a", "provider": "p", "model": "m", "status": "ok"} | more
        for number, more in enumerate(
            [
                {},
                {"id": "t:1.1#1", "costUsd": 0.5},
                {"id": "t:1.2#1", **TOKENS},
                {"id": "t:1.2#2", "costUsd": 0.5},
                {"costUsd": -0.5},
                {"status": "failed"},
                {"replayOf": "t:1.1"},
                {"type": "tool"},
            ]
        )
    ]
    write_ledger(optree, entries)
    found = optree.json("cost", "--all")
    assert [2, 2, 0] == [found["total"]["unknownTokens"], found["byModel"][0]["unknownTokens"], found["byTool"][0]["unknownTokens"]]
    said = "2 calls of models have no tokens: what they took was not told, and is not in these sums\n"
    assert [said in optree.read(*command).stdout for command in (("cost", "--all"), ("ledger",))] == [True, True]
    write_ledger(optree, entries[1:])
    assert "\n1 call of a model has no tokens: what it took" in optree.read("cost", "--all").stdout


def test_costs_by_prices(optree):
    """It is said of how many calls nobody gave the cost, so that it is by list prices; nothing is said where all were given."""
    priced = {"details": {"optree.price": "openai:gpt-5@1a2b3c4d"}}
    entries = [
        {"timestamp": 1e12 + number, "type": "llm", "agentId": "a", **TOKENS, "costUsd": 0.5} | more
        for number, more in enumerate([{}, priced, priced])
    ]
    write_ledger(optree, entries)
    said = "\nthe cost of 2 calls is worked out by prices (the session's pricingSnapshot), since nobody gave it\n"
    assert [True, True] == [said in optree.read(*command).stdout for command in (("cost", "--all"), ("ledger",))]
    write_ledger(optree, entries[:2])
    assert "the cost of 1 call is worked out" in optree.read("cost", "--all").stdout
    write_ledger(optree, entries[:1])
    assert "worked out" not in optree.read("cost", "--all").stdout


def test_parts_add_up(optree):
    """The whole is exactly the sum of the agents, and of models and tools together, to the last digit of money."""
    entries = [
        {"timestamp": 1e12 + number, "type": "tool" if number % 3 else "llm", "agentId": f"agent{number % 7}", "provider": "p"}
        | {"model": f"m{number % 5}", "command": f"t{number % 4}", "status": "failed" if number % 11 == 0 else "ok"}
        | {"tokens": {"inputTokens": number, "outputTokens": 2 * number, "cacheReadInputTokens": 3}, "costUsd": 0.1 + number * 1e-9 / 3}
        for number in range(1000)
    ]
    write_ledger(optree, entries)
    found = optree.json("cost", "--all")
    assert 1000 == found["total"]["calls"]
    for parts in (found["byAgent"], found["byModel"] + found["byTool"]):
        for name in SUM:
            assert found["total"][name] == sum(part[name] for part in parts)
        assert round(found["total"]["costUsd"] * 1e12) == sum(round(part["costUsd"] * 1e12) for part in parts)
    assert sum(round(entry["costUsd"] * 1e12) for entry in entries) == round(found["total"]["costUsd"] * 1e12)


def test_shown_parts_add_up(optree):
    """The amounts that are printed add up too, however small they are."""
    write_ledger(optree, [{"timestamp": 1e12, "type": "llm", "agentId": name, **TOKENS, "costUsd": 0.0000004} for name in "abc"])
    lines = optree.read("cost", "--all").stdout.splitlines()
    assert ["$0.0000004"] * 3 == [
        line.split()[-1] for line in lines if line.startswith("  ") and "unknown" not in line and "CALLS" not in line
    ]
    assert "$0.0000012" == lines[-1].split()[-1]


def test_ledger_and_trees_agree(optree):
    """The ledger has every ended session's entries once; those that have not ended are said to be missing (S4-104)."""
    first, second, _killed = optree.record(), optree.record("fail", code=1), optree.record("kill", code=-9)
    trees = Counter(optree.json("cost", first)["total"]) + Counter(optree.json("cost", second)["total"])
    found = optree.json("cost", "--all")
    assert dict(trees) == {name: number for name, number in found["total"].items() if number}
    assert 1 == found["notEnded"]
    assert (
        "optree: 1 session is not in the ledger yet (optree ls; optree load TXN --end ends what broke off)\n"
        == optree.read("cost", "--all").stderr
    )


def test_since(optree):
    """--since takes a span, a date, or a time, and leaves out what is older."""
    now = datetime.now().astimezone()
    ages = {"old": timedelta(days=10), "yesterday": timedelta(hours=30), "fresh": timedelta(minutes=5)}
    write_ledger(optree, [{"timestamp": (now - age).timestamp() * 1e3, "type": "tool", "command": name} for name, age in ages.items()])
    for since, expected in [("7d", {"yesterday", "fresh"}), ("24h", {"fresh"}), ("1.5w", set(ages)), ("4m", set())]:
        assert expected == {one["name"] for one in optree.json("cost", "--all", "--since", since)["byTool"]}
    day = (now - timedelta(days=3)).date().isoformat()
    assert {"yesterday", "fresh"} == {one["name"] for one in optree.json("cost", "--all", "--since", day)["byTool"]}


def test_wrong_since(optree):
    """A time that is none is wrong usage, and the line shows how one is written."""
    assert "or a span (30m, 24h, 7d)" in optree.read("cost", "--all", "--since", "yesterday", code=2).stderr


def test_no_ledger(optree):
    """A ledger that is not there is said to be missing, not zero."""
    assert f"optree: no ledger at {optree.base}/accounting.jsonl" in optree.read("cost", "--all", code=1).stderr


@pytest.mark.parametrize("torn", ['{"id":"x","ty', "[1]"])
def test_torn_ledger(optree, torn):
    """Lines that cannot be read are counted, exit code 3, and the rest is summed."""
    write_ledger(optree, [{"timestamp": 1e12, "type": "tool", "command": "a"}])
    with (optree.base / "accounting.jsonl").open("a") as file:
        file.write(torn + "\n")
    found = optree.json("cost", "--all", code=3)
    assert (1, 1) == (found["total"]["calls"], found["unreadable"])


@pytest.mark.parametrize(
    "poison",
    [
        {"costUsd": 1e308},
        {"costUsd": {"$int": "0x8000000000000000"}},
        {"costUsd": "free"},
        {"costUsd": True},
        {"timestamp": {"$float": "nan"}},
        {"tokens": {"inputTokens": {"$int": "0x8000000000000000"}}},
        {"tokens": [1]},
        {"charactersIn": "many"},
    ],
)
def test_poison_figures(optree, poison):
    """A figure that is no number to be summed counts as 0, its line as unreadable (exit code 3), and the rest is summed."""
    good = {"timestamp": 1e12, "type": "tool", "command": "a", "costUsd": 0.5}
    write_ledger(optree, [good, {**good, **poison}])
    found = optree.json("cost", "--all", "--since", "1970-01-02" if "timestamp" not in poison else "0.0m", code=3)
    assert 1 == found["unreadable"]
    assert found["total"]["costUsd"] in (0.0, 0.5, 1.0)
    said = optree.read("cost", "--all", code=3).stderr
    assert f"optree: 1 line of {optree.base}/accounting.jsonl cannot be read, or not in full" in said


def test_poison_in_a_session(optree):
    """A session that claims absurd costs is summed without them, with a note and exit code 3."""
    source = """
import optree
with optree.session("a"), optree.turn(), optree.llm("m") as op:
    op.account(input_tokens=3, cost_usd=0.5)
    op.node.accounting[0].cost_usd = 1e308  # as earlier versions took it
    op.account(input_tokens=4, cost_usd=0.25)
assert optree.flush("snapshot", 60)  # no journal has what stands in the node
"""
    subprocess.run([sys.executable, "-c", source], env=optree.env, check=True)
    assert (7, 0.25) == tuple(optree.json("cost", code=3)["total"][name] for name in ("inputTokens", "costUsd"))


def write_ledger(optree, entries):
    """Write a ledger."""
    optree.base.mkdir(exist_ok=True)
    (optree.base / "accounting.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_credits_are_said(optree):
    """A negative cost is taken off the bill, and both forms of output say so; without one there is no note."""
    entries = [{"timestamp": 1e12, "type": "llm", "agentId": "a", "costUsd": cost} for cost in (1.0, -0.25, -1.25)]
    entries[0] |= TOKENS
    write_ledger(optree, entries)
    *_, total, note = optree.read("cost", "--all").stdout.splitlines()
    assert "-$0.500000" == total.split()[-1]
    assert "includes 2 credits, together -$1.500000: entries with a negative cost, which lower these sums" == note
    assert note == optree.read("ledger").stdout.splitlines()[-1]
    found = optree.json("cost", "--all")
    assert (-0.5, 2, -1.5) == (found["total"]["costUsd"], found["credits"]["calls"], found["credits"]["costUsd"])
    assert found["credits"] == optree.json("ledger")["credits"]
    write_ledger(optree, entries[:1])
    assert "total" == optree.read("cost", "--all").stdout.splitlines()[-1].split()[0]
    assert 0 == optree.json("cost", "--all")["credits"]["calls"]


KILLED = """
import os, signal, sys
import optree
with optree.session("a"), optree.turn():
    with optree.llm("openai:gpt-4o") as op:
        op.account(input_tokens=3, cost_usd=0.25)
    with optree.session("helper"), optree.turn(), optree.llm("openai:gpt-4o"):
        optree.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_call_that_a_kill_broke_off(optree):
    """What it cost is unknown, and said: as the session lies there, once it was resumed and has ended, and in the ledger (S4-57)."""
    subprocess.run([sys.executable, "-c", KILLED], env=optree.env, check=False)
    totals = ("calls", "failed", "costUsd", "unknownCosts")
    expected = [2, 1, 0.25, 1]
    txn = optree.json("cost")["of"]
    assert expected == [optree.json("cost")["total"][name] for name in totals]
    assert "$0.250000 + 1 unknown" in optree.read("tree").stdout.splitlines()[0]
    optree.read("load", txn, "--", sys.executable, "-c", "import optree\nwith optree.session('a'): pass")
    assert expected == [optree.json("cost")["total"][name] for name in totals]
    assert expected == [optree.json("cost", "--all")["total"][name] for name in totals]
    assert (1, []) == tuple(optree.json("ledger", "--check")[name] for name in ("checked", "differing"))


def test_a_session_that_is_not_whole(optree):
    """What a damaged session cost is shown as far as it can be read, and that it is not whole is said."""
    txn = optree.record("kill", code=-9)
    live = optree.sessions / f"{txn}.live"
    (live / "j-0001-000001.jsonl").write_bytes((live / "j-0000-000001.jsonl").read_bytes())
    cost = optree.read("cost", txn)
    said = f"optree: session {txn} is not whole: j-0001-000001.jsonl: is 'j-0000-000001.jsonl' of this session, under another name"
    assert cost.stderr.startswith(said)
    (live / "j-0001-000001.jsonl").unlink()
    assert (cost.stdout, "") == (optree.read("cost", txn).stdout, optree.read("cost", txn).stderr)
