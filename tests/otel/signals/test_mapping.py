"""From nodes to spans: one each, in its place, with what the conventions ask for."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent

from optree import _ids as ids
from optree._builder import SessionTreeBuilder
from optree._nodes import SessionNode
from optree._tree import walk_ops, walk_sessions
from optree.testing import Ticking
from optree_otel.signals import mapping, names
from optree_otel.signals.limits import PROFILES, encode, profile
from optree_otel.signals.mapping import op_span, session_span, total_attributes, turn_span
from optree_otel.signals.protobuf import UnfitError
from optree_otel.signals.scope import SpanScope, span_id, trace_id
from optree_otel.signals.spans import CLIENT, ERROR, INTERNAL, STATUS_UNSET, Link, Span, encode_span
from tests.otel.tree_of_all import TXN, tree_of_all
from tests.strategies import play, programs

NODES = ["", "1", "1.1", "1.2", "1.3", "1.4", "1.5", "1.5.1", "1.5.1.1", "2"]


def scope_of(builder: SessionTreeBuilder, **changes) -> SpanScope:
    """Return the scope of a builder's session."""
    return SpanScope(builder.txn, trace_id(builder.txn), builder.node, pool=builder.core.pool, **changes)


def spans_of(session: SessionNode, scope: SpanScope) -> list[Span]:
    """Return the spans of a session and all below."""
    found = [session_span(session, scope)]
    for turn in session.turns:
        found.append(turn_span(turn, scope))
        for op in turn.ops:
            found.append(op_span(op, scope))
            if op.child_session is not None:
                found += spans_of(op.child_session, scope.for_child(op, op.child_session))
    return found


@pytest.fixture(scope="module")
def builder() -> SessionTreeBuilder:
    """A tree with everything in it."""
    return tree_of_all()


@pytest.fixture(scope="module")
def spans(builder) -> dict[str, Span]:
    """Its spans by path; a child session's is at ``1.5/``, since its `session` op has the path as well."""
    found = spans_of(builder.node, scope_of(builder))
    return {(told(span)[names.PATH] + ("/" if told(span)[names.KIND] == "session" and span.parent_id else "")): span for span in found}


def told(span: Span) -> dict:
    """Return a span's attributes; a name that stands twice fails the test."""
    assert len({key for key, _ in span.attributes}) == len(span.attributes)
    return dict(span.attributes)


def one_op(kind="llm", name="openai:gpt-4o", *, end=True, status="ok", error=None, attributes=None, **changes):
    """Return the span of a single op."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op(kind, name, attributes=attributes)
    if end:
        op.end(status, error)
    return op_span(op.node, scope_of(builder, **changes))


def test_each_node_is_one_span_with_an_id_of_its_own(spans):
    """A `session` op and the session inside it are two nodes; the ids are those that optree._ids gives."""
    assert sorted([*NODES, "1.5/"]) == sorted(spans)
    expected = {path: bytes.fromhex(ids.span_id(ids.node_id(TXN, path))) for path in NODES}
    assert {**expected} == {path: span.span_id for path, span in spans.items() if path != "1.5/"}
    assert {bytes.fromhex(ids.trace_id(TXN))} == {span.trace_id for span in spans.values()}


def test_the_two_spans_of_a_sub_agent_have_two_ids(spans):
    """Backends keep one span an id: were it one, the agent's session or the call to it would be lost."""
    assert len(spans) == len({span.span_id for span in spans.values()})


def test_parents_are_those_of_the_tree(spans):
    """Turn in session, op in turn or in the op that it began in, child session in its op."""
    parents = {
        "1": "",
        "2": "",
        "1.1": "1",
        "1.2": "1",
        "1.3": "1.2",
        "1.4": "1",
        "1.5": "1",
        "1.5/": "1.5",
        "1.5.1": "1.5/",
        "1.5.1.1": "1.5.1",
    }
    assert {path: spans[above].span_id for path, above in parents.items()} == {path: spans[path].parent_id for path in parents}
    assert b"" == spans[""].parent_id


