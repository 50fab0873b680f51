"""Messages and answers of all providers in one neutral shape."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree._providers.messages import (
    NO_RESULT,
    Other,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    answered,
    answers,
    body,
    kept_hidden,
    message,
    opened,
    part,
    parts,
)
from tests.strategies import values

ABSENT = {"video_metadata": None, "thought": None, "inline_data": None, "function_response": None}
"""Members that Google's Python client names though they are not there."""


def told(found):
    """Return what parts say, without their blocks."""
    return [tuple(getattr(one, name) for name in one.__struct_fields__ if name != "block") for one in found]


@pytest.mark.parametrize(
    ("kind", "said", "given"),
    [
        (TextPart, ("hi",), "hi"),
        (TextPart, ("hi",), {"type": "input_text", "text": "hi"}),
        (TextPart, ("hi",), {"type": "text", "content": "hi"}),
        (TextPart, ("no",), {"type": "refusal", "refusal": "no"}),
        (TextPart, ('{"value":"hi"}',), {"type": "text", "text": {"value": "hi"}}),
        (TextPart, ("hi",), {"text": "hi", "thoughtSignature": "s"}),
        (TextPart, ("hi",), {**ABSENT, "text": "hi", "function_call": None}),
        (ReasoningPart, ("hm",), {"type": "thinking", "thinking": "hm", "signature": "s"}),
        (ReasoningPart, ("",), {"type": "redacted_thinking", "data": "s"}),
        (ReasoningPart, ("a\nb",), {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in "ab"]}),
        (ReasoningPart, ("hm",), {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
        (ReasoningPart, ("hm",), {"text": "hm", "thought": True}),
        (ToolCallPart, ("c", "f", {"a": 1}), {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}),
        (ToolCallPart, ("c", "f", '{"a":1}'), {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": '{"a":1}'}),
        (ToolCallPart, ("c", "f", {"a": 1}), {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}),
        (ToolCallPart, (None, "f", {"a": 1}), {"functionCall": {"name": "f", "args": {"a": 1}}}),
        (ToolCallPart, ("c", "f", {}), {**ABSENT, "text": None, "function_call": {"id": "c", "name": "f", "args": {}}}),
        (ToolResultPart, ("c", None, "x"), {"type": "tool_result", "tool_use_id": "c", "content": "x"}),
        (ToolResultPart, ("c", None, "x"), {"type": "function_call_output", "call_id": "c", "output": "x"}),
        (ToolResultPart, ("c", None, "x"), {"type": "tool_call_response", "id": "c", "response": "x"}),
        (ToolCallPart, ("c", "f", {"a": 1}), {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {"a": 1}}),
        (
            ToolResultPart,
            ("c", "f", "x"),
            {"type": "tool-result", "toolCallId": "c", "toolName": "f", "output": {"type": "text", "value": "x"}},
        ),
        (ToolResultPart, (None, "f", {"a": 1}), {"functionResponse": {"name": "f", "response": {"a": 1}}}),
        (ToolResultPart, (None, "f", {"a": 1}), {**ABSENT, "text": None, "function_response": {"name": "f", "response": {"a": 1}}}),
        (Other, (), {"type": "image", "source": {}}),
        (Other, (), {"text": "good", "mood": "better"}),
        (Other, (), 7),
    ],
)
def test_a_block_of_each_provider_is_a_part(kind, said, given):
    """Texts, thoughts, calls and results have one shape; nothing of a block is lost."""
    found = part(given)
    assert (kind, [said], given) == (type(found), told([found]), found.block)


@pytest.mark.parametrize(
    ("kind", "role", "types"),
    [
        (TextPart, "user", "text input_text output_text summary_text reasoning_text refusal"),
        (ReasoningPart, "user", "thinking redacted_thinking"),
        (ReasoningPart, "assistant", "reasoning"),
        (ToolCallPart, "user", "tool_use server_tool_use tool_call tool-call"),
        (ToolCallPart, "assistant", "function_call"),
        (ToolResultPart, "user", "tool_result tool_call_response tool-result"),
        (ToolResultPart, "tool", "function_call_output"),
    ],
)
def test_each_type_of_block(kind, role, types):
    """A block is told by its type, whatever else it has or lacks; as a whole message it has the role that is usual for it."""
    for name in types.split():
        found = message({"type": name})
        assert (kind, role) == (type(part({"type": name})), found.role)
        assert [kind] == [type(one) for one in found.parts]


@pytest.mark.parametrize(
    ("role", "words"),
    [("assistant", "model ai assistant"), ("user", "human user"), ("system", "developer system"), ("critic", "critic")],
)
def test_each_role(role, words):
    """Roles have one word each, whatever a provider calls them; one that nobody knows stays."""
    assert [role] * len(words.split()) == [message({"role": word, "content": "hi"}).role for word in words.split()]


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_content(member):
    """A message's reasoning stands before what it says, whichever member has it; an empty one is none."""
    assert [("hm",), ("hi",)] == told(message({"role": "assistant", "content": "hi", member: "hm"}).parts)
    assert [("hi",)] == told(message({"role": "assistant", "content": "hi", member: ""}).parts)
    assert {"content": "hi", member: "hm"} == answers({"content": "hi", member: "hm", "usage": {}})[0].messages[0]


@pytest.mark.parametrize("spoken", [{"content": "hi"}, {"parts": []}, {"tool_calls": []}, {"function_call": {}}, {"refusal": "no"}])
def test_what_an_answer_says_is_parted_from_what_is_said_of_the_call(spoken):
    """An answer is a message where it has one of a message's members: role, name and those stay, usage and ids do not."""
    beside = {"role": "assistant", "name": "n", "tool_call_id": "c"}
    assert [{**beside, **spoken}] == answers({**beside, **spoken, "usage": {}, "id": "x"})[0].messages
    assert [{**beside, "usage": {}}] == answers({**beside, "usage": {}})[0].messages


@pytest.mark.parametrize("key", ["thoughtSignature", "thought_signature"])
def test_a_text_of_gemini(key):
    """A signature, and what is not there, leaves a text without a type a text; anything else does not."""
    assert TextPart is type(part({"text": "hi", key: "s", "thought": False}))
    assert Other is type(part({"text": "hi", key: "s", "inline_data": 0}))


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("role", "said", "given"),
    [
        ("user", [("hi",)], "hi"),
        ("user", [("hi",)], {"type": "text", "text": "hi"}),
        ("user", [("hi",)], {"role": "human", "content": None, "parts": [{"text": "hi"}]}),
        ("system", [("hi",)], {"role": "developer", "content": "hi"}),
        ("assistant", [("hm",), ("hi",), ("c", "f", "{}")], {"role": "ai", "content": "hi", "thinking": "hm", "tool_calls": [CALL]}),
        ("assistant", [("no",)], {"role": "assistant", "content": None, "refusal": "no"}),
        ("assistant", [(None, "f", "{}")], {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}),
        ("assistant", [("c", "f", {})], {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "args": {}, "type": "tool_call"}]}),
        ("assistant", [("hm",)], {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}),
        ("tool", [("c", None, [{"type": "text", "text": "x"}])], {"tool_call_id": "c", "content": [{"type": "text", "text": "x"}]}),
        ("tool", [(None, "f", "x")], {"role": "function", "name": "f", "content": "x"}),
        ("tool", [("c", None, "x")], {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "x"}]}),
        ("user", [("c", None, "x")], {"type": "tool_result", "tool_use_id": "c", "content": "x"}),
        ("user", [], None),
        ("user", [], 3),
        ("user", [], True),
    ],
)
def test_a_message_of_each_provider(role, said, given):
    """A message has its role in the usual words, and all that it says, wherever that stands."""
    found = message(given)
    assert (role, said) == (found.role, told(found.parts))


