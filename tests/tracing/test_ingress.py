"""How a run came about, and who it belongs to: what stands on each session's node."""

from contextlib import suppress

import pytest

import optree
from optree._console import LineOptions, LineRenderer
from optree._ids import trace_id
from optree._tree.walk import to_plain
from optree.testing import capture

INGRESSES = {
    "slack": {
        "source": "slack",
        "slack": {
            "teamId": "T1",
            "channelId": "C1",
            "channelName": "help",
            "threadTs": "1.2",
            "messageTs": "1.3",
            "userId": "U1",
            "userLabel": "Ada",
            "ingress": "mention",
            "routingRule": "r",
        },
    },
    "api": {"source": "api", "api": {"route": "/v1/run", "requestId": "q-1", "ip": "192.0.2.7", "auth": "bearer"}},
    "web": {"source": "web", "web": {"sessionId": "s-1", "ip": "192.0.2.7", "userId": "u-1"}},
}


@pytest.mark.parametrize("source", INGRESSES)
def test_an_ingress_that_is_given_stands_on_the_root(source):
    """What a front end says of a run (Slack, API, web) is kept as it is, in the place of what optree finds (S4-70, S4-72, S4-73)."""
    with capture() as recording, optree.session("bot", ingress=INGRESSES[source]):
        pass
    assert INGRESSES[source] == recording.tree.session.attributes["ingress"]


def test_a_run_on_the_command_line_has_an_id_and_says_where_it_came_from():
    """Without a front end the run's id is its txn, and its ingress the command line (S4-71, S4-75)."""
    with capture() as recording, optree.session("bot") as session:
        pass
    root = recording.tree.session
    assert (session.txn, session.txn, "cli") == (root.id, root.origin_txn_id, root.attributes["ingress"]["source"])


def test_every_session_says_its_trace_its_agent_and_its_call_path():
    """A sub-agent has the trace of its root, its own agent's name, and the path of calls that led to it (S4-07, S4-08, S4-09)."""
    with (
        capture() as recording,
        optree.session("lead") as lead,
        optree.turn(),
        optree.session("reader"),
        optree.turn(),
        optree.session("ocr"),
    ):
        pass
    trace = trace_id(lead.txn)
    expected = [(trace, "lead", "lead"), (trace, "reader", "lead->reader"), (trace, "ocr", "lead->reader->ocr")]
    assert expected == [(one.trace_id, one.agent_id, one.call_path) for one in optree.walk_sessions(recording.tree.session)]


def test_the_prices_that_a_session_was_billed_by_are_kept_with_it(tmp_path, monkeypatch):
    """A session's attributes hold a snapshot of prices beside the ingress, on disk and loaded, and the trace it began in (S4-12)."""
    monkeypatch.setenv("OPTREE_BASE_DIR", str(tmp_path))
    prices = {"openai": {"gpt-4o": {"input": 2.5e-06, "output": 1e-05}}, "asOf": "2026-11-01"}
    with optree.session("lead", pricingSnapshot=prices) as session, optree.turn(), optree.session("reader"):
        pass
    assert optree.flush("snapshot", 30)
    lead, reader = optree.walk_sessions(optree.load(session.txn).tree.session)
    assert (prices, "cli") == (lead.attributes["pricingSnapshot"], lead.attributes["ingress"]["source"])
    assert [session.txn] * 2 == [one.origin_txn_id for one in (lead, reader)]


FAILURES = {
    "auth": ("AuthenticationError", "401 invalid key"),
    "quota": ("RateLimitError", "429 quota exceeded"),
    "network": ("APIConnectionError", "connection reset"),
    "model": ("NotFoundError", "404 the model does not exist"),
    "timeout": ("APITimeoutError", ""),
    "invalid": ("BadRequestError", "400 messages: too short"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_call_says_how_it_failed(kind):
    """Each way a model's call fails stands on its op, in its accounting and in the totals, with what was said and latency (S4-45)."""
    name, said = FAILURES[kind]
    error, expected = type(name, (Exception,), {})(said), f"{name}: {said}" if said else name
    with capture() as recording, suppress(Exception), optree.session("a"), optree.turn(), optree.llm(provider="p", model="m"):
        raise error
    session = recording.tree.session
    [op] = session.turns[0].ops
    [entry] = op.accounting
    assert [("failed", expected)] * 2 == [(one.status, one.error) for one in (op, entry)]
    assert op.latency >= entry.latency >= 0
    assert (1, 1) == (session.totals.llm_requests, session.totals.llm_failed)
    renderer = LineRenderer(session.id, LineOptions())
    lines = [line for record in recording.records for line in renderer.render(record) if "[path:1.1]" in line]
    assert [f"[txn:test-1] [path:1.1] a [ERR] ← llm p:m: failed: {expected}, latency {op.latency:.0f} ms, cost unknown"] == lines


@pytest.mark.parametrize("provider", ["mcp", "rest", "openapi", "agent"])
def test_tools_of_all_providers_are_ops_of_one_kind(provider):
    """A REST or OpenAPI tool, an internal one and an MCP tool are recorded alike: arguments, result, one entry (S4-50, S4-51)."""
    with capture() as recording, optree.session("a"), optree.turn(), optree.tool("append_notes", provider=provider) as op:
        op.request(notes=["x"])
        op.response({"ok": True})
    [node] = to_plain(recording.tree)["session"]["turns"][0]["ops"]
    [entry] = node.pop("accounting")
    assert node.pop("latency") >= entry.pop("latency") >= 0
    assert {
        "id": "test-1:1.1#1", "timestamp": 1_700_000_000_005.0, "type": "tool", "command": f"{provider}:append_notes",
        "charactersIn": 15, "charactersOut": 11,
    } == entry  # fmt: skip
    assert {
        "opId": "test-1:1.1", "path": "1.1", "kind": "tool", "name": f"{provider}:append_notes", "attributes": {"provider": provider},
        "startedAt": 1_700_000_000_002.0, "endedAt": 1_700_000_000_006.0, "status": "ok", "logs": [],
        "request": {"kind": "tool", "payload": {"notes": ["x"]}, "size": 15}, "response": {"payload": {"ok": True}, "size": 11},
    } == node  # fmt: skip


def test_flat_lists_come_from_the_tree_alone():
    """Logs and accounting as flat lists are derived from the session each time, and the same each time (S4-03, S4-98, S4-114)."""
    with capture() as recording, optree.session("a"), optree.turn(), optree.llm(provider="p", model="m") as op:
        op.log("one")
        op.account(cost_usd=0.5)
    session = recording.tree.session
    flat = optree.flatten(session)
    assert (["one"], [0.5]) == ([line["message"] for line in flat.logs], [entry["costUsd"] for entry in flat.accounting])
    assert flat == optree.flatten(session)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"provider": "openai", "model": "gpt-4o"}, ("openai", "gpt-4o")),
        ({"model": "gpt-4o"}, (None, "gpt-4o")),
        ({"provider": "openai"}, ("openai", None)),
        ({}, (None, None)),
    ],
)
def test_a_call_is_billed_to_what_was_named(asked, expected):
    """An llm op's accounting names provider and model as they were given, and no function's name in their place (S4-102)."""
    with capture() as recording, optree.session("a"), optree.turn(), optree.llm("ask", **asked):
        pass
    entry = recording.tree.session.turns[0].ops[0].accounting[0]
    assert expected == (entry.provider, entry.model)
