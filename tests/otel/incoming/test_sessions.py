import json

import msgspec
import pytest

from optree._tree import walk_ops
from optree.testing import shape
from optree_otel.incoming import InEvent, InSpan, read_file, sessions
from optree_otel.incoming.spans import ERROR
from tests.otel.incoming.made import AGENT, DATA, LLM, MS, START, TOOL, TRACE, Made


def only(*spans):
    """Return the only session of spans of which there is nothing to say."""
    notes = []
    [tree] = sessions(spans, notes)
    assert [] == notes
    return tree


def fixture(name):
    """Return the session of a recorded run."""
    return only(*read_file(DATA / name).spans)


def request(tree, op):
    """Return what an op sent."""
    return tree.pool.resolve(msgspec.json.decode(op.request.payload))


def test_pydantic_ai():
    """A run of Pydantic AI is a session; the agent that a tool asks is a child session in that tool."""
    tree = fixture("pydantic_ai.json")
    helper = ("helper", "ok", ("turn 1", "ok", ("llm test:test", "ok")))
    ops = [("llm function:function:think:", "ok"), ("tool weather", "ok"), ("tool ask_helper", "ok"), ("session helper", "ok", helper)]
    assert ("planner", "ok", ("turn 1", "ok", *ops, ("llm function:function:think:", "ok"))) == shape(tree)
    turn = tree.session.turns[0]
    assert ({"user": "Plan Athens"}, "Sunny; the ferry goes at 9.") == (turn.prompts, turn.assistant["content"])
    assert "1.3" == turn.ops[3].parent_op
    assert (166, 33, 3, 2) == tuple(
        getattr(tree.session.totals, name) for name in ("input_tokens", "output_tokens", "llm_requests", "tools_run")
    )
    first = turn.ops[0]
    assert ["system", "user"] == [message["role"] for message in request(tree, first)["messages"]]
    assert ["weather", "ask_helper"] == [tool["name"] for tool in request(tree, first)["tools"]]
    assert "two lookups" == first.reasoning.final
    assert {"city": "Athens"} == request(tree, turn.ops[1])
    assert "sunny in Athens" == msgspec.json.decode(turn.ops[1].response.payload)
    assert "Sunny; the ferry goes at 9." == msgspec.json.decode(tree.session.final_report)


def test_openinference():
    """A run under OpenInference's instrumentation: cached tokens apart, the model that was asked for, a failed call with its exception."""
    tree = fixture("openinference_openai.json")
    calls = [("llm openai:gpt-4o", "ok"), ("tool weather", "ok"), ("llm openai:gpt-4o", "ok"), ("llm openai:text-embedding-3-small", "ok")]
    assert ("planner", "ok", ("turn 1", "ok", *calls, ("llm openai:gpt-4o", "failed"))) == shape(tree)
    first, tool, second, _, failed = tree.session.turns[0].ops
    assert (30, 9, 20, 59) == tuple(
        getattr(first.accounting[0].tokens, name) for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "total_tokens")
    )
    assert ("gpt-4o", "gpt-4o-2024-08-06") == (first.accounting[0].model, first.accounting[0].actual_model)
    assert ["system", "user", "assistant", "tool"] == [message["role"] for message in request(tree, second)["messages"]]
    assert "weather" == request(tree, second)["messages"][2]["tool_calls"][0]["function"]["name"]
    assert "Sunny." == msgspec.json.decode(second.response.payload)["content"]
    assert {"city": "Athens"} == request(tree, tool)
    assert [("ERR", "openai.BadRequestError: Error code: 400 - no such thing")] == [(log.severity, log.message) for log in failed.logs]
    assert ("BadRequestError: Error code: 400 - no such thing", 1) == (failed.error, tree.session.totals.llm_failed)
    assert "s-1" == tree.session.attributes["conversation"]


def test_opentelemetry():
    """Under OpenTelemetry's own instrumentation a plain root span is the session around its calls."""
    tree = fixture("opentelemetry_openai.json")
    calls = [
        ("llm openai:gpt-4o", "ok"),
        ("llm openai:gpt-4o", "ok"),
        ("llm openai:text-embedding-3-small", "ok"),
        ("llm openai:gpt-4o", "failed"),
    ]
    assert ("handle request", "ok", ("turn 1", "ok", *calls)) == shape(tree)
    first = tree.session.turns[0].ops[0]
    assert "Weather in Athens?" == request(tree, first)["messages"][1]["content"]
    assert {"city": "Athens"} == json.loads(msgspec.json.decode(first.response.payload)["tool_calls"][0]["function"]["arguments"])


