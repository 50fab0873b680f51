"""Documents as the original ai-agent writes them, made up here: one with something of everything, and generated ones."""

from typing import Any

from hypothesis import strategies as st

TXN = "b5b1a1f0-0000-4000-8000-000000000001"
CHILD_TXN = "b5b1a1f0-0000-4000-8000-000000000002"
BEGUN = 1_758_000_000_000


def document(version: int) -> dict[str, Any]:
    """Return a run with a sub-agent, its last turn never ended, as the original leaves it."""
    found = {"version": version, "reason": "final"}
    if version == 2:
        lineage = {"sessionId": TXN, "originId": TXN, "originTxnId": TXN, "timestamp": BEGUN + 9_999}
        found |= lineage
    return {**found, "opTree": _root(version)}


def _root(version: int) -> dict[str, Any]:
    init = {
        "id": "mfk-turn00",
        "index": 0,
        "startedAt": BEGUN,
        "endedAt": BEGUN + 9_000,
        "attributes": {"system": True, "label": "init"},
        "ops": [_system("init", 10), _system("fin", 8_900)],
    }
    first = {
        "id": "mfk-turn01",
        "index": 1,
        "startedAt": BEGUN + 100,
        "endedAt": BEGUN + 4_000,
        "attributes": {"prompts": {"system": "be brief", "user": "why?"}, "assistant": {"content": "let me see"}},
        "ops": [_llm(version, 1), _tool(version), _agent(version)],
    }
    last = {
        "id": "mfk-turn02",
        "index": 2,
        "startedAt": BEGUN + 4_100,
        "attributes": {"prompts": {"user": "and?"}},
        "ops": [_llm(version, 2)],
    }
    found: dict[str, Any] = {
        "id": "mfk-root00",
        "traceId": TXN,
        "agentId": "asker",
        "callPath": "asker",
        "sessionTitle": "",
        "startedAt": BEGUN,
        "endedAt": BEGUN + 9_500,
        "success": True,
        "attributes": {"ingress": {"source": "slack", "teamId": "T1"}},
        "turns": [init, first, last],
        "totals": _totals(agents=2, cost=0.0062, tools=2),
    }
    if version == 2:
        found["steps"] = [_step(0, "internal"), _step(1, "advisors")]
        found["finalReport"] = {"status": "success", "format": "text", "content": "42", "ts": BEGUN + 9_000}
        found["pluginMetas"] = {"plugin": {"a": 1}}
        found["totals"] |= {"turnsUsed": 2, "turnsFailed": 0}
    return found


def _totals(*, agents: int, cost: float, tools: int) -> dict[str, Any]:
    tokens = {"tokensIn": 812, "tokensOut": 64, "tokensCacheRead": 7, "tokensCacheWrite": 0}
    return {**tokens, "costUsd": cost, "toolsRun": tools, "agentsRun": agents}


def _log(path: str, turn: int, subturn: int, remote: str, message: str, **more: Any) -> dict[str, Any]:
    place = {"turn": turn, "subturn": subturn, "path": path, "direction": "response", "type": "llm", "remoteIdentifier": remote}
    trace = {"agentId": "asker", "callPath": "asker", "txnId": TXN, "originTxnId": TXN}
    return {"timestamp": BEGUN + 200, "severity": "VRB", **place, "fatal": False, "message": message, **trace, **more}


def _system(label: str, offset: int) -> dict[str, Any]:
    times = {"startedAt": BEGUN + offset, "endedAt": BEGUN + offset + 1, "status": "ok"}
    return {
        "opId": f"mfk-{label}", "kind": "system", **times, "attributes": {"label": label},
        "logs": [_log("0.1", 0, 0, f"agent:{label}", f"session {label}")], "accounting": [],
    }  # fmt: skip


