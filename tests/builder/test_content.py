"""What stands in the place of requests, answers and messages where content is off."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import optree
from optree import SessionTreeBuilder, format_tree
from optree._builder.content import message_outline, request_outline, response_outline, with_content
from optree._builder.histories import PooledHistory
from optree._nodes import NOT_RECORDED
from optree._values import decode, encode

SAID = "Jane Doe is ill"
CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"of": SAID})}}
VALUES = st.recursive(
    st.sampled_from([SAID, "ill", 1, None, True]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["of", "input", "arguments", "text", "thinking", "result", "q"]), inner, max_size=4)
    ),
    max_leaves=12,
)


OWN = st.recursive(
    st.sampled_from(["ill", SAID, 1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "status", "role", "type", "message", "content", "output", "model"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
"""What a program's own tools take and give, in members that providers' messages have too."""


@pytest.mark.parametrize(
    ("answer", "outline"),
    [
        pytest.param(
            {
                "id": "chat-1",
                "model": "gpt-5",
                "choices": [{"message": {"role": "assistant", "content": SAID, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}],
            },
            {
                "id": "chat-1",
                "model": "gpt-5",
                "choices": [
                    {
                        "message": {
                            "role": "assistant",
                            "content": NOT_RECORDED,
                            "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "weather"}}],
                        },
                        "finish_reason": "tool_calls",
                    }
                ],
            },
            id="OpenAI's chat",
        ),
        pytest.param(
            {
                "id": "r-1",
                "status": "completed",
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]},
                    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": SAID},
                ],
            },
            {
                "id": "r-1",
                "status": "completed",
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text"}]},
                    {"type": "function_call", "call_id": "c", "name": "weather"},
                ],
            },
            id="OpenAI's responses",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": SAID},
                    {"type": "tool_use", "id": "t", "name": "weather", "input": {"id": "Jane", "role": "ill"}},
                ],
                "stop_reason": "tool_use",
            },
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": NOT_RECORDED}, {"type": "tool_use", "id": "t", "name": "weather"}],
                "stop_reason": "tool_use",
            },
            id="Anthropic's messages",
        ),
        pytest.param(
            {
                "candidates": [
                    {
                        "content": {
                            "role": "model",
                            "parts": [{"text": SAID}, {"functionCall": {"name": "weather", "args": {"name": "Jane"}}}],
                        },
                        "finishReason": "STOP",
                    }
                ]
            },
            {"candidates": [{"content": {"role": "model", "parts": [{}, {"functionCall": {"name": "weather"}}]}, "finishReason": "STOP"}]},
            id="Gemini",
        ),
        pytest.param(
            {
                "output": {
                    "message": {
                        "role": "assistant",
                        "content": [{"toolUse": {"toolUseId": "u", "name": "weather", "input": {"name": "Jane"}}}],
                    }
                },
                "stopReason": "tool_use",
            },
            {
                "output": {"message": {"role": "assistant", "content": [{"toolUse": {"toolUseId": "u", "name": "weather"}}]}},
                "stopReason": "tool_use",
            },
            id="Bedrock Converse",
        ),
        pytest.param(
            {"message": {"role": "assistant", "content": SAID}, "done": True, "done_reason": "stop"},
            {"message": {"role": "assistant", "content": NOT_RECORDED}, "done": True, "done_reason": "stop"},
            id="Ollama",
        ),
        pytest.param({"role": SAID, "name": "Jane", "patient": {"id": "Jane"}}, NOT_RECORDED, id="of the program's own"),
        pytest.param({"id": "Jane.Doe", "status": "ill", "type": "cold", "message": SAID}, NOT_RECORDED, id="what a program made of it"),
        pytest.param([{"id": "Jane.Doe", "status": "ill"}], NOT_RECORDED, id="several of them"),
        pytest.param(
            {"id": "r-1", "object": "response", "status": "queued", "output": []},
            {"id": "r-1", "object": "response", "status": "queued", "output": []},
            id="an answer that is to come",
        ),
        pytest.param(
            {"content": SAID, "type": "ai", "tool_calls": [{"name": "weather", "args": {"id": "Jane"}, "id": "c"}]},
            {"content": NOT_RECORDED, "type": "ai", "tool_calls": [{"name": "weather", "id": "c"}]},
            id="LangChain",
        ),
        pytest.param({"model": "m", "response": SAID, "done": True}, {"model": "m", "done": True}, id="Ollama's completions"),
        pytest.param(SAID, NOT_RECORDED, id="text"),
    ],
)
def test_answers_of_models_keep_what_is_no_content(answer, outline):
    """Of a model's answer stay roles, kinds of parts, the names and ids of the calls in it, and why it ended."""
    assert outline == response_outline("llm", answer)


def test_results_of_tools_keep_nothing():
    """Of a tool's result nothing stays, also if its members are called as those of an answer."""
    assert NOT_RECORDED == response_outline("tool", {"id": "Jane", "status": "ill", "role": "patient"})
    assert {} == request_outline("tool", {"model": "Jane", "seed": 1})


def test_requests_keep_parameters():
    """Of a model's request stay the parameters that say how it is asked, also those that are in an object of their own."""
    sent = {
        "model": "gpt-5",
        "temperature": 0,
        "tools": [{"name": SAID}],
        "system": SAID,
        "user": "jane",
        "stop": ["ill"],
        "options": {"num_ctx": 10},
    }
    assert {"model": "gpt-5", "temperature": 0, "options": {"num_ctx": 10}} == request_outline("llm", sent)