def test_names_and_kinds_are_those_of_the_conventions(spans):
    """`{operation} {target}`; calls out of the process are CLIENT."""
    expected = {
        "": ("invoke_agent planner", INTERNAL),
        "1": ("turn 1", INTERNAL),
        "1.1": ("chat gpt-4o", CLIENT),
        "1.2": ("execute_tool search", INTERNAL),
        "1.3": ("execute_tool fetch", INTERNAL),
        "1.4": ("compact", INTERNAL),
        "1.5": ("invoke_agent reader", CLIENT),
        "1.5/": ("invoke_agent reader", INTERNAL),
        "1.5.1": ("turn 1", INTERNAL),
        "1.5.1.1": ("generate_content claude", CLIENT),
        "2": ("turn 2", INTERNAL),
    }
    assert expected == {path: (span.name, span.kind) for path, span in spans.items()}


def test_each_span_says_what_it_is_of(spans):
    """The call of a sub-agent and the sub-agent's session are two kinds."""
    expected = {"": "session", "1": "turn", "1.1": "llm", "1.2": "tool", "1.4": "system", "1.5": "session_op", "1.5/": "session"}
    assert expected == {path: told(spans[path])[names.KIND] for path in expected}


def test_times_are_those_of_the_nodes(builder, spans):
    """Nanoseconds of the recorded times; a child never begins before its parent, nor ends after it."""
    assert int(builder.node.started_at * 1e6) == spans[""].start_ns
    assert int(builder.node.turns[0].ops[0].ended_at * 1e6) == spans["1.1"].end_ns
    by_id = {span.span_id: span for span in spans.values()}
    for span in spans.values():
        if span.parent_id:
            above = by_id[span.parent_id]
            assert above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns


def test_a_model_call_tells_what_the_conventions_ask(spans):
    """Who was called, with what, what answered, tokens with the cached ones, and money under names of ours."""
    assert {
        "optree.kind": "llm",
        "optree.path": "1.1",
        "optree.txn": TXN,
        "optree.status": "ok",
        "optree.actual_provider": "azure",
        "optree.attempts": 2,
        "optree.cost_usd": 0.75,
        "optree.upstream_inference_cost_usd": 0.1,
        "optree.reasoning.chunks": 2,
        "optree.reasoning.characters": 12,
        "gen_ai.agent.name": "planner",
        "gen_ai.conversation.id": TXN,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "gpt-4o-2024-08-06",
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.cache_creation.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_write.input_tokens": 12,
        "gen_ai.usage.input_tokens": 922,
        "gen_ai.usage.output_tokens": 60,
        "gen_ai.usage.reasoning.output_tokens": 20,
        "server.address": "api.openai.com",
        "server.port": 443,
    } == told(spans["1.1"])


def test_a_tool_tells_its_characters_and_its_attempts():
    """The sums over its entries, of which some may not say; one attempt is not worth telling."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("tool", "search")
    op.account(characters_in=5)
    assert (5, 0, False) == characters(op_span(op.node, scope_of(builder)))
    op.account(characters_in=2, characters_out=7)
    op.account(status="failed", error="gone")
    assert (7, 7, 3) == characters(op_span(op.node, scope_of(builder)))


def characters(span):
    """Return what a tool's span tells of characters in and out, and of attempts."""
    found = told(span)
    return found[names.CHARACTERS_IN], found[names.CHARACTERS_OUT], found.get(names.ATTEMPTS, False)


