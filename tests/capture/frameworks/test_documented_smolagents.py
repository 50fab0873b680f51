"""Programs on smolagents, as its documentation writes them, are recorded to the token and the cent: agents, tools, calls."""

import json
from importlib.util import find_spec

import pytest

if find_spec("smolagents") is None:
    pytest.skip("smolagents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from optree._nodes import Tokens
from tests.capture.documented import BILL, EITHER, RESUMED, TREE, Billed
from tests.capture.frameworks.documented_smolagents import MANAGED, PLAIN, STREAMED
from tests.capture.frameworks.smols import DONE, USAGE, WEATHER, says
from tests.capture.provider import events

pytestmark = pytest.mark.slow
OPENAI = Billed("openai-compatible:gpt-5", Tokens(8, 5, 4, 0, 17, 3), 60.5)
CODE = "<code>\nfinal_answer('It rains')\n</code>"
REPLIES = [says("<code>\nprint(forecaster('Rain in Athens?'))\n</code>"), WEATHER, DONE, says(CODE)]
CALLED = [
    ("weather", {"city": "Athens"}, "rain in Athens"),
    ("final_answer", {"answer": "It rains"}, "It rains"),
    ("final_answer", {"answer": "It rains"}, "It rains"),
]
CHUNKS = events(
    *(
        {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"} | one
        for one in (
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": CODE}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": USAGE},
        )
    )
)


def answer_of(said):
    """Return what a program prints behind what smolagents does."""
    return said.rpartition("=> ")[2]


@pytest.mark.captured("smolagents", "agents", "plain", "streamed", added=EITHER, checks=BILL)
@pytest.mark.parametrize(("source", "reply"), [(PLAIN, says(CODE)), (STREAMED, CHUNKS)], ids=["plain", "streamed"])
def test_smolagents(documented, source, reply):
    """An agent that answers in its first step: one call, plain and streamed."""
    assert "It rains\n" == answer_of(documented.run(source, reply))
    assert ["CodeAgent"] == documented.agents()
    assert "Weather?" in json.dumps(documented.requests()[0]["messages"])
    assert ([OPENAI], CODE) == (documented.bill(), documented.said())


@pytest.mark.captured("smolagents", "managed agents", "tools", "sub-agents", added=EITHER, checks=TREE)
def test_smolagents_managed(documented):
    """An agent that another one calls in its code, with a tool: two agents, four calls."""
    assert "It rains\n" == answer_of(documented.run(MANAGED, *REPLIES))
    assert (["manager", "manager->forecaster"], CALLED) == (documented.agents(), documented.tools())
    assert 4 == len(documented.requests())
    assert [OPENAI] * 4 == documented.bill()


@pytest.mark.captured("smolagents", "managed agents", "killed", "resumed", added=EITHER, checks=RESUMED)
def test_smolagents_killed_and_resumed(documented):
    """Such a program that is killed in its last call, and goes on."""
    documented.kill(MANAGED, *REPLIES[:3])
    assert [OPENAI] * 3 == documented.bill(unknown=1)
    assert "It rains\n" == answer_of(documented.resume(*REPLIES))
    assert [OPENAI] * 7 == documented.bill(unknown=1)
    assert CALLED[:2] + CALLED == documented.tools()
    assert 8 == len(documented.requests())
