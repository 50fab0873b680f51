import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optree
from optree.compare import compare, walk
from optree.testing import capture
from tests.compare.sessions import user


def openai(ids, arguments, results):
    """Return an OpenAI-like response with tool calls, and the messages that a program sends back."""
    listed = [
        {"id": identity, "type": "function", "function": {"name": "search", "arguments": f'{{"q": "{argument}"}}'}}
        for identity, argument in zip(ids, arguments, strict=True)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": listed}
    envelope = {"id": f"chatcmpl-{ids}", "object": "chat.completion", "created": hash(str(ids)), "system_fingerprint": f"fp_{ids}"}
    answers = [{"role": "tool", "tool_call_id": identity, "content": results[identity]} for identity in ids]
    return {**envelope, "choices": [{"index": 0, "message": message}]}, [message, *answers]


def responses(ids, arguments, results):
    """Return the same in the form of OpenAI's responses interface."""
    calls = [
        {"type": "function_call", "id": f"fc_{identity}", "call_id": identity, "name": "search", "arguments": f'{{"q":"{argument}"}}'}
        for identity, argument in zip(ids, arguments, strict=True)
    ]
    envelope = {"id": f"resp_{ids}", "object": "response", "created_at": hash(str(ids))}
    answers = [{"type": "function_call_output", "call_id": identity, "output": results[identity]} for identity in ids]
    return {**envelope, "output": calls}, [*calls, *answers]


def anthropic(ids, arguments, results):
    """Return the same in Anthropic's form."""
    calls = [
        {"type": "tool_use", "id": identity, "name": "search", "input": {"q": argument}}
        for identity, argument in zip(ids, arguments, strict=True)
    ]
    answers = [{"type": "tool_result", "tool_use_id": identity, "content": results[identity]} for identity in ids]
    message = {"role": "assistant", "content": calls}
    return {"id": f"msg_{ids}", "type": "message", "model": "claude", **message}, [message, {"role": "user", "content": answers}]


def gemini(ids, arguments, results):
    """Return the same in Gemini's form."""
    calls = [{"functionCall": {"id": one, "name": "search", "args": {"q": argument}}} for one, argument in zip(ids, arguments, strict=True)]
    answers = [{"functionResponse": {"id": identity, "name": "search", "response": {"r": results[identity]}}} for identity in ids]
    content = {"role": "model", "parts": calls}
    return {"responseId": f"{ids}", "candidates": [{"content": content}]}, [content, {"role": "user", "parts": answers}]


FORMS = {
    "openai": (openai, "messages"),
    "responses": (responses, "input"),
    "anthropic": (anthropic, "messages"),
    "gemini": (gemini, "contents"),
}
forms = pytest.mark.parametrize(("form", "history"), FORMS.values(), ids=FORMS)


def run(form, history, ids, arguments=("a", "b"), results=("ra", "rb"), *, order=None):
    """Return the tree of a session of two calls, the second with the results of the first one's tool calls; *order* is theirs."""
    told, sent = form(ids, arguments, dict(zip(order or ids, results, strict=True)))
    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        with optree.llm(provider="p", model="m") as op:
            op.request(**{history: [user("find")]})
            op.response(told)
        with optree.llm(provider="p", model="m") as op:
            op.request(**{history: [user("find"), *sent]})
            op.response("done")
    return recording.tree


def changed(found):
    """Return the names of all fields that changed."""
    return [change.what for one in walk(found.root) for change in one.changes]


@forms
def test_what_a_provider_makes_anew_is_no_change(form, history):
    """Two runs that differ in ids of responses and tool calls, and in times, are the same; exactly compared they are not."""
    one, other = run(form, history, ["x1", "x2"]), run(form, history, ["y1", "y2"])
    assert compare(one, other).same
    exact = compare(one, other, exact=True)
    assert 2 == exact.counts["changed"]["op"]
    assert any(what.startswith("response") for what in changed(exact))
    assert any(what.startswith(f"request.{history}") for what in changed(exact))


@forms
def test_ids_are_renamed_consistently(form, history):
    """A result that goes to another call is a change, and so are other arguments and other results."""
    one = run(form, history, ["x1", "x2"])
    for other in (
        run(form, history, ["y1", "y2"], order=["y2", "y1"]),
        run(form, history, ["y1", "y2"], ("a", "c")),
        run(form, history, ["y1", "y2"], results=("ra", "rc")),
    ):
        found = compare(one, other)
        assert not found.same
        assert all(change.before != change.after for node in walk(found.root) for change in node.changes)


@settings(max_examples=25)
@given(st.sampled_from(list(FORMS.values())), st.lists(st.text("abc123_", min_size=3), min_size=2, max_size=2, unique=True))
def test_whatever_the_ids_are(which, ids):
    """Any ids may stand for the calls."""
    assert compare(run(*which, ["x1", "x2"]), run(*which, ids)).same


def test_ids_that_a_program_gives_for_several_calls_are_kept():
    """An id that stands for several calls is the program's own: it is compared as it is."""
    one = run(openai, "messages", ["1", "2"], ("a", "b"))
    assert compare(one, run(openai, "messages", ["1", "2"], ("a", "b"))).same
    assert not compare(one, run(openai, "messages", ["1", "2"], ("b", "a"))).same


def begun(kind):
    """Begin an op."""
    return optree.tool("t") if kind == "tool" else optree.llm(provider="p", model="m")


@pytest.mark.parametrize(
    ("kind", "request_", "response"),
    [
        ("tool", ({"id": "1"}, {"id": "2"}), ("same", "same")),
        ("tool", ({"timestamp": 1}, {"timestamp": 2}), ("same", "same")),
        ("tool", ({}, {}), ({"id": 1, "created": 1}, {"id": 2, "created": 1})),
        ("llm", ({"metadata": {"id": 1}}, {"metadata": {"id": 2}}), ("same", "same")),
        ("llm", ({"tools": [{"name": "t", "id": 1}]}, {"tools": [{"name": "t", "id": 2}]}), ("same", "same")),
        ("llm", ({}, {}), ({"id": 1, "name": "an answer in JSON"}, {"id": 2, "name": "an answer in JSON"})),
        ("llm", ({"messages": [user('{"id":1}')]}, {"messages": [user('{"id":2}')]}), ("same", "same")),
    ],
)
def test_what_programs_and_models_say_is_content(kind, request_, response):
    """Members with such names are compared where they are arguments, results, tools or answers."""
    trees = []
    for sent, told in zip(request_, response, strict=True):
        with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"), begun(kind) as op:
            op.request(**sent)
            op.response(told)
        trees.append(recording.tree)
    assert 1 == compare(*trees).counts["changed"]["op"]


def test_a_tool_that_is_told_which_call_it_answers():
    """The id of the call is renamed in a tool's arguments too, and so is that of an earlier response in a request."""
    trees = []
    for identity in ("x1", "y1"):
        with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
            with optree.llm(provider="p", model="m") as op:
                op.request(input="go", previous_response_id=f"resp_{identity}")
                op.response(openai([identity], ["a"], {identity: "r"})[0])
            with optree.tool("search") as op:
                op.request(q="a", tool_call_id=identity)
        trees.append(recording.tree)
    assert compare(*trees).same


def test_damaged_messages_are_compared_as_they_are():
    """A message that is damaged raises nothing."""
    one, other = run(openai, "messages", ["x1", "x2"]), run(openai, "messages", ["y1", "y2"])
    for blob in one.pool.blobs:
        one.pool.blobs[blob] = msgspec.Raw(b'{"tool_calls":[')
    assert not compare(one, other).same
    assert not compare(other, one, exact=True).same