def test_traceloop():
    """Traceloop's older spans, with a message spread over attributes, are understood."""
    made = Made()
    root = made("trip.workflow", {"traceloop.span.kind": "workflow", "traceloop.entity.name": "trip"})
    call = {"gen_ai.system": "OpenAI", "llm.request.type": "chat", "gen_ai.request.model": "gpt-4o", "gen_ai.usage.prompt_tokens": 9}
    texts = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "why",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "so",
    }
    tree = only(
        root,
        made("openai.chat", call | texts, root),
        made("search.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "search"}, root),
    )
    assert ("trip", "ok", ("turn 1", "ok", ("llm OpenAI:gpt-4o", "ok"), ("tool search", "ok"))) == shape(tree)
    op = tree.session.turns[0].ops[0]
    assert ([{"role": "user", "content": "why"}], 9) == (request(tree, op)["messages"], op.accounting[0].tokens.input_tokens)
    assert {"role": "assistant", "content": "so"} == msgspec.json.decode(op.response.payload)


def test_times():
    """Real starts and ends are kept, to the microsecond."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    tree = only(root, made("chat gpt-4o", LLM, root))
    for node, ns in [(tree.session, 1), (tree.session.turns[0], 1), (tree.session.turns[0].ops[0], 2)]:
        assert (START + ns * MS) / 1_000_000 == pytest.approx(node.started_at, abs=0.001, rel=0)
        assert (START + 10**12 - ns * MS) / 1_000_000 == pytest.approx(node.ended_at, abs=0.001, rel=0)


def test_nested():
    """What lies between is kept as `system` ops, each in the op that it happened in; a nested agent has a session of its own."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    tool = made("execute_tool search", TOOL, root)
    http = made("GET", {"http.request.method": "GET"}, tool)
    chain = made("map", {"openinference.span.kind": "CHAIN"}, http)
    inner = made("invoke_agent reader", {**AGENT, "gen_ai.agent.name": "reader"}, chain)
    tree = only(root, tool, http, chain, inner, made("chat gpt-4o", LLM, inner))
    ops = [(op.path, op.kind, op.name, op.parent_op) for _, _, op in walk_ops(tree.session)]
    assert [
        ("1.1", "tool", "search", None),
        ("1.2", "system", "GET", "1.1"),
        ("1.3", "system", "map", "1.2"),
        ("1.4", "session", "reader", "1.3"),
        ("1.4.1.1", "llm", "openai:gpt-4o", None),
    ] == ops
    child = tree.session.turns[0].ops[3].child_session
    assert ("planner->reader", tree.session.id, 1) == (child.call_path, child.parent_txn_id, child.totals.llm_requests)


def test_mcp():
    """An MCP call is a tool op; seen again below the op that made it, it is not counted twice."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    tool = made("execute_tool search", TOOL, root)
    call = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "search"}
    tree = only(root, tool, made("tools/call search", call, tool), made("tools/call read", {"mcp.method.name": "tools/call"}, root))
    assert [("tool", "search"), ("system", "tools/call search"), ("tool", "read")] == [
        (op.kind, op.name) for *_, op in walk_ops(tree.session)
    ]
    assert 2 == tree.session.totals.tools_run


@pytest.mark.parametrize("outer", [{"gen_ai.usage.input_tokens": 10}, {}])
def test_one_bill(outer):
    """A call that two instrumentations tell of is accounted for once; figures on an agent are not added to those of its calls."""
    made = Made()
    used = {"gen_ai.usage.input_tokens": 10, "operation.cost": 0.25}
    root = made("invoke_agent planner", AGENT | used)
    nested = made("invoke_agent reader", AGENT | used, root)
    call = made("ChatOpenAI", {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4o"} | outer, nested)
    tree = only(root, nested, call, made("chat gpt-4o", LLM | used, call))
    assert (10, 0.25, 1) == (tree.session.totals.input_tokens, tree.session.totals.cost_usd, tree.session.totals.llm_requests)


def test_remote_agent():
    """An agent elsewhere, of which there are figures but no calls, is accounted for by them."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    tree = only(root, made("invoke_agent far", {**AGENT, "gen_ai.usage.input_tokens": 7}, root))
    assert 7 == tree.session.totals.input_tokens


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (
            {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.cache_read.input_tokens": 30, "gen_ai.usage.cache_write.input_tokens": 20},
            (50, 30, 20),
        ),
        ({"gen_ai.usage.input_tokens": 100, "gen_ai.usage.cache_creation.input_tokens": 20}, (80, 0, 20)),
        ({"gen_ai.usage.input_tokens": 5, "gen_ai.usage.cache_read_input_tokens": 900}, (5, 900, 0)),
        ({"gen_ai.usage.input_tokens": "12"}, (12, 0, 0)),
        ({"gen_ai.usage.input_tokens": float("nan")}, (0, 0, 0)),
        ({"gen_ai.usage.input_tokens": -5}, (0, 0, 0)),
    ],
)
def test_cached_tokens(said, tokens):
    """Cached tokens are taken out of the input that they are counted in, under each of their names."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    [tree] = sessions([root, made("chat gpt-4o", LLM | said, root)])
    found = tree.session.totals
    assert tokens == (found.input_tokens, found.cache_read_input_tokens, found.cache_write_input_tokens)


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({}, (20, 80, 30)),
        ({"gen_ai.usage.total_tokens": 130}, (20, 80, 30)),
        ({"llm.usage.total_tokens": 210}, (100, 80, 30)),
        ({"gen_ai.usage.total_tokens": 142, "gen_ai.usage.reasoning.output_tokens": 12}, (20, 80, 42)),
        ({"gen_ai.usage.total_tokens": 130, "gen_ai.usage.reasoning.output_tokens": 12}, (20, 80, 30)),
    ],
)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_totals_decide(said, tokens, provider):
    """Whether cached tokens are among the input, and reasoning among the output, is as the total shows; else by convention."""
    call = {**LLM, "gen_ai.provider.name": provider, "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 30}
    found = only(Made()("chat", call | {"gen_ai.usage.cache_read.input_tokens": 80} | said)).session.totals
    assert tokens == (found.input_tokens, found.cache_read_input_tokens, found.output_tokens)


def test_contradictions_are_noted():
    """Figures that cannot be so are notes of the import: each kind once, with the first span that has it."""
    made, notes = Made(), []
    root = made("invoke_agent planner", AGENT)
    old = {**LLM, "gen_ai.system": "anthropic", "gen_ai.usage.input_tokens": 5, "gen_ai.usage.cache_read_input_tokens": 900}
    spans = [root, made("chat a", old, root), made("chat b", old | {"gen_ai.usage.input_tokens": 7}, root)]
    odd = made("chat c", {**LLM, "gen_ai.usage.input_tokens": "many", "gen_ai.usage.output_tokens": -1}, root)
    sessions([*spans, odd], notes)
    assert [
        "span 2 ('chat a'): 900 tokens from and to the cache cannot be among 5 of input: they are counted beside them; so in 1 more",
        "span 4 ('chat c'): gen_ai.usage.input_tokens='many' is no figure, and is left out",
        "span 4 ('chat c'): output_tokens=-1.0 is below 0, and counts as 0",
    ] == notes


def test_conversation():
    """Runs of one agent in one conversation are turns of one session; another conversation is another session."""
    runs = [Made(f"{number:032x}")("invoke_agent planner", {**AGENT, "gen_ai.conversation.id": "ab"[number // 3]}) for number in (1, 2, 3)]
    later = [msgspec.structs.replace(run, start_ns=run.start_ns + number) for number, run in enumerate(runs)]
    first, second = sessions(later[::-1])
    assert (2, 1) == (len(first.session.turns), len(second.session.turns))
    assert [f"otel-{1:032x}", f"otel-{3:032x}"] == [tree.session.origin_txn_id for tree in (first, second)]


def test_bare_call():
    """A call that no agent is around stands in a session named after its service."""
    span = Made()("chat gpt-4o", LLM, resource={"service.name": "shop"})
    assert ("shop", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) == shape(only(span))


def test_failed():
    """An error status is a failure, with what the span says of it; events are log lines."""
    made = Made()
    thrown = InEvent(
        START + 5 * MS, "exception", {"exception.type": "ValueError", "exception.message": "no luck", "exception.stacktrace": "…"}
    )
    root = made("invoke_agent planner", AGENT, status=ERROR, events=[thrown])
    call = made("chat gpt-4o", LLM, root, status=ERROR, message="429", events=[InEvent(START, "retried", {"after": 2}), thrown])
    tree = only(root, call)
    op = tree.session.turns[0].ops[0]
    assert ("failed", "no luck", "failed", "429") == (tree.session.status, tree.session.error, op.status, op.error)
    assert [("VRB", "retried"), ("ERR", "ValueError: no luck")] == [(log.severity, log.message) for log in op.logs]
    assert (START + 5 * MS) / 1_000_000 == op.logs[1].timestamp
    assert ({"after": 2}, {"exception.stacktrace": "…"}) == tuple(msgspec.json.decode(log.details) for log in op.logs)


def test_open_span():
    """A span without an end is an op without one, and a root without an end leaves the session open: success is not made up."""
    made = Made()
    root = made("invoke_agent planner", AGENT, end_ns=0)
    tree = only(root, made("chat gpt-4o", LLM, root, end_ns=0))
    assert ("planner", None, ("turn 1", None, ("llm openai:gpt-4o", None))) == shape(tree)


def test_missing_parent():
    """Spans whose parent is not there stand under the root, which is noted."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    lost = msgspec.structs.replace(made("chat gpt-4o", LLM), parent_id="f" * 16)
    notes = []
    [tree] = sessions([lost, root], notes)
    assert ("planner", "ok", ("turn 1", "ok", ("llm openai:gpt-4o", "ok"))) == shape(tree)
    assert ["trace 0af7651916cd: 1 spans name parents that are not there ('chat gpt-4o'…); they stand under its root"] == notes