@pytest.mark.parametrize(
    ("own", "address", "port"),
    [
        ({"server_address": "h", "server_port": 8080}, "h", 8080),
        ({"server_address": "h", "server_port": "8080"}, "h", None),
        ({"server_address": "h", "server_port": 0}, "h", 0),
        ({"server_address": "h"}, "h", None),
        ({"server_address": "h", "base_url": "http://other"}, "h", None),
        ({"server_address": 3, "server_port": 1}, None, None),
        ({"base_url": "https://h/v1"}, "h", 443),
        ({"base_url": "http://h/v1"}, "h", 80),
        ({"base_url": "http://h:11434"}, "h", 11434),
        ({"base_url": "grpc://h"}, "h", None),
        ({"base_url": "http://[bad"}, None, None),
        ({"base_url": "/relative"}, None, None),
        ({"base_url": 3}, None, None),
        ({}, None, None),
    ],
)
def test_the_address_of_a_model_comes_from_what_names_it(own, address, port):
    """An address and its port, or a URL with the port that its scheme has; what is neither is left out, and stands nowhere else."""
    expected = {name: value for name, value in (("server.address", address), ("server.port", port)) if value is not None}
    found = told(one_op(attributes=own))
    assert expected == {name: value for name, value in found.items() if "server" in name or "base_url" in name}


def test_a_tool_call_tells_its_name_and_its_mcp_server(spans):
    """MCP's attributes stand on the tool's span: no second span for the same call."""
    found = told(spans["1.3"])
    expected = {
        names.OPERATION: "execute_tool", names.TOOL_NAME: "fetch", names.TOOL_TYPE: "function", names.MCP_METHOD: "tools/call",
        names.MCP_SERVER: "web-mcp", names.CHARACTERS_IN: 3, names.CHARACTERS_OUT: 4, "optree.attr.deep": '{"a":1}',
    }  # fmt: skip
    assert expected == {key: found[key] for key in expected}
    assert ("c1", "Searches.") == (told(spans["1.2"])[names.TOOL_CALL_ID], told(spans["1.2"])[names.TOOL_DESCRIPTION])


@pytest.mark.parametrize(
    ("called", "own", "name", "more"),
    [
        ("web:fetch", {"provider": "web"}, "fetch", [(names.TOOL_TYPE, "function"), (names.TOOL_PROVIDER, "web")]),
        ("web:fetch", {"provider": "x"}, "web:fetch", [(names.TOOL_TYPE, "function"), (names.TOOL_PROVIDER, "x")]),
        ("web:fetch", {}, "web:fetch", [(names.TOOL_TYPE, "function")]),
        (
            "f",
            {"tool_type": "datastore", "call_id": 7, "description": "d"},
            "f",
            [(names.TOOL_TYPE, "datastore"), (names.TOOL_CALL_ID, "7"), (names.TOOL_DESCRIPTION, "d")],
        ),
    ],
)
def test_what_is_said_of_a_tool(called, own, name, more):
    """Its name without its provider, its type, and what is taken out of the op's attributes."""
    rest = {**own, "other": 1}
    assert (name, [(names.OPERATION, "execute_tool"), (names.TOOL_NAME, name), *more]) == mapping.tool(called, rest)
    assert {"other": 1} == rest


def test_a_tool_tells_the_sizes_of_what_went_in_and_out():
    """In characters of text, else bytes of JSON, where they are known; and the first server that ran it."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("tool", "x")
    op.request(q=1)
    op.response("abc")
    op.account(characters_in=1)
    op.account(mcp_server="files")
    op.account(mcp_server="other")
    found = mapping.tool_figures(op.node)
    assert [(names.MCP_METHOD, "tools/call"), (names.MCP_SERVER, "files"), (names.REQUEST_SIZE, 7), (names.RESPONSE_SIZE, 3)] == found
    op.node.request.size = None
    assert names.REQUEST_SIZE not in dict(mapping.tool_figures(op.node))


@pytest.mark.parametrize("cycle", [True, False])
def test_an_agent_that_is_its_own_ancestor_is_marked(cycle):
    """Once, under a name of ours."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking(), attributes={"cycle": cycle})
    found = told(session_span(builder.node, scope_of(builder)))
    assert ({names.CYCLE: True} if cycle else {}) == {key: value for key, value in found.items() if "cycle" in key}


