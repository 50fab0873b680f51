"""Tools of Google's ADK get what was recorded, and do not run; what cannot be given runs, or is refused, and that is said."""

import pytest

pytest.importorskip("google.adk", reason="google-adk is tried in an environment of its own: make test-frameworks")

from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import ToolContext

import optree
from optree._capture.replay import RAN_FOR, WHY
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops
from optree._values import decode, raw
from optree.errors import OptreeError
from optree.testing import capture, replay
from tests.capture.conftest import outcome, twice
from tests.capture.frameworks.adk_programs import ASKS, RAINS, WARNINGS, Asking, op_of, shape, texts
from tests.capture.provider import Reply

pytestmark = [*WARNINGS, pytest.mark.usefixtures("hooked")]
RESULTS = {
    "text": "rain",
    "data": {"rain": 3},
    "nothing": None,
    "failure": ConnectionError("no thermometer"),
    "unknown": ValueError("no such city"),
}


@pytest.mark.parametrize("case", RESULTS)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_function_gets_its_result(provider, case, is_async):
    """A run goes on as it did, be a function's result data or an exception; the function does not run."""
    ran, asking = [], Asking(provider, "httpx")

    def plain(city: str):
        """Tell the weather."""
        ran.append(city)
        if isinstance(RESULTS[case], Exception):
            raise RESULTS[case]
        return RESULTS[case]

    async def awaited(city: str):
        """Do the same."""
        return plain(city)

    tool = awaited if is_async else plain
    tool.__name__ = "weather"
    expected, found, recorded, again = twice(provider, (ASKS, RAINS), lambda: asking.ask(lambda: asking.agent(tools=[tool])))
    assert (expected, ["Athens"]) == (found, ran)
    assert shape(recorded) == shape(again)
    op, before = op_of(again, "weather"), op_of(recorded, "weather")
    assert (before.status, before.error, "test-1:1.2") == (op.status, op.error, op.attributes[REPLAY_OF])
    assert (before.response and decode(before.response.payload)) == (op.response and decode(op.response.payload))


def test_a_function_that_changes_the_state_runs(provider):
    """One that did more than to return something JSON holds (here: it set the session's state) runs again, which is noted."""
    ran, asking = [], Asking(provider, "httpx")

    def weather(city: str, tool_context: ToolContext):
        """Tell the weather."""
        ran.append(city)
        tool_context.state["city"] = city
        return "rain"

    expected, found, _, again = twice(
        provider, (ASKS, RAINS), lambda: asking.ask(lambda: asking.agent(tools=[weather], instruction="In {city?}"))
    )
    assert (expected, ["Athens", "Athens"]) == (found, ran)
    known = op_of(again, "weather").attributes
    assert "test-1:1.2" == known[RAN_FOR]
    assert known[WHY].endswith("it is, or has, a EventActions")


def test_a_function_that_sets_its_own_response_runs(provider):
    """One whose op has another response than what it returned runs again: what it returned is not known."""
    ran, asking = [], Asking(provider, "httpx")

    def weather(city: str):
        """Tell the weather."""
        ran.append(city)
        optree.current().response("told otherwise")
        return "rain"

    expected, found, _, _ = twice(provider, (ASKS, RAINS), lambda: asking.ask(lambda: asking.agent(tools=[weather])))
    assert (expected, ["Athens", "Athens"]) == (found, ran)


def test_what_a_plugin_answers(provider):
    """Where a plugin changes a result, the function runs, and the plugin changes it again."""
    ran, asking = [], Asking(provider, "httpx")

    class Changing(BasePlugin):
        async def after_tool_callback(self, *, result, **_told):
            return {"changed": result}

    def weather(city: str):
        """Tell the weather."""
        ran.append(city)
        return "rain"

    def run():
        return asking.run(lambda: texts(asking.agent(tools=[weather]), plugins=[Changing(name="changing")]))

    expected, found, recorded, again = twice(provider, (ASKS, RAINS), run)
    assert (expected, ["Athens", "Athens"]) == (found, ran)
    assert {"changed": "rain"} == decode(op_of(recorded, "weather").response.payload) == decode(op_of(again, "weather").response.payload)


def test_a_function_with_other_arguments(provider):
    """A call that was not recorded so does not run: the run fails with where it differs."""
    ran, asking = [], Asking(provider, "httpx")

    def weather(city: str):
        """Tell the weather."""
        ran.append(city)
        return "rain"

    def run():
        return asking.run(lambda: texts(asking.agent(tools=[weather])))

    provider.says(ASKS, RAINS)
    with capture() as recorded:
        run()
    provider.says(Reply({}, status=500))
    op_of(recorded, "weather").request.payload = raw({"city": "Berlin"})
    with pytest.raises(AssertionError, match=r'arguments\.city is "Athens", not "Berlin"'), replay(recorded.tree), capture():
        assert OptreeError is outcome(run)[0]
    assert ["Athens"] == ran


def test_gemini_through_aiohttp(provider):
    """A call of Gemini's that google-genai sends through aiohttp gets the recorded answer, and is not sent."""
    asking = Asking(provider, "aiohttp")
    provider.says(RAINS)
    with capture() as recorded:
        expected = asking.ask(asking.agent)
    with replay(recorded.tree), capture() as again:
        assert expected == asking.ask(asking.agent)
    assert 1 == len(provider.requests)
    assert ["test-1:1.1"] == [op.attributes.get(REPLAY_OF) for _, _, op in walk_ops(again.tree) if op.kind == "llm"]