def _llm(version: int, turn: int) -> dict[str, Any]:
    path = f"{turn}{'.' if version == 1 else '-'}1"
    entry = {
        "type": "llm", "timestamp": BEGUN + 1_000, "status": "ok", "latency": 812, "provider": "openrouter", "model": "gpt-4o",
        "actualProvider": "fireworks", "actualModel": "gpt-4o-x", "costUsd": 0.0031, "stopReason": "tool_calls",
        "tokens": {"inputTokens": 406, "outputTokens": 32, "cachedTokens": 3, "totalTokens": 441},
        "agentId": "asker", "callPath": "asker", "txnId": TXN, "originTxnId": TXN,
    }  # fmt: skip
    logs = [
        _log(path, turn, 0, "openrouter:gpt-4o", "messages 2, 812 chars", direction="request", max_turns=10, max_subturns=5),
        _log(path, turn, 0, "trace:openrouter:gpt-4o", "429", severity="WRN", stack="Error: 429\n    at f (x.js:1)", headendId="slack"),
        _log(path, turn, 0, "openrouter:gpt-4o", "gave up", severity="ERR", fatal=True, turnPath=f"{turn}.0", agentPath="asker"),
        _log(path, turn, 0, "openrouter:gpt-4o", "details", details={"stop_reason": "end", "attempt": 2}),
        _log(path, turn, 0, "other", "of a helper", agentId="helper", callPath="asker->helper"),
    ]
    return {
        "opId": f"mfk-llm-{turn}", "kind": "llm", "startedAt": BEGUN + 150, "endedAt": BEGUN + 1_000, "status": "ok",
        "attributes": {"provider": "openrouter", "model": "gpt-4o", "isFinalTurn": turn == 2},
        "logs": logs, "accounting": [entry],
        "request": {"kind": "llm", "payload": {"messages": 3, "bytes": 812, "isFinalTurn": False}, "size": 812},
        "response": {"payload": {"textPreview": "so"}, "size": 5_000, "truncated": True},
        "reasoning": {"chunks": [{"text": "the user ", "ts": BEGUN + 160}, {"text": "asks", "ts": BEGUN + 170}], "final": "the user asks"},
    }  # fmt: skip


def _tool(version: int) -> dict[str, Any]:
    path = "1.2" if version == 1 else "1-2"
    entry = {
        "type": "tool", "timestamp": BEGUN + 1_200, "status": "failed", "latency": 55, "mcpServer": "github", "command": "search",
        "charactersIn": 10, "charactersOut": 0, "error": "404",
    }  # fmt: skip
    return {
        "opId": "mfk-tool", "kind": "tool", "startedAt": BEGUN + 1_100, "endedAt": BEGUN + 1_200, "status": "failed",
        "attributes": {"name": "github__search", "provider": "mcp", "kind": "mcp", "latency": 55, "size": 0, "error": "404"},
        "logs": [_log(path, 1, 1, "mcp:github:search", "search(q:x)", type="tool", toolKind="mcp", bold=True)],
        "accounting": [entry],
        "request": {"kind": "tool", "payload": {"q": "x"}, "size": 9},
    }  # fmt: skip


def _agent(version: int) -> dict[str, Any]:
    log = {
        **_log("1.1" if version == 1 else "1-1", 1, 1, "mcp:fetch:get", "fetched", type="tool"),
        "agentId": "reader", "callPath": "asker->reader", "txnId": CHILD_TXN, "parentTxnId": TXN,
    }  # fmt: skip
    op = {
        "opId": "mfk-child-op", "kind": "tool", "startedAt": BEGUN + 1_400, "endedAt": BEGUN + 1_500, "status": "ok",
        "attributes": {"name": "get", "provider": "fetch"}, "logs": [log], "accounting": [],
    }  # fmt: skip
    child: dict[str, Any] = {
        "id": "mfk-child0", "traceId": CHILD_TXN, "agentId": "reader", "callPath": "asker->reader", "sessionTitle": "Reading",
        "latestStatus": "on page 2", "startedAt": BEGUN + 1_300, "endedAt": BEGUN + 1_600, "success": False, "error": "no such page",
        "turns": [{"id": "mfk-child-turn", "index": 1, "startedAt": BEGUN + 1_300, "ops": [op]}],
        "totals": {**_totals(agents=1, cost=0, tools=1), "tokensIn": 0, "tokensOut": 0, "tokensCacheRead": 0},
    }  # fmt: skip
    if version == 2:
        child["steps"] = []
    return {
        "opId": "mfk-session", "kind": "session", "startedAt": BEGUN + 1_300, "endedAt": BEGUN + 1_700, "status": "ok",
        "attributes": {"name": "agent__reader", "provider": "subagent", "kind": "agent", "latency": 400},
        "logs": [], "accounting": [], "childSession": child,
    }  # fmt: skip


def _step(index: int, kind: str) -> dict[str, Any]:
    log = _log(f"S{index}-1", 2, 0, kind, f"a step of {kind}")
    op = {"opId": f"mfk-{kind}-op", "kind": "system", "startedAt": BEGUN + 4_200, "endedAt": BEGUN + 4_250, "attributes": {"label": kind}}
    op |= {"logs": [log], "accounting": []}
    times = {"startedAt": BEGUN + 4_200, "endedAt": BEGUN + 4_300}
    return {"id": f"mfk-{kind}", "index": index, "kind": kind, **times, "attributes": {"archivedTurn": 1}, "ops": [op]}


