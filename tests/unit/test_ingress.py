"""How a run came about, and who it belongs to: what stands on each session's node."""

import pytest

import optree
from optree.ids import trace_id
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


@pytest.mark.parametrize("provider", ["mcp", "rest", "openapi", "agent"])
def test_tools_of_all_providers_are_ops_of_one_kind(provider):
    """A REST or OpenAPI tool, an internal one and an MCP tool are recorded alike: arguments, result, one entry (S4-50, S4-51)."""
    with capture() as recording, optree.session("a"), optree.turn(), optree.tool("append_notes", provider=provider) as op:
        op.request(notes=["x"])
        op.response({"ok": True})
    node = recording.tree.session.turns[0].ops[0]
    assert ("tool", f"{provider}:append_notes", "ok", 1) == (node.kind, node.name, node.status, len(node.accounting))
    assert (b'{"notes":["x"]}', b'{"ok":true}') == (bytes(node.request.payload), bytes(node.response.payload))


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
