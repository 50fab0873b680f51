"""Runs of Agno's that wait for somebody, and go on: each is a run of its own, with the tools and the members that waited in it."""

import asyncio
from contextlib import nullcontext
from importlib.util import find_spec

import pytest

if find_spec("agno") is None:
    pytest.skip("agno is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from agno.db.in_memory import InMemoryDb
from agno.team import Team
from agno.tools import tool

from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.frameworks.agno_programs import CONTINUED, MARKS, asks_for, desk_of, forecaster, read, roots_of, scripted

pytestmark = MARKS


@tool(requires_confirmation=True)
def ask(city: str) -> str:
    """Ask."""
    return f"asked {city}"


@pytest.mark.parametrize("way", CONTINUED)
def test_a_run_that_waits_for_a_person(recording, way):
    """A run that waits for a confirmation is no failure; to go on is a run of its own, with the tool in it."""
    agent = forecaster(scripted([asks_for("ask")], "It rains"), ask, db=InMemoryDb())
    waiting = agent.run("Weather?")
    assert waiting.is_paused
    waiting.tools[0].confirmed = True
    assert "It rains" == CONTINUED[way](agent, waiting).strip()
    assert [("ok", {"user": "Weather?"})] * 2 == [(session.status, session.turns[0].prompts) for session in roots_of(recording)]
    assert [["scripted"], ["ask", "scripted"]] == [[op.name for op in session.turns[0].ops] for session in roots_of(recording)]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("answer", "ended"), [("It rains", ("ok", None)), (ValueError("no rain"), ("failed", "ValueError: no rain"))])
def test_a_run_that_goes_on_by_its_id(recording, answer, ended, is_streamed):
    """A run that is continued by its id has a report, or its error, which Agno raises then."""
    agent = forecaster(scripted([asks_for("ask")], answer), ask, db=InMemoryDb(), session_id="s-1")
    waiting = agent.run("Weather?")
    waiting.requirements[0].confirm()

    async def goes_on():
        told = {"stream": True, "stream_events": True} if is_streamed else {}
        run = agent.acontinue_run(run_id=waiting.run_id, requirements=waiting.requirements, **told)
        return await (read(run) if is_streamed else run)

    with nullcontext() if answer == "It rains" else pytest.raises(ValueError, match="no rain"):
        asyncio.run(goes_on())
    session = recording.sessions[1].tree.session
    assert ended == (session.status, session.error)
    assert ("It rains" if answer == "It rains" else None) == (decode(session.final_report).strip() if session.final_report else None)


@pytest.mark.parametrize(("way", "said"), [("run", None), ("stream", "no rain")])
def test_a_run_that_goes_on_and_fails(recording, way, said):
    """A run that goes on and fails is not said to have failed by what it waited for."""
    agent = forecaster(scripted([asks_for("ask")], ValueError("no rain")), ask, db=InMemoryDb())
    waiting = agent.run("Weather?")
    waiting.requirements[0].confirm()
    CONTINUED[way](agent, waiting)
    session = recording.sessions[1].tree.session
    assert ("failed", said) == (session.status, session.error)


@pytest.mark.parametrize("way", ["run", "arun", "astream"])
def test_a_team_that_waits_for_a_person(recording, way):
    """A team that goes on with a tool of its own is one run, with that tool in it."""
    model = scripted([asks_for("ask")], "All rain")
    team = Team(name="desk", members=[forecaster(model)], tools=[ask], model=model, telemetry=False, db=InMemoryDb())
    waiting = team.run("Weather?")
    waiting.requirements[0].confirm()
    assert "All rain" == CONTINUED[way](team, waiting).strip()
    assert [["scripted"], ["ask", "scripted"]] == [[op.name for op in session.turns[0].ops] for session in roots_of(recording)]
    assert [("desk", waiting.run_id)] * 2 == [(session.agent_id, session.attributes["agno.run_id"]) for session in roots_of(recording)]


@pytest.mark.parametrize("way", CONTINUED)
def test_a_member_that_waits_for_a_person(recording, way):
    """A team that goes on where a member waited is one run, with the member's in it."""
    team = desk_of(forecaster(scripted([asks_for("ask")], "It rains"), ask, id="forecaster"))
    team.db = InMemoryDb()
    waiting = team.run("Weather?")
    waiting.requirements[0].confirm()
    assert "All rain" == CONTINUED[way](team, waiting).strip()
    before, behind = roots_of(recording)
    assert [("desk", "ok"), ("desk->forecaster", "ok")] == [(one.call_path, one.status) for one in walk_sessions(behind)]
    assert ["ask", "scripted"] == [op.name for one in walk_sessions(behind) if one.path for op in one.turns[0].ops]
    assert (before.attributes["agno.run_id"], "All rain") == (behind.attributes["agno.run_id"], decode(behind.final_report).strip())
