"""Programs on Agno become whole trees: agents, teams, tools, hooks and guardrails, each in its place."""

import asyncio
import json
import threading
from importlib.util import find_spec

import pytest

if find_spec("agno") is None:
    pytest.skip("agno is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.exceptions import CheckTrigger, InputCheckError, RetryAgentRun, RunCancelledException, StopAgentRun
from agno.guardrails import BaseGuardrail
from agno.memory import MemoryManager
from agno.models.message import Message
from agno.team import Team
from agno.tools.function import ToolResult

import optree
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from tests.capture.conftest import CREDENTIALS, KEY, credentials_in
from tests.capture.frameworks.agno_programs import (
    ASKS,
    EVENTS,
    MARKS,
    WAYS,
    asks_for,
    desk_of,
    forecaster,
    read,
    roots_of,
    scripted,
    served_by,
)
from tests.capture.recordings import calls_of, ops_of, paths_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL
from tests.capture.tools import broken, weather

pytestmark = MARKS


@pytest.mark.captured("agno", "agents", "tools", added="one line", checks=("agents", "calls", "tools", "tokens"))
@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_run_is_a_session(recording, provider, way):
    """An agent's run is a session of its name with what it is asked and what it came to; calls and tools are ops in it, each once."""
    provider.says(CHAT_TOOL, CHAT)
    told = {"description": "Watch", "instructions": ["Look out", "Be short"]}
    agent = forecaster(served_by(provider), weather, session_id="s-1", user_id="u-1", **told)
    assert "It rains" == WAYS[way](agent, "Weather?")
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert ("s-1", "u-1") == (session.attributes["agno.session_id"], session.attributes["agno.user_id"])
    assert {"user": "Weather?", "system": "Watch\nLook out\nBe short"} == session.turns[0].prompts
    assert ["openai-compatible:gpt-5", "weather", "openai-compatible:gpt-5"] == [op.name for op in session.turns[0].ops if not op.parent_op]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls_of(recording)]
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


@pytest.mark.captured("agno", "agents", "streamed", "tools", added="one line", checks=("calls", "tokens"))
@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_run_that_is_streamed(recording, provider, way):
    """A run whose stream the program reads is the same tree."""
    provider.says(CHAT_TOOL, CHAT_EVENTS)
    with optree.session("lead") as lead, optree.turn(user="Go"):
        model = scripted(ASKS, "It rains")
        assert "It rains " == WAYS[way](forecaster(model, weather), "Weather?")
        provider.says(CHAT_EVENTS)
        assert "It rains" == WAYS[way](forecaster(served_by(provider), name="other"), "Weather?")
        assert lead is optree.current_session()
    assert ["lead", "lead->forecaster", "lead->other"] == paths_of(recording)
    _, one, other = walk_sessions(recording.tree)
    assert ["It rains ", "It rains"] == [decode(session.final_report) for session in (one, other)]
    assert ["scripted", "weather", "thermometer", "scripted"] == [op.name for op in one.turns[0].ops]
    assert (6, 8) == (one.totals.input_tokens, other.totals.input_tokens)
    assert (3, ["ok"] * 3) == (lead.totals.llm_requests, [op.status for op in calls_of(recording)])


def test_a_stream_has_a_context_of_its_own(recording):
    """Between its events a program is not within a stream's session, so streams that are read in turns stay apart."""
    one, two = (forecaster(scripted(ASKS, "It rains"), weather, name=name).run("Weather?", stream=True) for name in ("one", "two"))
    for _pair in zip(one, two, strict=True):
        assert optree.current_session() is None
    assert ["one", "two"] == [session.agent_id for session in roots_of(recording)]
    assert [("ok", 2, 2)] * 2 == [(one.status, one.totals.llm_requests, one.totals.tools_run) for one in roots_of(recording)]


