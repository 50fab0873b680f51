"""A second `instrument` adds nothing, also where another library has wrapped the hooked functions in between."""

import pytest
from anthropic import beta_tool
from anthropic.lib.tools import _beta_functions as functions
from google.genai import _extra_utils as utils

import optree
from optree._capture import instrument, uninstrument
from optree._tree import walk_ops
from optree.testing import capture
from tests.capture.conftest import wrap

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # what aiohttp says of google-genai


def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def of_anthropic():
    """Have the SDK of Anthropic call the tool."""
    return beta_tool(weather).call({"city": "Athens"})


def of_gemini():
    """Have the SDK of Google call it."""
    return utils.invoke_function_from_dict_args({"city": "Athens"}, weather)


CALLS = {"anthropic": (functions.BetaFunctionTool, "call", of_anthropic), "gemini": (utils, "invoke_function_from_dict_args", of_gemini)}
each_call = pytest.mark.parametrize(("owner", "name", "call"), CALLS.values(), ids=CALLS)


def tools(call):
    """Return the tools' ops of one call."""
    with capture() as recording, optree.session("agent"), optree.turn(user="Weather?"):
        assert "rain in Athens" == call()
    return [(op.kind, op.name, op.parent_op) for _, _, op in walk_ops(recording.tree)]


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("between", [list, uninstrument], ids=["again", "taken out"])
@pytest.mark.parametrize("wraps", [True, False], ids=["named", "unnamed"])
@each_call
def test_what_another_library_has_wrapped_is_recorded_once(monkeypatch, owner, name, call, between, wraps):
    """Hooks that another library has wrapped record once: they stay, or are idle when others are put around them."""
    wrap(owner, name, monkeypatch, wraps=wraps)
    between()
    instrument()
    assert [("tool", "weather", None)] == tools(call)
    monkeypatch.undo()  # while the hooks are in: what is left are the old ones
    instrument()
    assert [("tool", "weather", None)] == tools(call)


@pytest.mark.usefixtures("hooked")
@each_call
def test_hooks_that_are_there_stay(owner, name, call):
    """A second `instrument` leaves the hooks as they are, of classes and of modules."""
    before = vars(owner)[name]
    instrument()
    assert before is vars(owner)[name]
    assert [("tool", "weather", None)] == tools(call)