@pytest.mark.parametrize(
    ("finish", "said", "given"),
    [
        (None, [("hi",)], "hi"),
        ("stop", [("hi",)], {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}),
        ("STOP", [("hi",)], {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}),
        (
            "completed",
            [("hi",), (None, "f", "{}")],
            {"output": ["hi", {"type": "function_call", "name": "f", "arguments": "{}"}], "status": "completed"},
        ),
        ("end_turn", [("hi",)], {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {}}),
        ("load", [("hi",)], {"message": {"role": "assistant", "content": "hi"}, "done_reason": "load"}),
        (None, [("hi",)], {"role": "assistant", "parts": [{"type": "text", "content": "hi"}]}),
        (None, [("hi",), ("so",)], [{"role": "assistant", "content": "hi"}, {"role": "assistant", "content": "so"}]),
        (None, [("hi",), ("so",)], ["hi", {"type": "text", "text": "so"}]),
        (None, [()], {"text": "good", "mood": "better"}),
        (None, [("hi",)], {"textPreview": "hi", "truncated": False}),
        ("stop", [("hi",)], {"response": {"messages": [{"role": "assistant", "content": "hi"}]}, "finishReason": "stop"}),
    ],
)
def test_an_answer_of_each_provider(finish, said, given):
    """An answer is its messages, with why it ended; one of no known form is kept whole."""
    [found] = answers(given)
    assert (finish, said) == (found.finish, [one for held in found.messages for one in told(message(held, "assistant").parts)])


def captured(said, form="sdk"):
    """Return a text as the original ai-agent keeps what its SDK sent and got."""
    return {"format": form, "encoding": "base64", "value": b64encode(said).decode()}