_text = st.text(max_size=6)
_time = st.integers(BEGUN, BEGUN + 10**6)
_number = st.integers(0, 10**6)
_json = st.recursive(
    st.none() | st.booleans() | _number | st.floats(-1e6, 1e6) | _text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_text, inner, max_size=2),
    max_leaves=4,
)
_attributes = st.dictionaries(
    st.sampled_from(["label", "kind", "size", "isFinalTurn", "provider", "model", "name", "latency", "error", "x"]), _json
)
_trace = dict.fromkeys(("agentId", "callPath", "txnId", "parentTxnId", "originTxnId"), _text)


def _block(needed: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(needed, optional=optional)


_logs = _block(
    {"timestamp": _time, "severity": st.sampled_from(["VRB", "WRN", "ERR", "TRC", "THK", "FIN"]), "message": _text},
    turn=_number, subturn=_number, path=_text, direction=st.sampled_from(["request", "response"]), type=st.sampled_from(["llm", "tool"]),
    toolKind=_text, remoteIdentifier=_text, fatal=st.booleans(), bold=st.booleans(), max_turns=_number, max_subturns=_number,
    headendId=_text, agentPath=_text, turnPath=_text, stack=_text, details=st.dictionaries(_text, _json, max_size=2),
    llmRequestPayload=_json, **_trace,
)  # fmt: skip
_tokens = _block(
    {"inputTokens": _number, "outputTokens": _number},
    cachedTokens=_number, cacheReadInputTokens=_number, cacheWriteInputTokens=_number, totalTokens=_number,
)  # fmt: skip
_entries = _block(
    {"type": st.just("llm"), "timestamp": _time, "status": st.sampled_from(["ok", "failed"]), "latency": _number, "tokens": _tokens},
    provider=_text, model=_text, actualProvider=_text, actualModel=_text, costUsd=st.floats(0, 9), upstreamInferenceCostUsd=st.floats(0, 9),
    stopReason=_text, error=_text, details=_json, **_trace,
) | _block(
    {"type": st.just("tool"), "timestamp": _time, "status": st.sampled_from(["ok", "failed"]), "latency": _number},
    mcpServer=_text, command=_text, charactersIn=_number, charactersOut=_number, error=_text, **_trace,
)  # fmt: skip
_reasoning = _block(
    {"chunks": st.lists(_block({"text": _text, "ts": _time}), max_size=2)}, final=_text, chunkCount=_number, charCount=_number
)


def _without_steps(told: dict[str, Any]) -> dict[str, Any]:
    """Return a document as version 1 has it, and its sub-agents likewise."""
    sessions = [told["opTree"]]
    for session in sessions:
        session.pop("steps", None)
        sessions += [op["childSession"] for turn in session["turns"] for op in turn["ops"] if "childSession" in op]
    return told


def _ops(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return _block(
        {
            "opId": _text, "kind": st.sampled_from(["llm", "tool", "session", "system"]), "startedAt": _time,
            "logs": st.lists(_logs, max_size=2), "accounting": st.lists(_entries, max_size=2),
        },
        endedAt=_time, status=st.sampled_from(["ok", "failed"]), attributes=_attributes, reasoning=_reasoning,
        request=_block({"kind": st.sampled_from(["llm", "tool"]), "payload": _json}, size=_number),
        response=_block({"payload": _json}, size=_number, truncated=st.booleans()),
        childSessionRef=_block({"sessionId": _text}), childSession=children,
    )  # fmt: skip


def _sessions(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    ops = st.lists(_ops(children), max_size=2)
    turn = _block({"id": _text, "index": st.integers(0, 4), "startedAt": _time, "ops": ops}, endedAt=_time, attributes=_attributes)
    kinds = st.sampled_from(["system", "user", "advisors", "router_handoff", "handoff", "internal"])
    step = _block({"id": _text, "index": _number, "kind": kinds, "startedAt": _time, "ops": ops}, endedAt=_time, attributes=_attributes)
    return _block(
        {"id": _text, "sessionTitle": _text, "startedAt": _time, "turns": st.lists(turn, max_size=3)},
        traceId=_text, agentId=_text, callPath=_text, latestStatus=_text, endedAt=_time, success=st.booleans(), error=_text,
        attributes=st.dictionaries(_text, _json, max_size=2), steps=st.lists(step, max_size=2), finalReport=_json,
        pluginMetas=st.dictionaries(_text, _json, max_size=1),
        totals=_block({"tokensIn": _number}, tokensOut=_number, costUsd=st.floats(0, 9), toolsRun=_number, agentsRun=_number),
    )  # fmt: skip


_documents = _block(
    {"version": st.sampled_from([1, 2]), "reason": st.sampled_from(["final", "other"]), "opTree": _sessions(_sessions(st.nothing()))},
    sessionId=_text, originId=_text, originTxnId=_text, parentId=_text, parentTxnId=_text, timestamp=_time,
)  # fmt: skip
documents = _documents.map(lambda told: told if told["version"] == 2 else _without_steps(told))
"""Documents of any shape that the original's types allow."""