def test_no_root():
    """Where the root itself is missing, its children stand side by side in one turn; one alone is taken for the root."""
    made = Made()
    lost = [msgspec.structs.replace(made("invoke_agent reader", AGENT), parent_id="f" * 16) for _ in range(2)]
    [both], [alone] = sessions(lost, []), sessions(lost[:1], [])
    assert ["session", "session"] == [op.kind for op in both.session.turns[0].ops]
    assert ("planner", "ok", ("turn 1", "ok")) == shape(alone)


def test_circle():
    """Parents in a circle are cut before the earliest of them, which is noted."""
    made = Made()
    one, two = made("invoke_agent planner", AGENT), made("execute_tool search", TOOL)
    one.parent_id, two.parent_id = two.span_id, one.span_id
    notes = []
    [tree] = sessions([two, one], notes)
    assert ("planner", "ok", ("turn 1", "ok", ("tool search", "ok"))) == shape(tree)
    assert ["trace 0af7651916cd: the parents of span 1 ('invoke_agent planner') form a circle: cut there"] == notes


def test_own_parent():
    """A span that is its own parent is one at the top."""
    span = Made()("invoke_agent planner", AGENT)
    span.parent_id = span.span_id
    notes = []
    assert [("planner", "ok", ("turn 1", "ok"))] == [shape(tree) for tree in sessions([span], notes)]
    assert 1 == len(notes)


