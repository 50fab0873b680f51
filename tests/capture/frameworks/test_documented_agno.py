"""Programs on Agno, as its documentation writes them, are recorded to the token and the cent."""

from importlib.util import find_spec

import pytest

if find_spec("agno") is None:
    pytest.skip("agno is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks.documented_agno import AGENT, STREAMED, TEAM, WORKFLOW
from tests.capture.provider import Reply
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL, USAGE

pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
WEATHER = ("weather", {"city": "Athens"}, "rain in Athens")
_TASK = {"name": "delegate_task_to_member", "arguments": '{"member_id": "forecaster", "task": "Look at Athens"}'}
DELEGATES = Reply(
    {
        "id": "chat-2", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "usage": USAGE,
        "choices": [{
            "index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": None, "tool_calls": [{"id": "call-9", "type": "function", "function": _TASK}]},
        }],
    }
)  # fmt: skip


@pytest.mark.captured("agno", "agents", "tools", added=EITHER, checks=TREE)
def test_agno(documented):
    """An agent with a tool: its session, two calls."""
    assert "It rains\n" == documented.run(AGENT, CHAT_TOOL, CHAT)
    assert (["forecaster"], [WEATHER], [("Weather?", 3)]) == (documented.agents(), documented.tools(), documented.turns())
    assert 2 == len(documented.requests())
    assert [OPENAI] * 2 == documented.bill()


@pytest.mark.captured("agno", "agents", "streamed", added=EITHER, checks=BILL)
def test_agno_streamed(documented):
    """An agent whose answer is streamed."""
    assert "It rains\n" == documented.run(STREAMED, CHAT_EVENTS)
    assert 1 == len(documented.requests())
    assert [OPENAI] == documented.bill()
    assert "It rains" == documented.said()


@pytest.mark.captured("agno", "teams", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_agno_team(documented):
    """A team that is awaited: its session, and a member's in the tool that the leader delegates by, four calls."""
    assert "It rains\n" == documented.run(TEAM, DELEGATES, CHAT_TOOL, CHAT, CHAT)
    assert ["desk", "desk->forecaster"] == documented.agents()
    assert [("delegate_task_to_member", {"member_id": "forecaster", "task": "Look at Athens"}, "It rains"), WEATHER] == documented.tools()
    assert 4 == len(documented.requests())
    assert [OPENAI] * 4 == documented.bill()


@pytest.mark.captured("agno", "workflows", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_agno_workflow(documented):
    """A workflow of two steps with an agent each: three calls."""
    assert "It rains\n" == documented.run(WORKFLOW, CHAT_TOOL, CHAT, CHAT)
    assert (["outlook", "outlook->forecaster", "outlook->writer"], [WEATHER]) == (documented.agents(), documented.tools())
    assert 3 == len(documented.requests())
    assert [OPENAI] * 3 == documented.bill()


@pytest.mark.captured("agno", "agents", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_agno_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(AGENT, CHAT_TOOL)
    assert [OPENAI] == documented.bill(unknown=1)
    assert "It rains\n" == documented.resume(CHAT_TOOL, CHAT)
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert [WEATHER] * 2 == documented.tools()
    assert 4 == len(documented.requests())
