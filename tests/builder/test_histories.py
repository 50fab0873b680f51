import copy

import pytest

from optree import SessionTreeBuilder
from optree._builder.histories import MOST_HISTORIES
from optree._console import resolved
from optree._values import encode

CALL = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}], "n": 1, "t": 0.0, "b": True}
CHANGES = [
    lambda messages: messages[1].update(content="other"),
    lambda messages: messages[1].update(more=None),
    lambda messages: messages[2]["tool_calls"][0]["function"].update(name="g"),
    lambda messages: messages[2].update(n=True),
    lambda messages: messages[2].update(n=1.0),
    lambda messages: messages[2].update(t=-0.0),
    lambda messages: messages[2].update(b=1),
    lambda messages: messages[1].update(role=messages[1].pop("role")),
    lambda messages: messages[2]["tool_calls"].append("x"),
    lambda messages: messages.insert(0, {"role": "system", "content": "x"}),
    lambda messages: messages.pop(1),
    lambda messages: messages.append({"role": "user", "content": object}),
    lambda messages: messages.append({"role": "user", "content": "y"}),
    lambda messages: messages.clear(),
    lambda _messages: None,
]


def shown(builder, messages):
    """Return the JSON of a request's messages as it is read back, and what the node says of its size."""
    op = builder.begin_op("llm", "m")
    op.request(messages=messages)
    op.end()
    assert 0 == builder.core.stream.failures
    request = op.node.request
    return encode(resolved(request.payload, builder.core.pool)), request.size


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_changed_in_place_is_recorded_as_changed(change):
    """A history that was sent before is recorded as it is now, whatever was done to it in between: as in a session that saw no other."""
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}, copy.deepcopy(CALL)]
    builder = SessionTreeBuilder("a", txn="t")
    shown(builder, messages)
    shown(builder, messages)
    change(messages)
    assert shown(SessionTreeBuilder("a", txn="t"), copy.deepcopy(messages)) == shown(builder, messages)
    assert shown(SessionTreeBuilder("a", txn="t"), copy.deepcopy(messages)) == shown(builder, tuple(messages))


def test_what_was_sent_is_not_encoded_again():
    """Of a history that grows, each message is encoded once, also where several agents take turns; no more than a few are kept."""
    builder = SessionTreeBuilder("a", txn="t")
    encoded, message = [], builder.core._message
    builder.core.__class__._message, before = lambda _core, one: encoded.append(one) or message(one), builder.core.__class__._message
    try:
        histories = [[{"role": "system", "content": str(agent)}] for agent in range(MOST_HISTORIES)]
        for number in range(5):
            for history in histories:
                history.append({"role": "user", "content": str(number)})
                builder.begin_op("llm", "m").request(messages=history)
    finally:
        builder.core.__class__._message = before
    assert MOST_HISTORIES * 6 == len(encoded)
    assert MOST_HISTORIES == len(builder.core.histories._sent)
