"""Captured calls with ``content=False``: nothing of what is asked and answered is in any file, and what they took is as with it."""

import openai
import pytest

import optree
from optree._nodes import NOT_RECORDED
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CALLS, CHAT_TOOL

REFUSED = Reply({"error": {"message": "slow down", "code": "rate_limit_exceeded", "prompt": "Weather?"}}, status=429)


@pytest.fixture
def without_content(tmp_path, hooked):  # noqa: ARG001 - the hooks are there before
    """Save what a test records without content, and return what reads all of that."""
    optree.configure(base_dir=tmp_path, console=False, content=False, compression="none", write="all")

    def read():
        assert optree.flush("snapshot", 60)
        return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode()

    return read


@pytest.mark.parametrize(("call", "reply"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_nothing_said_is_on_disk(without_content, provider, call, reply):
    """Whole or streamed, through any interface: the call and its tokens are there, and no text."""
    provider.says(reply)
    with optree.session("agent") as session, optree.turn():
        assert "It rains" == call(provider.url)
    written = without_content()
    assert session.txn in written
    for said in ("rains", "It ", "Weather"):
        assert said not in written
    [op] = [op for _, _, op in walk_ops(session.tree)]
    assert ("ok", 1, 12) == (op.status, session.totals.llm_requests, session.totals.all_input_tokens)


@pytest.mark.usefixtures("hooked")
def test_turns_hold_together(provider):
    """A program without decorators has one turn of a question, its tool's call and the answer, as with content; the refusal has no body."""
    question = {"role": "user", "content": "Weather?"}
    called = {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "call-1", "content": "It rains"}
    provider.says(CHAT_TOOL)
    optree.configure(content=False)
    with capture() as recording, openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="gpt-5", messages=[question])
        provider.says(REFUSED)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="gpt-5", messages=[question, called, result])
    [turn] = recording.tree.session.turns
    assert (NOT_RECORDED, ["ok", "failed"]) == (turn.prompts["user"], [op.status for op in turn.ops])
    assert [{"id": "call-1", "type": "function", "function": {"name": "weather"}}] == decode(turn.ops[0].response.payload)["choices"][0][
        "message"
    ]["tool_calls"]
    assert "error.body" not in turn.ops[1].attributes