def test_a_programs_own_attributes():
    """Names with a dot inside go as they are, others under a prefix; lists of texts stay lists, other containers are JSON."""
    own = {"a.b": 1, ".a": 2, "b": None, "c": ["x", "y"], "d": [1, "x"], "e": {"f": 1}, "password": "hunter2", "g": 1.5}
    assert [
        ("a.b", 1), ("optree.attr..a", 2), ("optree.attr.c", ["x", "y"]), ("optree.attr.d", '[1,"x"]'), ("optree.attr.e", '{"f":1}'),
        ("optree.attr.password", "[REDACTED]"), ("optree.attr.g", 1.5),
    ] == mapping.others(own)  # fmt: skip


def test_a_name_of_ours_is_not_given_twice():
    """What a program calls as we do is ours."""
    found = one_op("tool", "x", attributes={names.PATH: "elsewhere", "own.name": 1})
    assert ("1.1", 1) == (told(found)[names.PATH], told(found)["own.name"])


@pytest.mark.parametrize(("cost", "expected"), [(0.0, 0.0), (None, None), (0.5, 0.5)])
def test_a_cost_of_nothing_is_told_where_somebody_gave_it(cost, expected):
    """On the call, its turn and its session."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.account(input_tokens=1, cache_read_tokens=2, cost_usd=cost)
    op.end()
    scope = scope_of(builder)
    spans = [told(turn_span(op.turn.node, scope)), told(session_span(builder.node, scope))]
    assert [expected] * 3 == [told(op_span(op.node, scope)).get(names.COST), *(span.get(names.TOTALS["cost_usd"]) for span in spans)]
    assert [1] * 2 == [span[names.TOTALS["llm_requests"]] for span in spans]


def test_reasoning_is_measured():
    """Its chunks and their characters; of one that was given at its end alone, its own."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    streamed, given_ = builder.begin_op("llm", "m"), builder.begin_op("llm", "m")
    streamed.think("abc")
    streamed.think("de")
    streamed.end(reasoning="longer than that")
    given_.end(reasoning="four")
    keys = (names.REASONING_CHUNKS, names.REASONING_CHARACTERS)
    found = [told(op_span(op.node, scope_of(builder))) for op in (streamed, given_)]
    assert [(2, 5), (0, 4)] == [tuple(span[key] for key in keys) for span in found]


def test_a_session_tells_how_it_began_and_what_came_of_it(spans):
    """Title, latest status, ingress, size of the report; its own attributes without credentials."""
    found = told(spans[""])
    expected = {
        names.TITLE: "Plans", names.LATEST_STATUS: "planning", names.INGRESS: "cli", names.TURNS: 2, names.CALL_PATH: "planner",
        names.FINAL_REPORT_SIZE: 18, "user.id": "u1", "optree.attr.team": "blue", "optree.attr.api_key": "[REDACTED]",
    }  # fmt: skip
    assert expected == {key: found[key] for key in expected}


def test_usage_stands_on_model_calls_only_and_sums_agree(builder, spans):
    """No backend counts twice: containers have totals of ours, equal to the sum over the calls."""
    with_usage = {path for path, span in spans.items() if any(key.startswith("gen_ai.usage.") for key in told(span))}
    assert {"1.1", "1.5.1.1"} == with_usage
    for usage, total in ((names.INPUT_TOKENS, "input_tokens"), (names.OUTPUT_TOKENS, "output_tokens"), (names.COST, "cost_usd")):
        calls = sum(told(span).get(usage, 0) for span in spans.values())
        assert [calls, calls] == [told(spans[path])[names.TOTAL + total] for path in ("", "1")]
    assert 5 == told(spans["1.5/"])[names.TOTAL + "input_tokens"]
    assert [] == total_attributes(builder.node.totals.__class__())


def test_failed_is_an_error_with_its_class(spans):
    """The text is the status's message; the class is what it begins with, or none of the known."""
    assert (ERROR, "TimeoutError: no answer", "TimeoutError") == (
        spans["1.5.1.1"].status, spans["1.5.1.1"].message, told(spans["1.5.1.1"])[names.ERROR_TYPE]
    )  # fmt: skip
    assert (ERROR, "boom", "_OTHER") == (spans["1.3"].status, spans["1.3"].message, told(spans["1.3"])[names.ERROR_TYPE])