@pytest.mark.parametrize(
    ("expected", "payload"),
    [
        ({"messages": [1]}, {"messages": 1, "bytes": 9, "sdk": captured(b'{"messages":[1]}'), "raw": captured(b"POST", "http")}),
        ([1], captured(b"[1]")),
        ("not JSON", {"raw": captured(b"not JSON", "sse")}),
        (None, {"sdk": captured(b"\xff")}),
        (None, {"sdk": {"encoding": "base64", "value": "é"}}),
        (None, {"sdk": {"encoding": "base64"}}),
        ({"sdk": 1}, {"sdk": 1}),
        (7, 7),
    ],
)
def test_what_an_sdk_was_given_is_decoded(expected, payload):
    """A body kept in base64 is read as what it holds, first the SDK's; one that cannot be decoded says nothing."""
    assert expected == body(payload)


SDK, HTTP, BROKEN = captured(b'{"messages":[1]}'), captured(b"POST", "http"), captured(b"\xff")


@pytest.mark.parametrize(
    ("expected", "payload"),
    [
        ({"bytes": 9, "messages": [1], "raw": "POST"}, {"messages": 1, "bytes": 9, "textPreview": "P", "sdk": SDK, "raw": HTTP}),
        ({"bytes": 9, "raw": "POST"}, {"bytes": 9, "raw": HTTP}),
        ({"messages": [1]}, SDK),
        (BROKEN, BROKEN),
        ({"sdk": BROKEN}, {"sdk": BROKEN}),
        ({"messages": 1, "textPreview": "P"}, {"messages": 1, "textPreview": "P"}),
        (7, 7),
    ],
)
def test_what_is_kept_is_opened_for_people(expected, payload):
    """What stands in base64 is shown among its figures, in place of a count or a preview of it; what cannot be decoded stays."""
    assert expected == opened(payload)


def test_what_is_hidden_is_hidden_in_base64_too():
    """A text is taken out of what is kept, at any member; where nothing is taken out the payload is the very same."""
    payload = {"bytes": 9, "sdk": captured(b'["a secret"]'), "raw": captured(b"a secret")}

    def hide(value):
        return [hide(one) for one in value] if isinstance(value, list) else value.replace("secret", "*")

    assert {"bytes": 9, "sdk": captured(b'["a *"]'), "raw": captured(b"a *")} == kept_hidden(payload, hide)
    assert captured(b"a *") == kept_hidden(payload["raw"], hide)
    for same in (payload, 7, {"bytes": 9}):
        assert same is kept_hidden(same, lambda value: value)


@pytest.mark.parametrize("said", [3, True, 0.5, None, {"sdk": captured(b"7")}, {"sdk": captured(b"\xff")}])
def test_what_is_no_message_says_nothing(said):
    """A count, a truth value and a blob are nobody's words."""
    assert [] == [part for answer in answers(said) for held in answer.messages for part in message(held).parts]


def test_arguments_that_were_cut_stay_text():
    """Arguments come as a value where they are JSON."""
    calls = [{"function": {"name": "f", "arguments": given}} for given in ('{"a":1}', '{"a":', {"a": 1}, None)]
    assert [{"a": 1}, '{"a":', {"a": 1}, None] == [call.decoded() for call in message({"role": "ai", "tool_calls": calls}).parts]


LOST = {
    "responses": (
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": NO_RESULT},
    ),
    "gemini": (
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "f", "response": {"error": NO_RESULT}}}]},
    ),
    "a number": ({"role": "assistant", "tool_calls": [{"id": 7}]}, {"role": "tool", "tool_call_id": "7", "content": NO_RESULT}),
}


@pytest.mark.parametrize("form", LOST)
def test_a_lost_result_is_answered_in_the_form_of_its_call(form):
    """A call of any provider's form has one result, and is left alone when it has."""
    call, result = LOST[form]
    assert [call, result] == answered([call])
    assert [call, result] == answered([call, result, result])


KEYS = st.sampled_from(
    ["role", "type", "content", "parts", "text", "tool_calls", "id", "function", "functionCall", "thought", "output", "choices"]
)
WORDS = st.sampled_from(["tool", "model", "text", "reasoning", "tool_use", "tool_result", "function_call"])
odd = st.recursive(values | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(st.lists(odd, max_size=3))
def test_whatever_a_program_gives_is_read(given):
    """Nothing raises, whatever stands where a message is expected, and each message is kept."""
    for one in (*given, given):
        assert all(told(found.parts) is not None for answer in answers(one) for found in map(message, answer.messages))
        assert len(parts(one)) == (0 if one is None else len(one) if isinstance(one, list) else 1)
    assert len(answered(given)) >= len([one for one in given if not any(isinstance(held, ToolResultPart) for held in message(one).parts)])