@given(VALUES)
def test_nothing_said_is_in_an_outline(value):
    """Whatever is in a message's content, a call's arguments or a tool's result: no text of it is in the outline."""
    for outline in (
        message_outline({"role": "user", "content": value}),
        response_outline("llm", {"choices": [{"message": {"content": value, "tool_calls": [{"function": {"arguments": value}}]}}]}),
        response_outline("llm", {"content": [{"type": "tool_use", "input": value}]}),
        response_outline("tool", value),
        request_outline("llm", {"tools": value, "system": value, "input": value}),
    ):
        assert b"ill" not in encode(outline)


@given(OWN)
def test_a_tools_members_are_its_own(value):
    """Arguments and results of tools, and what a program makes of an answer, leave nothing, however their members are called."""
    call = {"type": "tool_use", "id": "t", "name": "send", "input": {"message": "ill", "to": value, "name": "ill"}}
    for outline in (
        response_outline("llm", {"role": "assistant", "content": [call]}),
        response_outline("llm", {"output": {"message": {"role": "assistant", "content": [{"toolUse": call}]}}}),
        message_outline({"role": "tool", "tool_call_id": "t", "content": value}),
        message_outline({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": value}]}),
        message_outline({"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": value}}]}),
        message_outline({"type": "function_call_output", "call_id": "t", "output": value}),
        response_outline("llm", {"answer": value}),
        request_outline("llm", {"n": value, "seed": value, "content": value, "of": value}),
    ):
        assert b"ill" not in encode(outline)


def test_an_answer_within_itself_ends():
    """An object that holds itself, or lies very deep, is looked into as far as answers go."""
    value = {}
    value["message"] = value
    assert NOT_RECORDED == response_outline("llm", value)


def test_an_outline_is_known_again():
    """Outlines are told from messages with content, also from an empty one."""
    told = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert [told] == with_content([message_outline({"role": "user", "content": SAID}), message_outline(told), told])


def test_nothing_stands_for_nothing():
    """A message without a text is told so, as the answer that it was: the calls that are sent again are those of the answer."""
    call = {"id": "call-1", "type": "function", "function": {"name": "weather"}}
    outline = message_outline({"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert {"role": "assistant", "content": None, "tool_calls": [call]} == outline
    assert {"role": "tool", "tool_call_id": "c", "content": ""} == message_outline({"role": "tool", "tool_call_id": "c", "content": ""})


def test_requests_that_are_no_mapping():
    """What is no mapping, or whose messages are texts or numbers alone, is recorded with its size, as it is with content."""
    sizes = []
    for content in (True, False):
        builder = SessionTreeBuilder("lead", content=content)
        turn = builder.begin_turn()
        for payload, messages in ((SAID, [{"role": "user", "content": SAID}]), ([SAID], None), ({"input": [1, 2]}, None)):
            builder.set_request(builder.begin_op("llm", "openai:gpt-5", turn=turn), payload, messages)
        sizes.append([op.request.size for op in turn.node.ops])
    assert sizes[0] == sizes[1]
    outlines = [builder.tree.pool.resolve(decode(op.request.payload)) for op in turn.node.ops]
    assert [{"messages": [{"role": "user", "content": NOT_RECORDED}]}, {}, {"input": NOT_RECORDED}] == outlines


def test_credentials_in_labels():
    """Names and ids in an outline are without credentials, as all that is recorded."""
    builder = SessionTreeBuilder("lead", content=False)
    op = builder.begin_op("llm", "openai:gpt-5", turn=builder.begin_turn())
    secret = "sk-proj-Zq8LmN4xT7vBc9Kq8LmN4xT7vB"
    op.request([{"role": "assistant", "tool_calls": [{"id": secret, "function": {"name": secret}}]}])
    assert secret.encode() not in encode(builder.tree.pool.resolve(decode(op.node.request.payload)))


def test_histories_in_the_pool():
    """A history to which messages are appended one by one has their outlines alone."""
    builder = SessionTreeBuilder("lead", content=False)
    op = builder.begin_op("llm", "openai:gpt-5", turn=builder.begin_turn())
    history = builder.core.appended(PooledHistory("", 0, 0), {"role": "user", "content": SAID})
    builder.set_request(op, {"model": "gpt-5"}, history)
    outline = {"model": "gpt-5", "messages": [{"role": "user", "content": NOT_RECORDED}]}
    assert outline == builder.tree.pool.resolve(decode(op.node.request.payload))


def test_a_builder_of_its_own():
    """A builder that is made without content has sizes and figures as one that has it."""
    sizes = []
    for content in (True, False):
        builder = SessionTreeBuilder("lead", content=content)
        op = builder.begin_op("llm", "openai:gpt-5", turn=builder.begin_turn(user=SAID))
        op.request([{"role": "user", "content": SAID}], temperature=0)
        op.response({"choices": [{"message": {"role": "assistant", "content": SAID}}]})
        op.account(input_tokens=3, output_tokens=4, cost_usd=0.5)
        builder.end_session(final_report={"of": SAID})
        sizes.append((op.node.request.size, op.node.response.size, op.node.accounting[0].tokens, builder.node.totals.cost_usd))
        assert content == (SAID in format_tree(builder)) == (SAID in str(decode(builder.node.final_report)))
    assert sizes[0] == sizes[1]


def test_what_is_not_recorded_is_not_looked_through():
    """Without content no credential is looked for in an answer or a tool's result: that would take the time of the program for nothing."""
    seen = []
    optree.configure(redact={"callback": lambda text: seen.append(text) or text})
    op = SessionTreeBuilder("lead", content=False).begin_op("tool", "look")
    op.request(of=SAID)
    op.response({"of": SAID})
    assert "look" in seen
    assert SAID not in seen