def test_cancelled_is_no_error(spans):
    """The status stays unset, and the attributes say what happened."""
    assert (STATUS_UNSET, "", "cancelled", "KeyboardInterrupt") == (
        spans["2"].status, spans["2"].message, told(spans["2"])[names.STATUS], told(spans["2"])[names.ERROR]
    )  # fmt: skip
    assert (STATUS_UNSET, "ok") == (spans[""].status, told(spans[""])[names.STATUS])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ValueError: x", "ValueError"),
        ("httpx.ReadTimeout", "httpx.ReadTimeout"),
        ("no luck", "_OTHER"),
        (None, "_OTHER"),
        ("I failed", "_OTHER"),
    ],
)
def test_the_class_of_an_error_is_one_only_if_it_looks_like_one(error, expected):
    """Attributes by which errors are counted hold no free text."""
    assert expected == told(one_op(status="failed", error=error))[names.ERROR_TYPE]


def test_the_class_of_a_captured_failure_is_that_of_its_op():
    """What captured ops say of why they failed stands in the span, once."""
    found = one_op(status="failed", error="RateLimitError: slow down", attributes={"error.type": "rate_limit"}).attributes
    assert ["rate_limit"] == [value for key, value in found if key == names.ERROR_TYPE]


@pytest.mark.parametrize("content", [False, True])
def test_what_a_provider_said_of_a_failure_is_content(content):
    """The code and the class stand in each span, all else that a provider said in one with content, without credentials."""
    body = {"error": {"code": "invalid_api_key", "message": "Incorrect API key: sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFy"}}
    known = {"error.type": "invalid_api_key", "error.class": "auth", "error.body": body}
    found = told(one_op(status="failed", attributes=known, content=content))
    assert ("invalid_api_key", "auth", content) == (found[names.ERROR_TYPE], found["error.class"], "error.body" in found)
    assert "sk-proj" not in str(found)


@pytest.mark.parametrize("content", [False, True])
def test_function_calls_of_an_answer_that_broke_off_are_content(content):
    """What was asked of tools when an answer broke off is in a span with content alone, as their arguments are."""
    calls = [{"id": "call-1", "name": "send", "arguments": '{"body": "private'}]
    found = told(one_op(status="failed", attributes={"response.tool_calls": calls}, content=content))
    assert content == ("private" in str(found))


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("RuntimeError: agent failed: Error code: 400 - {'messages': ['my secret']}", "RuntimeError: agent failed: Error code: 400 - …"),
        ('ValueError: 1 error: [{"input": "my secret"}]', "ValueError: 1 error: …"),
        ('ValueError: said {\\"a\\": \\"my secret\\"}', "ValueError: said …"),
        ("HTTPError: said: <html><p>my secret", "HTTPError: said: …"),
        ("KeyError: 'x' in ['a', 'b'] (3 < 4)", "KeyError: 'x' in ['a', 'b'] (3 < 4)"),
    ],
)
def test_what_an_error_quotes_is_content(error, kept):
    """Behind an exception's words may stand a body with the user's: without content a span has the words alone."""
    assert [kept, error] == [one_op(status="failed", error=error, content=content).message for content in (False, True)]


def test_an_open_node_is_interrupted_where_it_was_last_heard_of():
    """A crash left it: the end is the last thing known."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    turn = builder.begin_turn()
    op = builder.begin_op("llm", "openai:m")
    op.log("asked")
    builder.core.stream.flush()
    scope = scope_of(builder)
    last = int(op.node.logs[-1].timestamp * 1e6)
    found = [op_span(op.node, scope), turn_span(turn.node, scope), session_span(builder.node, scope)]
    assert [(ERROR, "interrupted", last)] * 3 == [(span.status, span.message, span.end_ns) for span in found]
    assert {"interrupted"} == {told(span)[names.STATUS] for span in found} | {told(span)[names.ERROR_TYPE] for span in found}


def test_a_resumed_session_has_a_span_for_each_round():
    """The first keeps the node's id; later ones have their own, begin at the resume, and take a link as given."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    began = builder.node.started_at
    builder.end_session()
    builder.node.resumed_at = [began + 5000]
    builder.node.ended_at = began + 9000
    first, second = scope_of(builder), scope_of(builder, round=1)
    link = Link(first.trace_id, first.session_span_id)
    found = session_span(builder.node, second, links=[link])
    assert (int((began + 5000) * 1e6), 1, [link]) == (found.start_ns, told(found)[names.ROUND], found.links)
    assert session_span(builder.node, first).span_id != found.span_id == second.session_span_id
    assert [int((began + 5000) * 1e6)] == [event.time_ns for event in session_span(builder.node, first).events]


