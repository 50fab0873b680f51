"""A transcript that is sent on has one result for each tool call, in the form of the call."""

import pytest

from optree._providers.messages import NO_RESULT, answered

FUNCTION = {"name": "search", "arguments": "{}"}
FORMS = {
    "chat": (
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}]},
        {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ),
    "anthropic": (
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": NO_RESULT, "is_error": True}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "found"}]},
    ),
    "responses": (
        {"type": "function_call", "call_id": "c1", **FUNCTION},
        {"type": "function_call_output", "call_id": "c1", "output": NO_RESULT},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ),
    "gemini": (
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "search", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "search", "response": {"error": NO_RESULT}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "search", "response": {"result": "found"}}}]},
    ),
}
SAID = {"role": "user", "content": "go on"}


def unnamed(*names, member="functionCall"):
    """Return a message of calls without ids, as Gemini makes them."""
    return {"role": "model", "parts": [{member: {"name": name, "args": {}}} for name in names]}


def results(*names, said=None, member="functionResponse"):
    """Return a message with results of calls without ids."""
    response = {"error": NO_RESULT} if said is None else {"result": said}
    return {"role": "user", "parts": [{member: {"name": name, "response": response}} for name in names]}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_without_a_result_gets_one(form):
    """What the end of a process cut off is told to the model in the provider's own form, right behind the call."""
    call, lost, _ = FORMS[form]
    assert [call, lost, SAID] == answered([call, SAID])


@pytest.mark.parametrize("form", FORMS)
def test_of_two_results_for_a_call_the_first_stays(form):
    """A second result for one call is left out, and what follows it stays."""
    call, _, result = FORMS[form]
    assert [call, result, SAID] == answered([call, result, dict(result), SAID])


def test_only_the_call_that_lacks_one_gets_a_result():
    """Of two calls in a message, that which was answered is left as it is; a result with one that is new stays too."""
    calls = [{"type": "tool_use", "id": one, "name": "search", "input": {}} for one in ("c1", "c2", "c3")]
    results = [{"type": "tool_result", "tool_use_id": one, "content": "found"} for one in ("c1", "c2")]
    first, both = {"role": "user", "content": results[:1]}, {"role": "user", "content": results}
    message = {"role": "assistant", "content": calls}
    lost = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "content": NO_RESULT, "is_error": True}]}
    assert [message, lost, first, both] == answered([message, first, both])


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([unnamed("f")], [unnamed("f"), results("f")]),
        ([unnamed("f"), SAID], [unnamed("f"), results("f"), SAID]),
        ([unnamed("f"), results("f", said="yes")], [unnamed("f"), results("f", said="yes")]),
        ([unnamed("f", "g"), results("g", said="yes")], [unnamed("f", "g"), results("f"), results("g", said="yes")]),
        ([unnamed("f", "f"), results("f", said="yes")], [unnamed("f", "f"), results("f"), results("f", said="yes")]),
        ([unnamed("f"), unnamed("g"), results("f", "g", said=1)], [unnamed("f"), unnamed("g"), results("f", "g", said=1)]),
        (
            [unnamed("f"), SAID, unnamed("f"), results("f", said="yes")],
            [unnamed("f"), results("f"), SAID, unnamed("f"), results("f", said="yes")],
        ),
        (
            [unnamed("f"), results("f", said="yes"), unnamed("f")],
            [unnamed("f"), results("f", said="yes"), unnamed("f"), results("f")],
        ),
        ([unnamed("f", member="function_call")], [unnamed("f", member="function_call"), results("f", member="function_response")]),
    ],
    ids=[
        "last",
        "before text",
        "answered",
        "one of two",
        "one of two alike",
        "behind both",
        "a later one",
        "an earlier one",
        "as Python's",
    ],
)
def test_calls_without_ids_are_known_by_their_names(messages, expected):
    """Gemini's results name their call and stand behind it: what has none there gets one."""
    assert expected == answered(messages)


def test_calls_that_are_left_as_they_are():
    """Calls that the provider makes itself get no result."""
    call = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "c1", "name": "web_search", "input": {}}]}
    assert [call, SAID] == answered([call, SAID])