def test_a_stream_that_is_left(recording):
    """A stream that the program does not read to its end is cancelled, and so is what is open in it, once."""
    stream = forecaster(scripted("It rains all day")).run("Weather?", stream=True)
    next(stream)
    stream.close()
    [op] = calls_of(recording)
    assert ("cancelled", "cancelled") == (recording.tree.session.status, op.status)
    assert b"It " in bytes(op.response.payload)

    async def leave():
        async for _ in forecaster(scripted("It rains all day"), name="later").arun("Weather?", stream=True):
            break

    asyncio.run(leave())
    assert ["cancelled", "cancelled"] == [session.status for session in roots_of(recording)]
    assert ["cancelled"] == [op.status for op in roots_of(recording)[1].turns[0].ops]


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_raises_failed(recording, way):
    """A tool that raises is failed with its exception; the model is told, and the agent goes on."""
    assert "It rains" == WAYS[way](forecaster(scripted([asks_for("weather")], "It rains"), broken), "Weather?").strip()
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert "ok" == recording.tree.session.status


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [None, ConnectionError(f"refused {KEY}")])
def test_credentials_are_not_kept(saved, way, error):
    """No credential of a question, a prompt, a tool's arguments, result or error, or an answer is saved; the program gets its own."""
    given = []

    def login(api_key: str, headers: dict) -> str:
        """Log in."""
        given.append({"api_key": api_key, "headers": headers})
        if error is not None:
            raise error
        return f"welcome {KEY}"

    model = scripted([asks_for("login", json.dumps(CREDENTIALS))], f"Keep {KEY}")
    answer = WAYS[way](forecaster(model, login, instructions=f"Use {KEY}"), f"Log in with {KEY}")
    assert ([CREDENTIALS], f"Keep {KEY}") == (given, answer.strip())
    assert ([], True) == credentials_in(saved())


def test_a_tool_that_raises_behind_an_agent(recording):
    """A tool that raises once an agent that it has run is done is failed with its own exception."""

    def ask_other(city: str) -> str:
        """Ask another agent."""
        forecaster(scripted(ASKS, f"rain in {city}"), weather, name="other").run(city)
        raise ConnectionError(f"no line to {city}")

    forecaster(scripted([asks_for("ask_other")], "It rains"), ask_other).run("Weather?")
    [op] = ops_of(recording, "ask_other")
    assert ("failed", "ConnectionError: no line to Athens", "network") == (op.status, op.error, op.attributes["error.type"])


def stop(city: str) -> str:
    """End the run."""
    raise StopAgentRun(f"enough of {city}")


def retry(city: str) -> str:
    """Have it tried again."""
    raise RetryAgentRun(f"not {city}")


def leave(city: str) -> str:
    """Cancel the run."""
    raise RunCancelledException(f"no more of {city}")


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_cancels_the_run(recording, way):
    """A tool by which the run is cancelled is cancelled with it."""
    WAYS[way](forecaster(scripted([asks_for("leave")], "It rains"), leave), "Weather?")
    [op] = ops_of(recording, "leave")
    ended = "cancelled", "RunCancelledException: no more of Athens"
    assert (*ended, "cancelled") == (op.status, op.error, recording.tree.session.status)


def test_a_tool_that_steers_the_run(recording):
    """A tool that ends the run did what it is for, one that asks for another try failed."""
    forecaster(scripted([asks_for("stop")], "It rains"), stop).run("Weather?")
    forecaster(scripted([asks_for("retry")], "It rains"), retry).run("Weather?")
    assert [("ok", None), ("failed", "RetryAgentRun: not Athens")] == [
        (op.status, op.error) for session in roots_of(recording) for op in session.turns[0].ops if op.kind == "tool"
    ]
    assert ["ok", "ok"] == [session.status for session in roots_of(recording)]
    assert ["StopAgentRun: enough of Athens"] == [log.message for log in roots_of(recording)[0].turns[0].ops[1].logs]


def pieces(city: str):
    """Tell the weather piece by piece."""
    yield "rain "
    with optree.tool("thermometer"):
        yield f"in {city}"


async def later(city: str):
    """Do so where that is awaited."""
    yield "rain "
    with optree.tool("thermometer"):
        yield f"in {city}"


@pytest.mark.parametrize("kind", ["agent", "team"])
def test_a_tool_that_yields_the_events_of_a_run(recording, kind):
    """A tool that yields the events of another run has what that says as its result, and the run in it."""

    def ask_other(city: str):
        """Ask another agent."""
        other = forecaster(scripted(f"rain in {city}"), name="other", id="other")
        yield from (other if kind == "agent" else desk_of(other)).run(city, stream=True, stream_events=True)

    forecaster(scripted([asks_for("ask_other")], lambda messages: messages[-1].content), ask_other).run("Weather?")
    [op] = ops_of(recording, "ask_other")
    said = decode(op.response.payload)
    assert ("ok", said.strip()) == (op.status, decode(recording.tree.session.final_report).strip())
    assert ("rain in Athens" if kind == "agent" else "rain in Athens All rain") == said.strip()
    assert op.path == ops_of(recording, "other" if kind == "agent" else "desk")[0].parent_op