def test_a_session_goes_below_a_span_of_somebody_else():
    """An incoming context's span is the parent, and is marked as remote."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    builder.end_session()
    found = session_span(builder.node, scope_of(builder, parent_id=b"p" * 8, parent_flags=0x301))
    assert (b"p" * 8, 0x301) == (found.parent_id, found.flags)


def test_turns_can_be_traces_of_their_own(builder):
    """With another trace id and no parent, linked as given."""
    link = Link(b"o" * 16, b"o" * 8)
    found = turn_span(
        builder.node.turns[0], msgspec.structs.replace(scope_of(builder), trace_id=b"n" * 16, turn_parent_id=b""), links=[link]
    )
    assert (b"n" * 16, b"", [link]) == (found.trace_id, found.parent_id, found.links)


def test_a_second_trace_has_span_ids_of_its_own(builder):
    """An id stands once in all traces: some backends keep the first only."""
    first = {span.span_id for span in spans_of(builder.node, scope_of(builder))}
    second = {span.span_id for span in spans_of(builder.node, scope_of(builder, salt="/live"))}
    assert set() == first & second
    assert span_id(f"{TXN}/live") == scope_of(builder, salt="/live").session_span_id


def test_victoriatraces_gets_no_numbers_in_names(builder):
    """There each span name is an index of its own."""
    assert "turn" == turn_span(builder.node.turns[0], scope_of(builder, profile=profile("victoriatraces"))).name


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("openai:gpt-4o", None, ("chat gpt-4o", "openai", "gpt-4o")),
        ("ask", None, ("chat ask", "unknown", None)),
        ("ask", {"provider": "Google", "model": "gemini"}, ("chat gemini", "gcp.gen_ai", "gemini")),
        ("ask", {"operation": "embeddings", "model": "e5"}, ("embeddings e5", "unknown", "e5")),
        ("ollama:llama3:8b", None, ("chat llama3:8b", "ollama", "llama3:8b")),
    ],
)
def test_provider_and_model_come_from_attributes_then_from_the_name(name, attributes, expected):
    """Providers have the names of the conventions."""
    found = one_op(name=name, attributes=attributes)
    assert expected == (found.name, told(found)[names.PROVIDER], told(found).get(names.REQUEST_MODEL))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"temperature": "hot", "max_tokens": True, "stop": 5, "seed": 1.5}, {}),
        ({"n": 3, "top_k": 5, "stop": "END"}, {names.CHOICES: 3, "gen_ai.request.top_k": 5.0, "gen_ai.request.stop_sequences": ["END"]}),
        ({"max_completion_tokens": 9}, {"gen_ai.request.max_tokens": 9}),
        ({"top_k": 1 << 2000}, {}),
        ({"top_k": 1 << 63}, {}),
        ({"top_k": 1 << 62}, {"gen_ai.request.top_k": float(1 << 62)}),
    ],
)
def test_parameters_have_the_type_of_their_attribute_or_are_left_out(payload, expected):
    """A backend's column has one type."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.request(**payload)
    op.end()
    found = {key: value for key, value in told(op_span(op.node, scope_of(builder))).items() if key.startswith("gen_ai.request.")}
    assert {names.REQUEST_MODEL: "m", **expected} == found