def test_twins():
    """The same span twice is one; another one with its id is reported and passed over."""
    made = Made()
    root = made("invoke_agent planner", AGENT)
    same, other = msgspec.structs.replace(root, number=2), msgspec.structs.replace(root, number=3, name="other")
    notes = []
    assert 1 == len(sessions([root, same, other], notes))
    assert ["span 3 ('other') is passed over: span 1 has the same id and says something else"] == notes


def test_zero_ids():
    """Spans with ids of zeros are passed over, and said to be."""
    notes = []
    zero = InSpan("0" * 32, "1" * 16, "chat", START, number=4), InSpan(TRACE, "", "chat", START, number=5)
    assert [] == sessions(zero, notes)
    assert ["span 4 is passed over", "span 5 is passed over"] == [note.partition(":")[0] for note in notes]


@pytest.mark.slow
def test_deep():
    """10,000 spans in each other are 10,000 ops; agents in each other are sessions up to 50 deep, and ops below."""
    made = Made()
    chain = [made("invoke_agent planner", AGENT)]
    agents = [made("invoke_agent planner", AGENT)]
    for _ in range(10_000):
        chain.append(made("step", {}, chain[-1]))
    for _ in range(100):
        agents.append(made("invoke_agent planner", AGENT, agents[-1]))
    deep, nested = only(*chain), only(*[msgspec.structs.replace(span, trace_id="1" * 32) for span in agents])
    assert "1.9999" == deep.session.turns[0].ops[-1].parent_op
    assert [10_000, 100] == [sum(1 for _ in walk_ops(tree.session)) for tree in (deep, nested)]
    assert 50 == max(len(op.path.split(".")) // 2 - 1 for *_, op in walk_ops(nested.session))
    assert nested.session.turns[0].ops[0].child_session.attributes["cycle"]


def test_other_traces():
    """A trace without an agent, a model or a tool is no session, and is said to be passed over."""
    notes = []
    assert [] == sessions([Made()("GET /", {"http.route": "/"})], notes)
    assert [f"trace {TRACE} tells of no agent, model or tool, and is passed over"] == notes


def test_same_again():
    """The same spans in another order give the same session, to the byte."""
    found = read_file(DATA / "pydantic_ai.json").spans
    assert msgspec.json.encode(sessions(found)) == msgspec.json.encode(sessions(found[::-1]))


def test_strange_values():
    """Attributes of types that nobody expects break nothing."""
    made = Made()
    root = made("invoke_agent planner", {**AGENT, "gen_ai.agent.name": ["a", "b"], "gen_ai.input.messages": "not json {"})
    odd = {
        "gen_ai.input.messages": '[1, null, {"parts": [3, {"type": 4}]}]',
        "llm.input_messages.x.y": 1,
        "gen_ai.usage.input_tokens": b"\xff",
    }
    call, tool = LLM | odd | {"optree.kind": ["x"]}, TOOL | {"gen_ai.tool.call.arguments": "[" * 5000}
    [tree] = sessions([root, made("chat", call, root), made("tool", tool, root)])
    assert 2 == len(tree.session.turns[0].ops)