def in_an_object(city: str) -> ToolResult:
    """Tell it in an object."""
    return ToolResult(content=f"rain in {city}")


@pytest.mark.parametrize(("function", "way"), [(pieces, "run"), (pieces, "arun"), (pieces, "stream"), (later, "arun"), (later, "astream")])
def test_a_tool_that_yields(recording, function, way):
    """A tool that yields its result is an op until the last piece, and what is done between them is in it."""
    agent = forecaster(scripted([asks_for(function.__name__)], lambda messages: messages[-1].content), function)
    assert "rain in Athens" == WAYS[way](agent, "Weather?").strip()
    [op], [inner] = ops_of(recording, function.__name__), ops_of(recording, "thermometer")
    assert ("ok", "rain in Athens", op.path) == (op.status, decode(op.response.payload), inner.parent_op)


def test_a_result_that_is_an_object(recording):
    """Of a result that is an object of Agno's the op has its members."""
    forecaster(scripted([asks_for("in_an_object")], "It rains"), in_an_object).run("Weather?")
    assert "rain in Athens" == decode(ops_of(recording, "in_an_object")[0].response.payload)["content"]


@pytest.mark.captured("agno", "agents", "at once", added="one line", checks=("calls", "tools"))
def test_at_once(recording):
    """Tools that run at once are siblings, and so are agents in tasks and in threads, each with its own calls."""
    barrier = threading.Barrier(2, timeout=30)

    def together(city: str) -> str:
        """Wait for the other."""
        barrier.wait()
        with optree.tool(f"in {city}"):
            return city

    asked = [asks_for("together", f'{{"city": "{city}"}}', city) for city in ("Athens", "Rome")]

    async def both():
        await asyncio.gather(*(forecaster(scripted("It rains"), name=name).arun("Weather?") for name in ("one", "two")))

    with optree.session("lead"), optree.turn(user="Go"):
        asyncio.run(forecaster(scripted(asked, "It rains"), together).arun("Weather?"))
        asyncio.run(both())
        threads = [
            threading.Thread(target=optree.wrap(forecaster(scripted("It rains"), name=name).run), args=("Weather?",)) for name in ("a", "b")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    tools = {op.path: decode(op.request.payload)["city"] for op in ops_of(recording, "together")}
    assert ["Athens", "Rome"] == sorted(tools.values())
    assert {f"in {city}": path for path, city in tools.items()} == {
        op.name: op.parent_op for op in ops_of(recording, "in Athens", "in Rome")
    }
    runs = list(walk_sessions(recording.tree))[1:]
    assert ["a", "b", "forecaster", "one", "two"] == sorted(run.agent_id for run in runs)
    assert [1, 1, 1, 1, 2] == sorted(run.totals.llm_requests for run in runs)
    assert {"lead"} == {run.call_path.partition("->")[0] for run in runs}


@pytest.mark.captured("agno", "teams", "sub-agents", added="one line", checks=("agents", "calls", "tools"))
@pytest.mark.parametrize("way", WAYS)
def test_a_team(recording, way):
    """A team's run is a session, and a member's one in the op of the tool that the leader delegates by."""
    member = forecaster(scripted(ASKS, "It rains"), weather, id="forecaster")
    assert "All rain" == WAYS[way](desk_of(member), "Weather?").strip()
    assert ["desk", "desk->forecaster"] == paths_of(recording)
    desk, member = walk_sessions(recording.tree)
    [delegate], [agent_op] = ops_of(recording, "delegate_task_to_member"), ops_of(recording, "forecaster")
    assert (delegate.path, "ok", "It rains") == (agent_op.parent_op, delegate.status, decode(delegate.response.payload).strip())
    assert ("Look at Athens", 2) == (member.turns[0].prompts["user"], member.totals.llm_requests)
    assert ("ok", "All rain", 4, 12) == (
        desk.status, decode(desk.final_report).strip(), desk.totals.llm_requests, desk.totals.input_tokens,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_member_that_fails(recording, way):
    """A member that fails is a failed session, also where its events are in the stream of the team, which goes on."""
    WAYS[way](desk_of(forecaster(scripted(ValueError("out of rain")), id="forecaster")), "Weather?")
    assert [("ok", "All rain"), ("failed", "out of rain")] == [
        (session.status, session.error or decode(session.final_report).strip()) for session in walk_sessions(recording.tree)
    ]


@pytest.mark.parametrize("way", ["arun", "astream"])
def test_members_at_once(recording, way):
    """Members that are asked at once are siblings in the op of the tool."""
    members = [forecaster(scripted(f"rain in {name}"), name=name, id=name) for name in ("athens", "rome")]
    model = scripted([asks_for("delegate_task_to_members", '{"task": "Look"}')], "All rain")
    WAYS[way](Team(name="desk", members=members, model=model, delegate_to_all_members=True, telemetry=False), "Weather?")
    assert ["desk", "desk->athens", "desk->rome"] == sorted(paths_of(recording))
    [delegate] = ops_of(recording, "delegate_task_to_members")
    assert [delegate.path] * 2 == [op.parent_op for op in ops_of(recording, "athens", "rome")]
    assert (4, "ok") == (recording.tree.session.totals.llm_requests, recording.tree.session.status)


def test_an_agent_that_runs_itself(recording):
    """An agent that a tool of its own runs is a session in the tool's op."""

    def again(city: str) -> str:
        """Ask again."""
        return agent.run(city).content

    agent = forecaster(scripted([asks_for("again")], "It rained", "It rains"), again)
    assert "It rains" == agent.run("Weather?").content
    assert ["forecaster", "forecaster->forecaster"] == paths_of(recording)
    assert ops_of(recording, "again")[0].path == ops_of(recording, "forecaster")[0].parent_op


def test_an_agent_in_a_tool(recording):
    """An agent that a tool runs is a session in the tool's op."""

    def ask_other(city: str) -> str:
        """Ask another agent."""
        return forecaster(scripted(f"rain in {city}"), name="other").run(city).content

    forecaster(scripted([asks_for("ask_other")], "It rains"), ask_other).run("Weather?")
    assert ["forecaster", "forecaster->other"] == paths_of(recording)
    assert ops_of(recording, "ask_other")[0].path == ops_of(recording, "other")[0].parent_op


class Polite(BaseGuardrail):
    """Refuses what is not polite."""

    def check(self, run_input):
        """Check it."""
        if "please" not in run_input.input_content:
            raise InputCheckError("say please", check_trigger=CheckTrigger.INPUT_NOT_ALLOWED)

    async def async_check(self, run_input):
        """Check it where that is awaited."""
        self.check(run_input)


@pytest.mark.parametrize("way", WAYS)
def test_guardrails_and_hooks(recording, way):
    """Guardrails and hooks are ops ahead of a run's calls and behind them; a refusal fails that of the guardrail, and the run."""
    seen = []

    def note(run_output):
        with optree.tool("archive"):
            seen.append(run_output.content.strip())

    agent = forecaster(scripted("It rains"), pre_hooks=[Polite()], post_hooks=[note])
    WAYS[way](agent, "Weather, please")
    WAYS[way](agent, "Weather!")
    assert ["It rains"] == seen
    first, second = roots_of(recording)
    assert ["guardrail Polite", "scripted", "hook note", "archive"] == [op.name for op in first.turns[0].ops]
    assert (first.turns[0].ops[2].path, "hook") == (first.turns[0].ops[3].parent_op, first.turns[0].ops[2].attributes["type"])
    [refused] = second.turns[0].ops
    assert ("guardrail Polite", "failed", "InputCheckError: say please") == (refused.name, refused.status, refused.error)
    assert ("failed", "say please", "ok") == (second.status, second.error, first.status)


def test_hooks_that_are_objects(recording):
    """A hook that is an object, of which Agno asks what it has, is called as it is without optree, and is no op."""
    seen = []

    class Note:
        def __call__(self, run_output):
            seen.append(run_output.content)

    forecaster(scripted("It rains"), post_hooks=[Note()]).run("Weather?")
    assert (["It rains"], ["scripted"]) == (seen, [op.name for op in ops_of(recording)])


@pytest.mark.parametrize("way", WAYS)
def test_knowledge_that_is_not_there(recording, way):
    """A look-up that raises is a failed op; Agno goes on without what was to be found."""

    def retrieve(query, **_more):
        raise ConnectionError(f"no line to {query}")

    WAYS[way](forecaster(scripted("It rains"), knowledge_retriever=retrieve, add_knowledge_to_context=True), "the almanac")
    [op] = ops_of(recording, "knowledge")
    assert ("failed", "ConnectionError: no line to the almanac", "network") == (op.status, op.error, op.attributes["error.type"])


def test_what_is_done_beside_a_run(recording):
    """What makes memories in a thread beside the run calls its model within the run."""
    memories = MemoryManager(model=scripted("nothing new"))
    agent = forecaster(scripted("It rains"), db=InMemoryDb(), update_memory_on_run=True, memory_manager=memories)
    with optree.session("another"):
        agent.run("Weather?", user_id="u-1")
    assert ["another", "another->forecaster"] == paths_of(recording)
    assert 2 == len(list(walk_sessions(recording.tree))[1].turns[0].ops)


@pytest.mark.parametrize("way", WAYS)
def test_knowledge(recording, way):
    """What is looked up for a prompt is a tool's op; a look-up that the model asks for is the call of that tool, and no second op."""

    def retrieve(query, **_more):
        return [{"content": f"it rains, says {query}"}]

    WAYS[way](forecaster(scripted("It rains"), knowledge_retriever=retrieve, add_knowledge_to_context=True), "the almanac")
    searching = scripted([asks_for("search_knowledge_base", '{"query": "rain"}')], "It rains")
    WAYS[way](forecaster(searching, knowledge_retriever=retrieve, search_knowledge=True), "Weather?")
    [op], [other] = ([op for op in session.turns[0].ops if op.kind == "tool"] for session in roots_of(recording))
    assert ("knowledge", {"query": "the almanac"}) == (op.name, decode(op.request.payload))
    assert [{"content": "it rains, says the almanac"}] == decode(op.response.payload)
    assert "search_knowledge_base" == other.name


@pytest.mark.captured("agno", "agents", "failed", added="one line", checks="calls")
@pytest.mark.parametrize("way", WAYS | EVENTS)
@pytest.mark.parametrize("kind", ["agent", "team"])
def test_a_run_that_failed(recording, way, kind):
    """A model that raises is a failed op, and its run failed too, though Agno raises nothing but says so."""
    agent = forecaster(scripted(ValueError(f"out of rain {KEY}")), id="forecaster")
    runner = agent if kind == "agent" else Team(name="desk", members=[agent], model=agent.model, telemetry=False)
    (WAYS | EVENTS)[way](runner, "Weather?")
    assert ("failed", "out of rain [REDACTED]") == (recording.tree.session.status, recording.tree.session.error)
    assert [("failed", "ValueError: out of rain [REDACTED]")] == [(op.status, op.error) for op in calls_of(recording)]


@pytest.mark.captured("agno", "agents", "cancelled", added="one line", checks="calls")
def test_a_run_that_is_cancelled(recording):
    """A run is cancelled by Agno's own means, or with its task, and so is the tool that is under way."""

    def leave(city: str) -> str:
        """Cancel the run."""
        Agent.cancel_run(city)
        return city

    def asking():
        return forecaster(scripted([asks_for("leave", '{"city": "r-1"}')], "It rains"), leave)

    asking().run("Weather?", run_id="r-1")
    list(asking().run("Weather?", run_id="r-1", stream=True))
    asyncio.run(read(asking().arun("Weather?", run_id="r-1", stream=True)))

    async def cancelled():
        begun = asyncio.Event()

        async def slow(city: str) -> str:
            """Wait."""
            begun.set()
            await asyncio.Event().wait()
            return city

        task = asyncio.create_task(forecaster(scripted([asks_for("slow")], "It rains"), slow).arun("Weather?"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ["cancelled"] * 4 == [session.status for session in roots_of(recording)]
    assert ["ok", "ok", "ok", "cancelled"] == [
        op.status for session in roots_of(recording) for op in session.turns[0].ops if op.kind == "tool"
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([Message(role="user", content="Hello"), Message(role="user", content="Weather?")], "Weather?"),
        ([{"role": "user", "content": "Weather?"}], "Weather?"),
        (Message(role="user", content="Weather?"), "Weather?"),
        ({"city": "Athens"}, '{"city":"Athens"}'),
    ],
)
def test_what_is_asked(recording, asked, said):
    """What the user says is found in a message, in the last of several, and in an object as its JSON."""
    forecaster(scripted("It rains")).run(asked)
    assert said == recording.tree.session.turns[0].prompts["user"]


def test_a_run_in_the_background(recording):
    """A run in the background is recorded where it runs, to its end."""

    async def run():
        begun = await forecaster(scripted("It rains"), db=InMemoryDb()).arun("Weather?", background=True)
        assert "PENDING" == begun.status.value
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run(run())
    assert ("ok", "It rains", 1) == (
        recording.tree.session.status, decode(recording.tree.session.final_report), recording.tree.session.totals.llm_requests,
    )  # fmt: skip