@pytest.mark.parametrize(
    "response",
    ["plain text", {"choices": "x"}, {"choices": [{"finish_reason": 7}]}, {"id": 5}, [1], None, {"usage": {"output_tokens_details": []}}],
)
def test_a_response_of_another_shape_tells_nothing(response):
    """It is never an error."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.response(response)
    op.end()
    assert names.FINISH_REASONS not in told(op_span(op.node, scope_of(builder)))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"stop_reason": "end_turn", "model": "claude"}, ["end_turn"]),
        ({"candidates": [{"finishReason": "STOP"}]}, ["STOP"]),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}, ["stop", "length"]),
        ({"done_reason": "stop"}, ["stop"]),
    ],
)
def test_finish_reasons_are_found_in_each_providers_response(response, expected):
    """One for each choice, in the provider's words."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.response(response)
    op.end()
    assert expected == told(op_span(op.node, scope_of(builder)))[names.FINISH_REASONS]


@pytest.mark.parametrize(
    ("attributes", "response", "expected"),
    [
        ({"finish_reasons": ["a", 1]}, {"done_reason": "stop"}, {names.FINISH_REASONS: ["a", "1"]}),
        ({"finish_reason": "a"}, None, {names.FINISH_REASONS: ["a"]}),
        ({"finish_reasons": [], "finish_reason": ""}, {"done_reason": "stop"}, {names.FINISH_REASONS: ["stop"]}),
        ({"response_model": "m1", "response_id": 7}, {"model": "m2", "id": "r"}, {names.RESPONSE_MODEL: "m1", names.RESPONSE_ID: "7"}),
        ({}, {"model": "m2", "id": "r"}, {names.RESPONSE_MODEL: "m2", names.RESPONSE_ID: "r"}),
        ({"time_to_first_chunk": 2}, None, {names.FIRST_CHUNK: 2.0}),
        ({"time_to_first_chunk": "soon"}, None, {}),
        ({}, {"usage": {"output_tokens_details": {"reasoning_tokens": 0}}}, {names.REASONING_TOKENS: 0}),
        ({}, {"usage": {"completion_tokens_details": {}, "output_tokens_details": {"reasoning_tokens": 3}}}, {}),
        ({}, None, {}),
    ],
)
def test_what_is_said_of_an_answer(attributes, response, expected):
    """By the op's attributes, which are taken out of it, else by the response."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m", attributes=attributes)
    if response is not None:
        op.response(response)
    op.node.accounting = ()
    op.end()
    found = told(op_span(op.node, scope_of(builder)))
    keys = (names.FINISH_REASONS, names.RESPONSE_MODEL, names.RESPONSE_ID, names.FIRST_CHUNK, names.REASONING_TOKENS)
    assert expected == {key: found[key] for key in keys if key in found}
    assert [] == [key for key in found if key.startswith(names.ATTRIBUTE)]


@pytest.mark.parametrize(("status", "expected"), [("ok", None), ("failed", True)])
def test_an_answer_that_broke_off_is_said_to(status, expected):
    """What was streamed of it is there, in part."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.chunk("so f")
    op.end(status)
    assert expected == told(op_span(op.node, scope_of(builder))).get(names.RESPONSE_PARTIAL)


@pytest.mark.parametrize(
    ("ingress", "expected"), [({"source": "cli"}, "cli"), ({"source": 7}, None), ({}, None), ("cli", None), (None, None)]
)
def test_where_a_session_came_from_is_a_text(ingress, expected):
    """What is none is left out, and stands nowhere else."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking(), attributes={"ingress": ingress})
    found = told(session_span(builder.node, scope_of(builder)))
    assert ({} if expected is None else {names.INGRESS: expected}) == {key: value for key, value in found.items() if "ingress" in key}


def test_whose_model_is_told_by_the_attempts():
    """Where neither attributes nor the op's name say it: the first attempt that names a model; money and tokens are sums over all."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "ask")
    op.account(input_tokens=1, output_tokens=2, reasoning_tokens=1, status="failed")
    op.account(provider="Gemini", model="g", input_tokens=10, output_tokens=20, reasoning_tokens=5, cost_usd=0.25)
    op.account(provider="openai", model="o", cost_usd=0.5, actual_model="g2")
    op.end()
    found = told(op_span(op.node, scope_of(builder)))
    expected = {
        names.PROVIDER: "gcp.gemini", names.REQUEST_MODEL: "g", names.RESPONSE_MODEL: "g2", names.INPUT_TOKENS: 11, names.OUTPUT_TOKENS: 22,
        names.REASONING_TOKENS: 6, names.COST: 0.75, names.ATTEMPTS: 3,
    }  # fmt: skip
    assert expected == {key: found[key] for key in expected}
    assert 1 == found[names.UNKNOWN_COSTS]


def test_a_span_without_duration_lasts_a_nanosecond():
    """Backends warn of one that takes no time; one that does is as long as it was."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=lambda: 1.0)
    op = builder.begin_op("tool", "x")
    op.end()
    found = op_span(op.node, scope_of(builder))
    assert (1_000_000_000, 1_000_000_001) == (found.start_ns, found.end_ns)
    op.node.ended_at += 1
    assert 1_001_000_000 == op_span(op.node, scope_of(builder)).end_ns


@pytest.mark.parametrize("kind", ["llm", "tool", "session", "system"])
@pytest.mark.parametrize(
    "block", [b"[1]", b"{", b'{"model":5,"provider":[1],"base_url":"http://[x","finish_reason":{}}', b'{"":1,".":2,"x":null}']
)
def test_attributes_from_a_strange_file_do_no_harm(kind, block):
    """A node read from a file may hold anything that is JSON, or not even that."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op(kind, "x:y")
    op.end()
    op.node.attributes_json = msgspec.Raw(block)
    assert 8 == len(op_span(op.node, scope_of(builder)).span_id)


def test_openinference_stands_beside_where_asked(builder):
    """Kind, model, tokens and cost by its names too; a name is never given twice."""
    found = {told(span)[names.PATH]: told(span) for span in spans_of(builder.node, scope_of(builder, openinference=True, content=True))}
    expected = {
        names.OI_KIND: "LLM", "llm.model_name": "gpt-4o", "llm.provider": "openai", "llm.token_count.prompt": 922,
        "llm.token_count.completion": 60, "llm.token_count.total": 982, "llm.cost.total": 0.75, "session.id": TXN,
        "llm.token_count.prompt_details.cache_read": 100, "input.mime_type": "application/json",
    }  # fmt: skip
    assert expected == {key: found["1.1"][key] for key in expected}
    assert ["AGENT", "CHAIN", "TOOL"] == [found[path][names.OI_KIND] for path in ("", "1", "1.2")]


def test_usual_spans_are_fit_without_care(builder):
    """The quick way is the usual one: only the session with an attribute called api_key needs care."""
    careful = 0
    for span in spans_of(builder.node, scope_of(builder)):
        try:
            encode_span(span, profile().value_bytes)
        except UnfitError:
            careful += 1
    assert 1 == careful


@settings(deadline=None)
@given(programs, st.booleans(), st.sampled_from(sorted(PROFILES)))
def test_any_tree_is_one_trace(program, content, profile_name):
    """Whatever a program records, in whatever order: each node is one span below a span that is there, and all of them go out."""
    tree = play(program).live
    scope = SpanScope("t", trace_id("t"), tree.session, profile(profile_name), content=content, openinference=content, pool=tree.pool)
    sent = [Sent.FromString(encode(span, scope.profile)) for span in spans_of(tree.session, scope)]
    nodes = sum(1 for _ in walk_sessions(tree.session)) + sum(len(session.turns) for session in walk_sessions(tree.session))
    assert nodes + sum(1 for _ in walk_ops(tree.session)) == len({span.span_id for span in sent}) == len(sent)
    assert {span.parent_span_id for span in sent} <= {b"", *(span.span_id for span in sent)}
    assert 1 == sum(not span.parent_span_id for span in sent)
    assert not [span.name for span in sent if span.name == "(unencodable)"]
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in sent)
